"""Whole replies of Ollama chat, both ways.

The one rule: a reply that failed does not say that it is done, unless that is how it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dragoman.dialects.ollama.blocks import (
    NAME,
    cannot_answer,
    form_of,
    natural_message,
    read_blocks,
    was_silent,
)
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.parts.body import an_object, from_body
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.counts import Counts
from dragoman.dialects.parts.details import Said, lost_details
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.functions import ended_unusable, without_silence
from dragoman.dialects.parts.losses import sayable
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.event import judged
from dragoman.exchange import Loss, Reply, StopReason, Written
from dragoman.message import ContentBlock, InvalidToolUseBlock, TokenUsage, ToolUseBlock

STOP_REASONS: Final = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
NO_TIME: Final = "1970-01-01T00:00:00Z"  # the wire wants to know when; a reply does not
_UNUSABLE: Final = {  # faults that we found in an answer which ended like any other, and with what word
    "tool_input_truncated": "length",
    "tool_input_invalid": "stop",
    "empty_response": "stop",
}


@from_body
def read_reply(body: dict[str, Any]) -> Reply:
    """An answer of ``/api/chat``, whole; an error that came with HTTP 200 is a reply with a fault."""
    if body.get("message") is None and body.get("error") is not None:
        fault = read_error(None, {}, body)
        raw = noted(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    return _judged(reply_from(body))


def reply_from(body: dict[str, Any]) -> Reply:
    """The answer as it ends, not judged yet: of a stream, the events are judged."""
    message = an_object(body.get("message"), "$.message")
    content = read_blocks(message, "$.message", Conversation(), f"{body.get('created_at')}#")
    is_cut = body.get("done") is False
    fault = stream_error(NAME, "stream_incomplete", "the answer says that it is not done").fault
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if is_cut else _read_stop(body.get("done_reason"), content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=fault if is_cut else None,
    )
    form, known = form_of(message), _judged(reply)
    return reply.replace(provider_raw=noted(NAME, natural_reply(known, known.content, form), body, form=form))


def _judged(reply: Reply) -> Reply:
    return judged(without_silence(reply, was_silent))


def _read_stop(reason: Any, content: Iterable[ContentBlock]) -> StopReason:
    """Calls end with "stop" like everything else, and an answer may be done without a reason."""
    read = STOP_REASONS.get(str(reason), StopReason.UNKNOWN)
    calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    return StopReason.TOOL_USE if calls and read is not StopReason.MAX_TOKENS else read


_SAID: Final = Said(ends=("end_turn", "max_tokens", "tool_use"), counts=())


def write_reply(reply: Reply) -> Written:
    """An answer of ``/api/chat``, whole, and what it cannot say."""
    losses: list[Loss] = []
    notes = notes_of(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(restored(write_error(reply.fault).wire, notes.get("residue")))
    content = sayable(reply.content, cannot_answer, NAME, losses)
    losses.extend(lost_details(reply, NAME, _SAID))
    return Written(restored(natural_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def natural_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """What we would write for a reply if nobody had noted anything about it."""
    wire: dict[str, Any] = {"model": reply.model} if reply.model is not None else {}
    wire["created_at"] = NO_TIME
    wire["message"] = natural_message("assistant", content, form)
    wire["done"] = reply.fault is None or ended_unusable(reply, NAME)
    word = _natural_word(reply)
    if word is not None:
        wire["done_reason"] = word
    if reply.usage is not None:
        usage = reply.usage
        cached = usage.cached_input_tokens + usage.cache_creation_input_tokens
        wire["prompt_eval_count"] = usage.input_tokens + cached
        wire["eval_count"] = usage.output_tokens
    return wire


def _natural_word(reply: Reply) -> str | None:
    if reply.fault is not None:
        return _UNUSABLE[reply.fault.code] if ended_unusable(reply, NAME) else None
    if reply.stop_reason is StopReason.UNKNOWN:
        return None
    return "length" if reply.stop_reason is StopReason.MAX_TOKENS else "stop"


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    prompt, output = body.get("prompt_eval_count"), body.get("eval_count")
    if prompt is None and output is None:
        return None
    counts = Counts(NAME)
    counted = TokenUsage(
        input_tokens=counts.read(body, "prompt_eval_count"), output_tokens=counts.read(body, "eval_count")
    )
    return counts.check(counted)
