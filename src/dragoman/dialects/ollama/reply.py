"""Convert whole replies.

Invariant: a failed reply is not written with ``done``, unless it was read so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dragoman.dialects.ollama.blocks import (
    NAME,
    content_form,
    default_message,
    has_no_input,
    read_blocks,
    unsupported_reply_reason,
)
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.ollama.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, TextBlock, TokenLogprob, TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.faults import stream_error
from dragoman.wire.logprobs import read_logprobs, write_logprobs
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses
from dragoman.wire.tool_definitions import is_unusable, mark_cut_calls

STOP_REASONS: Final = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "load": StopReason.END_TURN,  # a request without messages only loads or unloads the model
    "unload": StopReason.END_TURN,
}
PLACEHOLDER_TIME: Final = "1970-01-01T00:00:00Z"  # required by the API; a reply has no time
REPEATED_FIELDS: Final = ("model", "created_at")  # of every line of a stream
_UNUSABLE: Final = {  # faults of replies with a normal done reason, and that reason
    "tool_input_truncated": "length",
    "tool_input_invalid": "stop",
    "empty_response": "stop",
}


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a reply of ``/api/chat``; an error with HTTP 200 is a reply with a fault."""
    if body.get("message") is None and body.get("error") is not None:
        fault = read_error(None, {}, body)
        raw = make_notes(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    return _mark_unusable(reply_from(body))


def reply_from(body: dict[str, Any]) -> Reply:
    """Read a reply without marking unusable calls; for a stream, the event fold marks them."""
    message = expect_object(body.get("message"), "$.message")
    content = read_blocks(message, "$.message", MessageBuilder(), f"{body.get('created_at')}#")
    content = _add_logprobs(content, read_logprobs(body.get("logprobs")))
    is_cut = body.get("done") is False
    fault = stream_error(NAME, "stream_incomplete", "the reply is not done").fault
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if is_cut else _read_stop_reason(body.get("done_reason"), content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=fault if is_cut else None,
    )
    form, marked = content_form(message), _mark_unusable(reply)
    return reply.replace(provider_raw=make_notes(NAME, default_reply(marked, marked.content, form), body, form=form))


def _add_logprobs(content: list[ContentBlock], logprobs: tuple[TokenLogprob, ...]) -> list[ContentBlock]:
    at = next((at for at, block in enumerate(content) if isinstance(block, TextBlock)), None) if logprobs else None
    if at is None:
        return content
    return [*content[:at], content[at].replace(token_logprobs=logprobs), *content[at + 1 :]]


def _mark_unusable(reply: Reply) -> Reply:
    return mark_unusable(mark_cut_calls(reply, has_no_input))


def _read_stop_reason(reason: Any, content: Iterable[ContentBlock]) -> StopReason:
    """Return the stop reason. Replies with calls also end with "stop", and the reason may be missing."""
    stop_reason = STOP_REASONS.get(str(reason), StopReason.UNKNOWN)
    calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    return StopReason.TOOL_USE if calls and stop_reason is not StopReason.MAX_TOKENS else stop_reason


DETAILS: Final = SupportedDetails(stop_reasons=("end_turn", "max_tokens", "tool_use"), has_tool_use=False)


def write_reply(reply: Reply) -> Written:
    """Write a reply of ``/api/chat`` and report losses."""
    losses: list[Loss] = []
    notes = get_notes(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(apply_diff(write_error(reply.fault).wire, notes.get("residue")))
    content = supported_blocks(reply.content, unsupported_reply_reason, NAME, losses)
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written(apply_diff(default_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def default_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    """Write a reply without its residue."""
    wire: dict[str, Any] = {"model": reply.model} if reply.model is not None else {}
    wire["created_at"] = PLACEHOLDER_TIME
    blocks = tuple(content)
    wire["message"] = default_message("assistant", blocks, form)
    logprobs = [item for block in blocks if isinstance(block, TextBlock) for item in block.token_logprobs]
    if logprobs:
        wire["logprobs"] = write_logprobs(logprobs)
    wire["done"] = reply.fault is None or is_unusable(reply, NAME)
    done_reason = _default_done_reason(reply)
    if done_reason is not None:
        wire["done_reason"] = done_reason
    if reply.usage is not None:
        usage = reply.usage
        cached = usage.cached_input_tokens + usage.cache_creation_input_tokens
        wire["prompt_eval_count"] = usage.input_tokens + cached
        wire["eval_count"] = usage.output_tokens
    return wire


def _default_done_reason(reply: Reply) -> str | None:
    if reply.fault is not None:
        return _UNUSABLE[reply.fault.code] if is_unusable(reply, NAME) else None
    if reply.stop_reason is StopReason.UNKNOWN:
        return None
    return "length" if reply.stop_reason is StopReason.MAX_TOKENS else "stop"


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    prompt, output = body.get("prompt_eval_count"), body.get("eval_count")
    if prompt is None and output is None:
        return None
    counts = Counts(NAME)
    token_usage = TokenUsage(
        input_tokens=counts.read(body, "prompt_eval_count"), output_tokens=counts.read(body, "eval_count")
    )
    return counts.drop_impossible(token_usage)


def default_start(model: str | None) -> dict[str, Any]:
    """Write the fields of a reply that are known at its start."""
    model_field = {"model": model} if model is not None else {}
    return {**model_field, "created_at": PLACEHOLDER_TIME, "message": {"role": "assistant"}}
