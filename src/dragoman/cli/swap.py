"""``dragoman swap``: show what another model will receive of a session, and change its model."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from dragoman import settings as keys
from dragoman.adapter import Adapter
from dragoman.bus.trace_writer import write_events
from dragoman.cli.options import JsonOption, SessionArgument, StoreOption, find_session, open_store_at
from dragoman.cli.terminal import console, escape_line, format_count, format_usd, print_json
from dragoman.errors import InputError, UnknownModelError
from dragoman.handoff import SwapPlan, plan_swap
from dragoman.ids import ToolIds
from dragoman.pricing import library_prices
from dragoman.store import Session
from dragoman.turn import Agent, AgentConfig
from dragoman.turn.events import rejection_event
from dragoman.turn.image_policy import DESCRIPTIONS, describe_images, describer_from, swap_model

EXIT_REJECTED = 1


_ImagePolicy = Annotated[
    Literal["strict", "placeholder", "describe"],
    Parameter(
        help="For images that the model does not support, until the next swap: strict rejects the swap, placeholder"
        " inserts a note, describe inserts a description by a model that supports images."
    ),
]


async def swap(
    session: SessionArgument,
    model: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    policy: _ImagePolicy = "strict",
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Show what another model will receive of a session, and change the model of the session.

    Parameters
    ----------
    model
        The model: an id or an alias; "-" returns the choice to the routing.
    dry_run
        Show the plan, and change nothing.
    """
    settings = keys.load()
    async with open_store_at(store_url) as store:
        current = await find_session(store, session)
        if model == "-":
            await swap_model(store, current, None, "strict")
            console().print(f"{current.id}: the routing chooses the model")
            return 0
        try:
            row = settings.catalog.model(model)
        except UnknownModelError:
            raise InputError(f"unknown model {model!r}", remedy="List the names with dragoman models") from None
        history = [item.message async for item in store.history(current.id)]
        adapter = Adapter(settings.catalog.provider(row.provider), row, ToolIds(await store.tool_ids(current.id)))
        prices = library_prices(settings.catalog.price_names, settings.catalog.is_free)
        new_descriptions: dict[str, str] = {}
        if policy == "describe" and not dry_run:
            async with Agent(store, settings=settings, config=AgentConfig(record_trace=False)) as agent:
                new_descriptions = await describe_images(agent.services, agent.config, current, history)
        describe = describer_from({**(current.metadata.get(DESCRIPTIONS) or {}), **new_descriptions})
        plan = plan_swap(
            history,
            adapter,
            policy=policy,
            describe=describe,
            prices=prices,
            at=store.clock(),
            unreachable=settings.unreachable_reason(row.provider),
        )
        if plan.is_possible and not dry_run:
            current = await swap_model(store, current, row.id, policy, new_descriptions)
        elif not dry_run:
            await write_events(store, rejection_event(current, plan), session_id=current.id)
    is_done = plan.is_possible and not dry_run
    if json:
        print_json(_to_json(current, plan, is_done=is_done))
    else:
        _print_plan(current, plan, is_done=is_done)
    return 0 if plan.is_possible else EXIT_REJECTED


def _to_json(session: Session, plan: SwapPlan, *, is_done: bool) -> dict[str, Any]:
    fields = msgspec.to_builtins(plan)
    del fields["messages"]
    return {"session_id": session.id, "is_possible": plan.is_possible, "is_done": is_done, **fields}


def _print_plan(session: Session, plan: SwapPlan, *, is_done: bool) -> None:
    out = console()
    outcomes = Counter(block.outcome for block in plan.blocks)
    out.print(
        Text(escape_line(session.title or session.id), "bold").append(" → ", "default").append(plan.model, "bold")
    )
    kept_text = format_count(outcomes["kept"], "block unchanged", "blocks unchanged")
    out.print(f"{kept_text}, {outcomes['projected']} converted, {outcomes['left_out']} omitted")
    changes = [block for block in plan.blocks if block.outcome != "kept"]
    if changes:
        table = Table("message", "block", "outcome", "reason", box=None, pad_edge=False)
        for block in changes[:20]:
            outcome = "converted" if block.outcome == "projected" else "omitted"
            reason = block.reason or "not supported by the format of this model"
            table.add_row(f"…{block.message_id[-6:]} {block.place}", block.block_type, outcome, reason)
        out.print(table)
        if len(changes) > 20:
            out.print(f"and {len(changes) - 20} more; --json lists all")
    fits = "fits the context window" if plan.fits else "does not fit the context window"
    cost = "" if plan.first_turn_usd is None else f"; the prompt costs about {format_usd(plan.first_turn_usd)}"
    out.print(f"About {plan.estimated_input_tokens:,} tokens: {fits}{cost}")
    if plan.omitted_count:
        out.print(f"Not sent, because it does not fit: the oldest {format_count(plan.omitted_count, 'message')}")
    for blocker in plan.blockers:
        out.print(Text("Not possible: ", "red").append(escape_line(blocker), "default"))
    if is_done:
        out.print("The model of the session is changed.")
    elif plan.is_possible:
        out.print("Nothing is changed.")
