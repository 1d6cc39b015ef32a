"""The entrance for JSON text: bytes in, plain Python values out, or one clear error.

Parsers disagree about what JSON is: some accept NaN, a byte order mark, lone surrogates; most keep the last of two
equal keys, turn a large integer into a float, or die of deep nesting. Whatever comes from outside (a request body, a
file, the arguments of a tool call) passes here first, so that each of these has one outcome everywhere:

    not JSON, NaN, BOM, UTF-16, bad UTF-8      invalid_json
    two equal keys in one object               duplicate_key
    an integer beyond 64 bits, 1e400           number_out_of_range (a stranger's; our own are exact at any size)
    nested deeper than the limit               too_deep
    more keys in one object than the limit     too_many_keys
    more values than the limit                 too_many_values
    a lone surrogate                           invalid_unicode
    longer than the limit                      too_large_error

The one rule: time and memory stay proportional to the text, whatever the text is.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1


class JsonLimits(msgspec.Struct, frozen=True):
    """How much JSON we take. ``None`` means no limit."""

    max_bytes: int | None = 4 * 1024 * 1024
    max_depth: int = 64
    max_keys: int | None = 10_000  # in one object
    max_values: int | None = 100_000  # objects, lists, texts, numbers; one call of a parser makes all of them
    integers_of_64_bits: bool = True  # else of any size; either way exact, never a float
    unique_keys: bool = True  # RFC 8259 calls two equal keys legal and their meaning unpredictable


REQUEST: Final = JsonLimits()  # what a stranger may send
OWN: Final = JsonLimits(
    max_bytes=None, max_depth=256, max_keys=None, max_values=None, integers_of_64_bits=False
)  # what we wrote


def read_json(data: bytes | str, limits: JsonLimits = REQUEST) -> Any:
    """The value of a JSON text, or a ``JsonError`` that says where and what."""
    if isinstance(data, str):
        data = encode_utf8(data)
    if limits.max_bytes is not None and len(data) > limits.max_bytes:
        raise JsonError(f"{len(data)} bytes are more than the {limits.max_bytes} allowed", code="too_large")
    check_structure(data, limits)
    if limits.max_keys is None or data.count(b":") <= limits.max_keys:
        try:
            value = msgspec.json.decode(data)
            encoded = msgspec.json.encode(value)
            # Nothing was dropped, so it need not be looked for: many times faster than to look.
            if (encoded == data or has_every_key(data, encoded)) and not (
                limits.integers_of_64_bits and _has_long_number(data)
            ):
                return value
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the careful reader knows what to say about it
    return _parse_general(data, limits)


def check_structure(data: bytes, limits: JsonLimits = REQUEST) -> None:
    """Refuse what is nested too deep or has too many values, before a parser sees it."""
    brackets = data.count(b"[") + data.count(b"{")
    max_values = limits.max_values
    if brackets > limits.max_depth or (
        max_values is not None and brackets + data.count(b",") >= max_values
    ):  # else it cannot be
        skeleton = _strip_strings(data, max_values)
        _check_depth(skeleton, limits)
        _check_count(skeleton, max_values)


def _parse_general(data: bytes, limits: JsonLimits) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 ({error.reason})", where=f"byte {error.start}") from None
    value = _parse(text, limits)
    if _SURROGATE_ESCAPE.search(text):
        _reject_lone_surrogates(value, text)
    return value


_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# Possessive, so that no text makes it look at a character twice; a string that never ends goes to the end of the text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STRING_IN_TEXT = re.compile(_STRING.pattern.decode(), re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down, one level up
_DIGITS_ONLY = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
_LONG = b"0" * 19  # an integer of fewer digits fits 64 bits


def has_every_key(data: bytes, encoded: bytes) -> bool:
    """Whether the text that was made of a value has as many pairs as the one that it was read from.

    A pair has one colon outside of texts, and those in texts are the same in both, unless one was written as an escape.
    """
    return data.count(b":") == encoded.count(b":") and b"\\u003a" not in data and b"\\u003A" not in data


def _has_long_number(data: bytes) -> bool:
    return _LONG in data.translate(_DIGITS_ONLY)


def _parse(text: str, limits: JsonLimits) -> Any:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs) and limits.unique_keys:
            keys: set[str] = set()
            duplicate = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
            raise JsonError(f"the key {duplicate!r} occurs twice in one object", code="duplicate_key")
        if limits.max_keys is not None and len(pairs) > limits.max_keys:
            what = f"an object has {len(pairs)} keys, more than the {limits.max_keys} allowed"
            raise JsonError(what, code="too_many_keys")
        return result

    decoder = json.JSONDecoder(
        object_pairs_hook=build_object,
        parse_constant=lambda name: _reject_constant(name, text),
        parse_int=_parse_64bit_integer if limits.integers_of_64_bits else _parse_integer,
        parse_float=_parse_float,
    )
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON ({error.msg})", where=f"line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise JsonError("nested deeper than this interpreter can follow", code="too_deep") from None


def encode_utf8(text: str) -> bytes:
    """A text as bytes, or a ``JsonError`` where it holds what no bytes can say."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise JsonError("a lone surrogate", where=f"character {error.start}", code="invalid_unicode") from None


def _reject_constant(name: str, text: str) -> None:
    raise JsonError(f"{name} is not JSON", where=_position_outside_strings(name, text))


def _position_outside_strings(name: str, text: str) -> str:
    """Return the line and the column at which a word first stands outside of strings."""
    offset = _STRING_IN_TEXT.sub(lambda string: " " * len(string[0]), text).index(name)
    return f"line {text.count(chr(10), 0, offset) + 1} column {offset - text.rfind(chr(10), 0, offset)}"


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # reading a number takes time that grows with the square of its digits
        raise _integer_error(digits)
    return int(digits)


def _parse_64bit_integer(digits: str) -> int:
    if len(digits) > 20 or not INT_MIN <= (number := int(digits)) <= INT_MAX:
        raise _integer_error(digits)
    return number


_MAX_DIGITS = 4_300


def _integer_error(digits: str) -> JsonError:
    shown = digits if len(digits) <= 40 else f"{digits[:20]}… ({len(digits)} digits)"
    what = f"the integer {shown} is too large"
    return JsonError(what, code="number_out_of_range", remedy="Send it as a string")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        shown = digits if len(digits) <= 40 else f"{digits[:20]}…"
        raise JsonError(f"the number {shown} does not fit a double", code="number_out_of_range")
    return number


def _strip_strings(data: bytes, max_values: int | None) -> bytes:
    """A JSON text without its strings; refused as soon as there are more of them than values allow.

    Of a large text one string after the other is found, not all in one call: another thread can run in between.
    """
    if max_values is None or len(data) <= _SINGLE_CALL_BYTES:
        return _STRING.sub(b"", data)
    gaps: list[bytes] = []
    end = 0
    for string in _STRING.finditer(data):
        gaps.append(data[end : string.start()])
        end = string.end()
        if len(gaps) > 2 * max_values:  # each value has at most a key besides
            raise _count_error(max_values)
    return b"".join((*gaps, data[end:]))


_SINGLE_CALL_BYTES = 64 * 1024


def _check_count(skeleton: bytes, max_values: int | None) -> None:
    """Each value but the outermost stands behind a bracket or a comma."""
    if max_values is None:
        return
    if 1 + skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > max_values:
        raise _count_error(max_values)


def _count_error(max_values: int) -> JsonError:
    return JsonError(f"it has more than the {max_values} values allowed", code="too_many_values", remedy="Send less")


def _check_depth(skeleton: bytes, limits: JsonLimits) -> None:
    """Count the levels down and up, as far as values may go. Whether they fit each other is the parser's business."""
    max_depth, max_values = limits.max_depth, limits.max_values
    steps = skeleton.translate(_STEPS, _NOT_BRACKETS)[: None if max_values is None else 2 * max_values]
    if max(itertools.accumulate(memoryview(steps).cast("b")), default=0) > max_depth:
        raise JsonError(f"nested deeper than {max_depth} levels", code="too_deep", remedy="Flatten it")


def _reject_lone_surrogates(value: Any, text: str) -> None:
    # Paired escapes have become one character by now, so what still does not encode was alone.
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        match = _SURROGATE_ESCAPE.search(text)
        place = match.start() if match else 0
        raise JsonError("a lone surrogate", where=f"at or after character {place}", code="invalid_unicode") from None


# --- surrogates ------------------------------------------------------------------------------------------------------


def join_surrogates(text: str) -> str:
    """Join surrogate pairs that arrived in two deltas, and drop lone surrogates."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def has_lone_surrogate(text: str) -> bool:
    """Whether ``join_surrogates`` drops part of the text."""
    if text.isascii():
        return False
    units = text.encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "ignore").encode("utf-16-le") != units
