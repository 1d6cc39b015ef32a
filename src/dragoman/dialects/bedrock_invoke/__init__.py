"""Amazon Bedrock InvokeModel: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModel.html.

The model is part of the URL, and its provider defines the body: Claude uses Messages without a model, Nova uses the
bodies of Converse, other models those of Chat Completions or of Cohere, and older ones a prompt. The family of a body
is recognized by its keys; a request of another dialect is written for the family of its model, else for Claude. A
stream has frames of AWS, each with an event of the family in base64.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from dragoman.dialects import bedrock_converse
from dragoman.dialects.bedrock_invoke.families import NAME as NAME
from dragoman.dialects.bedrock_invoke.families import (
    family_from_notes,
    family_of_model,
    family_of_reply,
    family_of_request,
)
from dragoman.dialects.bedrock_invoke.stream import stream_reader as stream_reader
from dragoman.dialects.bedrock_invoke.stream import stream_writer as stream_writer
from dragoman.exchange import Fault, Reply, Request, Written
from dragoman.jsontext import accepts_json_text
from dragoman.wire.support import Support

if TYPE_CHECKING:
    from dragoman.catalog import Model

# Options without a field in the request body, and why nothing is lost.
IMPLIED_OPTIONS: Final = bedrock_converse.IMPLIED_OPTIONS
# The fields of a request depend on the family of its model; each family reports its own losses.
SUPPORT: Final = Support(
    documentation="https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModel.html"
)
BASES: Final = ("anthropic",)  # dialects whose own options it writes
_OWN_FIELDS: Final = ("anthropic_version", "schemaVersion", "inputText")
_LIMITS: Final = ("max_gen_len", "max_tokens_to_sample", "maxTokens", "max_tokens")  # beside a prompt


def looks_like(wire: dict[str, Any]) -> bool:
    """Return whether a request has the fields of this API. Its model is part of the URL."""
    has_prompt = "prompt" in wire and any(key in wire for key in _LIMITS)
    return "model" not in wire and (has_prompt or any(key in wire for key in _OWN_FIELDS))


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read the body of InvokeModel."""
    return family_of_request(body).read_request(body)


def write_request(
    request: Request, quirks: Collection[str] = (), model: Model | None = None, *, fit: bool = True
) -> Written:
    """Write the body of InvokeModel and report losses."""
    family = family_from_notes(request.provider_raw) or family_of_model(request.model)
    return family.write_request(request, quirks, model, fit=fit)


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read the body of a reply of InvokeModel."""
    return family_of_reply(body).read_reply(body)


def write_reply(reply: Reply) -> Written:
    """Write the body of a reply and report losses."""
    family = family_from_notes(reply.provider_raw) or family_of_model(reply.model)
    return family.write_reply(reply)


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    return bedrock_converse.read_error(status, headers, body).replace(provider=NAME)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    return bedrock_converse.write_error(fault)
