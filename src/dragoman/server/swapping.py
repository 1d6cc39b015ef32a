"""Another model for a thread: what it would be told, and the swap itself.

    plan = await planned(doors, session, "sonnet", "strict")      nothing is changed
    session = await swapped(doors, session, "sonnet", "strict")   or a refusal that says what stands in the way

The one rule: a swap does what the plan said, on terms that hold for every later turn of the thread.
"""

from __future__ import annotations

import asyncio

from dragoman.bus.catalogue import FeedbackImplicit
from dragoman.handoff import Policy, SwapPlan, plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message
from dragoman.server.refusing import Refusal
from dragoman.server.state import Doors
from dragoman.store import Session, Store
from dragoman.turn.seeing import describe_in, descriptions, swap_to
from dragoman.turn.swap import tell_refused
from dragoman.turn.telling import tell


async def planned(doors: Doors, session: Session, name: str, policy: Policy) -> SwapPlan:
    """What would become of a thread if the model of that name went on with it; 422 if there is none."""
    return await _planned(doors, session, name, policy, await history_of(doors.store, session))


async def _planned(doors: Doors, session: Session, name: str, policy: Policy, history: list[Message]) -> SwapPlan:
    agent = doors.agent
    model = agent.registry.find(name)
    if model is None:
        raise Refusal(422, "unknown_model", "No model is called so.")
    adapter = agent.adapter(model, ToolIds(await doors.store.tool_ids(session.id)))
    return await asyncio.to_thread(
        plan_swap,
        history,
        adapter,
        policy=policy,
        describe=describe_in(agent, session),
        prices=agent.prices,
        at=agent.clock(),
        unreachable=agent.registry.unreachable_reason(model.id),
    )


async def swapped(doors: Doors, session: Session, name: str, policy: Policy) -> Session:
    """The thread with another model; 409 if that cannot go on with it."""
    history = await history_of(doors.store, session)
    plan = await _planned(doors, session, name, policy, history)
    if not plan.is_possible:
        tell_refused(doors.agent.bus, session, plan)
        raise Refusal(409, "swap_refused", " ".join(plan.blockers))
    described = await descriptions(doors.agent, session, history) if policy == "describe" else None
    changed = await swap_to(doors.store, session, plan.model, policy, described)
    tell(doors.agent.bus, FeedbackImplicit(signal="swap"), session_id=session.id)
    return changed


async def history_of(store: Store, session: Session) -> list[Message]:
    """Every message of a session."""
    return [row.message async for row in store.history(session.id)]
