"""Read and write letters, strictly.

    read_letter(data) -> Letter     ``JsonError``, or ``LetterError`` with all problems
    read_stored_letter(data)        the same for letters that were accepted before
    write_letter(letter) -> bytes   canonical JSON: fixed order of fields, absent fields omitted
    validate_letter(letter)         the letter as its recipient reads it, and its JSON
    find_warnings(letter)           warnings about a valid letter
    hints_from(data)                sender, recipient and task of invalid input, if they can be read

Writing a letter that was read restores it: no field is added or dropped, numbers keep their notation, and unknown
fields keep their bytes. Invariant: no problem quotes a text of the letter, which may be a secret in the wrong field.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dragoman.errors import InputError, JsonError, LetterError
from dragoman.jsontext import check_structure, encode_utf8, read_json, validate_json
from dragoman.letters.types import (
    KINDS,
    PROTOCOL_VERSION,
    AnyLetter,
    ErrorReport,
    InputRequest,
    KnownContext,
    Letter,
    LetterId,
    Name,
    Result,
    TaskResult,
    Time,
    Version,
)
from dragoman.value import UnknownFields, Value, encode

INVALID: Final = "invalid_letter"
_DECODER: Final = msgspec.json.Decoder(AnyLetter)
_MAJOR: Final = PROTOCOL_VERSION.partition(".")[0]
_TOLERANCE_MS: Final = (
    10.0  # allowed difference of two durations of one task, absolute or relative, whichever is larger:
)
_TOLERANCE_SHARE: Final = 0.01  # seconds are rounded, and the two may be measured one after the other
_LARGE: Final = 64 * 1024  # for larger input, the number of values is checked before parsing


class Problem(msgspec.Struct, frozen=True):
    """A problem and its JSON path."""

    where: str
    what: str
    code: str = INVALID

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


# --- reading ---------------------------------------------------------------------------------------------------------


def read_letter(data: bytes | str) -> Letter:
    """Return the letter of a JSON text."""
    if len(data) > _LARGE:
        check_structure(encode_utf8(data) if isinstance(data, str) else data)
    letter = read_stored_letter(data)
    if problems := find_contradictions(letter):
        raise letter_error(problems)
    return letter


def read_stored_letter(data: bytes | str) -> Letter:
    """Read a letter that was accepted before. Earlier versions accepted contradicting durations."""
    try:
        letter: Letter = _DECODER.decode(data)
        # Equal bytes prove that no key was duplicated and nothing was dropped.
        if encode(letter) == data and letter.protocol_version.startswith(f"{_MAJOR}.") and not find_problems(letter):
            return letter
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InputError):
        pass  # the general reader describes the problem
    return _read_general(encode_utf8(data) if isinstance(data, str) else data)


def letter_from(plain: Mapping[str, Any]) -> Letter:
    """Return the letter of a parsed JSON object."""
    try:
        if type(plain) is dict:
            validate_json(plain, "expected JSON")
            return validate_letter(msgspec.convert(plain, AnyLetter))[0]
    except (ValueError, RecursionError, InputError):  # includes ValidationError
        pass  # the general reader describes the problem
    try:
        return read_letter(json.dumps(plain, ensure_ascii=False, allow_nan=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonError(f"it cannot be written as JSON ({error})") from None


def _read_general(data: bytes) -> Letter:
    try:
        plain = read_json(data)
    except JsonError:
        _reject_nan_score(data)
        raise
    if not isinstance(plain, dict):
        raise letter_error([Problem("$", f"expected an object, got {_describe_value(plain)}")])
    kind = _kind(plain)
    _check_version(plain)
    reader = _LetterReader()
    letter = reader.read_object(kind, data.strip(), "$")
    if letter is None or reader.problems:
        raise letter_error(reader.problems)
    if problems := find_problems(letter):
        raise letter_error(problems)
    result: Letter = letter
    return result


def _kind(plain: dict[str, Any]) -> type[Letter]:
    value, expected_types = plain.get("type"), ", ".join(KINDS)
    if "type" not in plain:
        raise letter_error([Problem("$.type", f"is missing; expected one of {expected_types}")])
    if not isinstance(value, str):
        raise letter_error([Problem("$.type", f"expected one of {expected_types}, got {_describe_value(value)}")])
    if value not in KINDS:
        raise letter_error(
            [Problem("$.type", f"expected one of {expected_types}, got another text", code="unknown_letter_type")]
        )
    return KINDS[value]


def _check_version(plain: dict[str, Any]) -> None:
    """Reject another major version first, because other fields may have another meaning in it."""
    try:
        version: str = msgspec.convert(plain.get("protocol_version"), Version)
    except msgspec.ValidationError:
        return  # reported together with the other problems
    if version.partition(".")[0] != _MAJOR:
        what = f"expected {_MAJOR}.x, got {version}"
        raise letter_error([Problem("$.protocol_version", what, code="unsupported_protocol_version")])


def letter_error(problems: list[Problem]) -> LetterError:
    """Return the error for a list of problems."""
    codes = {problem.code for problem in problems}
    code = codes.pop() if len(codes) == 1 else INVALID
    return LetterError(tuple(map(str, problems)), code=code)


def _reject_nan_score(data: bytes) -> None:
    """Report a score of NaN, which is not JSON, as an inconsistent result."""
    try:
        score = _read_with_nan(data)["payload"]["score"]
    except (LookupError, TypeError):
        return
    if isinstance(score, float) and not math.isfinite(score):
        raise letter_error(
            [Problem("$.payload.score", "expected a number from 0 to 1, got none", code="inconsistent_result")]
        )


def _read_with_nan(data: bytes | str) -> Any:
    """Parse JSON with NaN and infinities; ``None`` for other invalid JSON."""
    encoded = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    if b"NaN" not in encoded and b"Infinity" not in encoded:
        return None
    try:
        plain = json.loads(encoded)
        json.dumps(plain, ensure_ascii=False).encode()  # raises for a lone surrogate
    except (ValueError, RecursionError):
        return None
    return plain


class _LetterReader:
    """Reads strict JSON, collects all problems and keeps unknown fields."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read_object(self, cls: type[Value], data: bytes, where: str) -> Any:
        """Return a value of this type, or ``None`` and add a problem."""
        if data[:1] != b"{":
            self.problems.append(
                Problem(where, f"expected an object, got {_describe_value(msgspec.json.decode(data))}")
            )
            return None
        shape = msgspec.json.decode(data, type=dict[str, Raw])
        fields = {field.encode_name: field for field in _fields(cls)}
        values, unknown = dict[str, Any](), dict[str, bytes]()
        before = len(self.problems)
        for name, field in fields.items():
            if field.required and name not in shape:
                self.problems.append(Problem(f"{where}.{name}", f"is missing; expected {describe_type(field.type)}"))
        for name, raw in shape.items():
            if name in fields:
                values[fields[name].name] = self._read_part(fields[name].type, bytes(raw), f"{where}.{name}")
            elif name != cls.__struct_config__.tag_field:
                unknown[name] = bytes(raw)
        if len(self.problems) > before:
            return None
        return cls(**values, unknown_fields=UnknownFields(unknown)) if unknown else cls(**values)

    def _read_part(self, hint: Any, data: bytes, where: str) -> Any:
        inner = _without_unset(hint)
        if isinstance(inner, type) and issubclass(inner, Value):
            return self.read_object(inner, data, where)
        item = typing.get_args(inner)[0] if typing.get_origin(inner) is tuple else None
        if isinstance(item, type) and issubclass(item, Value) and data[:1] == b"[":
            parts = msgspec.json.decode(data, type=list[Raw])
            return tuple(self.read_object(item, bytes(part), f"{where}[{at}]") for at, part in enumerate(parts))
        try:
            return _decoder(inner).decode(data)
        except msgspec.ValidationError as error:
            self._add_problem(hint, data, where, str(error))
            return None

    def _add_problem(self, hint: Any, data: bytes, where: str, error: str) -> None:
        value = msgspec.json.decode(data)
        _, _, place = error.partition(" - at `$")
        got = "something else in it" if place else _describe_value(value, hint)
        code = "inconsistent_result" if where == "$.payload.score" and type(value) in (int, float) else INVALID
        self.problems.append(Problem(where + place.rstrip("`"), f"expected {describe_type(hint)}, got {got}", code))


def find_problems(letter: Letter) -> list[Problem]:
    """Return problems between the fields of a letter."""
    problems: list[Problem] = []
    try:
        _parse_time(letter.timestamp)
    except ValueError:
        problems.append(Problem("$.timestamp", f"expected {describe_type(Time)}, got another text"))
    if letter.context:
        try:
            msgspec.convert(letter.context, KnownContext)
        except msgspec.ValidationError:
            problems.extend(_context_problems(letter.context))
    payload = letter.payload
    if isinstance(payload, TaskResult):
        if payload.success is not UNSET and payload.success != (payload.status == "success"):
            what = f"expected {str(not payload.success).lower()} where the status is {payload.status}"
            problems.append(Problem("$.payload.success", what, code="inconsistent_result"))
    elif isinstance(payload, InputRequest):
        problems.extend(_duplicate_ids(payload))
    return problems


def find_contradictions(letter: Letter) -> list[Problem]:
    """Return contradictions that only new letters are checked for: ``duration_sec`` and ``metrics.duration_ms``."""
    payload = letter.payload
    if not isinstance(payload, TaskResult) or payload.metrics is UNSET:
        return []
    seconds, milliseconds = payload.duration_sec, payload.metrics.duration_ms
    if seconds is UNSET or milliseconds is UNSET:
        return []
    tolerance = max(_TOLERANCE_MS, _TOLERANCE_SHARE * max(seconds * 1000, milliseconds))
    if abs(seconds * 1000 - milliseconds) <= tolerance:
        return []
    what = f"expected the {milliseconds} ms of $.payload.metrics.duration_ms, got {seconds} s"
    return [Problem("$.payload.duration_sec", what, code="inconsistent_result")]


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


def letter_time(letter: Letter) -> datetime:
    """Return the timestamp of a letter."""
    return _parse_time(letter.timestamp)


def _parse_time(text: str) -> datetime:
    if not _TIME.fullmatch(text):
        raise ValueError("not a time with its zone")
    return datetime.fromisoformat(text.upper())


def _context_problems(context: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems of the known keys of a context."""
    for name, hint, given_hint in _context_fields():
        if name not in context:
            continue
        try:
            msgspec.convert(context[name], given_hint)
        except msgspec.ValidationError as error:
            place = str(error).partition(" - at `$")[2].rstrip("`")
            got = "something else in it" if place else _describe_value(context[name], hint)
            yield Problem(f"$.context.{name}{place}", f"expected {describe_type(hint)}, got {got}")


@functools.cache
def _context_fields() -> tuple[tuple[str, Any, Any], ...]:
    """The known keys of a context with their type, and the type without ``UNSET``."""
    fields = msgspec.structs.fields(KnownContext)
    return tuple((field.name, field.type, _without_unset(field.type)) for field in fields)


def _duplicate_ids(payload: InputRequest) -> Iterator[Problem]:
    ids = set[str]()
    for at, requested in enumerate(payload.requested_inputs):
        if requested.id in ids:
            yield Problem(f"$.payload.requested_inputs[{at}].id", "expected an id of its own, got one twice")
        ids.add(requested.id)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_letter(letter: Letter) -> bytes:
    """Return the canonical JSON of a letter, or raise ``LetterError``."""
    data = encode_letter(letter)
    try:
        _DECODER.decode(data)
    except msgspec.ValidationError:
        read_stored_letter(data)  # describes the problem, or accepts a newer field
    if problems := find_problems(letter):
        raise letter_error(problems)
    return data


def encode_letter(letter: Letter) -> bytes:
    """Return the canonical JSON of a letter that was read. For other letters use ``validate_letter``."""
    if problems := _encoding_problems(letter):
        raise letter_error(problems)
    return encode(letter)


def validate_letter(letter: Letter) -> tuple[Letter, bytes]:
    """Return a letter as its recipient reads it, and its canonical JSON. ``LetterError`` if it is invalid.

    Reading checks everything that ``write_letter`` checks.
    """
    data = encode_letter(letter)
    return read_letter(data), data


def _encoding_problems(letter: Letter) -> list[Problem]:
    """Return problems of open parts that an encoder would silently change."""
    problems: list[Problem] = []
    payload = letter.payload
    _check_json(letter.context, "$.context", problems)
    if isinstance(payload, TaskResult):
        if isinstance(payload.result, Result):
            _check_json(payload.result.inputs, "$.payload.result.inputs", problems)
        if isinstance(payload.score, float) and not math.isfinite(payload.score):
            what = "expected a number from 0 to 1, got none"
            problems.append(Problem("$.payload.score", what, code="inconsistent_result"))
    elif isinstance(payload, ErrorReport):
        _check_json(payload.details, "$.payload.details", problems)
    elif isinstance(payload, InputRequest):
        for at, requested in enumerate(payload.requested_inputs):
            _check_json(requested.default, f"$.payload.requested_inputs[{at}].default", problems)
    return problems


def _check_json(part: Any, where: str, problems: list[Problem]) -> None:
    if part is UNSET:
        return
    try:
        validate_json({"it": part}, "expected JSON")
    except ValueError as error:
        problems.append(Problem(where, str(error)))


# --- warnings --------------------------------------------------------------------------------------------------------


def find_warnings(letter: Letter) -> list[Problem]:
    """Return warnings about a valid letter: code unknown_field."""
    return list(_unknown_fields(letter, "$"))


def _unknown_fields(value: Value, where: str) -> Iterator[Problem]:
    unknown = getattr(value, "unknown_fields", UNSET)
    for name in unknown or ():
        what = f"protocol version {PROTOCOL_VERSION} has no such field; it is kept"
        yield Problem(f"{where}.{name}" if name.isidentifier() else f"{where}[{name[:100]!r}]", what, "unknown_field")
    for name in value.__struct_fields__:
        part = getattr(value, name)
        for at, inner in enumerate(part) if isinstance(part, tuple) else ((None, part),):
            if isinstance(inner, Value):
                yield from _unknown_fields(inner, f"{where}.{name}" if at is None else f"{where}.{name}[{at}]")


# --- input that is not a letter --------------------------------------------------------------------------------------


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of invalid input, each only if it is valid by itself."""

    type: str | None = None
    sender_id: str | None = None
    recipient_id: str | None = None
    task_id: str | None = None
    trace_id: str | None = None
    message_id: str | None = None


def hints_from(data: bytes | str) -> Hints:
    """Return sender, recipient, task and ids of invalid input, as far as they are valid."""
    try:
        plain = read_json(data)
    except JsonError as error:
        plain = None if error.code == "too_many_values" else _read_with_nan(data)
    if not isinstance(plain, dict):
        return Hints()
    context = plain.get("context")
    fields = {**plain, "message_id": context.get("message_id") if isinstance(context, dict) else None}
    return Hints(**{name: _convert_or_none(hint, fields.get(name)) for name, hint in _HINTS.items()})


_HINTS: Final[dict[str, Any]] = {
    "type": typing.Literal["task_result", "error", "needs_input"],
    "sender_id": Name,
    "recipient_id": Name,
    "task_id": Name,
    "trace_id": LetterId,
    "message_id": LetterId,
}


def _convert_or_none(hint: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, UnicodeEncodeError):  # UnicodeEncodeError for a lone surrogate
        return None


def is_agent_name(text: str) -> bool:
    """Whether a text is a valid agent id."""
    return _convert_or_none(Name, text) is not None


# --- words -----------------------------------------------------------------------------------------------------------


def describe_type(hint: Any) -> str:
    """Describe the values of a type."""
    hint = _without_unset(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return str(next(meta.extra["expected"] for meta in arguments[1:]))
    if origin is tuple:
        return f"a list of {_plural(arguments[0])}"
    if origin is typing.Literal:
        return f"one of {', '.join(arguments)}"
    if origin in (typing.Union, types.UnionType):
        return describe_type(arguments[0])
    if isinstance(hint, type) and issubclass(hint, Value):
        return "an object"
    return _WORDS.get(origin or hint, "a JSON value")


_WORDS: Final = {str: "a text", bool: "true or false", dict: "an object", int: "a whole number", float: "a number"}


def _plural(hint: Any) -> str:
    if hint is str:
        return "texts"
    if isinstance(hint, type) and issubclass(hint, Value):
        return "objects"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "texts, numbers, true or false"
    return f"texts, each {describe_type(hint)}"


def _describe_value(value: Any, hint: Any = None) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return ("another text" if _is_text(hint) else "a text") if value else "an empty text"
        case list():
            return "a list"
        case _:
            return "an object"


def _is_text(hint: Any) -> bool:
    hint = _without_unset(hint)
    inner = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    return inner is str or typing.get_origin(inner) is typing.Literal


@functools.cache
def _without_unset(hint: Any) -> Any:
    """Return the type of a present field."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = tuple(part for part in typing.get_args(hint) if part is not UnsetType)
    return typing.Union[members]  # noqa: UP007  of as many as are left


@functools.cache
def _decoder(hint: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(hint)


@functools.cache
def _fields(cls: type[Value]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return tuple(field for field in msgspec.structs.fields(cls) if field.name != "unknown_fields")
