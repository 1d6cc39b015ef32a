"""A foreign JSON Schema brought into the subset that every provider accepts.

    eased(schema) -> Eased(schema, widened, size)        SchemaSizeError, if it is beyond a limit

References are written out, a choice between null and something becomes a type that may be null, alternatives are
joined, and restrictions that the subset cannot say are left off. ``widened`` names each place where that made the
schema accept more; whoever runs the tool has to check the rest, as every server of tools does. The one rule: easing
only ever widens. An input that the foreign schema accepts is never refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.schema_limits import SchemaSize, find_reference, measure_schema, shorten_name
from dragoman.toolschema import ALLOWED, FORMATS, TYPES, fits_subset

_MAX_DEPTH: Final = 24
_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}
    | {"contentMediaType", "contentEncoding", "contentSchema", "discriminator", "example", "nullable"}
)
_UNIONS: Final = ("anyOf", "oneOf")
_WORDS: Final = ("title", "description", "default", "examples")


class Eased(msgspec.Struct, frozen=True):
    """A schema in the subset, and where it accepts more than the one it was made of."""

    schema: dict[str, Any]
    widened: tuple[str, ...] = ()
    size: SchemaSize = SchemaSize()  # of the schema that it was made of


def eased(schema: Mapping[str, Any]) -> Eased:
    """The schema of a tool's input, in the subset. It is measured first, and refused if it is too large."""
    size = measure_schema(schema)
    easing = _Easing(schema, size)
    made = easing.schema(schema, "$", ())
    made["type"] = "object"  # a tool's input is one, whether its schema says so or not
    return Eased(made, tuple(easing.widened), size)


class _Easing:
    def __init__(self, root: Mapping[str, Any], size: SchemaSize) -> None:
        self._root = root
        self._pattern_bytes = size.pattern_bytes
        self.widened: list[str] = []

    def schema(self, schema: Any, where: str, through: tuple[str, ...]) -> dict[str, Any]:
        """One schema. ``through`` are the references that led here: one that comes again would never end."""
        if not isinstance(schema, Mapping):  # true or false: anything, or nothing at all
            return {} if schema is True else self._wide(where, f"the schema {schema!r}")
        if len(through) > _MAX_DEPTH or where.count(".") > 2 * _MAX_DEPTH:
            return self._wide(where, "a schema nested too deep")
        made: dict[str, Any] = {}
        for keyword, value in schema.items():
            made.update(self._keyword(keyword, value, where))
        if made.get("type") == []:
            del made["type"]
        made = self._with_parts(made, schema, where, through)
        for others in self._others(schema, where, through):
            made = _both(made, others)
        if schema.get("nullable") is True and "type" in made:
            made = _either(made, {"type": "null"})
        return made

    def _wide(self, where: str, what: str) -> dict[str, Any]:
        self.widened.append(f"{where}: {what}")
        return {}

    def _keyword(self, keyword: str, value: Any, where: str) -> dict[str, Any]:
        """A keyword that stands alone, as the subset says it."""
        match keyword:
            case "properties" | "items" | "additionalProperties" | "$ref" | "allOf" | "anyOf" | "oneOf":
                return {}  # not alone: see below
            case "type":
                known = [name for name in (value if isinstance(value, list) else [value]) if name in TYPES]
                return {"type": known[0] if len(known) == 1 else list(dict.fromkeys(known))}
            case "exclusiveMinimum" | "exclusiveMaximum" if _is_number(value):
                self._wide(where, keyword)
                return {"minimum" if keyword == "exclusiveMinimum" else "maximum": value}
            case "format" if value not in FORMATS:
                return self._wide(where, f"the format {value!r}")
            case "required" if isinstance(value, list):
                return {"required": list(dict.fromkeys(name for name in value if isinstance(name, str)))}
            case _ if keyword in ALLOWED:
                is_in_subset = fits_subset(keyword, value, self._pattern_bytes)
                return {keyword: value} if is_in_subset else self._wide(where, keyword)
            case _:
                return {} if keyword in _ANNOTATIONS else self._wide(where, keyword)

    def _with_parts(
        self, made: dict[str, Any], schema: Mapping[str, Any], where: str, through: tuple[str, ...]
    ) -> dict[str, Any]:
        """With the schemas within it."""
        properties, items, rest = schema.get("properties"), schema.get("items"), schema.get("additionalProperties")
        if isinstance(properties, Mapping):
            made["properties"] = {
                str(name): self.schema(inner, f"{where}.properties.{shorten_name(name)}", through)
                for name, inner in properties.items()
            }
        if isinstance(items, Mapping) and "prefixItems" not in schema:
            made["items"] = self.schema(items, f"{where}.items", through)
        elif items is not None and items is not True:
            self._wide(where, "items")
        if isinstance(rest, Mapping):
            made["additionalProperties"] = True
            if rest:
                self._wide(where, "additionalProperties")
        elif isinstance(rest, bool):
            closed = rest is False and "patternProperties" not in schema
            made["additionalProperties"] = not closed
        return made

    def _others(self, schema: Mapping[str, Any], where: str, through: tuple[str, ...]) -> Iterable[dict[str, Any]]:
        """What else has to hold: what is referred to, all of ``allOf``, and one of each list of alternatives."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield self._referred(reference, where, through)
        for index, inner in enumerate(_list(schema.get("allOf"))):
            yield self.schema(inner, f"{where}.allOf[{index}]", (*through, ""))
        for keyword in _UNIONS:
            alternatives = [
                self.schema(inner, f"{where}.{keyword}[{index}]", (*through, ""))
                for index, inner in enumerate(_list(schema.get(keyword)))
            ]
            if alternatives:
                if not _is_plain_choice(alternatives):
                    self._wide(where, keyword)
                yield _any_of(alternatives)

    def _referred(self, reference: str, where: str, through: tuple[str, ...]) -> dict[str, Any]:
        if reference in through or not reference.startswith("#"):
            return self._wide(where, f"the reference {reference!r}")
        target = find_reference(self._root, reference)
        if target is None:
            return self._wide(where, f"the reference {reference!r}, which leads nowhere")
        return self.schema(target, where, (*through, reference))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _types(schema: Mapping[str, Any]) -> list[str]:
    told = schema.get("type", [])
    return [told] if isinstance(told, str) else list(told)


def _is_plain_choice(alternatives: list[dict[str, Any]]) -> bool:
    """Whether joining lost nothing: at most one of them says more than its type, and no type comes twice."""
    types = [name for one in alternatives for name in _types(one)]
    saying_more = [one for one in alternatives if set(one) - {"type", *_WORDS}]
    return all("type" in one for one in alternatives) and len(set(types)) == len(types) and len(saying_more) <= 1


# --- two schemas as one ----------------------------------------------------------------------------------------------


def _any_of(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Accepts what at least one of them accepts. Joined by halves: one by one, the joined one is copied each time."""
    if len(alternatives) == 1:
        return alternatives[0]
    half = len(alternatives) // 2
    return _either(_any_of(alternatives[:half]), _any_of(alternatives[half:]))


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Accepts what at least one of them accepts."""
    made: dict[str, Any] = {word: one.get(word, other.get(word)) for word in _WORDS if word in one or word in other}
    if "type" in one and "type" in other:
        types = list(dict.fromkeys([*_types(one), *_types(other)]))
        made["type"] = types[0] if len(types) == 1 else types
    ours, theirs = _values(one), _values(other)
    if ours is not None and theirs is not None:
        made["enum"] = list({json.dumps(value, sort_keys=True): value for value in (*ours, *theirs)}.values())
        return made
    for about, keywords in _ABOUT.items():
        made.update(_either_about(one, other, about, keywords))
    return made


# Restrictions, and the type that they are about: they say nothing about values of another type.
_ABOUT: Final = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum"),
}


def _either_about(
    one: Mapping[str, Any], other: Mapping[str, Any], about: str, keywords: tuple[str, ...]
) -> dict[str, Any]:
    for first, second in ((one, other), (other, one)):
        if not _may_be(second, about):  # then what the first says about it holds
            return {keyword: first[keyword] for keyword in keywords if keyword in first and _may_be(first, about)}
    made: dict[str, Any] = {}
    for keyword in keywords:
        if keyword in one and keyword in other:
            made.update(_either_keyword(keyword, one, other))
    if about == "object" and ("properties" in one or "properties" in other):
        names = {**one.get("properties", {}), **other.get("properties", {})}
        made["properties"] = {name: _either_property(name, one, other) for name in names}
    return made


def _may_be(schema: Mapping[str, Any], about: str) -> bool:
    values = _values(schema)
    if values is not None:
        return any(_type_of(value) == about for value in values)
    types = _types(schema)
    return not types or about in types or (about == "number" and "integer" in types)


def _type_of(value: Any) -> str:
    match value:
        case bool() | None:
            return "other"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _either_keyword(keyword: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = one[keyword], other[keyword]
    match keyword:
        case "required":
            return {keyword: [name for name in ours if name in theirs]}
        case "items":
            return {keyword: _either(ours, theirs)}
        case "additionalProperties":
            return {keyword: ours or theirs}
        case "minimum" | "minLength" | "minItems":
            return {keyword: min(ours, theirs)}
        case "maximum" | "maxLength" | "maxItems":
            return {keyword: max(ours, theirs)}
        case _:
            return {keyword: ours} if ours == theirs else {}


def _either_property(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A property of one of two kinds of objects, or of both.

    A kind that does not name it, and is open, accepts anything there. The words that a model reads are kept.
    """
    ours, theirs = one.get("properties", {}).get(name), other.get("properties", {}).get(name)
    if ours is not None and theirs is not None:
        return _either(ours, theirs)
    named, silent = (ours, other) if ours is not None else (theirs, one)
    assert named is not None
    if silent.get("additionalProperties") is False:
        return dict(named)
    return {word: named[word] for word in _WORDS if word in named}


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Accepts at least what both of them accept: the restrictions of each, where they can be said together."""
    made = {**other, **one}
    if "type" in one and "type" in other:
        types = [name for name in _types(one) if name in _types(other)] or _types(one)
        if "integer" in _types(other) and "number" in _types(one) and "integer" not in types:
            types.append("integer")
        made["type"] = types[0] if len(types) == 1 else types
    if "properties" in one and "properties" in other:
        shared = {
            name: _both(one["properties"][name], inner)
            for name, inner in other["properties"].items()
            if name in one["properties"]
        }
        made["properties"] = {**one["properties"], **other["properties"], **shared}
    if "required" in one and "required" in other:
        made["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    if ("properties" in one or "properties" in other) and made.get("additionalProperties") is False:
        made = _still_closed(made, one, other)
    return made


def _still_closed(made: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A closed object that the other part adds properties to: those are refused by the closed part, and stay so."""
    closed = [part for part in (one, other) if part.get("additionalProperties") is False]
    names = set.intersection(*(set(part.get("properties", {})) for part in closed))
    return {**made, "properties": {name: inner for name, inner in made["properties"].items() if name in names}}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None
