"""Convert responses: one assistant message each.

Invariant: a call with unusable input round-trips unchanged and never becomes a valid call.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.errors import FormatError
from dragoman.jsontext import count_or_zero, expect_list, expect_object, text_or_none
from dragoman.transcripts import base
from dragoman.transcripts.pydantic_ai import shapes
from dragoman.transcripts.pydantic_ai.write_context import WriteContext, read_extra, read_own_extra, write_metadata
from dragoman.wire.counts import drop_impossible_counts
from dragoman.wire.tool_definitions import read_arguments

_INVALID: Final = "INVALID_JSON"  # the package's key for invalid arguments
_INVALID_REASON: Final = "marked as invalid JSON"
_REDACTED: Final = "redacted_thinking"  # the part id of redacted reasoning
_STATUS: Final = {
    "incomplete": msg.MessageStatus.PARTIAL,
    "suspended": msg.MessageStatus.PARTIAL,
    "interrupted": msg.MessageStatus.CANCELLED,
}
_STATES: Final = {
    msg.MessageStatus.COMPLETE: "complete",
    msg.MessageStatus.PARTIAL: "incomplete",
    msg.MessageStatus.CANCELLED: "interrupted",
    msg.MessageStatus.ERROR: "interrupted",
}


# --- reading ---------------------------------------------------------------------------------------------------------


def read_response(wire: shapes.Wire, where: str, reader: base.TranscriptReader) -> None:
    """Read a response."""
    blocks: list[msg.ContentBlock] = []
    provider = text_or_none(wire.get("provider_name"))
    for index, part in enumerate(expect_list(wire.get("parts"), f"{where}.parts")):
        reader.path = f"{where}.parts[{index}]"
        blocks.append(_read_part(expect_object(part, reader.path), provider, reader))
    reader.path = where
    message = reader.make_message(msg.Role.ASSISTANT, blocks, own_extra=read_own_extra(wire), **_read_metadata(wire))
    message = message.replace(created_at=shapes.parse_time(wire.get("timestamp")) or message.created_at)
    notes = {
        "dialect": shapes.NAME,
        **base.message_notes(message, shapes.NAME),
        "finish": text_or_none(wire.get("finish_reason")),
        "conversation": text_or_none(wire.get("conversation_id")) or "",
    }
    message = base.with_notes(message, {name: note for name, note in notes.items() if note is not None})
    reader.messages.append(base.add_residue(message, _default_response(message, WriteContext()), wire, shapes.NAME))


def _read_metadata(wire: shapes.Wire) -> dict[str, Any]:
    """Return the metadata that a response expresses."""
    fields = {
        "model": _read_model(wire),
        "provider": text_or_none(wire.get("provider_name")),
        "usage": read_usage(wire.get("usage")),
        "run_id": text_or_none(wire.get("run_id")),
        "status": _read_status(wire),
        "extra": read_extra(wire),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _read_model(wire: shapes.Wire) -> str | None:
    provider, name = wire.get("provider_name"), text_or_none(wire.get("model_name"))
    return f"{provider}:{name}" if name is not None and isinstance(provider, str) else name


def _read_status(wire: shapes.Wire) -> msg.MessageStatus:
    if wire.get("finish_reason") == "error":
        return msg.MessageStatus.ERROR
    return _STATUS.get(str(wire.get("state")), msg.MessageStatus.COMPLETE)


def read_usage(wire: Any) -> msg.Usage | None:
    """Read token counts. All zero means that nothing was counted."""
    if not isinstance(wire, dict):
        return None
    cached, created = count_or_zero(wire.get("cache_read_tokens")), count_or_zero(wire.get("cache_write_tokens"))
    prompt = count_or_zero(wire.get("input_tokens", wire.get("request_tokens")))
    audio = count_or_zero(wire.get("input_audio_tokens")) - count_or_zero(wire.get("cache_audio_read_tokens"))
    usage = msg.Usage(
        input_tokens=max(prompt - cached - created, 0),
        output_tokens=count_or_zero(wire.get("output_tokens", wire.get("response_tokens"))),
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        cache_creation_1h_input_tokens=count_or_zero(wire.get("cache_write_1h_tokens")),
        reasoning_tokens=count_or_zero(wire.get("output_reasoning_tokens")),
        input_audio_tokens=max(audio, 0),
        output_audio_tokens=count_or_zero(wire.get("output_audio_tokens")),
        provider_cost_usd=_read_cost(wire.get("cost")),
        cost_usd=None,
        pricing_version=msg.NOT_RECORDED,
        latency_ms=0,
    )
    return None if usage == _NO_USAGE else drop_impossible_counts(usage, shapes.NAME)


_NO_USAGE: Final = msg.Usage(
    input_tokens=0, output_tokens=0, cost_usd=None, pricing_version=msg.NOT_RECORDED, latency_ms=0
)


def _read_cost(value: Any) -> Decimal | None:
    try:
        amount = Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        return None
    return amount if amount is not None and amount.is_finite() else None


def _read_part(part: shapes.Wire, provider: str | None, reader: base.TranscriptReader) -> msg.ContentBlock:
    """Return the part as a block with its residue, or as an opaque block if its kind is unknown."""
    if not isinstance(part.get("part_kind"), str):
        raise FormatError("a part needs a kind, as text", where=f"{reader.path}.part_kind")
    notes: dict[str, Any] = {}
    block = _match_part(part, reader, notes)
    return base.with_residue(shapes.NAME, block, part, lambda block: _default_part(block, notes, provider), **notes)


def _match_part(part: shapes.Wire, reader: base.TranscriptReader, notes: dict[str, Any]) -> msg.ContentBlock | None:
    match part:
        case {"part_kind": "text", "content": str(text)}:
            return msg.TextBlock(text)
        case {"part_kind": "speech", "transcript": str(text)}:
            notes["form"] = "speech"
            return msg.TextBlock(text)
        case {"part_kind": "thinking", "content": "", "id": "redacted_thinking", "signature": str(data)}:
            return msg.RedactedThinkingBlock(data)
        case {"part_kind": "thinking", "content": str(text)}:
            return msg.ThinkingBlock(text, text_or_none(part.get("signature")))
        case {"part_kind": "tool-call"}:
            return _read_call(part, reader, notes)
        case {"part_kind": "text" | "thinking"}:
            raise FormatError("the content of this part must be text", where=f"{reader.path}.content")
        case _:  # executed or created by the provider
            return None


def _read_call(part: shapes.Wire, reader: base.TranscriptReader, notes: dict[str, Any]) -> msg.CallBlock:
    call_id, name = reader.read_call_identity(part, "tool_name", "tool_call_id", notes)
    args = part.get("args")
    match args:
        case {"INVALID_JSON": str(text), **rest} if not rest:
            return msg.InvalidToolUseBlock(call_id, name, text, _INVALID_REASON)
        case dict():
            return msg.ToolUseBlock(call_id, name, args)
        case None:
            notes["form"] = "absent"
            return msg.ToolUseBlock(call_id, name, {})
        case str():
            value, problem = read_arguments(args)
            if problem is not None:
                return msg.InvalidToolUseBlock(call_id, name, args, problem)
            notes["form"] = "text"
            return msg.ToolUseBlock(call_id, name, value)
        case _:
            raise FormatError("arguments must be an object or its JSON text", where=f"{reader.path}.args")


# --- writing ---------------------------------------------------------------------------------------------------------


def write_response(message: msg.Message, context: WriteContext) -> shapes.Wire:
    """Write a response."""
    wire: shapes.Wire = base.apply_notes(_default_response(message, context), base.message_notes(message, shapes.NAME))
    return wire


def _default_response(message: msg.Message, context: WriteContext) -> shapes.Wire:
    """Write a response without its residue; of the notes, finish reason and conversation are used."""
    metadata, notes = message.metadata, base.message_notes(message, shapes.NAME)
    provider = metadata.provider
    blocks = context.supported_blocks(message, message.content, _unsupported_reason)
    _add_reason_losses(blocks, message, context)
    finish = notes.get("finish") if notes.get("finish") != "error" else None
    fields = {
        "usage": default_usage(metadata.usage),
        "model_name": _default_model(metadata),
        "timestamp": shapes.format_time(message.created_at),
        "provider_name": provider,
        "finish_reason": "error" if metadata.status is msg.MessageStatus.ERROR else finish,
        "run_id": metadata.run_id,
        "conversation_id": notes.get("conversation", message.session_id) or None,
        "state": _STATES[metadata.status],
    }
    fields["metadata"] = write_metadata(message, _native_metadata(metadata, fields))
    return shapes.response_shape([_write_part(block, provider) for block in blocks], **fields)


def _native_metadata(metadata: msg.MessageMetadata, wire: dict[str, Any]) -> list[str]:
    """Return the names of the metadata that reading restores."""
    reread, empty = _read_metadata(wire), msg.MessageMetadata()
    names = ("model", "provider", "usage", "run_id", "status")
    return [name for name in names if reread.get(name, getattr(empty, name)) == getattr(metadata, name)]


def _default_model(metadata: msg.MessageMetadata) -> str | None:
    model, provider = metadata.model, metadata.provider
    return model if model is None or provider is None else model.removeprefix(f"{provider}:")


def default_usage(usage: msg.Usage | None) -> shapes.Wire:
    """Write token counts; the package's totals include their details."""
    if usage is None:
        return shapes.usage_shape()
    cached, created = usage.cached_input_tokens, usage.cache_creation_input_tokens
    cost = usage.provider_cost_usd if usage.pricing_version == msg.NOT_RECORDED else usage.amount_usd
    return shapes.usage_shape(
        input_tokens=usage.input_tokens + cached + created,
        cache_write_tokens=created,
        cache_write_1h_tokens=usage.cache_creation_1h_input_tokens,
        cache_read_tokens=cached,
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
        input_audio_tokens=usage.input_audio_tokens,
        output_audio_tokens=usage.output_audio_tokens,
        cost=None if cost is None else str(cost),
    )


def _unsupported_reason(block: msg.ContentBlock) -> str | None:
    match block:
        case (
            msg.TextBlock()
            | msg.ThinkingBlock()
            | msg.RedactedThinkingBlock()
            | msg.ToolUseBlock()
            | msg.InvalidToolUseBlock()
        ):
            return None
        case msg.OpaqueBlock(dialect=dialect):
            return None if dialect == shapes.NAME else f"a block of {dialect}"
        case _:
            return "not supported in a response"


def _add_reason_losses(blocks: Iterable[msg.ContentBlock], message: msg.Message, context: WriteContext) -> None:
    """Report a loss if reading does not restore the reason why a call is invalid."""
    for block in blocks:
        if isinstance(block, msg.InvalidToolUseBlock):
            reason = read_arguments(block.input_text)[1] or _INVALID_REASON
            if reason != block.reason:
                context.add_loss(message, block.type, "the reason why the call is invalid; the call is kept")


def _write_part(block: msg.ContentBlock, provider: str | None) -> shapes.Wire:
    if isinstance(block, msg.OpaqueBlock):
        return block.wire
    wire: shapes.Wire = base.write_with_notes(block, shapes.NAME, lambda notes: _default_part(block, notes, provider))
    return wire


def _default_part(block: msg.ContentBlock, notes: dict[str, Any], provider: str | None) -> shapes.Wire:
    match block:
        case msg.TextBlock(text):
            return (
                shapes.speech_shape("assistant", text, None)
                if notes.get("form") == "speech"
                else shapes.text_shape(text)
            )
        case msg.ThinkingBlock(text, signature):
            return shapes.thinking_shape(text, None, signature, provider if signature is not None else None)
        case msg.RedactedThinkingBlock(data):
            return shapes.thinking_shape("", _REDACTED, data, provider)
        case msg.ToolUseBlock(call_id, name, value):
            return shapes.call_shape(name, _default_args(value, notes.get("form")), notes.get("id", call_id))
        case msg.InvalidToolUseBlock(call_id, name, text):
            is_plain = read_arguments(text)[1] is not None
            return shapes.call_shape(name, text if is_plain else {_INVALID: text}, notes.get("id", call_id))
        case _:
            raise TypeError(f"{type(block).__name__} is not part of a response")


def _default_args(value: dict[str, Any], form: str | None) -> Any:
    if form == "absent" and not value:
        return None
    looks_invalid = len(value) == 1 and isinstance(value.get(_INVALID), str)  # as text it is unambiguous
    return msgspec.json.encode(value).decode() if form == "text" or looks_invalid else value
