"""Validate an answer against the requested inputs.

    answer_problems(request, inputs)      all problems with their path; empty if the answer is valid

A value must have the type of its input and, if the input has ``options``, be one of them. Required inputs without a
default must be present, and no others may be. Invariant: no problem quotes a value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import UNSET

from dragoman.letters.codec import Problem
from dragoman.letters.types import InputRequest, RequestedInput

INVALID_ANSWER: Final = "invalid_answer"
_WHERE: Final = "$.payload.result.inputs"
_EXPECTED: Final = {
    "string": "a text",
    "number": "a number",
    "boolean": "true or false",
    "enum": "a text, a number, true or false",
    "file": "a text or an object",
}


def answer_problems(request: InputRequest, inputs: Mapping[str, Any], *, is_complete: bool = True) -> list[Problem]:
    """Return all problems of an answer. An incomplete answer may omit required inputs."""
    return list(_problems(request, inputs, is_complete))


def _problems(request: InputRequest, inputs: Mapping[str, Any], is_complete: bool) -> Iterator[Problem]:
    for requested in request.requested_inputs:
        place = f"{_WHERE}.{requested.id}" if requested.id.isidentifier() else f"{_WHERE}[{requested.id[:100]!r}]"
        if requested.id in inputs:
            if not _fits(requested, inputs[requested.id]):
                what = f"expected {_describe_input(requested)}, got {_kind_of(inputs[requested.id])}"
                yield Problem(place, what, INVALID_ANSWER)
        elif is_complete and requested.is_required and requested.default is UNSET:
            yield Problem(place, f"is missing; expected {_describe_input(requested)}", INVALID_ANSWER)
    ids = {requested.id for requested in request.requested_inputs}
    if others := len(inputs.keys() - ids):
        what = f"expected the ids that were asked for alone, got {others} other{'s' if others > 1 else ''}"
        yield Problem(_WHERE, what, INVALID_ANSWER)


def _fits(requested: RequestedInput, value: Any) -> bool:
    if requested.options:
        return any(_is_same(option, value) for option in requested.options)
    match requested.type:
        case "string":
            return isinstance(value, str)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "enum":
            return isinstance(value, str | int | float)
        case "file":
            return isinstance(value, str | dict)


def _is_same(option: Any, value: Any) -> bool:
    """Whether two values are equal in JSON, where 1 equals 1.0 and true does not equal 1."""
    return isinstance(option, bool) == isinstance(value, bool) and bool(option == value)


def _describe_input(requested: RequestedInput) -> str:
    if requested.options:
        return f"one of the {len(requested.options)} options" if len(requested.options) > 1 else "the only option"
    return _EXPECTED[requested.type]


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value else "an empty text"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
