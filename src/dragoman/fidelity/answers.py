"""What became of everything that an answer said, once it was written for another wire and read there again.

    compared_answers(before, written, after, target) -> findings

The blocks are looked for as in a request. So are why it ended, which model answered, and every count of tokens. Some
wires count the whole prompt in one: then the parts are changed, and their sum has to be the same. The one rule is the
same too: what is not found and not named is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from dragoman.exchange import Loss, Reply, Request, StopReason, Written
from dragoman.fidelity.comparison import Finding, compared
from dragoman.message import Message, MessageMetadata, Role, TokenUsage

PREFIX: Final = "answer."
_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROMPT: Final = ("input_tokens", "cached_input_tokens", "cache_creation_input_tokens")


def compared_answers(before: Reply, written: Written, after: Reply, target: str) -> tuple[Finding, ...]:
    """A finding for everything that was answered; their kinds begin with ``answer.``."""
    losses = tuple(msgspec.structs.replace(loss, message_id="answer") for loss in written.losses)
    blocks = compared(_as_request(before), Written(None, losses), _as_request(after), target)
    is_less = any(finding.outcome in ("loss", "changed") for finding in blocks)
    found = [*blocks, *_details(before, after, written.losses, is_less=is_less)]
    return tuple(msgspec.structs.replace(finding, kind=PREFIX + finding.kind) for finding in found)


def kinds_answered(reply: Reply) -> set[str]:
    """The kinds of things that an answer says."""
    return {finding.kind for finding in compared_answers(reply, Written(None), reply, "")}


def _as_request(reply: Reply) -> Request:
    said = Message("answer", "", Role.ASSISTANT, reply.content, MessageMetadata(), _TIME)
    return Request(model=None, messages=(said,))


def _details(before: Reply, after: Reply, losses: Iterable[Loss], *, is_less: bool) -> Iterator[Finding]:
    named = {loss.block_type: loss.reason for loss in losses}
    if is_less and after.fault is not None:
        yield Finding("stop_reason", "changed", f"what is left is no answer: {after.fault.code}")
    else:
        yield _end(before.stop_reason, after.stop_reason, named)
    for name in ("stop_sequence", "model"):
        yield from _detail(name, getattr(before, name), getattr(after, name), named)
    if before.usage is not None:
        yield from _counts(before.usage, after.usage, named)


def _end(before: StopReason, after: StopReason, named: Mapping[str, str]) -> Finding:
    if before is after:
        return Finding("stop_reason", "kept")
    note = f"{before.value} becomes {after.value}"
    if before is StopReason.UNKNOWN:  # nobody had said why
        return Finding("stop_reason", "changed", note)
    reason = named.get("stop_reason")
    return Finding("stop_reason", "silent", note) if reason is None else Finding("stop_reason", "loss", reason)


def _detail(name: str, before: object, after: object, named: Mapping[str, str]) -> Iterator[Finding]:
    if before is None:
        return
    if before == after:
        yield Finding(name, "kept")
    elif name in named:
        yield Finding(name, "loss", named[name])
    else:
        yield Finding(name, "silent", f"{before} becomes {after}")


def _counts(before: TokenUsage, after: TokenUsage | None, named: Mapping[str, str]) -> Iterator[Finding]:
    for field in msgspec.structs.fields(TokenUsage):
        value = getattr(before, field.name)
        if field.name in ("unknown_fields", "estimated") or not value:
            continue
        told = getattr(after, field.name, None)
        kind = f"usage.{field.name}"
        if field.name == "input_tokens" and after is not None and told != value and _prompt(before) == _prompt(after):
            yield Finding(kind, "changed", "one count for the whole prompt")
        else:
            yield from _detail(kind, value, told, named)


def _prompt(usage: TokenUsage) -> int:
    return sum(getattr(usage, name) for name in _PROMPT)
