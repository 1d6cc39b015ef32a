"""``dragoman swap``: what would become of a conversation if another model went on with it, and the swap itself."""

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
from dragoman.cli.options import JsonOption, StoreOption, find_session, open_store_at
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


async def swap(
    session: str,
    model: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    policy: Literal["strict", "placeholder", "describe"] = "strict",
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Show what another model would be told of a conversation, and have it go on there.

    Parameters
    ----------
    session
        The conversation.
    model
        The model that is to go on, by its id or an alias; "-" lets the routing choose again.
    dry_run
        Show it, and change nothing.
    policy
        What becomes of a picture that the model cannot see: strict refuses the swap, placeholder says that a picture
        was there, describe has a model that can see say what it shows, once. It holds for this conversation until the
        next swap. What is stored stays as it is.
    """
    settings = keys.load()
    async with open_store_at(store_url) as store:
        current = await find_session(store, session)
        if model == "-":
            await swap_model(store, current, None, "strict")
            console().print(f"{current.id}: the routing chooses again")
            return 0
        try:
            row = settings.catalog.model(model)
        except UnknownModelError:
            raise InputError(f"no model is called {model!r}", remedy="See the names with dragoman models") from None
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
    kept_text = format_count(outcomes["kept"], "block is kept", "blocks are kept")
    out.print(f"{kept_text}, {outcomes['projected']} projected, {outcomes['left_out']} left out")
    changes = [block for block in plan.blocks if block.outcome != "kept"]
    if changes:
        table = Table("message", "block", "outcome", "reason", box=None, pad_edge=False)
        for block in changes[:20]:
            reason = block.reason or "this model's format has no such block"
            table.add_row(f"…{block.message_id[-6:]} {block.place}", block.block_type, block.outcome, reason)
        out.print(table)
        if len(changes) > 20:
            out.print(f"and {len(changes) - 20} more; --json has them all")
    fits = "it fits" if plan.fits else "it does not fit"
    cost = "" if plan.first_turn_usd is None else f"; its prompt will cost about {format_usd(plan.first_turn_usd)}"
    out.print(f"About {plan.estimated_input_tokens:,} tokens: {fits}{cost}")
    for blocker in plan.blockers:
        out.print(Text("In the way: ", "red").append(escape_line(blocker), "default"))
    if is_done:
        out.print("From now on it answers here.")
    elif plan.is_possible:
        out.print("Nothing was changed.")
