"""Continue a thread with another model: preview the swap, and make it.

    plan = await plan_thread_swap(request, session, "sonnet", "strict")      changes no data
    session = await swap_thread(request, session, "sonnet", "strict")        or an error with the reasons

A swap follows its plan; its policy holds for every later turn of the thread.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.bus.event_types.system_events import FeedbackImplicit
from dragoman.handoff import BlockPlan, Policy, SwapPlan, plan_swap
from dragoman.ids import ToolIds, name_from_id
from dragoman.message import Message
from dragoman.server.auth.principal import get_owned_session, get_principal
from dragoman.server.auth.scopes import TOOLS
from dragoman.server.http.endpoint import Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, text_param
from dragoman.server.http.responses import json_response
from dragoman.store import Session, Store
from dragoman.turn.events import emit_swap_rejection
from dragoman.turn.image_policy import describe_images, image_describer, swap_model
from dragoman.turn.start import make_system_messages, make_turn_tools
from dragoman.turn.types import TurnRequest

_THREAD: Final = "/api/v1/agent/threads/{id}"


class SwapPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a swap. No data is changed."""

    thread_id: str
    model: str
    is_possible: bool
    blockers: tuple[str, ...]  # for people: the reasons and the remedies
    failures: tuple[str, ...]  # for programs: the reason of each blocker, such as ``no_vision_support``
    fits: bool  # the whole thread
    omitted_messages: int  # the oldest messages, which do not fit and are not sent
    estimated_input_tokens: int  # of the whole thread
    first_turn_usd: str | None
    kept: int  # blocks that the model receives unchanged
    blocks: list[BlockPlan]  # blocks that it does not receive, or receives changed


async def preview_swap(request: Request) -> Response:
    """Return the effect of a swap to another model."""
    session = await get_owned_session(request, request.path_params["id"])
    name, policy = text_param(request, "model", max_length=200), _policy_param(request)
    return json_response(_swap_preview(session, await plan_thread_swap(request, session, name, policy)))


def _policy_param(request: Request) -> Policy:
    match text_param(request, "policy", "strict", max_length=20):
        case "strict":
            return "strict"
        case "placeholder":
            return "placeholder"
        case "describe":
            return "describe"
        case _:
            raise ApiError(422, "invalid_parameter", "policy must be strict, placeholder or describe.")


def _swap_preview(session: Session, plan: SwapPlan) -> SwapPreview:
    changed_blocks = [block for block in plan.blocks if block.outcome != "kept"]
    return SwapPreview(
        thread_id=name_from_id(session.id),
        model=plan.model,
        is_possible=plan.is_possible,
        blockers=plan.blockers,
        failures=plan.failures,
        fits=plan.fits,
        omitted_messages=plan.omitted_count,
        estimated_input_tokens=plan.estimated_input_tokens,
        first_turn_usd=None if plan.first_turn_usd is None else f"{plan.first_turn_usd:f}",
        kept=len(plan.blocks) - len(changed_blocks),
        blocks=changed_blocks,
    )


async def plan_thread_swap(request: Request, session: Session, name: str, policy: Policy) -> SwapPlan:
    """The effect of a swap to the model of that name; 422 if it is unknown."""
    history = await load_history(app_state(request).store, session)
    return await _plan_swap(request, session, name, policy, history)


async def _plan_swap(request: Request, session: Session, name: str, policy: Policy, history: list[Message]) -> SwapPlan:
    """The plan for the history, the system prompt and the tools that the next turn sends."""
    state = app_state(request)
    agent = state.agent
    turn = TurnRequest(session_id=session.id, may_use_tools=TOOLS in get_principal(request).scopes)
    model = agent.services.registry.find(name)
    if model is None:
        raise ApiError(422, "unknown_model", "Unknown model. GET /api/v1/agent/models lists them.")
    adapter = agent.services.adapter(model, ToolIds(await state.store.tool_ids(session.id)))
    return await asyncio.to_thread(
        plan_swap,
        [*make_system_messages(agent.config, turn, session), *history],
        adapter,
        policy=policy,
        tools=(await make_turn_tools(agent.config, turn, session)).definitions,
        describe=image_describer(agent.config, session),
        prices=agent.services.price_table,
        at=agent.services.clock(),
        unreachable=agent.services.registry.unreachable_reason(model.id),
    )


async def swap_thread(request: Request, session: Session, name: str, policy: Policy) -> Session:
    """Swap the model of a thread; 409 if it cannot continue the thread."""
    state = app_state(request)
    history = await load_history(state.store, session)
    plan = await _plan_swap(request, session, name, policy, history)
    if not plan.is_possible:
        emit_swap_rejection(state.agent.bus, session, plan)
        raise ApiError(409, "swap_refused", " ".join(plan.blockers), reason=plan.failures[0])
    agent, descriptions = state.agent, None
    if policy == "describe":
        descriptions = await describe_images(agent.services, agent.config, session, history)
    session_after = await swap_model(state.store, session, plan.model, policy, descriptions)
    agent.bus.try_emit(FeedbackImplicit(signal="swap"), session_id=session.id)
    return session_after


async def load_history(store: Store, session: Session) -> list[Message]:
    """All messages of a session."""
    return [row.message async for row in store.history(session.id)]


ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_THREAD}/preflight",
        preview_swap,
        "Preview of a swap to another model",
        {200: SwapPreview},
        name="preflight",
        query=(
            Query("model", summary="The model, by id or alias", required=True),
            Query(
                "policy",
                {"type": "string", "enum": ["strict", "placeholder", "describe"]},
                "How images are sent to a model that cannot read them",
            ),
        ),
    ),
)
