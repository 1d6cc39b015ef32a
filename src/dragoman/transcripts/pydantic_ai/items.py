"""Convert items of user prompts and tool returns: texts and files.

    read_item(item) -> block        known fields and residue; an unknown item becomes an opaque block
    write_item(block) -> item       the item again

A file is URL-safe base64 or a URL. A file that was uploaded to a provider is opaque. The media type of the bytes
determines the block type; for a URL, the kind of the item does.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
from typing import Any, Final

from dragoman import message as msg
from dragoman.errors import JsonError
from dragoman.jsontext import OWN, read_json, text_or_none
from dragoman.transcripts.base import make_notes, write_with_notes
from dragoman.transcripts.pydantic_ai.shapes import NAME, Wire

_TO_URLSAFE: Final = str.maketrans("+/", "-_")
_TO_STANDARD: Final = str.maketrans("-_", "+/")
_BY_TYPE: Final[dict[str, type[msg.MediaBlock]]] = {
    "image": msg.ImageBlock,
    "audio": msg.AudioBlock,
    "video": msg.VideoBlock,
}
_BY_KIND: Final[dict[str, type[msg.MediaBlock]]] = {
    "image-url": msg.ImageBlock,
    "audio-url": msg.AudioBlock,
    "video-url": msg.VideoBlock,
    "document-url": msg.DocumentBlock,
}
_KINDS: Final = {cls: kind for kind, cls in _BY_KIND.items()}
_UNKNOWN_TYPES: Final = {  # for a URL without a known extension
    "image-url": "image/*",
    "audio-url": "audio/*",
    "video-url": "video/*",
    "document-url": "application/*",
}
_LISTED_KINDS: Final = (
    *_BY_KIND,
    "uploaded-file",
)  # kinds that a result lists, because tools may return JSON of that shape


# --- reading ---------------------------------------------------------------------------------------------------------


def read_item(item: str | Wire) -> msg.ContentBlock:
    """Return the item as a block with its residue, or as an opaque block if its kind is unknown."""
    if isinstance(item, str):
        return msg.TextBlock(item)
    notes: dict[str, Any] = {}
    block = _match_item(item, notes)
    if block is None:
        return msg.OpaqueBlock(NAME, item)
    return block.replace(provider_raw=make_notes(NAME, _default_item(block, notes), item, **notes))


def read_value(value: Any) -> msg.TextBlock:
    """Return a tool return that is neither text nor a file as JSON text, as the model receives it."""
    block = msg.TextBlock(json_text(value))
    notes = {"form": "json"}
    return block.replace(provider_raw=make_notes(NAME, _default_item(block, notes), value, **notes))


def json_text(value: Any) -> str:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_file(value: Any, digests: Any) -> bool:
    """Return whether a tool return is a file: by its kind, and by the list of digests if there is one."""
    match value:
        case {"kind": "binary", "data": str(), "media_type": str()}:
            return True
        case {"kind": str(kind), "media_type": _} if kind in _LISTED_KINDS:
            return not isinstance(digests, list) or file_digest(value) in digests
        case _:
            return False


def file_digest(item: Wire) -> str:
    """Return the digest of a file in the list of a result."""
    text = json.dumps(item, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_digests(items: Any) -> list[str]:
    """Return the digests that a result lists: of its files without inline bytes."""
    files = items if isinstance(items, list) else [items]
    listed_items = (item for item in files if isinstance(item, dict) and item.get("kind") in _LISTED_KINDS)
    return sorted({file_digest(item) for item in listed_items if is_file(item, None)})


def _match_item(item: Wire, notes: dict[str, Any]) -> msg.TextBlock | msg.MediaBlock | None:
    match item:
        case {"kind": "text-content" | "structured-content" as kind, "content": str(text)}:
            notes["form"] = kind
            return msg.TextBlock(text)
        case {"kind": "binary", "data": str(data), "media_type": str(media_type)}:
            if "+" in data or "/" in data:
                notes["alphabet"] = "standard"
            cls = _BY_TYPE.get(media_type.partition("/")[0], msg.DocumentBlock)
            return _with_identifier(cls(msg.ImageSource("base64", data.translate(_TO_STANDARD)), media_type), item)
        case {"kind": str(kind), "url": str(url)} if kind in _BY_KIND:
            stated_type = text_or_none(item.get("media_type"))
            block = _BY_KIND[kind](
                msg.ImageSource("url", url), _UNKNOWN_TYPES[kind] if stated_type is None else stated_type
            )
            return _with_identifier(block, item)
        case _:
            return None


def _with_identifier(block: msg.MediaBlock, item: Wire) -> msg.MediaBlock:
    """Return the block; a document with a custom identifier as its name."""
    identifier = item.get("identifier")
    if (
        isinstance(block, msg.DocumentBlock)
        and isinstance(identifier, str)
        and identifier not in ("", _default_identifier(block))
    ):
        return block.replace(name=identifier)
    return block


# --- writing ---------------------------------------------------------------------------------------------------------


def changed_reason(block: msg.ContentBlock) -> str | None:
    """Return what reading back changes about a medium whose bytes are kept; ``None`` if nothing."""
    if isinstance(block, msg.DocumentBlock) and block.name == "":
        return "an empty name is dropped; the document is kept"
    if not isinstance(block, msg.MediaBlock) or block.source.kind != "base64":
        return None
    if type(block) is not _BY_TYPE.get(block.media_type.partition("/")[0], msg.DocumentBlock):
        return "the media type determines the block type; the bytes are kept"
    if "-" in block.source.data or "_" in block.source.data:
        return "its base64 is read back in the standard alphabet; the bytes are kept"
    return None


def write_item(block: msg.ContentBlock) -> Any:
    """Write an item."""
    if isinstance(block, msg.OpaqueBlock):
        return block.wire
    return write_with_notes(block, NAME, lambda notes: _default_item(block, notes))


def _default_item(block: msg.ContentBlock, notes: dict[str, Any]) -> Any:
    """Write an item without its residue."""
    match block:
        case msg.TextBlock(text):
            return _default_text(text, notes.get("form"))
        case msg.ImageBlock(source) | msg.DocumentBlock(source) | msg.AudioBlock(source) | msg.VideoBlock(source):
            name = getattr(block, "name", None)
            name_field = {"identifier": name or _default_identifier(block)}
            if source.kind == "base64":
                data = source.data if notes.get("alphabet") == "standard" else source.data.translate(_TO_URLSAFE)
                type_fields = {"media_type": block.media_type, "vendor_metadata": None}
                return {"data": data, **type_fields, "kind": "binary", **name_field}
            kind = _KINDS[type(block)]
            stated_type = None if block.media_type == _UNKNOWN_TYPES[kind] else block.media_type
            url_fields = {"url": source.data, "force_download": False, "vendor_metadata": None}
            return {**url_fields, "kind": kind, "media_type": stated_type, **name_field}
        case _:
            raise TypeError(f"{type(block).__name__} is not an item")


def _default_text(text: str, form: str | None) -> Any:
    match form:
        case "text-content":
            return {"content": text, "metadata": None, "kind": form}
        case "structured-content":  # the text renders the value; an edited text becomes the value
            rest = {"value": text, "tag": None, "description": None}
            return {"content": text, "metadata": None, "kind": form, **rest}
        case "json":
            try:
                return read_json(text, OWN)
            except JsonError:
                return text
        case _:
            return text


def _default_identifier(block: msg.MediaBlock) -> str:
    """Return the identifier that the package derives from a file."""
    data = block.source.data.encode()
    if block.source.kind == "base64":
        with contextlib.suppress(binascii.Error):  # invalid base64 is hashed as text
            data = base64.b64decode(data, validate=True)
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:6]
