"""Convert whole replies; streams use this module for everything but the parts.

Invariant: a failed reply is never written with the finish reason of a complete one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.blocks import GeminiMessageBuilder, read_part, unsupported_reason, write_part
from dragoman.dialects.gemini.key_case import NAME
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, count_or_zero, expect_list, expect_object, text_or_none
from dragoman.message import InvalidToolUseBlock, TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses
from dragoman.wire.message_builder import fault_loss
from dragoman.wire.residue import apply_diff, get_notes, make_notes

FINISH_REASONS: Final = {
    "STOP": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "SAFETY": StopReason.REFUSAL,
    "RECITATION": StopReason.REFUSAL,
    "LANGUAGE": StopReason.REFUSAL,
    "BLOCKLIST": StopReason.REFUSAL,
    "PROHIBITED_CONTENT": StopReason.REFUSAL,
    "SPII": StopReason.REFUSAL,
    "MODEL_ARMOR": StopReason.REFUSAL,
    "IMAGE_SAFETY": StopReason.REFUSAL,
    "IMAGE_PROHIBITED_CONTENT": StopReason.REFUSAL,
    "IMAGE_RECITATION": StopReason.REFUSAL,
    "CONTINUATION": StopReason.PAUSED,
}
# Google sends the first; the second is for an undeclared tool; the third comes from compatible servers.
_CALL_FINISH_REASONS: Final = ("STOP", "UNEXPECTED_TOOL_CALL", "FUNCTION_CALL")
_REASON_NUMBERS: Final = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION"}  # protocol buffer enum numbers
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": "tool_input_invalid",
    "UNEXPECTED_TOOL_CALL": "tool_input_invalid",
    "TOO_MANY_TOOL_CALLS": "server_error",
    "MISSING_THOUGHT_SIGNATURE": "invalid_request",
    "MALFORMED_RESPONSE": "malformed_output",
}
_FAILURE_REASONS: Final = {  # for faults of other origins
    "tool_input_invalid": "MALFORMED_FUNCTION_CALL",
    "tool_input_truncated": "MALFORMED_FUNCTION_CALL",
    "malformed_output": "MALFORMED_RESPONSE",
}
_UNUSABLE: Final = ("tool_input_invalid", "tool_input_truncated", "empty_response")  # with a normal finish reason
_FINISH_REASONS: Final = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.REFUSAL: "SAFETY",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}


@accepts_json_text
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a response of generateContent. Its first candidate is the reply."""
    rest, parts, notes = _split_reply(body)
    builder = GeminiMessageBuilder(str(body.get("responseId", "")))
    content = tuple(read_part(part, "model", builder, "$.candidates[0].content.parts") for part in parts)
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    reply = mark_unusable(
        read_rest(rest, text_or_none(body.get("modelVersion")), has_calls=has_calls).replace(content=content)
    )
    if reply.fault is not None and reply.fault.code in _UNUSABLE:
        notes["ended"] = get_finish_reason(rest)
    return reply.replace(provider_raw=make_notes(NAME, default_rest(reply, notes), rest, **notes))


def get_finish_reason(rest: dict[str, Any]) -> Any:
    """Return the finish reason of the first candidate."""
    candidates = rest.get("candidates") or [{}]
    return candidates[0].get("finishReason")


def _split_reply(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Return the response without parts and further candidates, the parts, and the notes."""
    candidates = expect_list(body.get("candidates") or [], "$.candidates")
    if not candidates:
        return body, [], {"form": "none", **rest_notes(body)}
    first = expect_object(candidates[0], "$.candidates[0]")
    content = first.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    notes = {"form": None if isinstance(parts, list) else "absent", "others": candidates[1:] or None}
    if isinstance(content, dict) and isinstance(parts, list):
        first = {**first, "content": {key: value for key, value in content.items() if key != "parts"}}
    rest = {**body, "candidates": [first]}
    return rest, parts if isinstance(parts, list) else [], {**notes, **rest_notes(rest)}


def rest_notes(rest: dict[str, Any]) -> dict[str, Any]:
    """Return notes beside the residue: tokens read by provider tools, and whether the finish reason is missing."""
    usage = rest.get("usageMetadata")
    return {
        "tool_use": (count_or_zero(usage.get("toolUsePromptTokenCount")) or None) if isinstance(usage, dict) else None,
        "unsaid": True if get_finish_reason(rest) is None else None,
    }


def read_rest(rest: dict[str, Any], model: str | None, *, has_calls: bool) -> Reply:
    """Read everything but the content of a reply."""
    candidates = rest.get("candidates") or [{}]
    stop_reason, fault = _read_end(candidates[0], rest.get("promptFeedback"), has_calls=has_calls)
    return Reply(stop_reason=stop_reason, usage=read_usage(rest.get("usageMetadata")), model=model, fault=fault)


def _read_end(candidate: dict[str, Any], feedback: Any, *, has_calls: bool) -> tuple[StopReason, Fault | None]:
    value = candidate.get("finishReason")
    reason = _REASON_NUMBERS.get(value, "OTHER") if type(value) is int else str(value)
    if has_calls and reason in _CALL_FINISH_REASONS:
        return StopReason.TOOL_USE, None
    if reason in _FAILURES:
        fault = Fault(
            code=_FAILURES[reason],
            message=str(candidate.get("finishMessage") or f"the model stopped with {reason}"),
            error_class=ErrorClass.SERVER_ERROR,
            retryable=True,
            provider=NAME,
            provider_code=reason,
        )
        return StopReason.ERROR, fault
    if value is None and isinstance(feedback, dict) and feedback.get("blockReason"):
        return StopReason.REFUSAL, None
    return FINISH_REASONS.get(reason, StopReason.UNKNOWN), None


_SUPPORTED: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "tool_use", "refusal"),
    usage_fields=("cached_input_tokens", "reasoning_tokens", "service_tier"),
)


def write_reply(reply: Reply) -> Written:
    """Write a response of generateContent and report losses. An invalid call of another dialect is left out."""
    losses: list[Loss] = []
    parts = []
    for block in reply.content:
        reason = unsupported_reason(block)
        if isinstance(block, InvalidToolUseBlock) and get_notes(block.provider_raw, NAME).get("form") != "unusable":
            reason = f"an invalid call: {block.reason}"
            reply = drop_finish_reason(reply)
        if reason is None:
            parts.append(write_part(block))
        else:
            losses.append(Loss("", "", block.type, NAME, reason))
    if write_finish_reason(reply, get_notes(reply.provider_raw, NAME)) is None:
        losses.extend(fault_loss(reply, NAME))
    losses.extend(detail_losses(reply, NAME, _SUPPORTED))
    if reply.usage is not None and reply.usage.reasoning_tokens > reply.usage.output_tokens:
        losses.append(Loss("", "", "usage.reasoning_tokens", NAME, "more than the output tokens"))
    return Written(write_with_parts(reply, parts), tuple(losses))


def drop_finish_reason(reply: Reply) -> Reply:
    """Return the reply without the noted finish reason, so that an incomplete reply does not appear complete."""
    raw = {name: note for name, note in (reply.provider_raw or {}).items() if name != "ended"}
    return reply.replace(provider_raw=raw or None)


def write_with_parts(reply: Reply, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Write a response with these parts and the other fields of the reply."""
    notes = get_notes(reply.provider_raw, NAME)
    default = default_rest(reply, {**notes, "form": None} if parts else notes)
    wire: dict[str, Any] = apply_diff(default, notes.get("residue"))
    candidates = wire.get("candidates")
    if candidates and (parts or notes.get("form") is None):
        content = candidates[0].get("content")
        content = content if isinstance(content, dict) else {"role": "model"}
        candidates[0] = {**candidates[0], "content": {"parts": parts, **content}}
    if candidates and notes.get("others"):
        candidates.extend(notes["others"])
    return wire


def default_rest(reply: Reply, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if notes.get("form") != "none":
        first: dict[str, Any] = {"content": {"role": "model"}}
        reason = write_finish_reason(reply, notes)
        if reason is not None and not (notes.get("unsaid") and reply.stop_reason is StopReason.UNKNOWN):
            first["finishReason"] = reason
        if isinstance(reason, str) and reason in _FAILURES and reply.fault is not None:
            first["finishMessage"] = reply.fault.message
        wire["candidates"] = [{**first, "index": 0}]
    if reply.usage is not None:
        wire["usageMetadata"] = default_usage(reply.usage, notes.get("tool_use") or 0)
    if reply.model is not None:
        wire["modelVersion"] = reply.model
    return wire


def write_finish_reason(reply: Reply, notes: Mapping[str, Any]) -> Any:
    """Return the finish reason; ``None`` for a failure without one."""
    if reply.fault is None:
        return _FINISH_REASONS.get(reply.stop_reason, "STOP")
    if reply.fault.provider_code in _FAILURES:
        return reply.fault.provider_code
    if reply.fault.code in _UNUSABLE and notes.get("ended") is not None:
        return notes["ended"]
    return _FAILURE_REASONS.get(reply.fault.code)


_COUNT_FIELDS: Final = (
    "promptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "toolUsePromptTokenCount",
)
_DETAIL_FIELDS: Final = (
    "promptTokensDetails",
    "toolUsePromptTokensDetails",
    "cacheTokensDetails",
    "candidatesTokensDetails",
)


def read_usage(wire: Any) -> TokenUsage | None:
    """Read token counts. The prompt count includes cached tokens and excludes the input of the provider's tools."""
    if not isinstance(wire, dict) or not any(key in wire for key in _COUNT_FIELDS):
        return None
    counts = Counts(NAME)
    prompt, generated, thoughts, cached, tools = (counts.read(wire, key) for key in _COUNT_FIELDS)
    uncached, cached, _ = counts.split_prompt(prompt, cached)
    prompt_audio, tool_audio, cached_audio, output_audio = (
        _count_audio(wire.get(key), counts) for key in _DETAIL_FIELDS
    )
    usage = TokenUsage(
        input_tokens=uncached + tools,
        output_tokens=generated + thoughts,
        cached_input_tokens=cached,
        reasoning_tokens=thoughts,
        input_audio_tokens=max(0, prompt_audio + tool_audio - cached_audio),
        output_audio_tokens=output_audio,
        service_tier=text_or_none(wire.get("serviceTier")),
    )
    return counts.drop_impossible(usage)


def _count_audio(details: Any, counts: Counts) -> int:
    items = details if isinstance(details, list) else []
    return sum(
        counts.read(item, "tokenCount") for item in items if isinstance(item, dict) and item.get("modality") == "AUDIO"
    )


def default_usage(usage: TokenUsage, tool_use: int) -> dict[str, Any]:
    tool_use = tool_use if tool_use <= usage.input_tokens else 0
    prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
    counts = {
        "promptTokenCount": prompt - tool_use,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "cachedContentTokenCount": usage.cached_input_tokens,
        "thoughtsTokenCount": min(usage.output_tokens, usage.reasoning_tokens),
        "toolUsePromptTokenCount": tool_use,
    }
    wire: dict[str, Any] = {key: count for key, count in counts.items() if count}  # the API omits zero counts
    wire["totalTokenCount"] = prompt + usage.output_tokens
    if usage.service_tier is not None:
        wire["serviceTier"] = usage.service_tier
    return wire
