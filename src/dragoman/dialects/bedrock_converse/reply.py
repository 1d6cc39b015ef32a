"""Convert whole replies and usage.

Invariant: a reply is written back unchanged, also if it has a fault.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.bedrock_converse.blocks import loss_recorder, read_block, write_blocks
from dragoman.dialects.bedrock_converse.mappings import (
    MALFORMED,
    NAME,
    STOP_REASON_NAMES,
    STOP_REASONS,
    TIERS,
    UNUSABLE,
)
from dragoman.dialects.bedrock_converse.support import SUPPORT
from dragoman.event import mark_unusable
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.jsontext import accepts_json_text, expect_list, expect_object, text_or_none
from dragoman.message import TokenUsage, ToolUseBlock
from dragoman.wire.counts import Counts
from dragoman.wire.losses import SupportedDetails, detail_losses
from dragoman.wire.message_builder import MessageBuilder, wait_for_results
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.support import reply_losses


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a reply of Converse."""
    output = expect_object(body.get("output"), "$.output")
    message = expect_object(output.get("message"), "$.output.message")
    builder = MessageBuilder()
    items = enumerate(expect_list(message.get("content"), "$.output.message.content"))
    blocks = (expect_object(item, f"$.output.message.content[{index}]") for index, item in items)
    content = tuple(read_block(block, builder, "reply") for block in blocks)
    message_fields = {key: value for key, value in message.items() if key != "content"}
    rest = {**body, "output": {**output, "message": message_fields}}
    has_call = any(isinstance(block, ToolUseBlock) for block in content)
    reply = mark_unusable(_read_end(rest, has_call=has_call).replace(content=content))
    return reply.replace(provider_raw=make_notes(NAME, default_end(reply), rest))


def read_end(body: dict[str, Any], *, has_call: bool) -> Reply:
    """Read everything but the blocks of a reply: stop reason, usage and residue."""
    end = _read_end(body, has_call=has_call)
    return end.replace(provider_raw=make_notes(NAME, default_end(end), body))


def _read_end(body: dict[str, Any], *, has_call: bool) -> Reply:
    word, fields = str(body.get("stopReason")), body.get("additionalModelResponseFields")
    fault = _stop_fault(word)
    stop_reason = wait_for_results(STOP_REASONS.get(word, StopReason.UNKNOWN), has_call=has_call)
    return Reply(
        stop_reason=stop_reason if fault is None else StopReason.ERROR,
        stop_sequence=text_or_none(fields.get("stop_sequence")) if isinstance(fields, dict) and fault is None else None,
        usage=read_usage(body),
        fault=fault,
    )


DETAILS: Final = SupportedDetails(
    stop_reasons=("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
    usage_fields=(
        "cached_input_tokens",
        "cache_creation_input_tokens",
        "cache_creation_1h_input_tokens",
        "service_tier",
    ),
    service_tiers=TIERS,
    stop_sequence=True,
    model=False,
)


def write_reply(reply: Reply) -> Written:
    """Write a reply of Converse and report losses."""
    losses: list[Loss] = []
    content = write_blocks(reply.content, "reply", loss_recorder(losses))
    wire = write_end(reply)
    wire["output"]["message"]["content"] = content
    losses.extend(detail_losses(reply, NAME, DETAILS))
    losses.extend(reply_losses(reply, NAME, SUPPORT))
    return Written(wire, tuple(losses))


def write_end(reply: Reply) -> dict[str, Any]:
    """Write a reply without its blocks."""
    wire: dict[str, Any] = apply_diff(default_end(reply), get_notes(reply.provider_raw, NAME).get("residue"))
    return wire


def _stop_fault(stop_reason: str) -> Fault | None:
    """Return the fault of a stop reason that reports a failure."""
    if stop_reason not in MALFORMED:
        return None
    return Fault(
        code=MALFORMED[stop_reason],
        message=f"the model stopped with {stop_reason}",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
        provider_code=stop_reason,
    )


def fault_stop_reason(fault: Fault) -> str | None:
    """Return the stop reason that reports a fault, if there is one."""
    return fault.provider_code if fault.provider_code in MALFORMED else UNUSABLE.get(fault.code)


def default_end(reply: Reply) -> dict[str, Any]:
    """Write everything but the blocks, without residue."""
    stop_reason = (
        STOP_REASON_NAMES.get(reply.stop_reason, "end_turn") if reply.fault is None else fault_stop_reason(reply.fault)
    )
    usage = reply.usage or TokenUsage(input_tokens=0, output_tokens=0)
    wire: dict[str, Any] = {
        "output": {"message": {"role": "assistant"}},
        "stopReason": stop_reason or "malformed_model_output",
    }
    if reply.stop_sequence is not None:
        wire["additionalModelResponseFields"] = {"stop_sequence": reply.stop_sequence}
    wire["usage"] = _default_usage(usage)
    wire["metrics"] = {"latencyMs": 0}  # required by the API; the latency is unknown
    if usage.service_tier in TIERS:
        wire["serviceTier"] = {"type": usage.service_tier}
    return wire


def read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """Read token counts. The input count excludes cache reads and writes."""
    usage, tier = body.get("usage"), body.get("serviceTier")
    if not isinstance(usage, dict):
        return None
    details = usage.get("cacheDetails")
    hour_items = [item for item in details if _is_one_hour(item)] if isinstance(details, list) else []
    counts = Counts(NAME)
    token_usage = TokenUsage(
        input_tokens=counts.read(usage, "inputTokens"),
        output_tokens=counts.read(usage, "outputTokens"),
        cached_input_tokens=counts.read(usage, "cacheReadInputTokens"),
        cache_creation_input_tokens=counts.read(usage, "cacheWriteInputTokens"),
        cache_creation_1h_input_tokens=sum(counts.read(item, "inputTokens") for item in hour_items),
        service_tier=text_or_none(tier.get("type")) if isinstance(tier, dict) else None,
    )
    return counts.drop_impossible(token_usage)


def _is_one_hour(item: Any) -> bool:
    return isinstance(item, dict) and item.get("ttl") == "1h"


def _default_usage(usage: TokenUsage) -> dict[str, Any]:
    cached, created = usage.cached_input_tokens, usage.cache_creation_input_tokens
    wire: dict[str, Any] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens + cached + created,
    }
    if cached or created:
        wire.update(cacheReadInputTokens=cached, cacheWriteInputTokens=created)
    hour = usage.cache_creation_1h_input_tokens
    if hour:
        rest = [{"ttl": "5m", "inputTokens": created - hour}] if created > hour else []
        wire["cacheDetails"] = [{"ttl": "1h", "inputTokens": hour}, *rest]
    return wire
