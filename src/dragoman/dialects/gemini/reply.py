"""Convert whole replies; streams use this module for everything but the parts.

Invariant: a failed reply is never written with the finish reason of a complete one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.blocks import GeminiMessageBuilder, read_part, unsupported_reason, write_part
from dragoman.dialects.gemini.code_assist import unwrap_response, wrap_response
from dragoman.dialects.gemini.grounding import read_citations, read_logprobs, write_grounding, write_logprobs
from dragoman.dialects.gemini.key_case import NAME
from dragoman.dialects.gemini.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, count_or_zero, expect_list, expect_object, text_or_none
from dragoman.message import (
    Alternative,
    ContentBlock,
    InvalidToolUseBlock,
    StopDetails,
    TextBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses, supported_blocks
from dragoman.wire.message_builder import fault_loss
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses

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


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a response of generateContent. Its first candidate is the reply."""
    body, wrapper = unwrap_response(body)
    rest, parts, others, notes = _split_reply(body)
    notes["wrapper"] = wrapper
    builder = GeminiMessageBuilder(str(body.get("responseId", "")))
    content = tuple(read_part(part, "model", builder, "$.candidates[0].content.parts") for part in parts)
    content = add_details(content, (rest.get("candidates") or [{}])[0])
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content)
    reply = read_rest(rest, text_or_none(body.get("modelVersion")), has_calls=has_calls)
    alternatives = tuple(read_alternative(other, at, builder) for at, other in enumerate(others, 1))
    reply = mark_unusable(reply.replace(content=content, alternatives=alternatives))
    if reply.fault is not None and reply.fault.code in _UNUSABLE:
        notes["ended"] = get_finish_reason(rest)
    return reply.replace(provider_raw=make_notes(NAME, default_rest(reply, notes), rest, **notes))


def add_details(content: tuple[ContentBlock, ...], candidate: dict[str, Any]) -> tuple[ContentBlock, ...]:
    """Return the blocks with the citations and token probabilities of the candidate."""
    numbers = [at for at, block in enumerate(content) if isinstance(block, TextBlock)]
    logprobs = read_logprobs(candidate)
    if not numbers or ("groundingMetadata" not in candidate and not logprobs):
        return content
    blocks = list(content)
    cited = read_citations(candidate, [blocks[at].text for at in numbers])  # type: ignore[union-attr]
    for at, citations in zip(numbers, cited, strict=True):
        own = logprobs if at == numbers[0] else ()
        if citations or own:
            blocks[at] = blocks[at].replace(citations=citations, token_logprobs=own)
    return tuple(blocks)


def read_alternative(candidate: dict[str, Any], number: int, builder: GeminiMessageBuilder) -> Alternative:
    """Read a further candidate."""
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    items = parts if isinstance(parts, list) else []
    blocks = add_details(
        tuple(read_part(part, "model", builder, f"$.candidates[{number}].content.parts") for part in items), candidate
    )
    has_calls = any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in blocks)
    stop_reason, _ = _read_end(candidate, None, has_calls=has_calls)
    alternative = Alternative(content=blocks, stop_reason=stop_reason, stop_details=_read_details(candidate))
    form = None if isinstance(parts, list) else "absent"
    raw = make_notes(NAME, _default_alternative(alternative, number, form), candidate, form=form)
    return alternative.replace(provider_raw=raw)


def write_alternative(alternative: Alternative, number: int) -> dict[str, Any]:
    """Write a further candidate; blocks that the wire cannot carry are left out, and the reply reports them."""
    notes = get_notes(alternative.provider_raw, NAME)
    wire: dict[str, Any] = apply_diff(
        _default_alternative(alternative, number, notes.get("form")), notes.get("residue")
    )
    return wire


def _default_alternative(alternative: Alternative, number: int, form: str | None) -> dict[str, Any]:
    parts = [write_part(block) for block in alternative.content if unsupported_reason(block) is None]
    content = {} if form == "absent" else {"parts": parts}
    reason = _FINISH_REASONS.get(alternative.stop_reason, "STOP")
    reply = Reply(content=alternative.content, stop_reason=StopReason.UNKNOWN, stop_details=alternative.stop_details)
    wire = {"content": {**content, "role": "model"}, "finishReason": reason, **_default_details(reply)}
    return {**wire, "index": number}


def _read_details(candidate: dict[str, Any]) -> StopDetails | None:
    explanation = text_or_none(candidate.get("finishMessage"))
    return StopDetails(explanation=explanation) if explanation else None


def _default_details(reply: Reply) -> dict[str, Any]:
    """Write citations, token probabilities and the explanation of the end."""
    texts = [block for block in reply.content if type(block) is TextBlock]
    wire: dict[str, Any] = {}
    if (grounding := write_grounding(texts)) is not None:
        wire["groundingMetadata"] = grounding
    if (logprobs := write_logprobs(item for block in texts for item in block.token_logprobs)) is not None:
        wire["logprobsResult"] = logprobs
    if reply.stop_details is not None and reply.stop_details.explanation is not None:
        wire["finishMessage"] = reply.stop_details.explanation
    return wire


def get_finish_reason(rest: dict[str, Any]) -> Any:
    """Return the finish reason of the first candidate."""
    candidates = rest.get("candidates") or [{}]
    return candidates[0].get("finishReason")


def _split_reply(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the response without parts and further candidates, the parts, these candidates, and the notes."""
    candidates = expect_list(body.get("candidates") or [], "$.candidates")
    if not candidates:
        return body, [], [], {"form": "none", **rest_notes(body)}
    first = expect_object(candidates[0], "$.candidates[0]")
    content = first.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    others = [expect_object(other, f"$.candidates[{at}]") for at, other in enumerate(candidates[1:], 1)]
    notes = {"form": None if isinstance(parts, list) else "absent"}
    if isinstance(content, dict) and isinstance(parts, list):
        first = {**first, "content": {key: value for key, value in content.items() if key != "parts"}}
    rest = {**body, "candidates": [first]}
    return rest, parts if isinstance(parts, list) else [], others, {**notes, **rest_notes(rest)}


def rest_notes(rest: dict[str, Any]) -> dict[str, Any]:
    """Return notes beside the residue: tokens read by provider tools, and whether the finish reason is missing."""
    usage = rest.get("usageMetadata")
    return {
        "tool_use": (count_or_zero(usage.get("toolUsePromptTokenCount")) or None) if isinstance(usage, dict) else None,
        "no_finish_reason": True if get_finish_reason(rest) is None else None,
    }


def read_rest(rest: dict[str, Any], model: str | None, *, has_calls: bool) -> Reply:
    """Read everything but the content of a reply."""
    candidates = rest.get("candidates") or [{}]
    stop_reason, fault = _read_end(candidates[0], rest.get("promptFeedback"), has_calls=has_calls)
    return Reply(
        stop_reason=stop_reason,
        usage=read_usage(rest.get("usageMetadata")),
        model=model,
        fault=fault,
        stop_details=_read_details(candidates[0]) if fault is None else None,
    )


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


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "tool_use", "refusal"),
    usage_fields=("cached_input_tokens", "reasoning_tokens", "service_tier"),
    has_tool_use=False,
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
    for alternative in reply.alternatives:
        supported_blocks(alternative.content, unsupported_reason, NAME, losses)
    if write_finish_reason(reply, get_notes(reply.provider_raw, NAME)) is None:
        losses.extend(fault_loss(reply, NAME))
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    if reply.stop_details is not None and reply.stop_details.category is not None:
        losses.append(Loss("", "", "stop_details.category", NAME, "this API explains an end in a sentence"))
    if reply.usage is not None and reply.usage.reasoning_tokens > reply.usage.output_tokens:
        losses.append(Loss("", "", "usage.reasoning_tokens", NAME, "more than the output tokens"))
    wrapper = get_notes(reply.provider_raw, NAME).get("wrapper")
    return Written(wrap_response(write_with_parts(reply, parts), wrapper), tuple(losses))


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
    if candidates:
        candidates.extend(notes.get("others", ()))
        candidates.extend(write_alternative(each, at) for at, each in enumerate(reply.alternatives, 1))
    return wire


def default_rest(reply: Reply, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if notes.get("form") != "none":
        first: dict[str, Any] = {"content": {"role": "model"}}
        reason = write_finish_reason(reply, notes)
        if reason is not None and not (notes.get("no_finish_reason") and reply.stop_reason is StopReason.UNKNOWN):
            first["finishReason"] = reason
        if isinstance(reason, str) and reason in _FAILURES and reply.fault is not None:
            first["finishMessage"] = reply.fault.message
        wire["candidates"] = [{**first, **_default_details(reply), "index": 0}]
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
        input_audio_tokens=min(uncached + tools, max(0, prompt_audio + tool_audio - cached_audio)),
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
    wire = wire or {"promptTokenCount": 0}  # without any count, the reader finds no usage
    wire["totalTokenCount"] = prompt + usage.output_tokens
    if usage.service_tier is not None:
        wire["serviceTier"] = usage.service_tier
    return wire
