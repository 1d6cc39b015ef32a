"""Plan a model swap: the history for another model, and the reasons that block the swap.

    plan_swap(history, adapter) -> SwapPlan
    project_history(history, capabilities) -> messages    the history for a model, without a plan

Each block is kept, projected (replaced) or left out, with a reason. The plan contains blockers, whether the history
fits, how many of its oldest messages are not sent, and the cost of the first turn. A policy decides about media that
the model does not support: ``strict`` blocks the swap, ``placeholder`` inserts a text, ``describe`` inserts a
description. The given and the stored history never change, so a swap back restores everything. Invariant: the plan
matches the output of the dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec

from dragoman import message as msg
from dragoman.adapter import Adapter, message_budget
from dragoman.catalog import AdapterCapabilities
from dragoman.context_window import fit, with_summary
from dragoman.errors import UnknownPriceError
from dragoman.exchange import ToolDefinition
from dragoman.pricing import PriceTable, receipt
from dragoman.tokens import make_estimate

Policy = Literal["strict", "placeholder", "describe"]
Outcome = Literal["kept", "projected", "left_out"]
Describe = Callable[[msg.MediaBlock], str]


class BlockPlan(msgspec.Struct, frozen=True):
    """The result for one block."""

    message_id: str
    place: str  # for example content[2], or content[0].content[1] inside a result
    block_type: str
    outcome: Outcome
    reason: str = ""


class SwapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a swap. It is possible if there are no blockers."""

    model: str
    messages: tuple[msg.Message, ...]  # the history for the model
    blocks: tuple[BlockPlan, ...]
    blockers: tuple[str, ...]  # for people: the problems and the alternatives
    estimated_input_tokens: int  # of the whole history
    fits: bool  # into the model's context
    omitted_count: int = 0  # the oldest messages, which do not fit and are not sent
    first_turn_usd: Decimal | None = None  # cost of the first prompt, if prices are given
    failures: tuple[str, ...] = ()  # for programs: the routing constraint of each blocker

    @property
    def is_possible(self) -> bool:
        """Whether there are no blockers."""
        return not self.blockers


def plan_swap(
    history: Iterable[msg.Message],
    adapter: Adapter,
    *,
    policy: Policy = "strict",
    tools: Iterable[ToolDefinition] = (),
    describe: Describe | None = None,
    prices: PriceTable | None = None,
    at: datetime | None = None,
    unreachable: str | None = None,
) -> SwapPlan:
    """Return what happens to a history when its next turn uses the adapter's model.

    ``unreachable`` is why the model cannot be called, for example a missing API key: it blocks the swap.
    """
    if policy == "describe" and describe is None:
        raise ValueError("describe: the policy 'describe' needs a describe function")
    original, tool_definitions = with_summary(history), tuple(tools)
    projection = _Projection(adapter.capabilities, policy, describe)
    messages = tuple(projection.project_message(message) for message in original)
    written = adapter.write_request(adapter.make_request(messages, tool_definitions))
    loss_reasons = {(loss.message_id, loss.block_type): loss.reason for loss in written.losses}
    blocks = tuple(_apply_losses(plan, loss_reasons) for plan in projection.plans)
    tokens = adapter.estimate_input_tokens(messages, tool_definitions)
    estimate = make_estimate(adapter.model.id, messages, tool_definitions)
    sent = fit(messages, message_budget(adapter.model, tool_definitions), estimate)
    sent_tokens = tokens - (estimate(messages) - sent.tokens if sent.left_out else 0)
    blockers = tuple(_find_blockers(original, tool_definitions, adapter, projection, sent_tokens))
    if unreachable is not None:
        problem = f"Cannot swap to {adapter.model.id}: {unreachable}. Active model unchanged."
        blockers = (("not_configured", problem), *blockers)
    return SwapPlan(
        model=adapter.model.id,
        messages=sent.messages,
        blocks=blocks,
        blockers=tuple(blocker for _, blocker in blockers),
        estimated_input_tokens=tokens,
        fits=tokens <= adapter.capabilities.max_context_tokens,
        omitted_count=len(sent.left_out),
        first_turn_usd=_estimate_cost(prices, adapter.model.id, sent_tokens, at),
        failures=tuple(failure for failure, _ in blockers),
    )


def project_history(
    history: Iterable[msg.Message],
    capabilities: AdapterCapabilities,
    *,
    policy: Policy = "strict",
    describe: Describe | None = None,
) -> tuple[msg.Message, ...]:
    """Return the history for a model. With ``strict``, unsupported media stay; another check rejects them."""
    if policy == "strict":
        return tuple(history)
    projection = _Projection(capabilities, policy, describe)
    return tuple(projection.project_message(message) for message in history)


class _Projection:
    """The history for a model, and the plan for each block."""

    def __init__(self, capabilities: AdapterCapabilities, policy: Policy, describe: Describe | None) -> None:
        self._capabilities = capabilities
        self.policy = policy
        self._describe = describe
        self.plans: list[BlockPlan] = []
        self.unsupported: dict[str, int] = {}  # counts of unsupported media by type

    def project_message(self, message: msg.Message) -> msg.Message:
        blocks = tuple(
            self._project_block(block, message.id, f"content[{at}]") for at, block in enumerate(message.content)
        )
        is_unchanged = all(old is new for old, new in zip(blocks, message.content, strict=True))
        return message if is_unchanged else msgspec.structs.replace(message, content=blocks)

    def _project_block(self, block: msg.ContentBlock, message_id: str, place: str) -> msg.ContentBlock:
        if isinstance(block, msg.ToolResultBlock):
            self.plans.append(BlockPlan(message_id, place, block.type, "kept"))
            inner = tuple(
                self._project_block(part, message_id, f"{place}.content[{at}]") for at, part in enumerate(block.content)
            )
            is_unchanged = all(old is new for old, new in zip(inner, block.content, strict=True))
            return block if is_unchanged else msgspec.structs.replace(block, content=inner)
        if isinstance(block, msg.MediaBlock) and not _supports_medium(self._capabilities, block):
            return self._replace_medium(block, message_id, place)
        self.plans.append(BlockPlan(message_id, place, block.type, "kept"))
        return block

    def _replace_medium(self, block: msg.MediaBlock, message_id: str, place: str) -> msg.ContentBlock:
        self.unsupported[block.type] = self.unsupported.get(block.type, 0) + 1
        if self.policy == "strict":
            reason = f"this model does not support {block.type}"
            self.plans.append(BlockPlan(message_id, place, block.type, "left_out", reason))
            return block
        text = (
            self._describe(block)
            if self.policy == "describe" and self._describe
            else f"[{block.type} ({block.media_type})]"
        )
        self.plans.append(BlockPlan(message_id, place, block.type, "projected", f"as text: {text[:60]}"))
        return msg.TextBlock(text)


def _supports_medium(capabilities: AdapterCapabilities, block: msg.MediaBlock) -> bool:
    match block:
        case msg.ImageBlock(media_type=media_type):
            accepted = capabilities.accepted_image_media_types
            return capabilities.supports_images and (not accepted or media_type in (*accepted, "image/*"))
        case msg.DocumentBlock():
            return capabilities.supports_documents
        case msg.AudioBlock():
            return capabilities.supports_audio
        case msg.VideoBlock():
            return capabilities.supports_video


def _apply_losses(plan: BlockPlan, loss_reasons: dict[tuple[str, str], str]) -> BlockPlan:
    """Return the plan, corrected by the losses of the dialect."""
    if plan.outcome != "kept":
        return plan
    reason = loss_reasons.get((plan.message_id, plan.block_type))
    if reason is not None:
        return msgspec.structs.replace(plan, outcome="left_out", reason=reason)
    mark = loss_reasons.get((plan.message_id, "is_error")) if plan.block_type == "tool_result" else None
    return plan if mark is None else msgspec.structs.replace(plan, reason=f"without an error flag: {mark}")


def _find_blockers(
    history: tuple[msg.Message, ...],
    tools: tuple[ToolDefinition, ...],
    adapter: Adapter,
    projection: _Projection,
    sent_tokens: int,
) -> Iterable[tuple[str, str]]:
    """Yield the unmet constraints: the name that routing uses, and a text."""
    capabilities, name = adapter.capabilities, adapter.model.id
    for kind, count in projection.unsupported.items():
        if projection.policy == "strict":
            yield (
                "no_vision_support" if kind == "image" else f"no_{kind}_support",
                f"Cannot swap to {name}: session contains {kind}s that this model can't process. Active model "
                f"unchanged. There are {count}. Choose a model with {kind} support, or swap with policy 'placeholder' "
                "or 'describe'.",
            )
    has_calls = any(isinstance(b, msg.CallBlock) for m in history for b in m.content)
    if (has_calls or tools) and not capabilities.supports_tools:
        reason = "session uses tools, and this model does not support tools"
        yield "no_tool_support", f"Cannot swap to {name}: {reason}. Active model unchanged."
    if any(m.role is msg.Role.SYSTEM and m.content for m in history) and not capabilities.supports_system_prompt:
        reason = "session has a system prompt, which this model does not support"
        yield "no_system_prompt_support", f"Cannot swap to {name}: {reason}. Active model unchanged."
    if sent_tokens > (limit := capabilities.max_context_tokens):
        yield (
            "exceeds_context_window",
            f"Cannot swap to {name}: the last turn has about {sent_tokens} tokens, and this model accepts {limit}. "
            "Active model unchanged. Choose a model with a larger context.",
        )


def _estimate_cost(prices: PriceTable | None, model: str, tokens: int, at: datetime | None) -> Decimal | None:
    if prices is None or at is None:
        return None
    try:
        return receipt(prices, model, msg.TokenUsage(input_tokens=tokens, output_tokens=0), at).total_usd
    except UnknownPriceError:
        return None
