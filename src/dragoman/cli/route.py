"""``dragoman route``: which model would answer, and why; and whether a policy is sound."""

from __future__ import annotations

import mimetypes
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman import routing
from dragoman import settings as keys
from dragoman.adapter import Adapter
from dragoman.cli.models import prices_of
from dragoman.cli.store_option import JsonOption, StoreOption, opened, session_named
from dragoman.cli.terminal import console, counted, dollars, print_json, safe_line
from dragoman.errors import DragomanError, InputError, PolicyError, StoreUnusableError, UnknownPriceError
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    TokenUsage,
)
from dragoman.policyfile import IN_WORKSPACE, PolicyFile, PolicyRead, policy_from_file
from dragoman.pricing import receipt
from dragoman.routing import SLOTS, ChainEntry, Decision, Registry, TurnFacts, decide, facts_of
from dragoman.settings import Settings
from dragoman.store import Session
from dragoman.turn import default_model, registry_of

_LEAST_SHOWN: Final = Decimal("0.000001")
_STYLES: Final = {"chose": "bold green", "rejected": "red", "not_applicable": "dim"}


async def explain(
    text: str,
    *,
    model: str | None = None,
    session: str | None = None,
    image: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    workspace: Path | None = None,
    policy: Path | None = None,
    tier: Literal["fast", "balanced", "deep"] | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show which model would answer a message, and why. Nobody is called, and nothing is stored.

    Parameters
    ----------
    text
        The message. An @model at its beginning counts.
    model
        A model named for this turn, as if the message began with its name.
    session
        As the next message of this session: its history, its model and its workspace count.
    image
        A picture that comes with the message; say it again for more.
    workspace
        The folder whose policy holds. Without it: the session's, or this one.
    policy
        A policy file to take instead of the workspace's.
    tier
        As a task that an agent hands to another one, of this tier.
    """
    settings = keys.load()
    registry = registry_of(settings)
    content = (TextBlock(text), *(_picture(path) for path in image))
    found, history, samples = await _from_store(store, session)
    here = str(workspace or (found.workspace_path if found else "") or settings.workspace.value or Path.cwd())
    read = _policy(policy, found, here, registry)
    facts = facts_of(
        history,
        content,
        now=datetime.now(UTC).astimezone(),
        override=model,
        sticky=found.active_model if found else None,
        delegate_tier=tier,
        workspace_path=os.path.abspath(Path(here).expanduser()),
        estimated_input_tokens=_estimated(settings, history, content),
    )
    policy_here = read.policy.with_default(default_model(settings, registry))
    decision = decide(facts, policy_here, registry, samples=samples)
    cost = _prompt_cost(settings, decision)
    if json:
        print_json(_document(decision, read, cost))
    else:
        _print(console(), decision, read, cost)
    if decision.refusal is not None:
        sys.exit(1)


def check(file: Path, *, json: JsonOption = False) -> None:
    """Look whether a routing policy is sound, and print every error in it with its place.

    Parameters
    ----------
    file
        The policy, in YAML.
    """
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        warnings = policy_from_file(file, registry_of(keys.load())).warnings
    except PolicyError as error:
        problems = error.problems
    if json:
        print_json({"valid": not problems, "errors": problems, "warnings": warnings})
    else:
        out = console()
        for style, told in (("red", problems), ("yellow", warnings)):
            for line in told:
                out.print(
                    Text("error    " if style == "red" else "warning  ", style).append(safe_line(line), ""),
                    soft_wrap=True,
                )
        count = f"{counted(len(problems), 'error')}, nothing of it is taken" if problems else "the policy is sound"
        out.print(count + (f", with {counted(len(warnings), 'warning')}" if warnings else ""))
    if problems:
        sys.exit(1)


# --- what is known ---------------------------------------------------------------------------------------------------


async def _from_store(
    store: str | None, session: str | None
) -> tuple[Session | None, tuple[Message, ...], list[routing.PatternSample]]:
    """The session and its history, and how earlier turns were judged. Without a session there may be no store."""
    try:
        async with opened(store) as kept:
            samples = await kept.pattern_samples()
            if session is None:
                return None, (), samples
            found = await session_named(kept, session)
            return found, tuple([row.message async for row in kept.history(found.id)]), samples
    except StoreUnusableError:
        if store is None and session is None:
            return None, (), []
        raise


def _policy(file: Path | None, session: Session | None, workspace: str, registry: Registry) -> PolicyRead:
    """The policy that was named, or the session's own, or the workspace's."""
    if file is not None:
        return PolicyRead(policy=policy_from_file(file, registry), path=str(file))
    if session is not None and session.routing_policy is not None:
        own = routing.read_policy(
            session.routing_policy, registry, home=str(Path.home()), origin=f"session {session.id}"
        )
        return PolicyRead(policy=own, path=f"session {session.id}")
    return PolicyFile.of_workspace(workspace, registry).read()


def _picture(path: Path) -> ContentBlock:
    if not path.is_file():
        raise InputError("there is no such file", where=str(path))
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise InputError(
            "its name is not that of a picture", where=str(path), remedy="Name a .png, .jpg, .gif or .webp"
        )
    return ImageBlock(ImageSource("file_ref", str(path)), kind)


def _estimated(settings: Settings, history: tuple[Message, ...], content: tuple[ContentBlock, ...]) -> int:
    """How long the prompt is. The estimate is the same for every model, so any will do to make it."""
    asked = Message("", "", Role.USER, content, MessageMetadata(), datetime.now(UTC))
    model = next(iter(settings.catalog.models.values()))
    return Adapter(settings.catalog.provider(model.provider), model).estimate_input_tokens((*history, asked))


def _prompt_cost(settings: Settings, decision: Decision) -> Decimal | None:
    """What the prompt will cost, if the model has a price."""
    if decision.refusal is not None:
        return None
    usage = TokenUsage(input_tokens=decision.facts.estimated_input_tokens, output_tokens=0)
    try:
        return receipt(prices_of(settings), decision.chosen_model, usage, datetime.now(UTC)).total_usd
    except UnknownPriceError:
        return None


# --- showing ---------------------------------------------------------------------------------------------------------


def _refused(decision: Decision) -> DragomanError | None:
    try:
        decision.raise_if_refused()
    except DragomanError as error:
        return error
    return None


def _document(decision: Decision, read: PolicyRead, cost: Decimal | None) -> dict[str, Any]:
    refusal = _refused(decision)
    facts: TurnFacts = decision.facts
    return {
        **{name: value for name, value in decision.payload(0).items() if name != "elapsed_ms"},
        "record": decision.record,
        "refusal": None
        if refusal is None
        else {"code": refusal.code, "message": str(refusal), "details": getattr(refusal, "details", {})},
        "text": decision.text,
        "estimated_input_tokens": facts.estimated_input_tokens,
        "prompt_usd": cost,
        "needs": msgspec.structs.asdict(facts.needs),
        "workspace": facts.workspace_path,
        "policy": {
            "path": read.path,
            "version": read.version,
            "errors": read.errors,
            "warnings": read.policy.warnings,
        },
    }


def _print(out: Console, decision: Decision, read: PolicyRead, cost: Decimal | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("slot", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("who and why", overflow="fold")
    for entry in decision.chain:
        quiet = "dim" if entry.verdict == "not_applicable" else ""
        verdict = Text("–" if quiet else entry.verdict, _STYLES[entry.verdict])
        table.add_row(Text(entry.policy, quiet), verdict, Text(safe_line(_why(entry)), quiet))
        for other in entry.pattern_alternatives or ():
            told = f"{other.model}  score {other.score:.3f} on {counted(other.sample_size, 'sample')}"
            table.add_row("", "", Text(safe_line(told), "dim"))
    for slot in SLOTS[len(decision.chain) :]:
        table.add_row(Text(slot, "dim"), Text("not asked", "dim"), "")
    out.print(table)
    out.print()
    _print_outcome(out, decision, cost)
    _print_policy(out, read)


def _why(entry: ChainEntry) -> str:
    if entry.candidate_model is None:
        return entry.reason
    told = f"{entry.candidate_model}, {entry.reason}"
    return told if entry.validation_failure is None else f"{told}: {entry.validation_failure}"


def _print_outcome(out: Console, decision: Decision, cost: Decimal | None) -> None:
    refusal = _refused(decision)
    tokens = f"about {counted(decision.facts.estimated_input_tokens, 'token')}"
    if refusal is not None:
        out.print(Text("refused  ", "red").append(f"{safe_line(str(refusal))} [{refusal.code}]", ""), soft_wrap=True)
        out.print(f"prompt   {tokens}")
        return
    out.print(Text("answers  ").append(safe_line(decision.chosen_model), "bold"), soft_wrap=True)
    out.print(f"prompt   {tokens}, for {_price(cost)}")


def _price(cost: Decimal | None) -> str:
    if cost is None:
        return "a price that is not known"
    if cost == 0:
        return "nothing"
    return dollars(cost) if cost >= _LEAST_SHOWN else f"less than {dollars(_LEAST_SHOWN)}"


def _print_policy(out: Console, read: PolicyRead) -> None:
    path = read.path or f"none; it would be {IN_WORKSPACE[0]} in the workspace"
    out.print(Text(f"policy   {safe_line(path)}", "dim"), soft_wrap=True)
    for style, word, lines in (("red", "error", read.errors), ("yellow", "warning", read.policy.warnings)):
        for line in lines:
            out.print(Text(f"{word:7}  ", style).append(safe_line(line), ""), soft_wrap=True)
