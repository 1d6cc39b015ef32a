"""Convert parts of an envelope's content to canonical blocks and back.

Hosts use several shapes of parts: Dragoman's blocks, those of provider clients, plain texts. A known shape becomes a
block that every dialect can write; any other becomes an opaque block. Invariant: ``part_from(*block_from(part))``
restores the part, except for what ``json_diff`` stores.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman import value
from dragoman.envelope.normalization import SCHEMA
from dragoman.errors import InputError
from dragoman.jsontext import OWN, read_json

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_MEDIA: Final[dict[str, type[msg.ImageBlock | msg.AudioBlock | msg.VideoBlock | msg.DocumentBlock]]] = {
    "image": msg.ImageBlock,
    "audio": msg.AudioBlock,
    "video": msg.VideoBlock,
}
_read_block: Final = msgspec.json.Decoder(msg.ContentBlock).decode


def block_from(part: Any) -> tuple[msg.ContentBlock, str | None]:
    """Return the block of a part, and the shape of the part if it is foreign."""
    match part:
        case str():
            return msg.TextBlock(part), "string"
        case {"type": "text", "text": str(words)}:
            return _read_own_block(part) or msg.TextBlock(words), None
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return msg.ImageBlock(*_source(url, "image/*")), "image_url"
        case {"type": "file", "file_path": str(path), "mime_type": str(media_type)}:
            kind = _MEDIA.get(media_type.partition("/")[0], msg.DocumentBlock)
            source = msg.ImageSource("url" if path.startswith(("http://", "https://")) else "file_ref", path)
            return kind(source, media_type), "file"
        case dict():
            return _read_own_block(part) or msg.OpaqueBlock(SCHEMA, part), None
        case _:
            return msg.OpaqueBlock(SCHEMA, {"part": part}), "part"


def part_from(block: msg.ContentBlock, shape: str | None = None) -> Any:
    """Return a block as a part."""
    match shape, block:
        case "string", msg.TextBlock():
            return block.text
        case "image_url", msg.ImageBlock():
            return {"type": "image_url", "image_url": {"url": _url(block)}}
        case "file", msg.ImageBlock() | msg.AudioBlock() | msg.VideoBlock() | msg.DocumentBlock():
            return {"type": "file", "file_path": block.source.data, "mime_type": block.media_type}
        case "part", msg.OpaqueBlock(dialect=dialect, wire={"part": part}) if dialect == SCHEMA:
            return part
        case _, msg.OpaqueBlock() if block.dialect == SCHEMA and block.provider_raw is None and _has_only_ours(block):
            return block.wire
        case _, _:
            return to_plain(block)


def to_plain(item: value.Value) -> Any:
    """Return a struct as a plain JSON value."""
    try:
        return read_json(value.encode(item), OWN)
    except InputError:  # a block of a newer version may be invalid in this one
        return {"type": item.type} if isinstance(item, msg.UnknownBlock) else {}


def _has_only_ours(block: msg.OpaqueBlock) -> bool:
    return block.unknown_fields is value.UNSET and block_from(block.wire)[0] == block


def _read_own_block(part: dict[str, Any]) -> msg.ContentBlock | None:
    """Return a part in Dragoman's own shape as a block, if it has no unknown fields."""
    try:
        text = msgspec.json.encode(part)
        block: msg.ContentBlock = _read_block(text)
        if not isinstance(block, msg.UnknownBlock) and value.encode(block) == text:
            return block.replace()  # validates the block
    except (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError, RecursionError, InputError):
        pass
    return None


def _source(url: str, unknown: str) -> tuple[msg.ImageSource, str]:
    if match := _DATA_URL.fullmatch(url):
        return msg.ImageSource("base64", match[2]), match[1]
    return msg.ImageSource("url", url), unknown


def _url(block: msg.ImageBlock) -> str:
    source = block.source
    return f"data:{block.media_type};base64,{source.data}" if source.kind == "base64" else source.data
