"""Convert whole interactions: steps, status and usage.

Invariant: a failed interaction is never read as a success.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dragoman.dialects import gemini
from dragoman.dialects.gemini_interactions.steps import NAME, Wire, default_steps, read_step, unsupported_reason
from dragoman.dialects.gemini_interactions.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import CallBlock, ContentBlock, TokenUsage
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses
from dragoman.wire.tool_definitions import is_unusable

STATUSES: Final = {
    "completed": StopReason.END_TURN,
    "requires_action": StopReason.TOOL_USE,
    "incomplete": StopReason.MAX_TOKENS,
    "budget_exceeded": StopReason.MAX_TOKENS,
    "cancelled": StopReason.CANCELLED,
    "failed": StopReason.ERROR,
    "requires_continuation": StopReason.PAUSED,
    "in_progress": StopReason.PAUSED,
    "queued": StopReason.PAUSED,
}
_WORDS: Final = {reason: word for word, reason in reversed(STATUSES.items())} | {
    StopReason.PAUSED: "requires_continuation"
}
_UNUSABLE: Final = {  # faults of interactions with a normal status, and that status
    "tool_input_truncated": "incomplete",
    "tool_input_invalid": "requires_action",
    "empty_response": "completed",
}
_PLACEHOLDER_ID: Final = "dragoman"  # required by the API; replies of other dialects have none


@accepts_json_text()
def read_reply(body: Wire) -> Reply:
    """Read an interaction; an error with HTTP 200 is a reply with a fault."""
    if "status" not in body and body.get("error") is not None:
        fault = read_fault(body)
        raw = make_notes(NAME, gemini.write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    return mark_unusable(make_reply(body))


def make_reply(body: Wire) -> Reply:
    """Make the reply, not marked yet. Its notes are those of the marked reply."""
    key = "outputs" if "outputs" in body and "steps" not in body else "steps"
    builder = MessageBuilder()
    content: list[ContentBlock] = []
    for index, step in enumerate(expect_list(body.get(key) or [], f"$.{key}")):
        content.extend(read_step(expect_object(step, f"$.{key}[{index}]"), f"$.{key}[{index}]", builder))
    reason = STATUSES.get(str(body.get("status")), StopReason.UNKNOWN)
    if reason is StopReason.END_TURN and any(isinstance(block, CallBlock) for block in content):
        reason = StopReason.TOOL_USE
    reply = Reply(
        content=tuple(content),
        stop_reason=reason,
        usage=read_usage(body.get("usage")),
        model=read_model(body),
        fault=read_fault(body) if reason is StopReason.ERROR else None,
    )
    marked = mark_unusable(reply)
    return reply.replace(provider_raw=make_notes(NAME, default_reply(marked, marked.content), body))


def read_model(body: Wire) -> str | None:
    """Return the model that answers, or the agent."""
    return text_or_none(body.get("model" if "model" in body else "agent"))


def read_fault(body: Wire) -> Fault:
    """Return the fault of a failed interaction."""
    error = body.get("error")
    if not isinstance(error, dict):
        error = {"message": "the interaction failed"}
    return gemini.read_error(500, {}, {"error": error}).replace(provider=NAME, status=None)


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "tool_use", "cancelled", "paused"),
    usage_fields=("cached_input_tokens", "reasoning_tokens"),
)


def write_reply(reply: Reply) -> Written:
    """Write an interaction and report losses."""
    losses: list[Loss] = []
    notes = get_notes(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(apply_diff(gemini.write_error(reply.fault).wire, notes.get("residue")))
    content = supported_blocks(reply.content, unsupported_reason, NAME, losses)
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written(apply_diff(default_reply(reply, content), notes.get("residue")), tuple(losses))


def default_reply(reply: Reply, content: Iterable[ContentBlock]) -> Wire:
    """Write an interaction without its residue."""
    wire: Wire = {"id": _PLACEHOLDER_ID, "object": "interaction"}
    if reply.model is not None:
        wire["model"] = reply.model
    wire["status"] = _default_status(reply)
    if wire["status"] == "failed" and reply.fault is not None:
        wire["error"] = gemini.write_error(reply.fault).wire["error"]
    wire["steps"] = default_steps(content)
    if reply.usage is not None:
        wire["usage"] = _write_usage(reply.usage)
    return wire


def _default_status(reply: Reply) -> str:
    if reply.fault is None:
        return _WORDS.get(reply.stop_reason, "completed")
    return _UNUSABLE[reply.fault.code] if is_unusable(reply, NAME) else "failed"


def read_usage(wire: Any) -> TokenUsage | None:
    """Return the usage; thoughts are counted apart from the output, and calls of tools apart from the input."""
    if not isinstance(wire, dict):
        return None
    counts = Counts(NAME)
    prompt = counts.read(wire, "total_input_tokens") + counts.read(wire, "total_tool_use_tokens")
    fresh, cached, _ = counts.split_prompt(prompt, counts.read(wire, "total_cached_tokens"))
    thoughts = counts.read(wire, "total_thought_tokens")
    usage = TokenUsage(
        input_tokens=fresh,
        output_tokens=counts.read(wire, "total_output_tokens") + thoughts,
        cached_input_tokens=cached,
        reasoning_tokens=thoughts,
    )
    return counts.drop_impossible(usage)


def _write_usage(usage: TokenUsage) -> Wire:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    wire = {"total_input_tokens": prompt, "total_output_tokens": usage.output_tokens - usage.reasoning_tokens}
    if usage.cached_input_tokens:
        wire["total_cached_tokens"] = usage.cached_input_tokens
    if usage.reasoning_tokens:
        wire["total_thought_tokens"] = usage.reasoning_tokens
    return {**wire, "total_tokens": prompt + usage.output_tokens}
