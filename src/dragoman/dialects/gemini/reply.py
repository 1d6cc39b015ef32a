"""Whole replies, both ways; what streams say about the whole is read and written here, too.

The one rule: a reply that failed is never written with a reason that looks like a proper end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.blocks import Turns, cannot_say, read_part, written_part
from dragoman.dialects.gemini.spelling import NAME
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import lost_fault
from dragoman.dialects.parts.counts import Counts
from dragoman.dialects.parts.details import Said, lost_details
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import count_of, text_or_none
from dragoman.event import judged
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.message import InvalidToolUseBlock, TokenUsage, ToolUseBlock

FINISH_REASONS: Final = {
    "STOP": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "SAFETY": StopReason.REFUSAL,
    "RECITATION": StopReason.REFUSAL,
    "LANGUAGE": StopReason.REFUSAL,
    "BLOCKLIST": StopReason.REFUSAL,
    "PROHIBITED_CONTENT": StopReason.REFUSAL,
    "SPII": StopReason.REFUSAL,
    "IMAGE_SAFETY": StopReason.REFUSAL,
    "IMAGE_PROHIBITED_CONTENT": StopReason.REFUSAL,
    "IMAGE_RECITATION": StopReason.REFUSAL,
    "CONTINUATION": StopReason.PAUSED,
}
# Google says the first; the second is for a tool that was not offered; the third is what some say who play its part.
_ENDS_OF_CALLS: Final = ("STOP", "UNEXPECTED_TOOL_CALL", "FUNCTION_CALL")
_NUMBERED: Final = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION"}  # as protocol buffers number them
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": "tool_input_invalid",
    "UNEXPECTED_TOOL_CALL": "tool_input_invalid",
    "TOO_MANY_TOOL_CALLS": "server_error",
    "MISSING_THOUGHT_SIGNATURE": "invalid_request",
    "MALFORMED_RESPONSE": "malformed_output",
}
_FAILURE_WORDS: Final = {  # for what went wrong elsewhere
    "tool_input_invalid": "MALFORMED_FUNCTION_CALL",
    "tool_input_truncated": "MALFORMED_FUNCTION_CALL",
    "malformed_output": "MALFORMED_RESPONSE",
}
_UNUSABLE: Final = ("tool_input_invalid", "tool_input_truncated", "empty_response")  # they end like any answer
_FINISH_WORDS: Final = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.REFUSAL: "SAFETY",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}


@from_body
def read_reply(body: dict[str, Any]) -> Reply:
    """A response of generateContent. Its first candidate is the reply."""
    rest, parts, notes = _reply_apart(body)
    turns = Turns(str(body.get("responseId", "")))
    content = tuple(read_part(part, "model", turns, "$.candidates[0].content.parts") for part in parts)
    called = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    reply = judged(read_rest(rest, text_or_none(body.get("modelVersion")), called=called).replace(content=content))
    if reply.fault is not None and reply.fault.code in _UNUSABLE:
        notes["ended"] = finish_reason_of(rest)
    return reply.replace(provider_raw=noted(NAME, natural_rest(reply, notes), rest, **notes))


def finish_reason_of(rest: dict[str, Any]) -> Any:
    """What the first candidate says about its end."""
    candidates = rest.get("candidates") or [{}]
    return candidates[0].get("finishReason")


def _reply_apart(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """A response without the parts of its first candidate and without the others; the parts; what to note."""
    candidates = a_list(body.get("candidates") or [], "$.candidates")
    if not candidates:
        return body, [], {"form": "none", **rest_notes(body)}
    first = an_object(candidates[0], "$.candidates[0]")
    content = first.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    notes = {"form": None if isinstance(parts, list) else "absent", "others": candidates[1:] or None}
    if isinstance(content, dict) and isinstance(parts, list):
        first = {**first, "content": {key: value for key, value in content.items() if key != "parts"}}
    rest = {**body, "candidates": [first]}
    return rest, parts if isinstance(parts, list) else [], {**notes, **rest_notes(rest)}


def rest_notes(rest: dict[str, Any]) -> dict[str, Any]:
    """What to note beside the residue: what the provider's tools read, and whether no reason was given."""
    usage = rest.get("usageMetadata")
    return {
        "tool_use": (count_of(usage.get("toolUsePromptTokenCount")) or None) if isinstance(usage, dict) else None,
        "unsaid": True if finish_reason_of(rest) is None else None,
    }


def read_rest(rest: dict[str, Any], model: str | None, *, called: bool) -> Reply:
    """All of a reply but its content."""
    candidates = rest.get("candidates") or [{}]
    stop_reason, fault = _read_end(candidates[0], rest.get("promptFeedback"), called=called)
    return Reply(stop_reason=stop_reason, usage=read_usage(rest.get("usageMetadata")), model=model, fault=fault)


def _read_end(candidate: dict[str, Any], feedback: Any, *, called: bool) -> tuple[StopReason, Fault | None]:
    said = candidate.get("finishReason")
    reason = _NUMBERED.get(said, "OTHER") if type(said) is int else str(said)
    if called and reason in _ENDS_OF_CALLS:
        return StopReason.TOOL_USE, None
    if reason in _FAILURES:
        fault = Fault(
            code=_FAILURES[reason],
            message=str(candidate.get("finishMessage") or f"the model's answer ended with {reason}"),
            error_class=ErrorClass.SERVER_ERROR,
            retryable=True,
            provider=NAME,
            provider_code=reason,
        )
        return StopReason.ERROR, fault
    if said is None and isinstance(feedback, dict) and feedback.get("blockReason"):
        return StopReason.REFUSAL, None
    return FINISH_REASONS.get(reason, StopReason.UNKNOWN), None


_SAID: Final = Said(
    ends=("end_turn", "max_tokens", "tool_use", "refusal"),
    counts=("cached_input_tokens", "reasoning_tokens", "service_tier"),
)


def write_reply(reply: Reply) -> Written:
    """A response of generateContent, and what it cannot say. A call that cannot be made is not handed on as one."""
    losses: list[Loss] = []
    parts = []
    for block in reply.content:
        reason = cannot_say(block)
        if isinstance(block, InvalidToolUseBlock) and notes_of(block.provider_raw, NAME).get("form") != "unusable":
            reason = f"a call that cannot be made: {block.reason}"
            reply = without_its_end(reply)
        if reason is None:
            parts.append(written_part(block))
        else:
            losses.append(Loss("", "", block.type, NAME, reason))
    if finish_word(reply, notes_of(reply.provider_raw, NAME)) is None:
        losses.extend(lost_fault(reply, NAME))
    losses.extend(lost_details(reply, NAME, _SAID))
    if reply.usage is not None and reply.usage.reasoning_tokens > reply.usage.output_tokens:
        losses.append(Loss("", "", "usage.reasoning_tokens", NAME, "more than were generated, which cannot be"))
    return Written(with_parts(reply, parts), tuple(losses))


def without_its_end(reply: Reply) -> Reply:
    """The reply without the reason that it came with: what is left of it must not look finished."""
    raw = {name: note for name, note in (reply.provider_raw or {}).items() if name != "ended"}
    return reply.replace(provider_raw=raw or None)


def with_parts(reply: Reply, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A response with these parts, and all else that the reply says."""
    notes = notes_of(reply.provider_raw, NAME)
    natural = natural_rest(reply, {**notes, "form": None} if parts else notes)
    wire: dict[str, Any] = restored(natural, notes.get("residue"))
    candidates = wire.get("candidates")
    if candidates and (parts or notes.get("form") is None):
        content = candidates[0].get("content")
        content = content if isinstance(content, dict) else {"role": "model"}
        candidates[0] = {**candidates[0], "content": {"parts": parts, **content}}
    if candidates and notes.get("others"):
        candidates.extend(notes["others"])
    return wire


def natural_rest(reply: Reply, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if notes.get("form") != "none":
        first: dict[str, Any] = {"content": {"role": "model"}}
        reason = finish_word(reply, notes)
        if reason is not None and not (notes.get("unsaid") and reply.stop_reason is StopReason.UNKNOWN):
            first["finishReason"] = reason
        if isinstance(reason, str) and reason in _FAILURES and reply.fault is not None:
            first["finishMessage"] = reply.fault.message
        wire["candidates"] = [{**first, "index": 0}]
    if reply.usage is not None:
        wire["usageMetadata"] = natural_usage(reply.usage, notes.get("tool_use") or 0)
    if reply.model is not None:
        wire["modelVersion"] = reply.model
    return wire


def finish_word(reply: Reply, notes: Mapping[str, Any]) -> Any:
    """Why it stopped; nothing, if it did not: a reply that failed must not look finished."""
    if reply.fault is None:
        return _FINISH_WORDS.get(reply.stop_reason, "STOP")
    if reply.fault.provider_code in _FAILURES:
        return reply.fault.provider_code
    if reply.fault.code in _UNUSABLE and notes.get("ended") is not None:
        return notes["ended"]
    return _FAILURE_WORDS.get(reply.fault.code)


_COUNTED: Final = (
    "promptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "toolUsePromptTokenCount",
)
_DETAILS: Final = (
    "promptTokensDetails",
    "toolUsePromptTokensDetails",
    "cacheTokensDetails",
    "candidatesTokensDetails",
)


def read_usage(wire: Any) -> TokenUsage | None:
    """The prompt's count has the cached tokens in it, and has not what the provider's own tools read."""
    if not isinstance(wire, dict) or not any(key in wire for key in _COUNTED):
        return None
    counts = Counts(NAME)
    prompt, generated, thoughts, cached, tools = (counts.read(wire, key) for key in _COUNTED)
    fresh, cached, _ = counts.split_prompt(prompt, cached)
    heard, heard_by_tools, heard_in_cache, spoken = (_audio(wire.get(key), counts) for key in _DETAILS)
    counted = TokenUsage(
        input_tokens=fresh + tools,
        output_tokens=generated + thoughts,
        cached_input_tokens=cached,
        reasoning_tokens=thoughts,
        input_audio_tokens=max(0, heard + heard_by_tools - heard_in_cache),
        output_audio_tokens=spoken,
        service_tier=text_or_none(wire.get("serviceTier")),
    )
    return counts.check(counted)


def _audio(details: Any, counts: Counts) -> int:
    items = details if isinstance(details, list) else []
    return sum(
        counts.read(item, "tokenCount") for item in items if isinstance(item, dict) and item.get("modality") == "AUDIO"
    )


def natural_usage(usage: TokenUsage, tool_use: int) -> dict[str, Any]:
    tool_use = tool_use if tool_use <= usage.input_tokens else 0
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    counts = {
        "promptTokenCount": prompt - tool_use,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "cachedContentTokenCount": usage.cached_input_tokens,
        "thoughtsTokenCount": min(usage.output_tokens, usage.reasoning_tokens),
        "toolUsePromptTokenCount": tool_use,
    }
    wire: dict[str, Any] = {key: count for key, count in counts.items() if count}  # as the API: what is 0 is not said
    wire["totalTokenCount"] = prompt + usage.output_tokens
    if usage.service_tier is not None:
        wire["serviceTier"] = usage.service_tier
    return wire
