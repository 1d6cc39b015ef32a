"""Python types as JSON Schemas, and JSON values as instances of these types.

    schema_of(City)                    the JSON Schema of a type
    convert_value(value, City)         a JSON value as a City; ``ValueError`` with the place of the problem

A type is anything that msgspec supports (dataclasses, structs, TypedDicts, enums, lists, numbers …) or a pydantic
model, also as a field of another type. pydantic is not imported: a class that has its methods is one of its models.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_REFERENCE: Final = "#/$defs/"


def is_pydantic_model(cls: Any) -> bool:
    """Whether a type is a pydantic model."""
    return isinstance(cls, type) and hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate")


def schema_of(cls: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, without references except to recursive types."""
    if is_pydantic_model(cls):
        return _inline(cls.model_json_schema())
    return _inline(msgspec.json.schema(cls, schema_hook=_pydantic_schema))


def convert_value(value: Any, cls: Any) -> Any:
    """Convert a JSON value to a type. ``ValueError`` if it does not fit."""
    if is_pydantic_model(cls):
        return cls.model_validate(value)  # its error is a ValueError
    return msgspec.convert(value, cls, dec_hook=_pydantic_value)


def _pydantic_schema(cls: type) -> dict[str, Any]:
    if is_pydantic_model(cls):
        return schema_of(cls)
    raise NotImplementedError  # msgspec names the type


def _pydantic_value(cls: type, value: Any) -> Any:
    if is_pydantic_model(cls):
        return convert_value(value, cls)
    raise NotImplementedError


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace each reference by its definition. Definitions of recursive types stay."""
    definitions = schema.get("$defs", {})
    kept: set[str] = set()
    result = _expand({key: value for key, value in schema.items() if key != "$defs"}, definitions, (), kept)
    defined: dict[str, Any] = {}
    while names := kept - set(defined):
        for name in names:
            defined[name] = _expand(definitions[name], definitions, (name,), kept)
    return {**result, "$defs": defined} if defined else result


def _expand(part: Any, definitions: Mapping[str, Any], path: tuple[str, ...], kept: set[str]) -> Any:
    if isinstance(part, list):
        return [_expand(item, definitions, path, kept) for item in part]
    if not isinstance(part, dict):
        return part
    name = str(part.get("$ref", "")).removeprefix(_REFERENCE)
    if name in path:
        kept.add(name)
        return dict(part)
    if name in definitions:
        rest = {key: value for key, value in part.items() if key != "$ref"}
        return {**_expand(copy.deepcopy(definitions[name]), definitions, (*path, name), kept), **rest}
    return {key: _expand(value, definitions, path, kept) for key, value in part.items()}
