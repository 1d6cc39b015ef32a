"""Whole completions, and what they consumed, both ways.

The one rule: an answer that was read here is written here as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

from dragoman.dialects.openai_chat.blocks import (
    NAME,
    TIERS,
    cannot_say,
    natural_message,
    notes_of_message,
    place_of,
    read_blocks,
    read_call,
    written_call,
)
from dragoman.dialects.openai_chat.chunks import Place
from dragoman.dialects.openai_chat.error import read_error, write_error
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.counts import Counts
from dragoman.dialects.parts.details import Said, lost_details
from dragoman.dialects.parts.losses import sayable
from dragoman.dialects.parts.residue import difference, kept, noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, text_or_none
from dragoman.event import judged
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.message import ContentBlock, InvalidToolUseBlock, Role, TokenUsage, ToolUseBlock

STOP_REASONS: Final = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "content_filter": StopReason.REFUSAL,
    "function_call": StopReason.TOOL_USE,
    "model_length": StopReason.MAX_TOKENS,  # Mistral
    "eos": StopReason.END_TURN,  # Together
}
_STOP_WORDS: Final = {
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.REFUSAL: "content_filter",
    StopReason.ERROR: "error",
}
UNUSABLE: Final = {  # answers that end like any other, although nobody can use them
    "tool_input_truncated": "length",
    "tool_input_invalid": "tool_calls",
    "empty_response": "stop",
}
_NATIVE_LIMITS: Final = (
    "max_output_tokens",
    "max_tokens",
    "MAX_TOKENS",
    "length",
)  # where OpenRouter says another word
_FAILURES: Final = ("error", "insufficient_system_resource")  # OpenRouter and Mistral; DeepSeek


@from_body
def read_reply(body: dict[str, Any]) -> Reply:
    """A completion as Chat Completions answers it; an error that came with HTTP 200 is a reply with a fault."""
    if not body.get("choices") and body.get("error"):
        fault = read_error(None, {}, body)
        raw = noted(NAME, write_error(fault).wire, body, form="error")
        return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)
    reply, _ = reply_from(body, Conversation(), is_judged=True)
    return reply


def _judged(reply: Reply) -> Reply:
    """A reply with a call that cannot be used, or without a word, has failed, as ``fold`` finds it in a stream."""
    if reply.stop_reason is StopReason.MAX_TOKENS:
        reply = reply.replace(content=tuple(_without_silence(block) for block in reply.content))
    return judged(reply)


def _without_silence(block: ContentBlock) -> ContentBlock:
    """A call whose arguments had not begun when the limit was reached is not a call without arguments."""
    if not isinstance(block, ToolUseBlock) or block.input:
        return block
    written = written_call(block)
    arguments = written.get("function", written).get("arguments")
    if isinstance(arguments, dict) or (arguments or "").strip():
        return block
    reason = "the output limit came before its input"
    return InvalidToolUseBlock(block.id, block.name, "", reason, block.provider_raw)


_SAID: Final = Said(
    ends=("end_turn", "max_tokens", "tool_use", "refusal"),
    counts=(
        "cached_input_tokens",
        "cache_creation_input_tokens",
        "reasoning_tokens",
        "input_audio_tokens",
        "output_audio_tokens",
        "service_tier",
    ),
    tiers=TIERS,
)


def write_reply(reply: Reply) -> Written:
    """A completion as Chat Completions answers it, and what it cannot say."""
    losses: list[Loss] = []
    notes = notes_of(reply.provider_raw, NAME)
    if notes.get("form") == "error" and reply.fault is not None and not reply.content:
        return Written(restored(write_error(reply.fault).wire, notes.get("residue")))
    message_notes = notes.get("message", {})
    unsayable = partial(cannot_say, role=Role.ASSISTANT, is_own=message_notes.get("form") == "list")
    blocks = sayable(reply.content, unsayable, NAME, losses)
    others = [_with_calls(other, blocks, at) for at, other in enumerate(notes.get("others", ()))]
    natural = natural_message(Role.ASSISTANT, _of_first(blocks, len(others)), message_notes, reply=True)
    message = restored(natural, message_notes.get("residue"))
    form = notes.get("form")
    choice = restored(natural_choice(reply), notes.get("choice"))
    if form != "no message" or blocks:
        choice["message"] = message
    choices = [] if form == "no choice" and not blocks else [choice, *others]
    wire = restored(natural_reply(reply), notes.get("residue"))
    losses.extend(lost_details(reply, NAME, _SAID))
    return Written({**wire, "choices": choices}, tuple(losses))


def reply_from(
    body: dict[str, Any],
    conversation: Conversation,
    origin: str | None = None,
    *,
    is_judged: bool = False,
    **known: Any,
) -> tuple[Reply, list[tuple[Place, ContentBlock]]]:
    """The reply, and where on the wire each of its blocks stood."""
    choices = [an_object(choice, "$.choices") for choice in a_list(body.get("choices"), "$.choices")]
    choice = choices[0] if choices else {}
    message = choice.get("message")
    form = None if isinstance(message, dict) else "no message" if choices else "no choice"
    message = message if isinstance(message, dict) else {}
    placed = read_blocks(message, "$.choices[0].message", conversation, is_answer=True, origin=origin)
    first = [block for _, block in placed]
    others = choices[1:]
    if all("index" not in choice for choice in choices):
        others = [_without_calls(other, at, conversation, placed) for at, other in enumerate(others)]
    blocks = [block for _, block in placed]
    stop_reason, stop_sequence = _stop(choice, blocks)
    fault = _failure(choice, body) if stop_reason is StopReason.ERROR else None
    reply = Reply(
        content=tuple(blocks),
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        **({"usage": read_usage(body), "model": text_or_none(body.get("model"))} | known),
        fault=fault,
    )
    found = _judged(reply)  # how it will be written
    rest = {key: value for key, value in body.items() if key != "choices"}
    beside = {key: value for key, value in choice.items() if key != "message" or form == "no message"}
    raw = kept(  # no two answers have the same id: there is always a difference
        NAME,
        difference(natural_reply(reply), rest),
        form=form,
        choice=difference(natural_choice(found), beside) if choices else None,
        message=notes_of_message(Role.ASSISTANT, first, message, reply=True) if form is None else None,
        others=others or None,
    )
    return (found if is_judged else reply).replace(provider_raw=raw), placed


def _without_calls(
    choice: dict[str, Any], at: int, conversation: Conversation, placed: list[tuple[Place, ContentBlock]]
) -> dict[str, Any]:
    """Copilot cuts one answer into choices without an index, text and calls. The calls belong to the answer."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls or not isinstance(message, dict):
        return choice
    for index, call in enumerate(a_list(calls, f"$.choices[{at + 1}].message.tool_calls")):
        block = read_call(an_object(call, f"$.choices[{at + 1}].message.tool_calls"), conversation)
        raw = {"dialect": NAME, **(getattr(block, "provider_raw", None) or {}), "choice": at}
        placed.append(((f"choices[{at + 1}]", index), block.replace(provider_raw=raw)))
    return {**choice, "message": {key: value for key, value in message.items() if key != "tool_calls"}}


def _with_calls(choice: dict[str, Any], blocks: Iterable[ContentBlock], at: int) -> dict[str, Any]:
    calls = [written_call(block) for block in blocks if _choice_of(block) == at]
    return {**choice, "message": {**choice["message"], "tool_calls": calls}} if calls else choice


def _of_first(blocks: Iterable[ContentBlock], others: int) -> list[ContentBlock]:
    return [block for block in blocks if not 0 <= _choice_of(block) < others]


def _choice_of(block: ContentBlock) -> int:
    return int(notes_of(getattr(block, "provider_raw", None), NAME).get("choice", -1))


def _stop(choice: dict[str, Any], blocks: list[ContentBlock]) -> tuple[StopReason, str | None]:
    """Why it stopped. Vendors say ``stop`` beside calls and refusals, too."""
    word, matched = choice.get("finish_reason"), choice.get("stop_reason")  # the latter is vLLM's
    if word in _FAILURES:
        return StopReason.ERROR, None
    if choice.get("native_finish_reason") in _NATIVE_LIMITS:
        return StopReason.MAX_TOKENS, None
    reason = STOP_REASONS.get(str(word), StopReason.UNKNOWN)
    if _object(choice.get("finish_details")).get("type") == "max_tokens":  # the first models that could see
        reason = StopReason.MAX_TOKENS
    if reason not in (StopReason.END_TURN, StopReason.UNKNOWN):
        return reason, None
    if any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in blocks):
        return StopReason.TOOL_USE, None
    if any(place_of(block) == "refusal" for block in blocks):
        return StopReason.REFUSAL, None
    if isinstance(matched, str) and matched and word == "stop":
        return StopReason.STOP_SEQUENCE, matched
    return reason, None


def _failure(choice: dict[str, Any], body: dict[str, Any]) -> Fault:
    error = choice.get("error") or body.get("error")
    if error:
        return read_error(None, {}, {"error": error})
    return Fault(
        code="overloaded" if choice.get("finish_reason") != "error" else "server_error",
        message=f"the model stopped with {choice.get('finish_reason')!r}",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
    )


def natural_reply(reply: Reply) -> dict[str, Any]:
    """What we would write around the choices if nobody had noted anything."""
    wire: dict[str, Any] = {"id": "chatcmpl-dragoman", "object": "chat.completion", "created": 0}
    wire["model"] = reply.model or ""  # the wire demands one; not every provider says it
    if reply.usage is not None:
        wire["usage"] = _written_usage(reply.usage)
        if reply.usage.service_tier in TIERS:
            wire["service_tier"] = reply.usage.service_tier
    return wire


def natural_choice(reply: Reply) -> dict[str, Any]:
    """What we would write beside the message if nobody had noted anything."""
    code = reply.fault.code if reply.fault else ""
    word = UNUSABLE.get(code) or _STOP_WORDS.get(reply.stop_reason, "stop")
    if word == "tool_calls" and any(place_of(block) == "function_call" for block in reply.content):
        word = "function_call"
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": word}
    if reply.fault is None or code in UNUSABLE:
        return choice
    return {**choice, "error": write_error(reply.fault).wire["error"]}


_CACHED: Final = ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens")


def read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """What it consumed. The prompt counts what was read from and written to a cache, so that is taken out of it."""
    usage, groq = body.get("usage"), body.get("x_groq")
    usage = usage if isinstance(usage, dict) or not isinstance(groq, dict) else groq.get("usage")
    if not isinstance(usage, dict):
        return None
    details, made = _object(usage.get("prompt_tokens_details")), _object(usage.get("completion_tokens_details"))
    counts = Counts(NAME)
    prompt, completion = counts.read(usage, "prompt_tokens"), counts.read(usage, "completion_tokens")
    fresh, cached, written = counts.split_prompt(
        prompt,
        counts.read(details, "cached_tokens") or counts.read(usage, *_CACHED),
        counts.read(details, "cache_write_tokens") or counts.read(usage, "cache_creation_input_tokens"),
    )
    reasoning = counts.read(made, "reasoning_tokens") or counts.read(usage, "reasoning_tokens")
    is_apart = reasoning and count_of(usage.get("total_tokens")) == prompt + completion + reasoning  # xAI
    searches = count_of(_object(usage.get("server_tool_use_details")).get("web_search_requests"))
    counted = TokenUsage(
        input_tokens=fresh,
        output_tokens=completion + reasoning if is_apart else completion,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(
            written, counts.read(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
        ),
        reasoning_tokens=reasoning,
        input_audio_tokens=min(
            fresh, counts.read(details, "audio_tokens") or counts.read(usage, "audio_prompt_tokens")
        ),
        output_audio_tokens=counts.read(made, "audio_tokens"),
        server_tool_calls={"web_search": searches} if searches else None,
        service_tier=text_or_none(body.get("service_tier")) or text_or_none(usage.get("service_tier")) or None,
        provider_cost_usd=_cost(usage.get("cost")),
    )
    return counts.check(counted)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cost(value: Any) -> Decimal | None:
    """What the vendor charged: a number (OpenRouter), or an object with a total (Perplexity)."""
    amount = value.get("total_cost") if isinstance(value, dict) else value
    if type(amount) not in (int, float, str):
        return None
    try:
        made = Decimal(str(amount))
    except InvalidOperation:
        return None
    return made if made.is_finite() else None


def _written_usage(usage: TokenUsage) -> dict[str, Any]:
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    details = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_creation_input_tokens:
        details["cache_write_tokens"] = usage.cache_creation_input_tokens
    if usage.input_audio_tokens:
        details["audio_tokens"] = usage.input_audio_tokens
    made = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.output_audio_tokens:
        made["audio_tokens"] = usage.output_audio_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": made,
    }
