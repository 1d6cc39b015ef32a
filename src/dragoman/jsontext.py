"""Parse JSON strictly, validate values that are about to become JSON, and read parts of parsed values by type.

    read_json(data, limits)                   bytes or text -> a plain Python value, or ``JsonError``
    parse_object(wire)                        an object, or the JSON text of one -> the object
    @accepts_json_text()                      a reader of an object that also accepts its JSON text
    expect_object, expect_list                the value if it has that type, else ``FormatError``
    text_or_none, integer_or_none, …          the value if it has that type, else a default
    validate_json(value, name)                ``ValueError`` if JSON cannot represent the value exactly
    validate_item(item, name)                 the same for an item of a list in an object
    join_surrogates, has_lone_surrogate       surrogate pairs that a stream has split

Parsers differ: some accept NaN, a byte order mark or lone surrogates; most keep the last of two equal keys, turn a
large integer into a float, or overflow the stack on deep nesting. All JSON from outside (request bodies, files,
arguments of tool calls) is parsed here, so each of these cases has one outcome:

    not JSON, NaN, BOM, UTF-16, bad UTF-8      invalid_json
    two equal keys in one object               duplicate_key
    an integer beyond 64 bits, 1e400           number_out_of_range (requests only; stored integers may have any size)
    nested deeper than the limit               too_deep
    more keys in one object than the limit     too_many_keys
    more values than the limit                 too_many_values
    a lone surrogate                           invalid_unicode
    longer than the limit                      too_large

Invariant: time and memory are proportional to the length of the text.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import msgspec

from dragoman.errors import DragomanError, FormatError, JsonError

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1
Read = TypeVar("Read")
Item = TypeVar("Item")
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of msgspec
ObjectReader = Callable[[dict[str, Any]], Read]


class JsonLimits(msgspec.Struct, frozen=True):
    """Limits of accepted JSON. ``None`` means no limit."""

    max_bytes: int | None = 4 * 1024 * 1024
    max_depth: int = 64
    max_keys: int | None = 10_000  # in one object
    max_values: int | None = 100_000  # objects, lists, texts, numbers; one call of a parser builds all of them
    integers_of_64_bits: bool = True  # otherwise of any size; never converted to a float
    unique_keys: bool = True  # RFC 8259 calls two equal keys legal and their meaning unpredictable


REQUEST: Final = JsonLimits()  # for input from clients
OWN: Final = JsonLimits(
    max_bytes=None, max_depth=256, max_keys=None, max_values=None, integers_of_64_bits=False
)  # for JSON that Dragoman has written


# --- parse -----------------------------------------------------------------------------------------------------------


def read_json(data: bytes | str, limits: JsonLimits = REQUEST) -> Any:
    """Return the value of a JSON text. ``JsonError`` names the position and the problem."""
    if isinstance(data, str):
        data = encode_utf8(data)
    if limits.max_bytes is not None and len(data) > limits.max_bytes:
        raise JsonError(f"{len(data)} bytes are more than the {limits.max_bytes} allowed", code="too_large")
    check_structure(data, limits)
    if limits.max_keys is None or data.count(b":") <= limits.max_keys:
        try:
            value = msgspec.json.decode(data)
            encoded = msgspec.json.encode(value)
            # If encoding restores every key, no duplicate was dropped. This is many times faster than a Python parser.
            if (encoded == data or has_every_key(data, encoded)) and not (
                limits.integers_of_64_bits and _has_long_number(data)
            ):
                return value
        except DECODE_ERRORS:
            pass  # the general parser describes the problem
    return _parse_general(data, limits)


def check_structure(data: bytes, limits: JsonLimits = REQUEST) -> None:
    """Raise ``JsonError`` for too many levels or values, before a parser reads the text."""
    brackets = data.count(b"[") + data.count(b"{")
    max_values = limits.max_values
    if brackets > limits.max_depth or (max_values is not None and brackets + data.count(b",") >= max_values):
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
# Possessive quantifiers visit each character once. An unterminated string extends to the end of the text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STRING_IN_TEXT = re.compile(_STRING.pattern.decode(), re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down, one level up
_DIGITS_ONLY = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
_LONG = b"0" * 19  # an integer with fewer digits fits into 64 bits
_MAX_DIGITS = 4_300
_SINGLE_CALL_BYTES = 64 * 1024


def has_every_key(data: bytes, encoded: bytes) -> bool:
    """Whether the re-encoded text has as many pairs as the text that was parsed.

    A pair has one colon outside of strings. Colons inside strings are equal in both texts, unless one was escaped.
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
    """Encode a text. A lone surrogate raises ``JsonError``."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise JsonError("a lone surrogate", where=f"character {error.start}", code="invalid_unicode") from None


def _reject_constant(name: str, text: str) -> None:
    raise JsonError(f"{name} is not JSON", where=_position_outside_strings(name, text))


def _position_outside_strings(name: str, text: str) -> str:
    """Return line and column of the first occurrence of a word outside of strings."""
    offset = _STRING_IN_TEXT.sub(lambda string: " " * len(string[0]), text).index(name)
    return f"line {text.count(chr(10), 0, offset) + 1} column {offset - text.rfind(chr(10), 0, offset)}"


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # parsing takes time quadratic in the number of digits
        raise _integer_error(digits)
    return int(digits)


def _parse_64bit_integer(digits: str) -> int:
    if len(digits) > 20 or not INT_MIN <= (number := int(digits)) <= INT_MAX:
        raise _integer_error(digits)
    return number


def _integer_error(digits: str) -> JsonError:
    excerpt = digits if len(digits) <= 40 else f"{digits[:20]}… ({len(digits)} digits)"
    what = f"the integer {excerpt} is too large"
    return JsonError(what, code="number_out_of_range", remedy="Send it as a string")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        excerpt = digits if len(digits) <= 40 else f"{digits[:20]}…"
        raise JsonError(f"the number {excerpt} does not fit a double", code="number_out_of_range")
    return number


def _strip_strings(data: bytes, max_values: int | None) -> bytes:
    """Remove all strings from a JSON text. More strings than ``max_values`` allows raise ``JsonError``.

    In a large text each string is matched by its own call, so that other threads can run in between.
    """
    if max_values is None or len(data) <= _SINGLE_CALL_BYTES:
        return _STRING.sub(b"", data)
    gaps: list[bytes] = []
    end = 0
    for string in _STRING.finditer(data):
        gaps.append(data[end : string.start()])
        end = string.end()
        if len(gaps) > 2 * max_values:  # each value has at most one key
            raise _count_error(max_values)
    return b"".join((*gaps, data[end:]))


def _check_count(skeleton: bytes, max_values: int | None) -> None:
    """Every value except the outermost follows a bracket or a comma."""
    if max_values is None:
        return
    if 1 + skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > max_values:
        raise _count_error(max_values)


def _count_error(max_values: int) -> JsonError:
    return JsonError(f"more than the {max_values} values allowed", code="too_many_values", remedy="Send less")


def _check_depth(skeleton: bytes, limits: JsonLimits) -> None:
    """Count levels, up to the allowed number of values. The parser checks that brackets match."""
    max_depth, max_values = limits.max_depth, limits.max_values
    steps = skeleton.translate(_STEPS, _NOT_BRACKETS)[: None if max_values is None else 2 * max_values]
    if max(itertools.accumulate(memoryview(steps).cast("b")), default=0) > max_depth:
        raise JsonError(f"nested deeper than {max_depth} levels", code="too_deep", remedy="Flatten it")


def _reject_lone_surrogates(value: Any, text: str) -> None:
    # The parser has joined escaped pairs, so only lone surrogates fail to encode.
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


# --- validate --------------------------------------------------------------------------------------------------------

# A message adds levels around an open object, and stored JSON may have OWN.max_depth levels in all.
_MAX_DEPTH: Final = 200
_MAX_BITS: Final = 14_000  # about 4,200 digits: Python refuses to parse longer ones


def validate_text(text: str, name: str) -> None:
    """Raise ``ValueError`` for a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: a lone surrogate at character {error.start}") from None


def validate_json(value: Any, name: str, depth: int = _MAX_DEPTH) -> None:
    """Raise ``ValueError`` for a value that JSON cannot represent exactly: NaN, other types, keys that are not texts,
    and deep nesting.

    Structs validate their open objects on construction, so encoding does not have to.
    """
    if depth == _MAX_DEPTH and type(value) is not dict:
        raise ValueError(f"{name}: {type(value).__name__} is not a JSON object")
    if depth == 0:
        raise ValueError(f"{name}: nested deeper than {_MAX_DEPTH} levels")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise ValueError(f"{name}: the key {key!r} is not a text")
            if not key.isascii():
                validate_text(key, name)
        value = value.values()
    for item in value:
        kind = type(item)
        if kind is str:
            if not item.isascii():
                validate_text(item, name)
        elif kind is dict or kind is list or kind is tuple:
            validate_json(item, name, depth - 1)
        elif kind is int:
            if item.bit_length() > _MAX_BITS:
                raise ValueError(f"{name}: an integer of too many digits")
        elif kind is float:
            if item - item != 0:  # true of NaN and the infinities only
                raise ValueError(f"{name}: {item} is not JSON")
        elif kind is not bool and item is not None:
            raise ValueError(f"{name}: {kind.__name__} is not JSON")


def validate_item(item: Any, name: str) -> None:
    """Validate an item of a list in an object, like ``validate_json``."""
    validate_json((item,), name, _MAX_DEPTH - 1)


# --- bodies of requests and replies ----------------------------------------------------------------------------------

_MAX_STEPS: Final = 12  # of the path to a place that is too deep
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def accepts_json_text(*, separate: Collection[str] = ()) -> Callable[[ObjectReader[Read]], Callable[[Any], Read]]:
    """Let a reader of an object also accept the JSON text of one.

    Values that a message cannot store (nested too deep, a lone surrogate, NaN) raise ``FormatError``: they are an error
    of the input. Any other exception of the reader is a defect; it is logged and raised as ``FormatError`` too.
    The reader validates the lists under the keys of ``separate`` itself, item by item.
    """
    return functools.partial(_accept_json_text, separate=separate)


def _accept_json_text(read: ObjectReader[Read], *, separate: Collection[str]) -> Callable[[Any], Read]:
    def read_unchecked(wire: Any) -> Read:
        body = parse_object(wire)
        try:
            if body is wire:  # an object from Python code may hold values that JSON cannot represent
                rest = {key: value for key, value in body.items() if key not in separate} if separate else body
                validate_json(rest, "$")
            return read(body)
        except (ValueError, RecursionError) as error:
            code, what = storage_problem(error)
            where = _deepest_path(body) if code == "too_deep" else "$"
            raise FormatError(what, where=where, code=code) from error

    @functools.wraps(read)
    def read_wire(wire: Any) -> Read:
        try:
            return read_unchecked(wire)
        except DragomanError:
            raise
        except Exception as error:
            log_unexpected(error)
            raise FormatError(describe_unexpected(error), where="$") from error

    setattr(read_wire, "read_unchecked", read_unchecked)  # noqa: B010  for the fuzzer, which looks for unexpected exceptions
    return read_wire


def describe_unexpected(error: Exception) -> str:
    """The error text for an exception that a reader did not expect."""
    return f"this version of Dragoman cannot read it ({type(error).__name__})"


def log_unexpected(error: Exception) -> None:
    """Log an exception that a reader did not expect, which is a defect of the reader."""
    import logging  # noqa: PLC0415  see dragoman.codec

    logging.getLogger("dragoman.dialects").error("a reader failed on unexpected input", exc_info=error)


def storage_problem(error: ValueError | RecursionError) -> tuple[str, str]:
    """The error code and text for a value that a message cannot store."""
    if isinstance(error, RecursionError) or "nested deeper" in str(error):
        return "too_deep", "nested too deep to store"
    if isinstance(error, UnicodeError) or "lone surrogate" in str(error):
        return "invalid_unicode", "a lone surrogate in a text"
    return "invalid_message", str(error)


def _deepest_path(body: dict[str, Any]) -> str:
    """The path to the deepest value, or its first steps. The search is iterative because the value is deep."""
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
    """Return an object, or parse the JSON text of one. Duplicate keys raise ``JsonError``."""
    if type(wire) is bytes:
        try:
            body = _decode(wire)
            encoded = _encode(body)
            if type(body) is dict and (encoded == wire or _is_lossless(wire, encoded)):
                return body  # readers check the depth of its parts
        except DECODE_ERRORS:
            pass  # the general parser describes the problem
    return expect_object(parse_value(wire) if isinstance(wire, bytes | str) else wire, "$")


def _is_lossless(wire: bytes, encoded: bytes) -> bool:
    """Whether a text with other white space was parsed without a loss and is not too deep."""
    return wire.count(b"[") + wire.count(b"{") <= OWN.max_depth and has_every_key(wire, encoded)


def parse_value(text: bytes | str) -> Any:
    """Parse the JSON text of any value. Deep nesting raises ``FormatError``."""
    try:
        return read_json(text, OWN)
    except JsonError as error:
        if error.code != "too_deep":
            raise
        raise FormatError(error.what, where="$", remedy=error.remedy, code=error.code) from None


def expect_object(value: Any, where: str) -> dict[str, Any]:
    """Return the value if it is an object, else raise ``FormatError``."""
    if type(value) is not dict:
        raise FormatError(f"expected an object, not {type(value).__name__}", where=where)
    return value


def expect_list(value: Any, where: str) -> list[Any]:
    """Return the value if it is a list, else raise ``FormatError``."""
    if type(value) is not list:
        raise FormatError(f"expected a list, not {type(value).__name__}", where=where)
    return value


def text_or_none(value: Any) -> str | None:
    """The value if it is a text."""
    return value if isinstance(value, str) else None


def text_tuple(value: Any) -> tuple[str, ...]:
    """The items of a list of texts; empty for anything else."""
    return tuple(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else ()


def text_map_or_none(value: Any) -> dict[str, str] | None:
    """The value if it is an object of texts."""
    return value if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()) else None


def list_or_empty(value: Any) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def read_items(value: Any, read: Callable[[Any], Item | None]) -> tuple[Item, ...]:
    """The items of a list as ``read`` returns them; empty if ``read`` returns ``None`` for one of them."""
    items = [read(item) for item in value] if isinstance(value, list) else []
    return () if None in items else tuple(items)  # type: ignore[arg-type]


def integer_or_none(value: Any) -> int | None:
    """The value if it is a whole number and not a boolean."""
    return value if type(value) is int else None


def is_number(value: Any) -> bool:
    """Return whether the value is a number and not a boolean."""
    return type(value) in (int, float)


def number_or_none(value: Any) -> int | float | None:
    """The value if it is a number and not a boolean."""
    return value if is_number(value) else None


def is_count(value: Any) -> bool:
    """Return whether the value is a whole number from 0."""
    return type(value) is int and value >= 0


def count_or_zero(value: Any) -> int:
    """The value if it is a whole number from 0, else 0."""
    return value if is_count(value) else 0


def flag_or_none(value: Any) -> bool | None:
    """The value if it is a boolean."""
    return value if isinstance(value, bool) else None
