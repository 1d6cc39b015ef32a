"""From the interrupts of a run to the requested inputs of a letter, and from its answer to the decisions.

    requested_inputs(interrupts)                 one input for each value that a person must enter
    resume_from(interrupts, answer)              the decisions, for ``RunInput.resume``

A call that needs approval asks for one boolean. A question of ``ask_user`` asks for each of its values. With several
interrupts, an input id starts with the number of its interrupt. Invariant: both functions derive the same ids from the
same interrupts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dragoman.letters import TaskResultLetter
from dragoman.redaction import redact
from dragoman.server.runs.agui_encoder import INPUT_REQUIRED
from dragoman.server.runs.run_input import InputResume
from dragoman.transcripts.base import KEY

_APPROVED: Final = "approved"
_MAX_DESCRIPTION: Final = 2_000
_TYPES: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}

Interrupt = Mapping[str, Any]


def requested_inputs(interrupts: Sequence[Interrupt]) -> list[dict[str, Any]]:
    """The inputs that the interrupts of a run wait for."""
    return [
        {"id": input_id, **_describe(interrupt, name)}
        for interrupt, names in _input_names(interrupts)
        for name, input_id in names.items()
    ]


def needs_approval(interrupts: Sequence[Interrupt]) -> bool:
    """Whether a person must approve a call."""
    return any(interrupt["reason"] != INPUT_REQUIRED for interrupt in interrupts)


def resume_from(interrupts: Sequence[Interrupt], answer: TaskResultLetter) -> tuple[InputResume, ...]:
    """The decisions of an answer. An answer whose status is not ``success`` declines."""
    inputs = answer.payload.result.inputs or {}
    is_declined = answer.payload.status != "success"
    return tuple(
        InputResume(interrupt["id"], "cancelled")
        if is_declined
        else InputResume(
            interrupt["id"],
            "resolved",
            {name: inputs[input_id] for name, input_id in names.items() if input_id in inputs},
        )
        for interrupt, names in _input_names(interrupts)
    )


def _input_names(interrupts: Sequence[Interrupt]) -> list[tuple[Interrupt, dict[str, str]]]:
    """The interrupts with their value names, and the input id of each."""
    has_many = len(interrupts) > 1
    return [
        (interrupt, {name: f"{number}.{name}" if has_many else name for name in _value_names(interrupt)})
        for number, interrupt in enumerate(interrupts, 1)
    ]


def _value_names(interrupt: Interrupt) -> list[str]:
    return list(interrupt["responseSchema"]["properties"]) if interrupt["reason"] == INPUT_REQUIRED else [_APPROVED]


def _describe(interrupt: Interrupt, name: str) -> dict[str, Any]:
    """The type and the description of an input."""
    schema = interrupt["responseSchema"]
    field = schema["properties"][name]
    if interrupt["reason"] != INPUT_REQUIRED:
        call = interrupt["metadata"][KEY]
        arguments = redact(msgspec.json.encode(call["input"]).decode())
        return {"type": "boolean", "description": f"May {call['name']} be run with {arguments}?"[:_MAX_DESCRIPTION]}
    is_optional = {} if name in schema.get("required", ()) else {"required": False}
    description = str(field.get("description") or interrupt["message"])[:_MAX_DESCRIPTION]
    if options := field.get("enum"):
        return {"type": "enum", "options": options, "description": description, **is_optional}
    return {"type": _TYPES.get(field.get("type", "string"), "string"), "description": description, **is_optional}
