"""Compare a reply before and after conversion to another wire format.

    compare_replies(before, written, after, target) -> findings

Blocks are compared as in a request; so are stop reason, model and every token count. Some formats have one count for
the whole prompt: its parts are then changed, and their sum must be equal. A difference without a reported loss is
silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from dragoman.exchange import Loss, Reply, Request, StopReason, Written
from dragoman.fidelity.comparison import Finding, compare_requests
from dragoman.message import ContentBlock, Message, MessageMetadata, Role, TextBlock, TokenLogprob, TokenUsage

PREFIX: Final = "answer."
_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROMPT_FIELDS: Final = ("input_tokens", "cached_input_tokens", "cache_creation_input_tokens")


def compare_replies(before: Reply, written: Written, after: Reply, target: str) -> tuple[Finding, ...]:
    """Return a finding for everything in a reply; the kinds start with ``answer.``."""
    losses = tuple(msgspec.structs.replace(loss, message_id="answer") for loss in (*written.losses, *written.notes))
    blocks = compare_requests(_to_request(before), Written(None, losses), _to_request(after), target)
    has_less = any(finding.outcome in ("loss", "changed") for finding in blocks)
    findings = [*blocks, *_compare_details(before, after, written.losses, has_less=has_less)]
    return tuple(msgspec.structs.replace(finding, kind=PREFIX + finding.kind) for finding in findings)


def reply_kinds(reply: Reply) -> set[str]:
    """Return the kinds of findings in a reply."""
    return {finding.kind for finding in compare_replies(reply, Written(None), reply, "")}


def _to_request(reply: Reply) -> Request:
    message = Message("answer", "", Role.ASSISTANT, reply.content, MessageMetadata(), _TIME)
    return Request(model=None, messages=(message,))


def _compare_details(before: Reply, after: Reply, losses: Iterable[Loss], *, has_less: bool) -> Iterator[Finding]:
    loss_reasons = {loss.block_type: loss.reason for loss in losses}
    if has_less and after.fault is not None:
        yield Finding("stop_reason", "changed", f"the rest is not a valid reply: {after.fault.code}")
    else:
        yield _compare_stop_reason(before.stop_reason, after.stop_reason, loss_reasons)
    for name in ("stop_sequence", "model"):
        yield from _compare_detail(name, getattr(before, name), getattr(after, name), loss_reasons)
    yield from _compare_answers(before, after, loss_reasons)
    if before.usage is not None:
        yield from _compare_counts(before.usage, after.usage, loss_reasons)


def _compare_answers(before: Reply, after: Reply, loss_reasons: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of further answers, of the explanation of the end, and of token probabilities."""
    if before.alternatives:
        old, new = ([_texts(each.content) for each in reply.alternatives] for reply in (before, after))
        yield from _compare_detail("alternatives", old, new, loss_reasons)
    if before.stop_details is not None:
        if after.stop_details is not None and "stop_details.category" in loss_reasons:
            yield Finding("stop_details", "changed", loss_reasons["stop_details.category"])
        else:
            yield from _compare_detail("stop_details", before.stop_details, after.stop_details, loss_reasons)
    old_tokens, new_tokens = ([(item.token, item.logprob) for item in _logprobs(reply)] for reply in (before, after))
    if old_tokens:
        yield from _compare_detail("text.token_logprobs", old_tokens, new_tokens, loss_reasons)


def _texts(content: Iterable[ContentBlock]) -> list[str]:
    return [block.text for block in content if isinstance(block, TextBlock)]


def _logprobs(reply: Reply) -> list[TokenLogprob]:
    return [item for block in reply.content if isinstance(block, TextBlock) for item in block.token_logprobs]


def _compare_stop_reason(before: StopReason, after: StopReason, loss_reasons: Mapping[str, str]) -> Finding:
    if before is after:
        return Finding("stop_reason", "kept")
    note = f"{before.value} becomes {after.value}"
    if before is StopReason.UNKNOWN:  # the source has no reason
        return Finding("stop_reason", "changed", note)
    reason = loss_reasons.get("stop_reason")
    return Finding("stop_reason", "silent", note) if reason is None else Finding("stop_reason", "loss", reason)


def _compare_detail(name: str, before: object, after: object, loss_reasons: Mapping[str, str]) -> Iterator[Finding]:
    if before is None:
        return
    if before == after:
        yield Finding(name, "kept")
    elif name in loss_reasons:
        yield Finding(name, "loss", loss_reasons[name])
    else:
        yield Finding(name, "silent", f"{before} becomes {after}")


def _compare_counts(before: TokenUsage, after: TokenUsage | None, loss_reasons: Mapping[str, str]) -> Iterator[Finding]:
    for field in msgspec.structs.fields(TokenUsage):
        value = getattr(before, field.name)
        if field.name in ("unknown_fields", "estimated") or not value:
            continue
        new_value = getattr(after, field.name, None)
        kind = f"usage.{field.name}"
        if (
            field.name == "input_tokens"
            and after is not None
            and new_value != value
            and _prompt_tokens(before) == _prompt_tokens(after)
        ):
            yield Finding(kind, "changed", "one count for the whole prompt")
        else:
            yield from _compare_detail(kind, value, new_value, loss_reasons)


def _prompt_tokens(usage: TokenUsage) -> int:
    return sum(getattr(usage, name) for name in _PROMPT_FIELDS)
