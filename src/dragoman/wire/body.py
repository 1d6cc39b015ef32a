"""The body of a request or an answer: an object, or the JSON text of one.

    @from_body
    def read_request(body)                      takes either, and refuses what nobody can keep
    unforeseen(error), log_unexpected(error)    the last line of defence of every reader
    body_of(wire), expect_object(…), expect_list(…)      the value, if it is what belongs there
    unkept(error)                               why a part of a wire cannot be kept, if an error is about that

Values of ours refuse what they could not be stored with: what is nested too deep, half of a character, a number that is
none. Read from a wire, that is the wire's mistake and not the program's. The one rule: whatever came, it is read, or it
is an ``InputError`` that says where.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from dragoman.errors import DragomanError, FormatError, JsonError
from dragoman.jsontext import OWN, has_every_key, read_json
from dragoman.value import validate_json

_MAX_STEPS: Final = 12  # steps of the way to a place that is too deep
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
Result = TypeVar("Result")


def accepts_json_text(read: Callable[[dict[str, Any]], Result]) -> Callable[[Any], Result]:
    """The same function, for the object or its JSON text. What cannot be kept of it is a ``FormatError``."""

    def read_unchecked(wire: Any) -> Result:
        body = parse_object(wire)
        try:
            if body is wire:  # not read from a text: it may hold what no JSON can say
                validate_json(body, "$")
            return read(body)
        except (ValueError, RecursionError) as error:
            code, reason = storage_problem(error)
            where = _deepest_path(body) if code == "too_deep" else "$"
            raise FormatError(reason, where=where, code=code) from error

    @functools.wraps(read)
    def read_wire(wire: Any) -> Result:
        try:
            return read_unchecked(wire)
        except DragomanError:
            raise
        except Exception as error:
            log_unexpected(error)
            raise FormatError(describe_unexpected(error), where="$") from error

    setattr(read_wire, "read_unchecked", read_unchecked)  # noqa: B010  for the fuzzer: the guard hides what it catches
    return read_wire


def describe_unexpected(error: Exception) -> str:
    """What to say about an exception that a reader did not foresee."""
    return f"this version of Dragoman cannot read it ({type(error).__name__})"


def log_unexpected(error: Exception) -> None:
    """Log an exception that a reader did not foresee: a defect of ours, whatever was sent."""
    import logging  # noqa: PLC0415  see dragoman.codec

    logging.getLogger("dragoman.dialects").error("a reader failed on an unforeseen input", exc_info=error)


def storage_problem(error: ValueError | RecursionError) -> tuple[str, str]:
    """Why a part of a wire cannot be kept: a code, and what to say."""
    if isinstance(error, RecursionError) or "nested deeper" in str(error):
        return "too_deep", "nested too deep to be kept"
    if isinstance(error, UnicodeError) or "lone surrogate" in str(error):
        return "invalid_unicode", "half of a character in a text"
    return "invalid_message", str(error)


def _deepest_path(body: dict[str, Any]) -> str:
    """The way to the deepest place, or its beginning. It is looked for without a call in a call."""
    depth, deepest = 0, "$"
    level: list[tuple[str, Any]] = [("$", body)]
    while level:
        inner: list[tuple[str, Any]] = []
        for where, value in level:
            steps = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
            inner.extend((_append_step(where, key, depth), item) for key, item in steps if type(item) in (dict, list))
        if inner:
            deepest = inner[0][0]
        level, depth = inner, depth + 1
    return deepest


def _append_step(where: str, key: str | int, depth: int) -> str:
    if depth >= _MAX_STEPS:
        return where if depth > _MAX_STEPS else f"{where}…"
    return f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}"


def parse_object(wire: Any) -> dict[str, Any]:
    """The whole of a wire: an object, or the JSON text of one, of which no key may be doubled."""
    if type(wire) is bytes:
        try:
            body = _decode(wire)
            encoded = _encode(body)
            if type(body) is dict and (encoded == wire or _is_lossless(wire, encoded)):
                return body  # how deep its parts are is looked at where they are read
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the careful reader knows what to say about it
    return expect_object(_parse_text(wire) if isinstance(wire, bytes | str) else wire, "$")


def _is_lossless(wire: bytes, encoded: bytes) -> bool:
    """Whether a text with other spaces than ours was read whole, and is not too deep."""
    return wire.count(b"[") + wire.count(b"{") <= OWN.max_depth and has_every_key(wire, encoded)


def _parse_text(text: bytes | str) -> Any:
    try:
        return read_json(text, OWN)
    except JsonError as error:
        if error.code != "too_deep":
            raise
        raise FormatError(error.what, where="$", remedy=error.remedy, code=error.code) from None


def expect_object(value: Any, where: str) -> dict[str, Any]:
    """The value, if it is an object."""
    if type(value) is not dict:
        raise FormatError(f"an object belongs here, not {type(value).__name__}", where=where)
    return value


def expect_list(value: Any, where: str) -> list[Any]:
    """The value, if it is a list."""
    if type(value) is not list:
        raise FormatError(f"a list belongs here, not {type(value).__name__}", where=where)
    return value
