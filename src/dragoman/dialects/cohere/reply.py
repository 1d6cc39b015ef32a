"""Read and write complete replies of Cohere Chat.

Invariant: a failed reply is written with an error finish reason, unless it was read with another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from dragoman.dialects.cohere.blocks import (
    NAME,
    default_message,
    has_no_input,
    is_plan,
    read_content,
    unsupported_reason,
)
from dragoman.dialects.cohere.citations import PLAN, place_of_part, read_citations, write_citations
from dragoman.dialects.cohere.error import read_error, write_error
from dragoman.dialects.cohere.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_object, integer_or_none, text_or_none
from dragoman.message import CallBlock, Citation, ContentBlock, TextBlock, TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.faults import make_fault
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder, wait_for_results
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses
from dragoman.wire.tool_definitions import is_unusable, mark_cut_calls

STOP_REASONS: Final = {
    "COMPLETE": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "STOP_SEQUENCE": StopReason.STOP_SEQUENCE,
    "TOOL_CALL": StopReason.TOOL_USE,
    "ERROR_TOXIC": StopReason.REFUSAL,
    "USER_CANCEL": StopReason.CANCELLED,
    "ERROR": StopReason.ERROR,
    "ERROR_LIMIT": StopReason.ERROR,
    "TIMEOUT": StopReason.ERROR,
}
_FINISH_REASONS: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}
PLACEHOLDER_ID: Final = "dragoman"  # required by the API; replies of other dialects have none
_UNUSABLE: Final = {  # faults of replies with a normal finish reason, and that reason
    "tool_input_truncated": "MAX_TOKENS",
    "tool_input_invalid": "TOOL_CALL",
    "empty_response": "COMPLETE",
}
_FAILURES: Final = {  # faults by finish reason
    "ERROR": ("server_error", ErrorClass.SERVER_ERROR),
    "ERROR_LIMIT": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "TIMEOUT": ("timeout", ErrorClass.NETWORK),
}


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a reply of ``/v2/chat``; an error with HTTP 200 is a reply with a fault."""
    if isinstance(body.get("message"), str):
        fault = read_error(None, {}, body)
        raw = make_notes(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    return _mark_unusable(reply_from(body))


def reply_from(body: dict[str, Any]) -> Reply:
    """Read a reply without marking unusable calls; for a stream, the event fold marks them."""
    message = expect_object(body.get("message"), "$.message")
    content, form = read_content(message, "$.message", MessageBuilder())
    content = _add_citations(content, message.get("citations"))
    has_call = any(isinstance(block, ToolUseBlock) for block in content)
    reason = STOP_REASONS.get(str(body.get("finish_reason")), StopReason.UNKNOWN)
    reason = wait_for_results(reason, has_call=has_call)
    reply = Reply(
        content=tuple(content),
        stop_reason=reason,
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=_read_fault(body) if reason is StopReason.ERROR else None,
    )
    marked = _mark_unusable(reply)
    return reply.replace(provider_raw=make_notes(NAME, default_reply(marked, marked.content, form), body, form=form))


def _add_citations(content: list[ContentBlock], wire: Any) -> list[ContentBlock]:
    """Return the content with each citation at its text. Citations of reasoning are residue."""
    citations: dict[int | None, tuple[Citation, ...]] = {}
    for item, citation in read_citations(wire):
        at = _find_cited(content, item)
        citations[at] = (*citations.get(at, ()), citation)
    return [
        block.replace(citations=citations[at]) if isinstance(block, TextBlock) and at in citations else block
        for at, block in enumerate(content)
    ]


def _find_cited(content: list[ContentBlock], item: dict[str, Any]) -> int | None:
    """Return the index of the text that a citation refers to: the plan, the part of its index, or the first text."""
    if item.get("type") == "THINKING_CONTENT":
        return None
    index, is_of_plan = integer_or_none(item.get("content_index")), item.get("type") == "PLAN"
    for at, block in enumerate(content):
        if isinstance(block, TextBlock) and is_plan(block) is is_of_plan and (is_of_plan or index in (None, at)):
            return at
    return None


def _mark_unusable(reply: Reply) -> Reply:
    return mark_unusable(mark_cut_calls(reply, has_no_input))


def _read_fault(body: dict[str, Any]) -> Fault:
    """Return the fault of a failed reply."""
    finish_reason = str(body.get("finish_reason"))
    code, error_class = _FAILURES[finish_reason]
    message = text_or_none(body.get("error")) or f"the reply ended with {finish_reason}"
    return make_fault(NAME, (code, error_class), message, None, {}, provider_code=finish_reason)


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "cancelled"),
    usage_fields=("cached_input_tokens", "reasoning_tokens"),
    model=False,
)


def write_reply(reply: Reply) -> Written:
    """Write a reply of ``/v2/chat`` and report losses."""
    losses: list[Loss] = []
    notes = get_notes(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(apply_diff(write_error(reply.fault).wire, notes.get("residue")))
    content = supported_blocks(reply.content, unsupported_reason, NAME, losses)
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written(apply_diff(default_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def _write_all_citations(blocks: Iterable[ContentBlock]) -> Iterator[dict[str, Any]]:
    part_count = 0
    for block in blocks:
        if isinstance(block, TextBlock):
            place = PLAN if is_plan(block) else place_of_part(part_count)
            yield from write_citations(block.text, block.citations, place)
        part_count += not (isinstance(block, CallBlock) or is_plan(block))


def default_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """Write a reply without its residue."""
    blocks = tuple(content)
    wire: dict[str, Any] = {"id": PLACEHOLDER_ID, "message": default_message("assistant", blocks, form)}
    citations = list(_write_all_citations(blocks))
    if citations:
        wire["message"]["citations"] = citations
    if reply.fault is None:
        wire["finish_reason"] = _FINISH_REASONS.get(reply.stop_reason, "COMPLETE")
    elif is_unusable(reply, NAME):
        wire["finish_reason"] = _UNUSABLE[reply.fault.code]
    else:
        finish_reason = reply.fault.provider_code
        wire["finish_reason"] = finish_reason if finish_reason in _FAILURES else "ERROR"
        wire["error"] = reply.fault.message
    if reply.usage is not None:
        wire["usage"] = _default_usage(reply.usage)
    return wire


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """Read the used tokens; the billed tokens are residue. Early replies call the field ``meta``."""
    usage = body.get("usage") or body.get("meta")
    tokens = (usage.get("tokens") or usage.get("billed_units")) if isinstance(usage, dict) else None
    if not isinstance(usage, dict) or not isinstance(tokens, dict):
        return None
    counts = Counts(NAME)
    uncached, cached, _ = counts.split_prompt(counts.read(tokens, "input_tokens"), counts.read(usage, "cached_tokens"))
    token_usage = TokenUsage(
        input_tokens=uncached,
        output_tokens=counts.read(tokens, "output_tokens"),
        cached_input_tokens=cached,
        reasoning_tokens=counts.read(tokens, "reasoning_tokens"),
    )
    return counts.drop_impossible(token_usage)


def _default_usage(usage: TokenUsage) -> dict[str, Any]:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    tokens = {"input_tokens": prompt, "output_tokens": usage.output_tokens}
    if usage.reasoning_tokens:
        tokens["reasoning_tokens"] = usage.reasoning_tokens
    wire: dict[str, Any] = {"tokens": tokens}
    return {**wire, "cached_tokens": usage.cached_input_tokens} if usage.cached_input_tokens else wire


def default_start(form: str | None) -> dict[str, Any]:
    """Write the fields of a reply that are known at its start."""
    return {"id": PLACEHOLDER_ID, "message": default_message("assistant", (), form)}
