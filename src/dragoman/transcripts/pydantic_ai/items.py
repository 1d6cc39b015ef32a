"""Items of what a user says or a tool answers, both ways: texts and files.

    read_item(item) -> block        what we know of it, and the residue; else all of it, opaque
    write_item(block) -> item     the item again
    cannot_say(block)               why an item cannot be made of a block

A file is a text of base64, in the alphabet for addresses, or an address. A file that was uploaded to a provider is
known to that provider alone, and is opaque. The one rule: what a block is decided by the media type of the bytes, and
by the kind of the item where there is only an address.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
from typing import Any, Final

from dragoman.errors import JsonError
from dragoman.jsontext import OWN, read_json, text_or_none
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    OpaqueBlock,
    TextBlock,
    VideoBlock,
)
from dragoman.transcripts.base import apply_notes, get_notes, make_notes
from dragoman.transcripts.pydantic_ai.shapes import NAME, Wire

Medium = ImageBlock | DocumentBlock | AudioBlock | VideoBlock
_TO_URLSAFE: Final = str.maketrans("+/", "-_")
_TO_STANDARD: Final = str.maketrans("-_", "+/")
_BY_TYPE: Final[dict[str, type[Medium]]] = {"image": ImageBlock, "audio": AudioBlock, "video": VideoBlock}
_BY_KIND: Final[dict[str, type[Medium]]] = {
    "image-url": ImageBlock,
    "audio-url": AudioBlock,
    "video-url": VideoBlock,
    "document-url": DocumentBlock,
}
_KINDS: Final = {cls: kind for kind, cls in _BY_KIND.items()}
_UNKNOWN_TYPES: Final = {  # of an address whose ending says nothing
    "image-url": "image/*",
    "audio-url": "audio/*",
    "video-url": "video/*",
    "document-url": "application/*",
}
_LISTED_KINDS: Final = (
    *_BY_KIND,
    "uploaded-file",
)  # kinds that a result lists, because any tool may answer with such JSON


# --- reading ---------------------------------------------------------------------------------------------------------


def read_item(item: str | Wire) -> ContentBlock:
    """An item as we know it, with what is left over; else the whole of it, opaque."""
    if isinstance(item, str):
        return TextBlock(item)
    notes: dict[str, Any] = {}
    block = _match_item(item, notes)
    if block is None:
        return OpaqueBlock(NAME, item)
    return block.replace(provider_raw=make_notes(NAME, _default_item(block, notes), item, **notes))


def read_value(value: Any) -> TextBlock:
    """What a tool answered that is neither a text nor a file: its JSON, as a model is shown it."""
    block = TextBlock(json_text(value))
    notes = {"form": "json"}
    return block.replace(provider_raw=make_notes(NAME, _default_item(block, notes), value, **notes))


def json_text(value: Any) -> str:
    """The JSON of a value, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_file(value: Any, digests: Any) -> bool:
    """Whether what a tool answered is a file: it says so itself, and the result lists it if that is how it came."""
    match value:
        case {"kind": "binary", "data": str(), "media_type": str()}:
            return True
        case {"kind": str(kind), "media_type": _} if kind in _LISTED_KINDS:
            return not isinstance(digests, list) or file_digest(value) in digests
        case _:
            return False


def file_digest(item: Wire) -> str:
    """What a result lists a file by."""
    text = json.dumps(item, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_digests(items: Any) -> list[str]:
    """What a result lists of its content: its files, but not those whose bytes it holds."""
    files = items if isinstance(items, list) else [items]
    listed_items = (item for item in files if isinstance(item, dict) and item.get("kind") in _LISTED_KINDS)
    return sorted({file_digest(item) for item in listed_items if is_file(item, None)})


def _match_item(item: Wire, notes: dict[str, Any]) -> TextBlock | Medium | None:
    match item:
        case {"kind": "text-content" | "structured-content" as kind, "content": str(text)}:
            notes["form"] = kind
            return TextBlock(text)
        case {"kind": "binary", "data": str(data), "media_type": str(media_type)}:
            if "+" in data or "/" in data:
                notes["alphabet"] = "standard"
            cls = _BY_TYPE.get(media_type.partition("/")[0], DocumentBlock)
            return _with_identifier(cls(ImageSource("base64", data.translate(_TO_STANDARD)), media_type), item)
        case {"kind": str(kind), "url": str(url)} if kind in _BY_KIND:
            stated_type = text_or_none(item.get("media_type"))
            block = _BY_KIND[kind](
                ImageSource("url", url), _UNKNOWN_TYPES[kind] if stated_type is None else stated_type
            )
            return _with_identifier(block, item)
        case _:
            return None


def _with_identifier(block: Medium, item: Wire) -> Medium:
    """A document's name is the identifier that somebody gave it; else that is made of what it holds."""
    identifier = item.get("identifier")
    if (
        isinstance(block, DocumentBlock)
        and isinstance(identifier, str)
        and identifier not in ("", _default_identifier(block))
    ):
        return block.replace(name=identifier)
    return block


# --- writing ---------------------------------------------------------------------------------------------------------


def unsupported_reason(block: ContentBlock) -> str | None:
    """Why an item cannot be made of a block; ``None`` if it can."""
    match block:
        case TextBlock():
            return None
        case ImageBlock(source) | DocumentBlock(source) | AudioBlock(source) | VideoBlock(source):
            return "a file of the workspace, which nobody else can read" if source.kind == "file_ref" else None
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else f"a block that only {dialect} understands"
        case _:
            return "this format has no such item"


def changed_reason(block: ContentBlock) -> str | None:
    """What will not be read again as it is of a medium whose bytes are kept."""
    if isinstance(block, DocumentBlock) and block.name == "":
        return "an empty name is none here; the document is kept"
    if not isinstance(block, Medium) or block.source.kind != "base64":
        return None
    if type(block) is not _BY_TYPE.get(block.media_type.partition("/")[0], DocumentBlock):
        return "files are told apart by their media type; its bytes are kept"
    if "-" in block.source.data or "_" in block.source.data:
        return "its base64 is read again in the usual alphabet; its bytes are kept"
    return None


def write_item(block: ContentBlock) -> Any:
    """The item again."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    return apply_notes(_default_item(block, notes), notes)


def _default_item(block: ContentBlock, notes: dict[str, Any]) -> Any:
    """What we would write if nobody had noted more than its form."""
    match block:
        case TextBlock(text):
            return _default_text(text, notes.get("form"))
        case ImageBlock(source) | DocumentBlock(source) | AudioBlock(source) | VideoBlock(source):
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
            raise TypeError(f"{type(block).__name__} is no item")


def _default_text(text: str, form: str | None) -> Any:
    match form:
        case "text-content":
            return {"content": text, "metadata": None, "kind": form}
        case "structured-content":  # of which the text is a rendering: where it was edited, it is the value
            rest = {"value": text, "tag": None, "description": None}
            return {"content": text, "metadata": None, "kind": form, **rest}
        case "json":
            try:
                return read_json(text, OWN)
            except JsonError:
                return text
        case _:
            return text


def _default_identifier(block: Medium) -> str:
    """What the package makes of a file to call it by."""
    data = block.source.data.encode()
    if block.source.kind == "base64":
        with contextlib.suppress(binascii.Error):  # else they are not bytes that anybody could read
            data = base64.b64decode(data, validate=True)
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:6]
