"""Whole replies of Ollama chat, both ways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dragoman.dialects.ollama.blocks import NAME, form_of, natural_message, read_blocks, sayable
from dragoman.dialects.parts.conversation import Conversation, an_object
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, text_or_none
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.message import ContentBlock, InvalidToolUseBlock, TokenUsage, ToolUseBlock

STOP_REASONS: Final = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
_NO_TIME: Final = "1970-01-01T00:00:00Z"  # the wire wants to know when; a reply does not


def read_reply(wire: Any) -> Reply:
    """An answer of ``/api/chat``, whole."""
    body = an_object(wire, "$")
    message = an_object(body.get("message"), "$.message")
    content = read_blocks(message, "$.message", Conversation(), f"{body.get('created_at')}#")
    is_cut = body.get("done") is False
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if is_cut else _read_stop(body.get("done_reason"), content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=unfinished("stream_incomplete", "the answer says that it is not done") if is_cut else None,
    )
    form = form_of(message)
    return reply.replace(provider_raw=noted(NAME, _natural_reply(reply, content, form), body, form=form))


def _read_stop(reason: Any, content: Iterable[ContentBlock]) -> StopReason:
    """Calls end with "stop" like everything else, and an answer may be done without a reason."""
    read = STOP_REASONS.get(str(reason), StopReason.UNKNOWN)
    calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    return StopReason.TOOL_USE if calls and read is not StopReason.MAX_TOKENS else read


def write_reply(reply: Reply) -> Written:
    """An answer of ``/api/chat``, whole, and what it cannot say."""
    losses: list[Loss] = []
    content = sayable(reply.content, None, losses)
    notes = notes_of(reply.provider_raw, NAME)
    return Written(restored(_natural_reply(reply, content, notes.get("form")), notes.get("residue")), tuple(losses))


def _natural_reply(reply: Reply, content: Iterable[ContentBlock], form: str | None) -> dict[str, Any]:
    wire: dict[str, Any] = {"model": reply.model} if reply.model is not None else {}
    wire["created_at"] = _NO_TIME
    wire["message"] = natural_message("assistant", content, form)
    wire["done"] = reply.fault is None
    if reply.stop_reason is StopReason.MAX_TOKENS:
        wire["done_reason"] = "length"
    elif reply.stop_reason not in (StopReason.UNKNOWN, StopReason.ERROR):
        wire["done_reason"] = "stop"
    if reply.usage is not None:
        usage = reply.usage
        cached = usage.cached_input_tokens + usage.cache_creation_input_tokens
        wire["prompt_eval_count"] = usage.input_tokens + cached
        wire["eval_count"] = usage.output_tokens
    return wire


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    prompt, output = body.get("prompt_eval_count"), body.get("eval_count")
    if prompt is None and output is None:
        return None
    return TokenUsage(input_tokens=count_of(prompt), output_tokens=count_of(output))


def unfinished(code: str, message: str) -> Fault:
    error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
    return Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
