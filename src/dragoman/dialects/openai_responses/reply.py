"""Whole responses: content, stop reason and usage.

Invariant: a failed or unusable response is never read as a success.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    NAME,
    TIERS,
    as_generated_image,
    read_item,
    supported_tier,
    write_items,
)
from dragoman.dialects.openai_responses.error import provider_code, read_error
from dragoman.dialects.openai_responses.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, count_or_zero, expect_list, expect_object, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, OpaqueBlock, Role, TextBlock, TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses

_INCOMPLETE: Final = {"max_output_tokens": StopReason.MAX_TOKENS, "content_filter": StopReason.REFUSAL}
_INCOMPLETE_REASONS: Final = {reason: word for word, reason in _INCOMPLETE.items()}
_STATUSES: Final = {
    StopReason.ERROR: "failed",
    StopReason.CANCELLED: "cancelled",
    StopReason.MAX_TOKENS: "incomplete",
    StopReason.PAUSED: "incomplete",
    StopReason.REFUSAL: "incomplete",
}
_UNUSABLE: Final = {
    "tool_input_truncated": StopReason.MAX_TOKENS,
    "tool_input_invalid": StopReason.TOOL_USE,
    "empty_response": StopReason.END_TURN,
}
# Calls that the client must run, besides function calls. The model waits for their results.
_CLIENT_CALLS: Final = frozenset(
    {"custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
)

# Fields of the request that a reply repeats, with their defaults.
_ECHO_DEFAULTS: Final[dict[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a response of the Responses API."""
    return mark_unusable(make_reply(body, expect_list(body.get("output"), "$.output")))


def make_reply(body: dict[str, Any], output: list[Any], revisions: dict[str, Any] | None = None) -> Reply:
    """Make the reply, not marked yet. Its notes are those of the marked reply."""
    content = _read_output(output, at_limit=_read_limit(body) is StopReason.MAX_TOKENS)
    fault = _read_failure(body)
    reply = Reply(
        content=tuple(content),
        stop_reason=StopReason.ERROR if fault is not None else _read_stop(body, content),
        usage=_read_usage(body),
        model=text_or_none(body.get("model")),
        fault=fault,
    )
    rest = {key: value for key, value in body.items() if key != "output"}
    has_output_text = rest.get("output_text") == _join_text(content) or None
    if has_output_text:
        del rest["output_text"]
    raw = make_notes(
        NAME, default_reply(mark_unusable(reply)), rest, output_text=has_output_text, revised=revisions or None
    )
    return reply.replace(provider_raw=raw)


def _read_output(output: list[Any], *, at_limit: bool) -> list[ContentBlock]:
    builder = MessageBuilder()
    content: list[ContentBlock] = []
    for index, item in enumerate(output):
        where = f"$.output[{index}]"
        blocks = read_item(expect_object(item, where), where, builder, after=content)
        content.extend(_mark_cut_call(block, item, at_limit=at_limit) for block in blocks)
    return content


def _mark_cut_call(block: ContentBlock, item: dict[str, Any], *, at_limit: bool) -> ContentBlock:
    """Mark a call that was cut off as invalid, even if its input can be parsed or is empty."""
    if not isinstance(block, ToolUseBlock) or block.free_form:
        return block
    is_silent = at_limit and not item["arguments"].strip()
    if not is_silent and item.get("status") != "incomplete":
        return block
    reason = "the output limit was reached before its input" if is_silent else "the call was cut off"
    return InvalidToolUseBlock(block.id, block.name, item["arguments"], reason, block.provider_raw)


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "tool_use", "refusal", "cancelled"),
    usage_fields=("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens", "service_tier"),
    service_tiers=TIERS,
    has_tool_use=False,
)


def write_reply(reply: Reply) -> Written:
    """Write a response of the Responses API, with losses."""
    losses: list[Loss] = []

    def add_loss(what: str, why: str) -> None:
        losses.append(Loss("", "", what, NAME, why))

    notes = get_notes(reply.provider_raw, NAME)
    wire: dict[str, Any] = apply_diff(default_reply(reply), notes.get("residue"))
    items = write_items(map(as_generated_image, reply.content), Role.ASSISTANT, None, add_loss)
    if not notes:  # not native: every item of this API needs an id and a status
        cut_index = len(items) - 1 if wire["status"] != "completed" and not _ends_in_a_call(reply) else None
        items = [complete_item(place, item, is_cut=place == cut_index) for place, item in enumerate(items)]
    elif revisions := notes.get("revised"):
        items = [apply_diff(item, revisions.get(item.get("id"))) for item in items]
    wire["output"] = items
    if notes.get("output_text"):
        wire["output_text"] = _join_text(reply.content)
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written(wire, tuple(losses))


def _ends_in_a_call(reply: Reply) -> bool:
    """Whether the last block is a whole call."""
    return bool(reply.content) and isinstance(reply.content[-1], ToolUseBlock)


_ID_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "image_generation_call": "ig",
    "reasoning": "rs",
}


SEED: Final = "dragoman"  # for item ids if the response has no id


def rename_items(items: list[dict[str, Any]], seed: str) -> list[dict[str, Any]]:
    """Return the items of a response with ids that no other response has."""
    return [
        {**item, "id": f"{item['id'].partition('_')[0]}_{seed}_{place}"}
        if str(item.get("id", "")).partition("_")[2] == f"{SEED}_{place}"
        else item
        for place, item in enumerate(items)
    ]


def complete_item(place: int, item: dict[str, Any], *, is_cut: bool = False, seed: str = SEED) -> dict[str, Any]:
    """Add a name and a status to an item of another origin, as this API has them."""
    kind = item.get("type", "message")
    if kind not in _ID_PREFIXES:
        return item
    fields = {"id": f"{_ID_PREFIXES[kind]}_{seed}_{place}", "type": kind}
    if kind in ("message", "function_call", "custom_tool_call"):
        fields["status"] = "incomplete" if is_cut else "completed"
    if kind == "message" and isinstance(item.get("content"), list):
        item = {**item, "content": [complete_part(part) for part in item["content"]]}
    return {**fields, **item}


def complete_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"annotations": [], "logprobs": [], **part} if part.get("type") == "output_text" else part


def _join_text(content: Iterable[ContentBlock]) -> str:
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def _read_failure(body: dict[str, Any]) -> Fault | None:
    if body.get("status") != "failed":
        return None
    if isinstance(body.get("error"), dict):
        return read_error(None, {}, body)
    return Fault(
        code="unexplained_error",
        message="the provider ended the answer as failed without a reason",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
    )


def _read_stop(body: dict[str, Any], content: list[ContentBlock]) -> StopReason:
    match body.get("status"):
        case "completed" | None:
            if any(_awaits_result(block) for block in content):
                return StopReason.TOOL_USE
            return StopReason.REFUSAL if any(_is_refusal(block) for block in content) else StopReason.END_TURN
        case "incomplete":
            return _read_limit(body)
        case "cancelled":
            return StopReason.CANCELLED
        case "queued" | "in_progress":  # a background response
            return StopReason.PAUSED
        case _:
            return StopReason.UNKNOWN


def _read_limit(body: dict[str, Any]) -> StopReason:
    """Return what made a response incomplete."""
    details = body.get("incomplete_details")
    return (
        _INCOMPLETE.get(str(details.get("reason")), StopReason.UNKNOWN)
        if isinstance(details, dict)
        else StopReason.UNKNOWN
    )


def _awaits_result(block: ContentBlock) -> bool:
    if isinstance(block, OpaqueBlock):
        return str(block.wire.get("type")) in _CLIENT_CALLS
    return isinstance(block, ToolUseBlock | InvalidToolUseBlock)


def _is_refusal(block: ContentBlock) -> bool:
    return isinstance(block, TextBlock) and get_notes(block.provider_raw, NAME).get("form") == "refusal"


def default_reply(reply: Reply) -> dict[str, Any]:
    """Return the wire of a response without its output and without notes."""
    wire: dict[str, Any] = {"id": "resp_dragoman", "object": "response", "created_at": 0, **_ECHO_DEFAULTS}
    wire["model"] = "unknown" if reply.model is None else reply.model  # required by the API; some providers send none
    usage = reply.usage
    wire["service_tier"] = supported_tier(usage.service_tier if usage is not None else None) or "default"
    wire["usage"] = _write_usage(usage) if usage is not None else None
    stop_reason = _wire_stop_reason(reply)
    status = _STATUSES.get(stop_reason, "completed")
    if stop_reason is StopReason.REFUSAL and any(_is_refusal(block) for block in reply.content):
        status = "completed"
    wire["status"], wire["error"], wire["incomplete_details"] = status, None, None
    if stop_reason is StopReason.ERROR and reply.fault is not None:
        wire["error"] = {"code": provider_code(reply.fault), "message": reply.fault.message}
    elif status == "incomplete" and stop_reason in _INCOMPLETE_REASONS:
        wire["incomplete_details"] = {"reason": _INCOMPLETE_REASONS[stop_reason]}
    return wire


def _wire_stop_reason(reply: Reply) -> StopReason:
    """Return the stop reason on the wire; an unusable reply ends like any other."""
    return _UNUSABLE.get(reply.fault.code, StopReason.ERROR) if reply.fault is not None else reply.stop_reason


def _read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """Return the usage. The input includes tokens read from and written to a cache."""
    wire = body.get("usage")
    if not isinstance(wire, dict):
        return None
    input_details, output_details = (
        _object_or_empty(wire, "input_tokens_details"),
        _object_or_empty(wire, "output_tokens_details"),
    )
    counts = Counts(NAME)
    fresh, cached, created = counts.split_prompt(
        counts.read(wire, "input_tokens"),
        counts.read(input_details, "cached_tokens"),
        counts.read(input_details, "cache_write_tokens"),
    )
    token_usage = TokenUsage(
        input_tokens=fresh,
        output_tokens=counts.read(wire, "output_tokens"),
        cached_input_tokens=cached,
        cache_creation_input_tokens=created,
        reasoning_tokens=counts.read(output_details, "reasoning_tokens"),
        server_tool_calls=_read_server_calls(body, wire) or None,
        service_tier=text_or_none(body.get("service_tier")),
        provider_cost_usd=_read_cost(wire),
    )
    return counts.drop_impossible(token_usage)


def _object_or_empty(wire: dict[str, Any], key: str) -> dict[str, Any]:
    value = wire.get(key)
    return value if isinstance(value, dict) else {}


def _read_server_calls(body: dict[str, Any], usage: dict[str, Any]) -> dict[str, int]:
    """xAI counts calls in the usage, OpenAI beside it."""
    details = _object_or_empty(usage, "server_side_tool_usage_details").items()
    calls = {name.removesuffix("_calls"): count for name, value in details if (count := count_or_zero(value))}
    searches = count_or_zero(_object_or_empty(_object_or_empty(body, "tool_usage"), "web_search").get("num_requests"))
    return {**calls, "web_search": searches} if searches else calls


def _read_cost(usage: dict[str, Any]) -> Decimal | None:
    ticks, cost = usage.get("cost_in_usd_ticks"), usage.get("cost")
    if type(ticks) is int:  # xAI: 10,000,000,000 ticks are one dollar
        return Decimal(ticks) / 10_000_000_000
    return Decimal(repr(cost)) if type(cost) in (int, float) else None  # OpenRouter


def _write_usage(usage: TokenUsage) -> dict[str, Any]:
    cached, created = usage.cached_input_tokens, usage.cache_creation_input_tokens
    input_tokens = usage.input_tokens + cached + created
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": created},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": input_tokens + usage.output_tokens,
    }
