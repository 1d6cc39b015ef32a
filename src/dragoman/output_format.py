"""Structured output: the format that an answer must have, and the answer as a value of a Python type.

    output = output_from(City)           a dataclass, a struct, a pydantic model, another type, or a JSON Schema
    output.response_format               for the request
    output.parse(text)                   the value, or ``OutputError`` with all problems

A schema that comes from a type is sent in the part of JSON Schema that every provider enforces: objects are closed, all
their fields are required, and other limits are in the descriptions. The answer is validated against all of it. A type
that is no object, such as a list, is sent as an object with the field ``value``. A JSON Schema is sent unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from dragoman.errors import InputError, JsonError
from dragoman.exchange import ResponseFormat
from dragoman.jsontext import read_json
from dragoman.toolschema import output_problems
from dragoman.type_schema import convert_value, schema_of

T = TypeVar("T")

_VALUE: Final = "value"  # the field of a value that is no object
_LIMITS: Final = (  # of values: no provider enforces all of them
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "format",
    "default",
)


class OutputError(Exception):
    """An answer that does not fit; ``problems`` has one text for each problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Output(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The format of an answer."""

    response_format: ResponseFormat  # for the request
    checked_format: ResponseFormat  # for the answer: with the limits that are not sent
    type: Any = None  # of the parsed value; none for a JSON Schema: its value is the JSON
    is_wrapped: bool = False  # the value is a field of an object

    def problems(self, text: str) -> tuple[str, ...]:
        """Return all problems of an answer; empty if it fits."""
        try:
            self.parse(text)
        except OutputError as error:
            return error.problems
        return ()

    def parse(self, text: str) -> T:
        """Return the value of an answer. Raises ``OutputError`` if it does not fit."""
        problems = output_problems(self.checked_format, text)
        if problems:
            raise OutputError(problems)
        try:
            value = read_json(text)
            value = value[_VALUE] if self.is_wrapped else value
            result: T = value if self.type is None else convert_value(value, self.type)
        except (JsonError, ValueError) as error:  # constraints outside the schema, such as a validator of pydantic
            raise OutputError((f"$: {error}",)) from None
        return result


def output_from(output: Any) -> Output[Any]:
    """Return the format for a type or a JSON Schema. Raises ``InputError`` for anything else."""
    if isinstance(output, Mapping):
        checked = ResponseFormat("json_schema", dict(output), _schema_name(str(output.get("title", ""))))
        return Output(response_format=checked.replace(name=None), checked_format=checked)
    try:
        schema = schema_of(output)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{output!r} has no JSON Schema ({error})",
            where="output",
            remedy="Use a dataclass, a msgspec Struct, a pydantic model or a JSON Schema",
        ) from None
    is_wrapped = schema.get("type") != "object"
    if is_wrapped:
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE], **definitions}
    sent = _close(schema)
    return Output(
        response_format=ResponseFormat("json_schema", sent, strict=True if _is_closed(sent) else None),
        checked_format=ResponseFormat("json_schema", schema),
        type=output,
        is_wrapped=is_wrapped,
    )


def _schema_name(title: str) -> str | None:
    return re.sub(r"[^A-Za-z0-9_-]", "_", title)[:64] or None


def _close(schema: Any) -> Any:
    """The schema with closed objects, whose fields are all required, and with its limits in the descriptions."""
    if isinstance(schema, list):
        return [_close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: value for key, value in schema.items() if key not in _LIMITS}
    limits = ", ".join(f"{key}: {schema[key]}" for key in _LIMITS if key in schema and key != "default")
    if limits:
        result["description"] = f"{schema.get('description', '')} ({limits})".strip()
    for key in ("properties", "$defs"):
        if isinstance(schema.get(key), dict):
            result[key] = {name: _close(inner) for name, inner in schema[key].items()}
    for key in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
        if key in schema:
            result["anyOf" if key == "oneOf" else key] = _close(schema[key])
    result.pop("oneOf", None)
    if isinstance(result.get("properties"), dict):
        result["required"] = list(result["properties"])
        result.setdefault("additionalProperties", False)
    return result


def _is_closed(schema: Any) -> bool:
    """Whether every object is closed, which providers require to enforce a schema."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return False
    parts = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return _is_closed([*parts, *(schema[key] for key in ("items", "anyOf", "allOf") if key in schema)])
