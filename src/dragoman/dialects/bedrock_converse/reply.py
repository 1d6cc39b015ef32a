"""Whole answers of Converse, both ways, and what they consumed.

The one rule: written again, an answer is what came, also where we find that it failed.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.bedrock_converse.blocks import losing, read_block, written_blocks
from dragoman.dialects.bedrock_converse.words import MALFORMED, NAME, STOP_REASONS, STOP_WORDS, TIERS, UNUSABLE
from dragoman.dialects.parts.body import a_list, an_object, from_body
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.counts import Counts
from dragoman.dialects.parts.details import Said, lost_details
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.event import judged
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason, Written
from dragoman.message import TokenUsage


@from_body
def read_reply(body: dict[str, Any]) -> Reply:
    """An answer as Converse gives it."""
    output = an_object(body.get("output"), "$.output")
    message = an_object(output.get("message"), "$.output.message")
    conversation = Conversation()
    items = enumerate(a_list(message.get("content"), "$.output.message.content"))
    blocks = (an_object(item, f"$.output.message.content[{at}]") for at, item in items)
    content = tuple(read_block(block, conversation, "reply") for block in blocks)
    said = {key: value for key, value in message.items() if key != "content"}
    rest = {**body, "output": {**output, "message": said}}
    reply = judged(_read_end(rest).replace(content=content))
    return reply.replace(provider_raw=noted(NAME, natural_end(reply), rest))


def read_end(body: dict[str, Any]) -> Reply:
    """What an answer says beside its blocks: why it ended and what it consumed, with all that is left over."""
    end = _read_end(body)
    return end.replace(provider_raw=noted(NAME, natural_end(end), body))


def _read_end(body: dict[str, Any]) -> Reply:
    word, fields = str(body.get("stopReason")), body.get("additionalModelResponseFields")
    fault = _fault_of_word(word)
    return Reply(
        stop_reason=STOP_REASONS.get(word, StopReason.UNKNOWN) if fault is None else StopReason.ERROR,
        stop_sequence=text_or_none(fields.get("stop_sequence")) if isinstance(fields, dict) and fault is None else None,
        usage=read_usage(body),
        fault=fault,
    )


_SAID: Final = Said(
    ends=("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
    counts=("cached_input_tokens", "cache_creation_input_tokens", "cache_creation_1h_input_tokens", "service_tier"),
    tiers=TIERS,
    word=True,
    model=False,
)


def write_reply(reply: Reply) -> Written:
    """An answer as Converse gives it, and what it cannot say."""
    losses: list[Loss] = []
    content = written_blocks(reply.content, "reply", losing(losses))
    wire = written_end(reply)
    wire["output"]["message"]["content"] = content
    losses.extend(lost_details(reply, NAME, _SAID))
    return Written(wire, tuple(losses))


def written_end(reply: Reply) -> dict[str, Any]:
    """The answer without its blocks."""
    made: dict[str, Any] = restored(natural_end(reply), notes_of(reply.provider_raw, NAME).get("residue"))
    return made


def _fault_of_word(word: str) -> Fault | None:
    """Some words for why a model stopped say that it failed."""
    if word not in MALFORMED:
        return None
    return Fault(
        code=MALFORMED[word],
        message=f"the model ended with {word}",
        error_class=ErrorClass.SERVER_ERROR,
        retryable=True,
        provider=NAME,
        provider_code=word,
    )


def word_of_fault(fault: Fault) -> str | None:
    """Why the model stopped, where that says how it failed."""
    return fault.provider_code if fault.provider_code in MALFORMED else UNUSABLE.get(fault.code)


def natural_end(reply: Reply) -> dict[str, Any]:
    """What we would write beside the blocks."""
    word = STOP_WORDS.get(reply.stop_reason, "end_turn") if reply.fault is None else word_of_fault(reply.fault)
    usage = reply.usage or TokenUsage(input_tokens=0, output_tokens=0)
    wire: dict[str, Any] = {
        "output": {"message": {"role": "assistant"}},
        "stopReason": word or "malformed_model_output",
    }
    if reply.stop_sequence is not None:
        wire["additionalModelResponseFields"] = {"stop_sequence": reply.stop_sequence}
    wire["usage"] = _natural_usage(usage)
    wire["metrics"] = {"latencyMs": 0}  # demanded; nobody measured it
    if usage.service_tier in TIERS:
        wire["serviceTier"] = {"type": usage.service_tier}
    return wire


def read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """What it consumed. The input of this wire leaves out what was read from, or written to, a cache."""
    usage, tier = body.get("usage"), body.get("serviceTier")
    if not isinstance(usage, dict):
        return None
    details = usage.get("cacheDetails")
    hour = [item for item in details if _is_for_an_hour(item)] if isinstance(details, list) else []
    counts = Counts(NAME)
    counted = TokenUsage(
        input_tokens=counts.read(usage, "inputTokens"),
        output_tokens=counts.read(usage, "outputTokens"),
        cached_input_tokens=counts.read(usage, "cacheReadInputTokens"),
        cache_creation_input_tokens=counts.read(usage, "cacheWriteInputTokens"),
        cache_creation_1h_input_tokens=sum(counts.read(item, "inputTokens") for item in hour),
        service_tier=text_or_none(tier.get("type")) if isinstance(tier, dict) else None,
    )
    return counts.check(counted)


def _is_for_an_hour(item: Any) -> bool:
    return isinstance(item, dict) and item.get("ttl") == "1h"


def _natural_usage(usage: TokenUsage) -> dict[str, Any]:
    read, written = usage.cached_input_tokens, usage.cache_creation_input_tokens
    wire: dict[str, Any] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens + read + written,
    }
    if read or written:
        wire.update(cacheReadInputTokens=read, cacheWriteInputTokens=written)
    hour = usage.cache_creation_1h_input_tokens
    if hour:
        rest = [{"ttl": "5m", "inputTokens": written - hour}] if written > hour else []
        wire["cacheDetails"] = [{"ttl": "1h", "inputTokens": hour}, *rest]
    return wire
