"""Whole replies of the Messages API and their usage. Invariant: a reply that was read here is written as it was."""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.anthropic import fast_path
from dragoman.dialects.anthropic.blocks import (
    DEFAULT_ID,
    NAME,
    block_notes,
    read_block,
    unsupported_in_answer,
    write_block,
)
from dragoman.dialects.anthropic.error import read_error, write_error
from dragoman.dialects.anthropic.support import SUPPORT
from dragoman.dialects.anthropic.usage import TIERS, read_usage, write_usage
from dragoman.event import mark_unusable
from dragoman.exchange import Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, StopDetails, TokenUsage, ToolUseBlock
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder, fault_loss, wait_for_results
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses

STOP_REASONS: Final = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "refusal": StopReason.REFUSAL,
    "pause_turn": StopReason.PAUSED,
    "compaction": StopReason.PAUSED,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
}
_STOP_WORDS: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a message of the Messages API; an error with HTTP 200 is a reply with a fault."""
    plain = fast_path.read_reply(body)
    if plain is not None:
        return plain
    if body.get("type") == "error" and "content" not in body:
        fault = read_error(None, {}, body)
        raw = make_notes(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    builder = MessageBuilder()
    items = expect_list(body.get("content"), "$.content")
    content = [read_block(expect_object(item, "$.content"), builder) for item in items]
    if content and STOP_REASONS.get(str(body.get("stop_reason"))) is StopReason.MAX_TOKENS:
        content[-1] = _mark_cut_call(content[-1], body["content"][-1])
    has_call = any(isinstance(block, ToolUseBlock) for block in content)
    return mark_unusable(make_reply(body, tuple(content), has_call=has_call))


def _mark_cut_call(block: ContentBlock, wire: dict[str, Any]) -> ContentBlock:
    """Mark a call as invalid if the output limit cut it before its input."""
    if not isinstance(block, ToolUseBlock) or block.input:
        return block
    invalid_call = InvalidToolUseBlock(block.id, block.name, "", "the output limit was reached before its input")
    return invalid_call.replace(provider_raw=block_notes(invalid_call, wire))


def make_reply(body: dict[str, Any], content: tuple[ContentBlock, ...], *, has_call: bool) -> Reply:
    """Make the reply around its content, not marked yet.

    Its notes are the difference to the marked reply on the wire.
    """
    usage = body.get("usage")
    stop_reason = STOP_REASONS.get(str(body.get("stop_reason")), StopReason.UNKNOWN)
    reply = Reply(
        content=content,
        stop_reason=wait_for_results(stop_reason, has_call=has_call),
        stop_sequence=text_or_none(body.get("stop_sequence")),
        usage=read_usage(usage) if isinstance(usage, dict) else None,
        model=text_or_none(body.get("model")),
        stop_details=_read_details(body.get("stop_details")),
    )
    rest = {key: value for key, value in body.items() if key != "content"}
    return reply.replace(provider_raw=make_notes(NAME, default_reply(mark_unusable(reply)), rest))


def _read_details(wire: Any) -> StopDetails | None:
    if not isinstance(wire, dict):
        return None
    category, explanation = text_or_none(wire.get("category")), text_or_none(wire.get("explanation"))
    return StopDetails(category=category, explanation=explanation) if category or explanation else None


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "paused"),
    usage_fields=("cached_input_tokens", "cache_creation_input_tokens", "service_tier"),
    service_tiers=TIERS,
    stop_sequence=True,
)


def write_reply(reply: Reply) -> Written:
    """Write a message of the Messages API, with losses."""
    losses: list[Loss] = []
    notes = get_notes(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(apply_diff(write_error(reply.fault).wire, notes.get("residue")))
    content = [write_block(block) for block in supported_blocks(reply.content, unsupported_in_answer, NAME, losses)]
    losses.extend(fault_loss(reply, NAME))
    rest = apply_diff(default_reply(reply), notes.get("residue"))
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written({**rest, "content": content}, tuple(losses))


def default_reply(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": DEFAULT_ID, "type": "message", "role": "assistant"}
    wire["model"] = reply.model or ""  # required by the API; some providers send none
    has_failed = reply.fault is not None and reply.fault.code != "empty_response"  # an empty response ends normally
    wire["stop_reason"] = None if has_failed else _STOP_WORDS.get(reply.stop_reason, "end_turn")
    wire["stop_sequence"] = reply.stop_sequence
    if reply.stop_details is not None:
        details = {"category": reply.stop_details.category, "explanation": reply.stop_details.explanation}
        wire["stop_details"] = {"type": "refusal", **details}
    wire["usage"] = write_usage(reply.usage or TokenUsage(input_tokens=0, output_tokens=0))
    return wire
