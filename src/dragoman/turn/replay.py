"""Rebuild the request of a stored answer: what its model received, and what the model could not receive.

    call = rebuild_call(services, config, session, answer, history, tools=tools)

Requests are not stored, because each would repeat the whole conversation. The stored messages, the projection and the
dialect produce the same request again, except for what is not stored: options and tools of that run, and settings that
changed since. Invariant: nothing is stored, logged or sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dragoman import dialects
from dragoman.catalog import Model
from dragoman.errors import DragomanError
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, StopReason
from dragoman.handoff import BlockPlan, plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message, MessageStatus, ProviderRaw, TokenUsage
from dragoman.repair import Action
from dragoman.rules import calls_of
from dragoman.store import Session
from dragoman.tools import ToolRegistry
from dragoman.turn.config import AgentConfig
from dragoman.turn.image_policy import image_describer, image_policy
from dragoman.turn.model_call import prepare_history
from dragoman.turn.services import AgentServices

_NO_WINDOW: Final = 2**40  # tokens


class RebuiltCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request and a reply in the dialect of the provider, and the differences to the stored history."""

    dialect: str
    request: Any
    reply: Any
    blocks: tuple[BlockPlan, ...]  # blocks that the model did not receive, or received changed
    kept: int  # blocks that it received unchanged
    losses: tuple[Loss, ...]  # what the dialect cannot represent
    notes: tuple[Loss, ...]  # what it represents in another way
    repairs: tuple[Action, ...]
    left_out: int  # messages that do not fit the context window
    estimated_input_tokens: int
    context_tokens: int


def rebuild_call(
    services: AgentServices,
    config: AgentConfig,
    session: Session,
    answer: Message,
    history: Sequence[Message],
    *,
    tools: ToolRegistry,
    tool_ids: Sequence[tuple[str, str, str]] = (),
    is_whole: bool = False,
) -> RebuiltCall | None:
    """Rebuild the call of an answer from the messages before it; ``None`` if its model is not in the catalog.

    A call of the gateway is whole: it has all messages of its caller, also those that do not fit the context window.
    """
    model = services.registry.find(answer.metadata.model or "")
    if model is None:
        return None
    adapter = services.adapter(model, ToolIds(tuple(tool_ids)))
    prepared = prepare_history(
        services,
        config,
        session,
        model=_without_window(model) if is_whole else model,
        history=history,
        tools=tools,
        options=config.options,
    )
    fitted = prepared.fitted
    options = config.options.replace(stream=True if config.stream else None)
    written = adapter.write_request(adapter.make_request(fitted.messages, tools.definitions, options))
    policy = image_policy(config, session)
    plan = plan_swap(history, adapter, policy=policy, describe=image_describer(config, session))
    changed = tuple(block for block in plan.blocks if block.outcome != "kept")
    return RebuiltCall(
        dialect=adapter.provider.dialect,
        request=written.wire,
        reply=write_reply(adapter.provider.dialect, answer),
        blocks=changed,
        kept=len(plan.blocks) - len(changed),
        losses=written.losses,
        notes=written.notes,
        repairs=prepared.repairs,
        left_out=len(fitted.left_out),
        estimated_input_tokens=fitted.tokens,
        context_tokens=model.capabilities.max_context_tokens,
    )


def _without_window(model: Model) -> Model:
    return model.replace(capabilities=model.capabilities.replace(max_context_tokens=_NO_WINDOW))


def write_reply(dialect: str, answer: Message) -> Any:
    """A stored answer as the reply of a dialect; ``None`` if the dialect cannot represent it."""
    try:
        return dialects.load(dialect).write_reply(_reply_from(answer)).wire
    except DragomanError:
        return None


def _reply_from(answer: Message) -> Reply:
    """The reply that an answer was made from: the inverse of ``Adapter.make_message``."""
    metadata = answer.metadata
    usage = metadata.usage
    counts = None if usage is None else {name: getattr(usage, name) for name in TokenUsage.__struct_fields__}
    fault = None
    if metadata.status is MessageStatus.ERROR:
        fault = Fault(code="failed", message="the answer ended with an error", error_class=ErrorClass.OTHER)
    return Reply(
        content=answer.content,
        stop_reason=_guess_stop_reason(answer),
        usage=None if counts is None else TokenUsage(**counts),
        model=(metadata.model or "").partition(":")[2] or metadata.model,
        fault=fault,
        provider_raw=_reply_notes(metadata.provider_raw),
    )


def _guess_stop_reason(answer: Message) -> StopReason:
    match answer.metadata.status:
        case MessageStatus.ERROR:
            return StopReason.ERROR
        case MessageStatus.CANCELLED:
            return StopReason.CANCELLED
    return StopReason.TOOL_USE if any(calls_of(answer)) else StopReason.END_TURN


def _reply_notes(raw: ProviderRaw | None) -> ProviderRaw | None:
    """The notes of a message in the form of its reply."""
    if raw is None:
        return None
    notes = {name: note for name, note in raw.items() if name not in ("dialect", "reply")}
    return {"dialect": raw["dialect"], **({"message": notes} if notes else {}), **(raw.get("reply") or {})}
