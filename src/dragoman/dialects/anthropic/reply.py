"""Whole replies of the Messages API and their usage. Invariant: a reply that was read here is written as it was."""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.anthropic.blocks import NAME, block_notes, read_block, unsupported_in_answer, write_block
from dragoman.dialects.anthropic.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, count_or_zero, expect_list, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, StopDetails, TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder, fault_loss
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
_DEFAULT_ID: Final = "msg_dragoman"
_TIERS: Final = ("standard", "priority", "batch")  # the tiers that an answer can name
_STOP_WORDS: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}


@accepts_json_text
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a message of the Messages API."""
    builder = MessageBuilder()
    items = expect_list(body.get("content"), "$.content")
    content = [read_block(expect_object(item, "$.content"), builder) for item in items]
    if content and STOP_REASONS.get(str(body.get("stop_reason"))) is StopReason.MAX_TOKENS:
        content[-1] = _mark_cut_call(content[-1], body["content"][-1])
    return mark_unusable(make_reply(body, tuple(content)))


def _mark_cut_call(block: ContentBlock, wire: dict[str, Any]) -> ContentBlock:
    """Mark a call as invalid if the output limit cut it before its input."""
    if not isinstance(block, ToolUseBlock) or block.input:
        return block
    invalid_call = InvalidToolUseBlock(block.id, block.name, "", "the output limit came before its input")
    return invalid_call.replace(provider_raw=block_notes(invalid_call, wire))


def make_reply(body: dict[str, Any], content: tuple[ContentBlock, ...]) -> Reply:
    """Make the reply around its content, not marked yet.

    Its notes are the difference to the marked reply on the wire.
    """
    usage = body.get("usage")
    reply = Reply(
        content=content,
        stop_reason=STOP_REASONS.get(str(body.get("stop_reason")), StopReason.UNKNOWN),
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
    service_tiers=_TIERS,
    stop_sequence=True,
)


def write_reply(reply: Reply) -> Written:
    """Write a message of the Messages API, with losses."""
    losses: list[Loss] = []
    content = [write_block(block) for block in supported_blocks(reply.content, unsupported_in_answer, NAME, losses)]
    losses.extend(fault_loss(reply, NAME))
    rest = apply_diff(default_reply(reply), get_notes(reply.provider_raw, NAME).get("residue"))
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written({**rest, "content": content}, tuple(losses))


def default_reply(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": _DEFAULT_ID, "type": "message", "role": "assistant"}
    wire["model"] = reply.model or ""  # the wire demands one; not every provider says it
    has_failed = reply.fault is not None and reply.fault.code != "empty_response"  # which ends like any other
    wire["stop_reason"] = None if has_failed else _STOP_WORDS.get(reply.stop_reason, "end_turn")
    wire["stop_sequence"] = reply.stop_sequence
    if reply.stop_details is not None:
        details = {"category": reply.stop_details.category, "explanation": reply.stop_details.explanation}
        wire["stop_details"] = {"type": "refusal", **details}
    wire["usage"] = _write_usage(reply.usage or TokenUsage(input_tokens=0, output_tokens=0))
    return wire


_SERVER_TOOLS: Final = {"web_search_requests": "web_search", "web_fetch_requests": "web_fetch"}


def read_usage(wire: dict[str, Any]) -> TokenUsage:
    creation = wire.get("cache_creation")
    details = wire.get("output_tokens_details")
    server = wire.get("server_tool_use")
    calls = {
        ours: server[theirs]
        for theirs, ours in _SERVER_TOOLS.items()
        if isinstance(server, dict) and count_or_zero(server.get(theirs))
    }
    counts = Counts(NAME)
    token_usage = TokenUsage(
        input_tokens=counts.read(wire, "input_tokens"),
        output_tokens=counts.read(wire, "output_tokens"),
        cached_input_tokens=counts.read(wire, "cache_read_input_tokens"),
        cache_creation_input_tokens=counts.read(wire, "cache_creation_input_tokens"),
        cache_creation_1h_input_tokens=counts.read(creation, "ephemeral_1h_input_tokens"),
        reasoning_tokens=counts.read(details, "thinking_tokens"),
        server_tool_calls=calls or None,
        service_tier=text_or_none(wire.get("service_tier")),
    )
    return counts.drop_impossible(token_usage)


def _write_usage(usage: TokenUsage) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.service_tier in _TIERS:
        wire["service_tier"] = usage.service_tier
    return wire
