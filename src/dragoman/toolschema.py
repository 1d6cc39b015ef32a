"""The JSON Schema subset that every provider accepts, and validation of inputs and answers.

    tool_problems(definition)             all problems of a definition, each with its JSON path
    ToolSchemas(definitions)              valid tools by name; ``problems(name, input)`` validates a call
    value_problems(schema, value)         all problems of a value by any schema
    output_problems(format, text)         all problems of an answer that must be JSON or match a schema

A tool outside the subset fails at registration and not in a conversation with one provider. Validation follows JSON
Schema draft 7 and treats formats as assertions. Patterns run in linear time; patterns that the engine does not support
(look-around, back-references) are rejected. ``schema_limits`` checks the size of a schema first. Invariant: an unknown
schema keyword is an error.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dragoman.errors import InputError, JsonError, SchemaSizeError, ToolInputError, ToolSchemaError
from dragoman.exchange import ResponseFormat, ToolDefinition
from dragoman.jsontext import read_json
from dragoman.rules import is_tool_name
from dragoman.schema_limits import MAX_PATTERN_BYTES, measure_schema, shorten_name

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
_NAME: Final = re.compile(rf"{_PART}(?:__{_PART})?")  # name of a tool, or of a server and a tool
_MAX_NAME_LENGTH: Final = 64


def tool_problems(tool: ToolDefinition, *, is_foreign: bool = False) -> tuple[str, ...]:
    """Return all problems of a definition with their path; empty if it can be registered.

    The name of a foreign tool may be any that every provider accepts.
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
    try:
        size = measure_schema(tool.input_schema)
    except SchemaSizeError as error:
        return (*problems, f"{error.where}: {error.what}")
    problems.extend(_schema_problems(tool.input_schema, "$", size.pattern_bytes))
    return _first(problems)


class ToolSchemas:
    """Registered tools, by name."""

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._definitions: dict[str, ToolDefinition] = {}
        self._validators: dict[str, _Validator] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, tool: ToolDefinition, *, is_foreign: bool = False) -> None:
        """Register a tool, or raise ``ToolSchemaError`` with all problems."""
        problems = tool_problems(tool, is_foreign=is_foreign)
        if tool.name in self._definitions:
            problems = (f"name: {tool.name!r} is already registered", *problems)
        if problems:
            raise ToolSchemaError(tool.name, problems)
        own = tool.replace(
            input_schema=copy.deepcopy(tool.input_schema)
        )  # the caller cannot change the registered schema
        self._definitions[tool.name] = own
        self._validators[tool.name] = _Validator(own.input_schema)

    @property
    def definitions(self) -> Mapping[str, ToolDefinition]:
        """The tools in the order of registration."""
        return dict(self._definitions)

    def problems(self, name: str, input: dict[str, Any]) -> tuple[str, ...]:  # noqa: A002
        """Return all problems of the input of a call. An unknown tool has none."""
        validator = self._validators.get(name)
        return () if validator is None else validator.problems(input)

    def check_input(self, name: str, input: dict[str, Any]) -> None:  # noqa: A002
        """Raise ``ToolInputError`` unless the input is valid."""
        problems = self.problems(name, input)
        if problems:
            raise ToolInputError(name, problems)


def output_problems(response_format: ResponseFormat | None, text: str) -> tuple[str, ...]:
    """Return all problems of an answer with a requested format; empty if it is valid.

    The schema may use all of JSON Schema. References to other documents are not fetched and are a problem.
    """
    if response_format is None or response_format.kind == "text":
        return ()
    try:
        value = read_json(text)
        if response_format.kind == "json":
            return ()
        return value_problems(response_format.json_schema or {}, value)
    except JsonError as error:
        return (f"$: the answer is not JSON: {error}",)
    except InputError as error:
        return (f"$: the schema cannot be used ({error})",)


def value_problems(schema: Any, value: Any) -> tuple[str, ...]:
    """Return all problems of a value by a schema of any draft; empty if it is valid.

    Raises ``SchemaSizeError`` for a schema beyond a limit and ``ToolSchemaError`` for an invalid one.
    """
    return _Validator(schema, is_subset=False).problems(value)


class _Validator:
    """A compiled schema with bounded validation time.

    The library collects all errors of a value before it returns the first, and errors within alternatives multiply.
    ``problems`` therefore calls ``is_valid`` first, in linear time, and lists errors only if their number is bounded.
    """

    def __init__(self, schema: Any, *, is_subset: bool = True) -> None:
        # Imported at the first registration: the library takes as long to load as the rest of this package.
        import jsonschema_rs  # noqa: PLC0415

        self._size = measure_schema(schema)
        self._is_subset = is_subset
        factory = jsonschema_rs.Draft7Validator if is_subset else jsonschema_rs.validator_for
        try:
            self._compiled = factory(schema, **_validator_options(self._size.pattern_bytes))
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise ToolSchemaError("", (_truncate(f"$: {error}"),)) from None

    def problems(self, value: Any) -> tuple[str, ...]:
        """Return all problems of a value, or as many as bounded time allows."""
        try:
            if self._compiled.is_valid(value):
                return ()
            if not self._size.is_recursive and self._size.values * _count_values(value) <= _MAX_CHECKS:
                return _problems(self._compiled.iter_errors(value))
            return self._first_problem(value) if self._is_subset else ("$: it does not match the schema",)
        except UnicodeEncodeError:
            return ("$: a lone surrogate in a text",)

    def _first_problem(self, value: Any) -> tuple[str, ...]:
        """Return the first error of a schema without alternatives."""
        import jsonschema_rs  # noqa: PLC0415

        try:
            self._compiled.validate(value)
        except jsonschema_rs.ValidationError as error:
            return _problems([error])
        return ()


def _validator_options(pattern_bytes: int) -> dict[str, Any]:
    import jsonschema_rs  # noqa: PLC0415

    options = jsonschema_rs.RegexOptions(size_limit=pattern_bytes)
    return {"validate_formats": True, "formats": _LATER_FORMATS, "pattern_options": options, "offline": True}


def _count_values(value: Any) -> int:
    """Return an upper bound for the number of values."""
    text = json.dumps(value)
    return 1 + text.count(",") + text.count(":") + text.count("[") + text.count("{")


def _problems(errors: Iterable[Any]) -> tuple[str, ...]:
    """Return the first problems, each short enough for a model."""
    return _first(f"{_path(error.instance_path)}: {_truncate(error.message)}" for error in errors)


def _first(problems: Iterable[str]) -> tuple[str, ...]:
    result = tuple(itertools.islice(problems, _MAX_PROBLEMS + 1))
    return (*result[:_MAX_PROBLEMS], "$: and more") if len(result) > _MAX_PROBLEMS else result


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


_MAX_PROBLEMS: Final = 50
_MAX_MESSAGE: Final = 300
_MAX_CHECKS: Final = 200_000  # values of the schema times values of the input, up to which all errors are listed
_MAX_CACHED_PATTERN: Final = 1000  # characters


# Formats of later drafts that providers support.
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


def _schema_problems(schema: Any, where: str, pattern_bytes: int) -> Iterable[str]:
    if not isinstance(schema, dict):
        yield f"{where}: a schema is an object, not {_truncate(repr(schema))}"
        return
    for keyword, value in schema.items():
        if keyword in REFUSED:
            yield f"{where}: {keyword!r} is not accepted by every provider"
        elif keyword not in ALLOWED:
            yield f"{where}: unknown keyword {_truncate(repr(keyword))}"
        elif not fits_subset(keyword, value, pattern_bytes):
            yield f"{where}.{keyword}: {_truncate(repr(value))} is not {ALLOWED[keyword]}"
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            yield from _schema_problems(inner, f"{where}.properties.{shorten_name(name)}", pattern_bytes)
    if isinstance(schema.get("items"), dict):
        yield from _schema_problems(schema["items"], f"{where}.items", pattern_bytes)


def fits_subset(keyword: str, value: Any, pattern_bytes: int = MAX_PATTERN_BYTES) -> bool:
    """Whether a value is allowed for a keyword of the subset. Nested ``properties`` are not checked."""
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
            return isinstance(value, str) and _compiles(value, pattern_bytes)
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


def _compiles(pattern: str, pattern_bytes: int) -> bool:
    """Whether a pattern takes linear time, and its compiled form has at most this size."""
    check = _compiles_short if len(pattern) <= _MAX_CACHED_PATTERN else _compiles_short.__wrapped__
    return check(pattern, pattern_bytes)


@functools.lru_cache(maxsize=1024)  # a tool is checked several times, and in every run; one pattern can take 5 ms
def _compiles_short(pattern: str, pattern_bytes: int) -> bool:
    import jsonschema_rs  # noqa: PLC0415

    try:
        jsonschema_rs.Draft7Validator({"pattern": pattern}, **_validator_options(pattern_bytes))
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True
