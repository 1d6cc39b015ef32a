"""Gemini Interactions: https://ai.google.dev/gemini-api/docs/interactions.

Read in November 2026, with the types of google-genai 3.1. Input and output are lists of steps: user input,
thoughts and output of the model, calls and results of functions, and calls that the provider runs itself, which are
opaque blocks. Earlier versions call the output ``outputs`` and its items have no steps around them; they are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects import gemini
from dragoman.dialects.gemini_interactions.reply import read_reply as read_reply
from dragoman.dialects.gemini_interactions.reply import write_reply as write_reply
from dragoman.dialects.gemini_interactions.request import read_request as read_request
from dragoman.dialects.gemini_interactions.request import write_request as write_request
from dragoman.dialects.gemini_interactions.steps import NAME as NAME
from dragoman.dialects.gemini_interactions.stream_reader import stream_reader as stream_reader
from dragoman.dialects.gemini_interactions.stream_writer import stream_writer as stream_writer
from dragoman.dialects.gemini_interactions.support import SUPPORT as SUPPORT
from dragoman.exchange import Fault, Written

# Options without a field in the request, and why nothing is lost.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced",
}
_OWN_FIELDS: Final = ("generation_config", "system_instruction", "previous_interaction_id", "agent", "agent_config")
_OWN_STEPS: Final = ("user_input", "model_output", "thought", "function_result")


def looks_like(wire: dict[str, Any]) -> bool:
    """Return whether a request has the fields of this API."""
    entered = wire.get("input")
    steps = entered if isinstance(entered, list) else []
    has_steps = any(isinstance(step, dict) and step.get("type") in _OWN_STEPS for step in steps)
    return has_steps or (entered is not None and any(key in wire for key in _OWN_FIELDS))


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    return gemini.read_error(status, headers, body).replace(provider=NAME)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    return gemini.write_error(fault)
