"""Blocks of the Messages API: shared by requests, replies and streams.

    read_block(wire, builder) -> block        with its residue; an opaque block if the type is unknown
    write_block(block) -> wire                with its notes applied
    unsupported_reason(block) -> reason       why this wire cannot carry it; ``None`` if it can
    read_cache_hint, write_cache_hint         the mark ``cache_control`` of a block, a tool or a request

Invariant: ``write_block(read_block(wire)) == wire``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from dragoman.exchange import Loss
from dragoman.ids import format_default_id
from dragoman.jsontext import expect_list, expect_object, flag_or_none, integer_or_none, read_items, text_or_none
from dragoman.message import (
    CacheHint,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.wire.message_builder import MessageBuilder, foreign_block_reason
from dragoman.wire.residue import apply_diff, get_notes, make_notes

NAME: Final = "anthropic"
DEFAULT_ID: Final = "msg_dragoman"  # for an answer without an id
_DOCUMENT_TYPES: Final = ("application/pdf", "text/plain")


def read_block(wire: dict[str, Any], builder: MessageBuilder) -> ContentBlock:
    """Read a block with its residue; a block of an unknown type is opaque."""
    block = _read_known_block(wire, builder)
    if block is None:
        return OpaqueBlock(NAME, wire, kind=_opaque_kind(wire))
    raw = block_notes(block, wire)
    return block if raw is None else block.replace(provider_raw=raw)


def block_notes(block: ContentBlock, wire: dict[str, Any]) -> ProviderRaw | None:
    """Return the notes of a block: fields of the wire that the block does not have."""
    provider_id = None
    if isinstance(block, ToolUseBlock | InvalidToolUseBlock) and wire["id"] != block.id:
        provider_id = wire["id"]
    needs_mark = isinstance(block, ThinkingBlock | RedactedThinkingBlock) or (
        isinstance(block, DocumentBlock) and block.media_type not in _DOCUMENT_TYPES
    )  # only a native block can be sent back
    own = True if needs_mark else None
    return make_notes(NAME, _default_block(block, provider_id), wire, id=provider_id, own=own)


def _read_known_block(wire: dict[str, Any], builder: MessageBuilder) -> ContentBlock | None:
    match wire:
        case {"type": "text", "text": str(text)}:
            hint = read_cache_hint(wire.get("cache_control"))
            return TextBlock(text, citations=read_citations(wire.get("citations")), cache_hint=hint)
        case {"type": "tool_use", "id": str(provider_id), "name": str(name), "input": dict(value)}:
            hint = read_cache_hint(wire.get("cache_control"))
            return ToolUseBlock(builder.call_id(provider_id), name, value, cache_hint=hint)
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingBlock(text, text_or_none(wire.get("signature")))
        case {"type": "redacted_thinking", "data": str(data)}:
            return RedactedThinkingBlock(data)
        case {"type": "image" | "document" as kind, "source": dict(source)}:
            return _read_media(kind, source, wire)
        case _:
            return None


def _read_media(kind: str, source: dict[str, Any], wire: dict[str, Any]) -> ContentBlock | None:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            image_source = ImageSource("base64", data)
        case {"type": "url", "url": str(data)}:
            media_type = "image/*" if kind == "image" else "application/pdf"
            image_source = ImageSource("url", data)
        case {"type": "text", "media_type": "text/plain" as media_type, "data": str(text)} if kind == "document":
            image_source = ImageSource("base64", base64.b64encode(text.encode("utf-8", "surrogatepass")).decode())
        case _:
            return None
    hint = read_cache_hint(wire.get("cache_control"))
    if kind == "image":
        return ImageBlock(image_source, media_type, cache_hint=hint)
    citations = wire.get("citations")
    return DocumentBlock(
        image_source,
        media_type,
        text_or_none(wire.get("title")),
        cache_hint=hint,
        context=text_or_none(wire.get("context")),
        cite=flag_or_none(citations.get("enabled")) if isinstance(citations, dict) else None,
    )


_SERVER_RESULT: Final = "_tool_result"


def _opaque_kind(wire: dict[str, Any]) -> str | None:
    """Return one word for a block that only this API has: the tool that the provider ran, or a file."""
    kind = wire.get("type")
    match kind:
        case "server_tool_use":
            return _tool_kind(str(wire.get("name")))
        case "mcp_tool_use" | "mcp_tool_result":
            return "mcp"
        case "image" | "document" | "container_upload":
            return "file"
        case str() if kind.endswith(_SERVER_RESULT):
            return _tool_kind(kind.removesuffix(_SERVER_RESULT))
        case _:
            return kind if isinstance(kind, str) else None


def _tool_kind(name: str) -> str:
    if name.endswith("code_execution"):
        return "code_execution"
    return "tool_search" if name.startswith("tool_search") else name


def read_result(wire: dict[str, Any], builder: MessageBuilder) -> ToolResultBlock:
    """Read a tool result."""
    content = wire.get("content")
    form = "string" if isinstance(content, str) else "absent" if content is None else None
    items: list[Any] = [{"type": "text", "text": content}] if form == "string" else content or []
    blocks = [read_block(expect_object(item, "$.content"), builder) for item in expect_list(items, "$.content")]
    provider_id = wire["tool_use_id"]
    tool_use_id = builder.result_id(provider_id)
    hint = read_cache_hint(wire.get("cache_control"))
    result = ToolResultBlock(tool_use_id, tuple(blocks), wire.get("is_error") is True, cache_hint=hint)
    noted_id = provider_id if provider_id != tool_use_id else None
    default = _default_result(result, noted_id, form)
    return result.replace(provider_raw=make_notes(NAME, default, wire, id=noted_id, form=form))


def _default_result(result: ToolResultBlock, provider_id: str | None, form: str | None) -> dict[str, Any]:
    content: Any = [write_block(block) for block in result.content if unsupported_reason(block) is None]
    if form == "string" and len(content) == 1 and set(content[0]) == {"type", "text"}:
        content = content[0]["text"]
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": provider_id or format_default_id(result.tool_use_id)}
    if form != "absent" or content:
        wire["content"] = content
    if result.is_error:
        wire["is_error"] = True
    return {**wire, **write_cache_hint(result.cache_hint)} if result.cache_hint is not None else wire


def write_blocks(message: Message, losses: list[Loss]) -> list[dict[str, Any]]:
    """Write the blocks of a message; a block that the wire cannot carry is a loss."""
    return [write_block(block) for block in message.content if not _add_losses(block, message, losses)]


def _add_losses(block: ContentBlock, message: Message, losses: list[Loss]) -> bool:
    """Add the losses of a block and its parts; whether the whole block is lost."""
    inside = block.content if isinstance(block, ToolResultBlock) else ()
    is_answer = message.role is Role.ASSISTANT
    for part in (block, *inside):
        reason = unsupported_in_answer(part) if is_answer else unsupported_reason(part)
        if reason is not None:
            losses.append(Loss(message.session_id, message.id, part.type, NAME, reason))
    return (unsupported_in_answer(block) if is_answer else unsupported_reason(block)) is not None


def unsupported_in_answer(block: ContentBlock) -> str | None:
    """Return why a message of the model cannot carry a block; ``None`` if it can."""
    if isinstance(block, ImageBlock) and not get_notes(block.provider_raw, NAME):
        return "a message of the model holds no images here"
    return unsupported_reason(block)


def unsupported_reason(block: ContentBlock) -> str | None:
    """Return why this wire cannot carry a block; ``None`` if it can."""
    match block:
        case OpaqueBlock(dialect=dialect) if dialect != NAME:
            return foreign_block_reason(block)
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if get_notes(raw, NAME) else "reasoning of another provider"
        case DocumentBlock(media_type=media_type, provider_raw=raw) if media_type not in _DOCUMENT_TYPES:
            return None if get_notes(raw, NAME) else "this API accepts PDF and plain text"
        case ImageBlock(source) | DocumentBlock(source) if source.kind == "file_ref":
            return "a workspace file that the provider cannot read"
        case TextBlock() | ToolUseBlock() | InvalidToolUseBlock() | ToolResultBlock() | ImageBlock() | DocumentBlock():
            return None
        case OpaqueBlock():
            return None
        case _:
            return "this API does not support this block"


def write_block(block: ContentBlock) -> dict[str, Any]:
    """Write a block with its notes applied."""
    if isinstance(block, OpaqueBlock):
        return block.wire
    notes = get_notes(getattr(block, "provider_raw", None), NAME)
    wire: dict[str, Any] = apply_diff(_default_block(block, notes.get("id"), notes.get("form")), notes.get("residue"))
    return wire


def _default_block(block: ContentBlock, provider_id: str | None = None, form: str | None = None) -> dict[str, Any]:
    """Return the wire of a block without notes."""
    match block:
        case TextBlock(text):
            citations = {"citations": write_citations(block.citations)} if block.citations else {}
            return {"type": "text", "text": text, **citations, **write_cache_hint(block.cache_hint)}
        case ToolUseBlock(call_id, name, value):
            wire = {"type": "tool_use", "id": provider_id or format_default_id(call_id), "name": name, "input": value}
            return {**wire, **write_cache_hint(block.cache_hint)}
        case InvalidToolUseBlock(call_id, name, input_text):
            value = {"invalid_input": input_text}
            return {"type": "tool_use", "id": provider_id or format_default_id(call_id), "name": name, "input": value}
        case ThinkingBlock(text, signature):
            return {"type": "thinking", "thinking": text, **({"signature": signature} if signature is not None else {})}
        case RedactedThinkingBlock(data):
            return {"type": "redacted_thinking", "data": data}
        case ImageBlock(source, media_type):
            wire = {"type": "image", "source": _write_source(source, media_type)}
            return {**wire, **write_cache_hint(block.cache_hint)}
        case DocumentBlock(source, media_type):
            wire = {"type": "document", "source": _write_source(source, media_type)}
            return {**wire, **_document_fields(block), **write_cache_hint(block.cache_hint)}
        case ToolResultBlock():
            return _default_result(block, provider_id, form)
        case OpaqueBlock(wire=wire):
            return wire
        case _:
            return {"type": "text", "text": f"[{block.type}]"}


def _document_fields(block: DocumentBlock) -> dict[str, Any]:
    fields: dict[str, Any] = {"title": block.name, "context": block.context}
    fields["citations"] = None if block.cite is None else {"enabled": block.cite}
    return {key: value for key, value in fields.items() if value is not None}


def _write_source(source: ImageSource, media_type: str) -> dict[str, Any]:
    if source.kind == "url":
        return {"type": "url", "url": source.data}
    if media_type == "text/plain":
        try:
            text = base64.b64decode(source.data, validate=True).decode("utf-8", "surrogatepass")
            return {"type": "text", "media_type": media_type, "data": text}
        except (binascii.Error, UnicodeDecodeError):
            pass
    return {"type": "base64", "media_type": media_type, "data": source.data}


# --- citations and cache hints ---------------------------------------------------------------------------------------

_UNITS: Final = {  # type of location: its unit, and the keys of its start and end
    "char_location": ("char", "start_char_index", "end_char_index"),
    "page_location": ("page", "start_page_number", "end_page_number"),
    "content_block_location": ("block", "start_block_index", "end_block_index"),
}
_TYPES: Final = {unit: (kind, start, end) for kind, (unit, start, end) in _UNITS.items()}


def read_citations(wire: Any) -> tuple[Citation, ...]:
    """Return the citations of a text block; none if one of them has an unknown form."""
    return read_items(wire, _read_citation)


def _read_citation(wire: Any) -> Citation | None:
    kind = wire.get("type") if isinstance(wire, dict) else None
    if kind in _UNITS:
        unit, start, end = _UNITS[kind]
        return Citation(
            title=text_or_none(wire.get("document_title")),
            cited_text=text_or_none(wire.get("cited_text")),
            document=integer_or_none(wire.get("document_index")),
            unit=unit,  # type: ignore[arg-type]
            source_start=integer_or_none(wire.get(start)),
            source_end=integer_or_none(wire.get(end)),
        )
    if kind == "web_search_result_location":
        return Citation(
            url=text_or_none(wire.get("url")),
            title=text_or_none(wire.get("title")),
            cited_text=text_or_none(wire.get("cited_text")),
        )
    if kind == "search_result_location":
        return Citation(
            title=text_or_none(wire.get("title")),
            cited_text=text_or_none(wire.get("cited_text")),
            source_id=text_or_none(wire.get("source")),
            unit="block",
            source_start=integer_or_none(wire.get("start_block_index")),
            source_end=integer_or_none(wire.get("end_block_index")),
        )
    return None


def write_citations(citations: tuple[Citation, ...]) -> list[dict[str, Any]]:
    """Return the wire of citations."""
    return [_write_citation(citation) for citation in citations]


def _write_citation(citation: Citation) -> dict[str, Any]:
    cited_text = citation.cited_text or ""
    if citation.url is not None:
        wire = {"type": "web_search_result_location", "cited_text": cited_text, "url": citation.url}
        return {**wire, "title": citation.title, "encrypted_index": ""}
    if citation.document is None:
        return {
            "type": "search_result_location",
            "cited_text": cited_text,
            "source": citation.source_id or "",
            "title": citation.title,
            "search_result_index": 0,
            "start_block_index": citation.source_start or 0,
            "end_block_index": citation.source_end or 0,
        }
    kind, start, end = _TYPES[citation.unit or "char"]
    return {
        "type": kind,
        "cited_text": cited_text,
        "document_index": citation.document,
        "document_title": citation.title,
        start: citation.source_start or 0,
        end: citation.source_end or 0,
    }


def read_cache_hint(wire: Any) -> CacheHint | None:
    """Return the hint of a ``cache_control``."""
    if not isinstance(wire, dict) or wire.get("type") != "ephemeral":
        return None
    return CacheHint(text_or_none(wire.get("ttl")))


def write_cache_hint(hint: CacheHint | None) -> dict[str, Any]:
    """Return the field ``cache_control``; nothing without a hint."""
    if hint is None:
        return {}
    ttl = {"ttl": hint.ttl} if hint.ttl is not None else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}
