"""What a tool accepts: the JSON Schema subset that every provider takes, and the check of an input against it.

    problems_of_tool(definition)          everything wrong with a definition, each with its JSON path
    Toolbox(definitions)                  tools that passed, by name; problems(name, input) for a call

A tool outside the subset fails when it is registered, not in the middle of a conversation with the one provider that
minds. Validation follows JSON Schema draft 7 and treats formats as assertions. Patterns run on an engine that takes
linear time whatever the pattern is; what that engine cannot do (look-around, back-references) is refused with the
schema. The one rule: a schema keyword that is not on the list is an error, never ignored.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.errors import ToolInputError, ToolSchemaError
from dragoman.exchange import ToolDefinition
from dragoman.rules import is_tool_name

TYPES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
FORMATS: Final = (
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
)
ALLOWED: Final = {
    "type": "a type or a list of types",
    "properties": "an object of schemas",
    "required": "a list of property names",
    "items": "one schema",
    "enum": "a list with at least one value",
    "const": "any value",
    "description": "a text",
    "title": "a text",
    "default": "any value",
    "examples": "a list",
    "format": f"one of {', '.join(FORMATS)}",
    "pattern": "a regular expression of moderate size, without look-around and back-references",
    "minimum": "a number",
    "maximum": "a number",
    "minLength": "a whole number from 0",
    "maxLength": "a whole number from 0",
    "minItems": "a whole number from 0",
    "maxItems": "a whole number from 0",
    "additionalProperties": "true or false",
}
REFUSED: Final = (
    "$ref",
    "oneOf",
    "anyOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
)
_PART: Final = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*"
_NAME: Final = re.compile(rf"{_PART}(?:__{_PART})?")  # a tool's, or a server's and a tool's
_MAX_NAME_LENGTH: Final = 64


def problems_of_tool(tool: ToolDefinition, *, is_foreign: bool = False) -> tuple[str, ...]:
    """Everything wrong with a definition, each with its place; empty if it can be registered.

    A foreign tool has the name that somebody else gave it: any that every provider takes.
    """
    problems = []
    if is_foreign:
        if is_tool_name(tool.name) is None:
            problems.append(
                f"name: {tool.name!r} is not a letter or _, and at most 63 letters, digits, _ and - behind it"
            )
    elif _NAME.fullmatch(tool.name) is None or len(tool.name) > _MAX_NAME_LENGTH:
        problems.append(f"name: {tool.name!r} is not snake_case of at most {_MAX_NAME_LENGTH} characters")
    if tool.input_schema.get("type") != "object":
        problems.append("$: a tool's input is an object, so the schema needs type 'object'")
    problems.extend(_problems_of_schema(tool.input_schema, "$"))
    return tuple(problems)


class Toolbox:
    """Registered tools, by name."""

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._definitions: dict[str, ToolDefinition] = {}
        self._validators: dict[str, Any] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, tool: ToolDefinition, *, is_foreign: bool = False) -> None:
        """Register a tool, or raise ``ToolSchemaError`` with everything that is wrong with it."""
        problems = problems_of_tool(tool, is_foreign=is_foreign)
        if tool.name in self._definitions:
            problems = (f"name: {tool.name!r} is registered already", *problems)
        if problems:
            raise ToolSchemaError(tool.name, problems)
        own = tool.replace(input_schema=copy.deepcopy(tool.input_schema))  # nobody else can change it any more
        self._definitions[tool.name] = own
        self._validators[tool.name] = _validator(own.input_schema)

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]:
        """The tools, in the order in which they were registered."""
        return dict(self._definitions)

    def problems(self, name: str, input: dict[str, Any]) -> tuple[str, ...]:  # noqa: A002
        """Everything wrong with the input of a call. A tool that is not here has no schema to break."""
        validator = self._validators.get(name)
        try:
            if validator is None or validator.is_valid(input):
                return ()
            return _problems(validator.iter_errors(input))
        except UnicodeEncodeError:
            return ("$: a lone surrogate in a text",)

    def check_input(self, name: str, input: dict[str, Any]) -> None:  # noqa: A002
        """Raise ``ToolInputError`` unless the input fits."""
        problems = self.problems(name, input)
        if problems:
            raise ToolInputError(name, problems)


def _problems(errors: Iterable[Any]) -> tuple[str, ...]:
    """The first of them, each of a length that can be shown to a model."""
    found = [
        f"{_path(error.instance_path)}: {_cut(error.message)}" for error in itertools.islice(errors, _MAX_PROBLEMS + 1)
    ]
    return (*found[:_MAX_PROBLEMS], "$: and more") if len(found) > _MAX_PROBLEMS else tuple(found)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


_MAX_PROBLEMS: Final = 50
_MAX_MESSAGE: Final = 300


def _validator(schema: dict[str, Any]) -> Any:
    # Imported when a tool is first registered: the library takes as long to load as the rest of this package.
    import jsonschema_rs  # noqa: PLC0415

    return jsonschema_rs.Draft7Validator(
        schema, validate_formats=True, formats=_LATER_FORMATS, pattern_options=jsonschema_rs.RegexOptions()
    )


# Formats that draft 7 does not have yet, and providers have.
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DURATION: Final = re.compile(
    r"P(?:[0-9]+W|(?=[0-9T])(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+D)?(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+S)?)?)"
)
_LATER_FORMATS: Final = {
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
}


def _path(steps: Iterable[str | int]) -> str:
    return functools.reduce(
        lambda path, step: f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}", steps, "$"
    )


# --- the subset ------------------------------------------------------------------------------------------------------


def _problems_of_schema(schema: Any, where: str) -> Iterable[str]:
    if not isinstance(schema, dict):
        yield f"{where}: a schema is an object, not {schema!r}"
        return
    for keyword, value in schema.items():
        if keyword in REFUSED:
            yield f"{where}: {keyword!r} is not accepted by every provider"
        elif keyword not in ALLOWED:
            yield f"{where}: unknown keyword {keyword!r}"
        elif not _fits(keyword, value):
            yield f"{where}.{keyword}: {value!r} is not {ALLOWED[keyword]}"
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            yield from _problems_of_schema(inner, f"{where}.properties.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _problems_of_schema(schema["items"], f"{where}.items")


def _fits(keyword: str, value: Any) -> bool:
    match keyword:
        case "type":
            names = value if isinstance(value, list) else [value]
            return bool(names) and all(name in TYPES for name in names) and len(set(names)) == len(names)
        case "properties" | "items":
            return isinstance(value, dict)
        case "required":
            return _is_list_of_names(value)
        case "enum":
            return isinstance(value, list) and bool(value)
        case "examples":
            return isinstance(value, list)
        case "description" | "title":
            return isinstance(value, str)
        case "format":
            return value in FORMATS
        case "pattern":
            return isinstance(value, str) and _is_linear_pattern(value)
        case "minimum" | "maximum":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "minLength" | "maxLength" | "minItems" | "maxItems":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "additionalProperties":
            return isinstance(value, bool)
        case _:  # const, default: any value
            return True


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_linear_pattern(pattern: str) -> bool:
    import jsonschema_rs  # noqa: PLC0415

    try:
        _validator({"pattern": pattern})
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True
