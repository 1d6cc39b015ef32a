"""Another model for a thread: what it would be told, and the swap itself.

    plan = await planned(doors, session, "sonnet", "strict")      nothing is changed
    session = await swapped(doors, session, "sonnet", "strict")   or a refusal that says what stands in the way

The one rule: a swap does what the plan said, on terms that hold for every later turn of the thread.
"""

from __future__ import annotations

import asyncio

from dragoman.bus.event_types.system_events import FeedbackImplicit
from dragoman.handoff import Policy, SwapPlan, plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message
from dragoman.server.http.http_errors import ApiError
from dragoman.server.state import AppState
from dragoman.store import Session, Store
from dragoman.turn.image_policy import describe_images, image_describer, swap_model
from dragoman.turn.swap import emit_swap_rejection


async def plan_thread_swap(state: AppState, session: Session, name: str, policy: Policy) -> SwapPlan:
    """What would become of a thread if the model of that name went on with it; 422 if there is none."""
    return await _plan_swap(state, session, name, policy, await load_history(state.store, session))


async def _plan_swap(state: AppState, session: Session, name: str, policy: Policy, history: list[Message]) -> SwapPlan:
    agent = state.agent
    model = agent.registry.find(name)
    if model is None:
        raise ApiError(422, "unknown_model", "No model is called so.")
    adapter = agent.adapter(model, ToolIds(await state.store.tool_ids(session.id)))
    return await asyncio.to_thread(
        plan_swap,
        history,
        adapter,
        policy=policy,
        describe=image_describer(agent, session),
        prices=agent.price_table,
        at=agent.clock(),
        unreachable=agent.registry.unreachable_reason(model.id),
    )


async def swap_thread(state: AppState, session: Session, name: str, policy: Policy) -> Session:
    """The thread with another model; 409 if that cannot go on with it."""
    history = await load_history(state.store, session)
    plan = await _plan_swap(state, session, name, policy, history)
    if not plan.is_possible:
        emit_swap_rejection(state.agent.bus, session, plan)
        raise ApiError(409, "swap_refused", " ".join(plan.blockers))
    descriptions_by_block = await describe_images(state.agent, session, history) if policy == "describe" else None
    session_after = await swap_model(state.store, session, plan.model, policy, descriptions_by_block)
    state.agent.bus.try_emit(FeedbackImplicit(signal="swap"), session_id=session.id)
    return session_after


async def load_history(store: Store, session: Session) -> list[Message]:
    """Every message of a session."""
    return [row.message async for row in store.history(session.id)]
