"""Convert blocks. Requests, replies and streams share this code.

    read_block(wire, builder, place) -> ContentBlock         an unknown block becomes an opaque block
    write_blocks(blocks, place, record_loss) -> list         unsupported blocks are reported with a reason

Invariant: a block that is read here is written back unchanged, through its residue or as an opaque block.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dragoman.dialects.bedrock_converse.citations import (
    read_citations,
    split_cache_points,
    write_cache_point,
    write_citations,
)
from dragoman.dialects.bedrock_converse.mappings import FORMAT_ALIASES, FORMAT_NAMES, FORMATS, NAME
from dragoman.errors import JsonError
from dragoman.exchange import Loss
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import OWN, expect_object, flag_or_none, read_json, text_or_none
from dragoman.message import (
    AudioBlock,
    CacheHint,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    MediaBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, get_notes, make_notes

RecordLoss = Callable[[str, str], None]  # called with the block type or option that is lost, and the reason
_EMPTY_FAILURE: Final = {"text": "The tool failed without an output."}  # the API rejects a failure without content


def loss_recorder(losses: list[Loss], message: Message | None = None) -> RecordLoss:
    session_id, message_id = (message.session_id, message.id) if message is not None else ("", "")
    return lambda what, reason: losses.append(Loss(session_id, message_id, what, NAME, reason))


def ignore_loss(_what: str, _reason: str) -> None:
    """Ignore losses of blocks that were read from this wire format."""


def try_parse_object(text: str) -> dict[str, Any] | None:
    try:
        value = read_json(text, OWN)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None


def to_compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_MESSAGE_KINDS: Final = (
    "text",
    "citationsContent",
    "toolUse",
    "reasoningContent",
    "image",
    "document",
    "video",
    "audio",
)
# The block types that are read at each place; others stay opaque.
_PLACES: Final = {
    "system": ("text",),
    "message": _MESSAGE_KINDS,
    "reply": _MESSAGE_KINDS,
    "result": ("text", "json", "image", "document", "video"),
}


def read_block(wire: dict[str, Any], builder: MessageBuilder, place: str = "message") -> ContentBlock:
    """Return the block with its residue, or an opaque block if its type is unknown."""
    matched = _match_block({key: wire[key] for key in _PLACES[place] if key in wire}, builder)
    if matched is None:
        return OpaqueBlock(NAME, wire, kind=_opaque_kind(wire))
    block, notes = matched
    default = default_block(block, notes, place=place)
    return block.replace(provider_raw=make_notes(NAME, default, wire, **notes))


SYSTEM_TOOLS: Final = {"nova_grounding": "web_search", "nova_code_interpreter": "code_execution"}


def _opaque_kind(wire: dict[str, Any]) -> str | None:
    """Return one word for a block that only this API has."""
    match wire:
        case {"toolUse": {"name": str(name)}}:
            return SYSTEM_TOOLS.get(name, name)
        case {"toolResult": dict()}:
            return "server_tool"
        case {"cachePoint": dict()}:
            return "cache_point"
        case {"guardContent": dict()}:
            return "guard"
        case _:
            return None


def read_hinted_blocks(items: list[dict[str, Any]], builder: MessageBuilder, place: str) -> list[ContentBlock]:
    """Read blocks; a cache point is a hint of the block before it."""
    blocks: list[ContentBlock] = []
    for item, hint in split_cache_points(items):
        block = read_block(item, builder, place)
        if hint is None:
            blocks.append(block)
        elif isinstance(block, OpaqueBlock):
            blocks += (block, read_block(write_cache_point(hint), builder, place))
        else:
            blocks.append(block.replace(cache_hint=hint))
    return blocks


def _match_block(wire: dict[str, Any], builder: MessageBuilder) -> tuple[ContentBlock, dict[str, Any]] | None:
    """Return the block and its notes. Native reasoning is marked, because only native reasoning is written."""
    match wire:
        case {"text": str(text)}:
            return TextBlock(text), {} if text else {"form": "empty"}
        case {"citationsContent": {"content": [{"text": str(text)}]} as content}:
            return TextBlock(text, citations=read_citations(content.get("citations"))), {"form": "citations"}
        case {"json": value}:
            return TextBlock(to_compact_json(value)), {"form": "json"}
        case {"toolUse": {"type": "server_tool_use"}}:
            return None  # executed by the provider, so it must not be executed here
        case {"toolUse": {"toolUseId": str(provider_id), "name": str(name)} as call}:
            call_id = builder.call_id(provider_id)
            return _read_call(call_id, name, call.get("input", "")), id_note(provider_id, call_id)
        case {"reasoningContent": {"reasoningText": {"text": str(text)} as reasoning_text}}:
            return ThinkingBlock(text, text_or_none(reasoning_text.get("signature"))), {"own": True}
        case {"reasoningContent": {"redactedContent": str(data)}}:
            return RedactedThinkingBlock(data), {"own": True}
        case _:
            return _read_media(wire)


def _read_call(call_id: str, name: str, value: Any) -> ContentBlock:
    if isinstance(value, dict):
        return ToolUseBlock(call_id, name, value)
    text = value if isinstance(value, str) else to_compact_json(value)
    return InvalidToolUseBlock(call_id, name, text, f"a tool's input is a JSON object, not {type(value).__name__}")


def id_note(provider_id: str, call_id: str) -> dict[str, Any]:
    return {"id": provider_id} if provider_id != call_id else {}


def _read_media(wire: dict[str, Any]) -> tuple[ContentBlock, dict[str, Any]] | None:
    kind = next((kind for kind in FORMATS if isinstance(wire.get(kind), dict)), None)
    if kind is None:
        return None
    media: dict[str, Any] = wire[kind]
    default = "txt" if kind == "document" else ""
    media_type = FORMATS[kind].get(str(media.get("format", default)))
    source, notes = _read_source(kind, media.get("source"))
    if media_type is None or source is None:
        return None
    match kind:
        case "image":
            return ImageBlock(source, media_type), notes
        case "video":
            return VideoBlock(source, media_type), notes
        case "audio":
            return AudioBlock(source, media_type), notes
        case _:
            citations = media.get("citations")
            document = DocumentBlock(
                source,
                media_type,
                text_or_none(media.get("name")),
                context=text_or_none(media.get("context")),
                cite=flag_or_none(citations.get("enabled")) if isinstance(citations, dict) else None,
            )
            return document, notes


def _read_source(kind: str, source: Any) -> tuple[ImageSource | None, dict[str, Any]]:
    """Return the source. A document may be text, in one piece or in chunks; the notes keep the chunk lengths."""
    match source:
        case {"bytes": str(data)}:
            return ImageSource("base64", data), {}
        case {"s3Location": {"uri": str(uri)}} if uri.startswith("s3://"):
            return ImageSource("url", uri), {}
        case {"text": str(text)} if kind == "document":
            return ImageSource("base64", _base64(text)), {"form": "text"}
        case {"content": [*chunks]} if kind == "document" and chunks and all(_is_text(chunk) for chunk in chunks):
            texts = [chunk["text"] for chunk in chunks]
            return ImageSource("base64", _base64("\n".join(texts))), {"form": "chunks", "cuts": [*map(len, texts)]}
        case _:
            return None, {}


def _is_text(chunk: Any) -> bool:
    return isinstance(chunk, dict) and set(chunk) == {"text"} and isinstance(chunk["text"], str)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def read_result(wire: dict[str, Any], item: dict[str, Any], builder: MessageBuilder) -> ToolResultBlock:
    blocks = [read_block(expect_object(block, "toolResult.content"), builder, "result") for block in wire["content"]]
    tool_use_id = builder.result_id(wire["toolUseId"])
    notes = id_note(wire["toolUseId"], tool_use_id)
    result = ToolResultBlock(tool_use_id, tuple(blocks), wire.get("status") == "error")
    return result.replace(provider_raw=make_notes(NAME, default_block(result, notes), item, **notes))


def write_blocks(blocks: Iterable[ContentBlock], place: str, record_loss: RecordLoss) -> list[dict[str, Any]]:
    wire = []
    for block in blocks:
        reason = unsupported_reason(block, place)
        if reason is not None:
            record_loss(block.type, reason)
        elif not _is_blank(block):
            wire.append(_write_block(block, place, record_loss))
            hint = _find_hint(block) if place != "result" else None
            if hint is not None:
                wire.append(write_cache_point(hint))
    return wire


def _find_hint(block: ContentBlock) -> CacheHint | None:
    """Return the cache hint of a block; inside a result there is no cache point, so it follows the result."""
    hint: CacheHint | None = getattr(block, "cache_hint", None)
    if hint is None and type(block) is ToolResultBlock:
        return next((part_hint for part in block.content if (part_hint := _find_hint(part)) is not None), None)
    return hint


def _is_blank(block: ContentBlock) -> bool:
    """Return whether it is an empty text: the API rejects one, unless it sent it itself."""
    return isinstance(block, TextBlock) and not block.text and "form" not in get_notes(block.provider_raw, NAME)


def unsupported_reason(block: ContentBlock, place: str) -> str | None:
    """Return why the wire format cannot carry a block at a place; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect):
            return None if dialect == NAME else foreign_block_reason(block)
        case TextBlock():
            return None
        case _ if place == "system":
            return "a system prompt must be text"
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case _ if isinstance(block, MediaBlock):
            if isinstance(block, AudioBlock) and place == "result":
                return "a result cannot contain audio"
            return _unsupported_media_reason(block)
        case ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock() if place in ("message", "reply"):
            return None
        case _:
            return "this API does not support this block"


def _unsupported_media_reason(block: MediaBlock) -> str | None:
    source = block.source
    if source.kind == "file_ref" or (source.kind == "url" and not source.data.startswith("s3://")):
        return "this API accepts only bytes and S3 objects"
    return None if _format_name(block) is not None else f"this API does not accept {block.media_type}"


def _format_name(block: MediaBlock) -> str | None:
    media_type = block.media_type.partition(";")[0].strip().lower()
    name = FORMAT_NAMES[block.type].get(media_type) or FORMAT_ALIASES.get(media_type)
    if name is None and block.type == "document" and media_type.startswith("text/"):
        return "txt"
    return name if name in FORMATS[block.type] else None


def _write_block(block: ContentBlock, place: str, record_loss: RecordLoss) -> dict[str, Any]:
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    wire: dict[str, Any] = apply_diff(default_block(block, notes, record_loss, place), notes.get("residue"))
    return wire


def default_block(
    block: ContentBlock, notes: Mapping[str, Any], record_loss: RecordLoss = ignore_loss, place: str = "message"
) -> dict[str, Any]:
    """Write a block without its residue; of the notes, only its form is used.

    In a reply, an invalid input is written as text. In a request it must be an object, or the API rejects the request.
    """
    match block:
        case TextBlock(text):
            if block.citations:
                cited = {"content": [{"text": text}], "citations": write_citations(block.citations)}
                return {"citationsContent": cited}
            return _default_text(text, notes.get("form"))
        case ToolUseBlock(call_id, name, value):
            return {
                "toolUse": {
                    "toolUseId": notes.get("id") or format_id(call_id, DEFAULT_ID_FORMAT),
                    "name": name,
                    "input": value,
                }
            }
        case InvalidToolUseBlock(call_id, name, input_text):
            call_input = input_text if place == "reply" else {"invalid_input": input_text}
            return {
                "toolUse": {
                    "toolUseId": notes.get("id") or format_id(call_id, DEFAULT_ID_FORMAT),
                    "name": name,
                    "input": call_input,
                }
            }
        case ToolResultBlock(call_id, content, is_error):
            result: dict[str, Any] = {"toolUseId": notes.get("id") or format_id(call_id, DEFAULT_ID_FORMAT)}
            result["content"] = write_blocks(content, "result", record_loss) or ([_EMPTY_FAILURE] if is_error else [])
            return {"toolResult": {**result, "status": "error"} if is_error else result}
        case ThinkingBlock(text, signature):
            signature_field = {"signature": signature} if signature is not None else {}
            return {"reasoningContent": {"reasoningText": {"text": text, **signature_field}}}
        case RedactedThinkingBlock(data):
            return {"reasoningContent": {"redactedContent": data}}
        case _ if isinstance(block, MediaBlock):
            media: dict[str, Any] = {"format": _format_name(block), "source": _default_source(block.source, notes)}
            if isinstance(block, DocumentBlock):
                media["name"] = _document_name(block)
                if block.context is not None:
                    media["context"] = block.context
                if block.cite is not None:
                    media["citations"] = {"enabled": block.cite}
            return {block.type: media}
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"text": f"[{block.type}]"}


def _default_text(text: str, form: str | None) -> dict[str, Any]:
    if form == "citations":
        return {"citationsContent": {"content": [{"text": text}]}}
    if form == "json":
        try:
            return {"json": read_json(text, OWN)}
        except JsonError:
            pass  # the text was edited
    return {"text": text}


def _default_source(source: ImageSource, notes: Mapping[str, Any]) -> dict[str, Any]:
    if source.kind == "url":
        return {"s3Location": {"uri": source.data}}
    form = notes.get("form")
    if form in ("text", "chunks"):
        try:
            text = base64.b64decode(source.data, validate=True).decode("utf-8", "surrogatepass")
        except (binascii.Error, UnicodeDecodeError):
            return {"bytes": source.data}
        if form == "text":
            return {"text": text}
        return {"content": [{"text": chunk} for chunk in _split_text(text, notes.get("cuts", ()))]}
    return {"bytes": source.data}


def _split_text(text: str, cuts: Iterable[int]) -> list[str]:
    """Return the text in its original chunks; in one chunk if it was changed."""
    chunks, at = [], 0
    for length in cuts:
        chunks.append(text[at : at + length])
        at += length + 1
    return chunks if "\n".join(chunks) == text else [text]


def _document_name(block: DocumentBlock) -> str:
    """Return a valid name: the API requires one, allows few characters and rejects duplicates."""
    name = re.sub(r"[^A-Za-z0-9 \-()\[\]]+", "-", block.name or "")
    name = re.sub(r" +", " ", name).strip()[:200]
    return name or "document-" + hashlib.sha256(block.source.data.encode("utf-8", "surrogatepass")).hexdigest()[:8]
