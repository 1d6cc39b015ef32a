"""Base of all structs: canonical bytes, equality, and storage for unknown parts.

    encode(value)            canonical bytes: fields in declared order, defaults omitted, no white space
    decode_lenient(…)        the value; unknown fields and blocks are kept with their bytes
    identity(value)          canonical bytes without the fields in ``ASIDES``: the basis of equality and of all hashes

Two values are equal if and only if their identities are the same bytes. This is stricter than Python's equality: 1, 1.0
and true differ, and the order of keys counts, because a model and a reader can observe these differences.

``codec.decode`` uses msgspec's decoder first. It accepts the result only if encoding it restores the input, which
proves that no key was duplicated and nothing was dropped. ``decode_lenient`` is the general path and reads field by
field. Invariant: an input that both paths accept has the same result on both.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dragoman.errors import FormatError, InputError
from dragoman.jsontext import validate_text


class UnknownFields(Mapping[str, bytes]):
    """Fields that a newer version has added to an object: names and the original bytes of their values, in order."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        for data in fields.values():
            msgspec.json.decode(data)  # raises for bytes that are not JSON
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> bytes:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"UnknownFields({self._fields!r})"


class RawJson:
    """The bytes of one JSON value that this version does not interpret."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"RawJson({self.data!r})"


class Value(
    msgspec.Struct,
    frozen=True,
    eq=False,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Base of all structs: frozen, hashable, equal if their canonical bytes are equal."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or identity(self) == identity(other)

    __ne__ = object.__ne__  # otherwise msgspec's own, which compares fields

    def __hash__(self) -> int:
        return hash(identity(self))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        result = msgspec.structs.replace(self, **changes)
        if isinstance(type(result), ValidatedMeta):
            result.validate()
        return result

    def validate(self) -> None:
        """Raise ``ValueError`` if a value created by code cannot be encoded."""
        for number, text in enumerate(msgspec.structs.astuple(self)):
            if type(text) is str and not text.isascii():
                validate_text(text, self.__struct_fields__[number])


class ValidatedMeta(msgspec.StructMeta):
    """Metaclass that validates values created by code.

    msgspec's decoder does not call the class, so decoded values are not validated twice.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        result = super().__call__(*args, **fields)
        if args or fields:  # defaults are valid
            result.validate()
        return result


AnyValue = TypeVar("AnyValue", bound=Value)


def unvalidated(cls: type[AnyValue]) -> Callable[..., AnyValue]:
    """Return a constructor that skips ``validate``.

    For readers that have validated every part: texts have no lone surrogates, and objects come from JSON.
    """
    bind: Any = msgspec.StructMeta.__call__.__get__  # a bound wrapper of C takes 20 % less time than a method
    constructor: Callable[..., AnyValue] = bind(cls, type(cls))
    return constructor


# --- writing ---------------------------------------------------------------------------------------------------------


def encode(value: Value) -> bytes:
    """Return the canonical bytes of a value."""
    try:
        try:
            return encode_fast(value)
        except SlowPathRequired:
            return _JSON_ENCODER.encode(_to_plain(value, keep_asides=True))
    except UnicodeEncodeError as error:
        what = f"a lone surrogate at character {error.start} of a text"
        raise FormatError(what, where=type(value).__name__, code="invalid_unicode") from None


def identity(value: Value) -> bytes:
    """Return the canonical bytes without the fields in ``ASIDES``."""
    data = encode(value)
    if not _has_aside(data):
        return data
    return _JSON_ENCODER.encode(_to_plain(value, keep_asides=False))


class SlowPathRequired(Exception):  # noqa: N818  not an error: it selects the general path
    """The value contains unknown parts, which msgspec cannot encode at their place."""


def _reject_unknown(unknown: Any) -> Any:
    if isinstance(unknown, UnknownFields | RawJson):
        raise SlowPathRequired
    raise FormatError(f"{type(unknown).__name__} is not part of the format", remedy="Use the types of dragoman.message")


ASIDES: Final = ("provider_raw", "cache_hint", "token_logprobs", "is_summary")  # not part of the identity
_ASIDE_KEYS: Final = tuple(f'"{name}":'.encode() for name in ASIDES)
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_reject_unknown)
_JSON_ENCODER: Final = msgspec.json.Encoder()
encode_fast: Final = _ENCODER.encode  # raises SlowPathRequired or UnicodeEncodeError; ``encode`` handles both


def _has_aside(data: bytes) -> bool:
    """Whether encoded bytes may contain a field of ``ASIDES``; inside a string the quotes are escaped."""
    return any(key in data for key in _ASIDE_KEYS)


def _to_plain(value: msgspec.Struct, *, keep_asides: bool) -> dict[str, Any] | Raw:
    """Convert a struct to a dict with unknown parts as raw bytes at their place."""
    if isinstance(value, UnknownValue):
        return Raw(value.raw.data)
    config = value.__struct_config__
    plain: dict[str, Any] = {}
    if config.tag is not None:
        plain[str(config.tag_field)] = config.tag
    for field in _fields(type(value)):
        item = getattr(value, field.name)
        if field.name == "unknown_fields" or (config.omit_defaults and item is field.default):
            continue
        if field.name in ASIDES and not keep_asides:
            continue
        plain[field.encode_name] = _part_to_plain(item, keep_asides=keep_asides)
    unknown = getattr(value, "unknown_fields", UNSET)
    if unknown is not UNSET:  # a known field that failed validation is written until a new value is set
        plain.update((name, Raw(data)) for name, data in unknown.items() if name not in plain)
    return plain


def _part_to_plain(value: Any, *, keep_asides: bool) -> Any:
    """Return encoded bytes if possible, else convert the parts."""
    if isinstance(value, tuple):
        return [_part_to_plain(item, keep_asides=keep_asides) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    try:
        data = encode_fast(value)
        if keep_asides or not _has_aside(data):
            return Raw(data)
    except SlowPathRequired:
        pass
    return _to_plain(value, keep_asides=keep_asides)


# --- reading ---------------------------------------------------------------------------------------------------------


class UnknownValue(Value, frozen=True, tag_field="type", tag="unreadable"):
    """Base of a value with an unknown type. It holds only the bytes."""

    raw: RawJson


_MAX_PLACES: Final = 20


class UnknownParts:
    """Paths of the parts that this version does not know."""

    def __init__(self, *, lenient: bool = False) -> None:
        self.places: list[str] = []  # the first 20
        self.count = 0
        self.lenient = lenient  # the writer is newer: known parts that fail validation are kept as unknown

    def add(self, place: str) -> None:
        """Record one unknown part."""
        self.count += 1
        if self.count <= _MAX_PLACES:
            self.places.append(place)


def decode_lenient(cls: type[AnyValue], data: bytes, unknown_parts: UnknownParts) -> AnyValue:
    """Decode strict JSON field by field and keep unknown parts."""
    result: AnyValue = _read(cls, data, "$", unknown_parts)
    return result


def _read(hint: Any, data: bytes, where: str, unknown_parts: UnknownParts) -> Any:
    """Decode a value of a declared type. The parts are decoded separately only if msgspec's decoder fails."""
    if not _is_open(hint):
        return _decode_strict(hint, data, where)
    try:
        return _decoder(hint).decode(data)
    except msgspec.ValidationError:
        pass
    members = _union_members(hint)
    if members:
        return _read_member(members, data, where, unknown_parts)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _read_struct(hint, data, where, unknown_parts)
    if isinstance(hint, type) and issubclass(hint, OpenEnum):
        return _read_open_enum(hint, data, where, unknown_parts)
    (item, _) = typing.get_args(hint)  # tuple[X, ...]
    parts: list[Raw] = _decode_strict(list[Raw], data, where)
    return tuple(_read(item, bytes(part), f"{where}[{index}]", unknown_parts) for index, part in enumerate(parts))


def _read_member(members: tuple[Any, ...], data: bytes, where: str, unknown_parts: UnknownParts) -> Any:
    """Decode a union: null, a list, an object, or a block."""
    if data == b"null" and types.NoneType in members:
        return None
    lists = [member for member in members if typing.get_origin(member) is tuple]
    if lists and data[:1] == b"[":
        return _read(lists[0], data, where, unknown_parts)
    structs = [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    if len(structs) == 1 and structs[0].__struct_config__.tag is None:
        return _read(structs[0], data, where, unknown_parts)
    return _read_tagged(structs, data, where, unknown_parts)


def _read_tagged(structs: list[type[msgspec.Struct]], data: bytes, where: str, unknown_parts: UnknownParts) -> Any:
    fallback = next(struct for struct in structs if issubclass(struct, UnknownValue))
    shape: dict[str, Raw] = _decode_strict(dict[str, Raw], data, where)
    tag = msgspec.json.decode(shape.get("type", b"null"))
    if not isinstance(tag, str):
        raise FormatError("a block needs a 'type', as text", where=f"{where}.type")
    for struct in structs:
        if struct.__struct_config__.tag == tag and struct is not fallback:
            try:
                return _read_struct(struct, data, where, unknown_parts)
            except InputError:
                if not unknown_parts.lenient:
                    raise
    unknown_parts.add(f"{where} (block of type {tag[:100]!r})")
    return fallback(raw=RawJson(data))


def _read_struct(cls: type[msgspec.Struct], data: bytes, where: str, unknown_parts: UnknownParts) -> Any:
    shape: dict[str, Raw] = _decode_strict(dict[str, Raw], data, where)
    fields = _fields_by_key(cls)
    values: dict[str, Any] = {}
    unknown: dict[str, bytes] = {}
    for name, raw in shape.items():
        if name == cls.__struct_config__.tag_field:
            continue
        field = fields.get(name)
        if field is not None and name != "unknown_fields":
            try:
                values[field.name] = _read(field.type, bytes(raw), f"{where}.{name}", unknown_parts)
                continue
            except InputError:
                if not unknown_parts.lenient or field.required:
                    raise
        unknown[name] = bytes(raw)
        unknown_parts.add(f"{where}.{name}" if name.isidentifier() else f"{where}[{name[:100]!r}]")
    if unknown:
        values["unknown_fields"] = UnknownFields(unknown)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise FormatError(str(error), where=where) from None


def _decode_strict(hint: Any, data: bytes, where: str) -> Any:
    try:
        return _decoder(hint).decode(data)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise FormatError(what, where=where + place.rstrip("`")) from None


@functools.cache
def _decoder(hint: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(hint)


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


@functools.cache
def _fields_by_key(cls: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in _fields(cls)}


def _union_members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(typing.get_args(hint)) if is_union else ()


@functools.cache
def _is_open(hint: Any) -> bool:
    """Whether a value of this type can contain parts that a newer version has added."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct | OpenEnum):
        return True
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        return any(_is_open(argument) for argument in typing.get_args(hint))
    return False


# --- parts of values -------------------------------------------------------------------------------------------------


class OpenEnum(enum.StrEnum):
    """An enumeration that newer versions may extend. Reading keeps an unknown word; writing allows known words only."""

    @classmethod
    def unknown(cls, word: str) -> Self:
        """Return a member for an unknown word. It is not added to the enumeration."""
        if word in cls._value2member_map_:
            return cls(word)
        member = str.__new__(cls, word)
        member._name_ = word.upper()
        member._value_ = word
        return member

    def __reduce_ex__(self, _protocol: object) -> Any:
        return type(self).unknown, (str(self.value),)


def _read_open_enum(cls: type[OpenEnum], data: bytes, where: str, unknown_parts: UnknownParts) -> OpenEnum:
    word: str = _decode_strict(str, data, where)
    try:
        return cls(word)
    except ValueError:
        unknown_parts.add(f"{where} ({cls.__name__.lower()} {word[:100]!r})")
        return cls.unknown(word)


__all__ = [
    "UNSET",
    "OpenEnum",
    "RawJson",
    "SlowPathRequired",
    "UnknownFields",
    "UnknownParts",
    "UnknownValue",
    "UnsetType",
    "ValidatedMeta",
    "Value",
    "decode_lenient",
    "encode",
    "encode_fast",
    "identity",
    "unvalidated",
]
