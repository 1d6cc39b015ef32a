"""``dragoman route``: explain routing decisions, and check a routing policy."""

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

from dragoman import routing, tokens
from dragoman import settings as keys
from dragoman.cli.models import prices_of
from dragoman.cli.options import JsonOption, StoreOption, find_session, open_store_at
from dragoman.cli.terminal import console, escape_line, format_count, format_usd, print_json
from dragoman.context_window import newest_turn, with_summary
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
from dragoman.pricing import receipt
from dragoman.routing import SLOTS, ChainEntry, Decision, Registry, TurnFacts, collect_facts, decide
from dragoman.settings import Settings
from dragoman.settings.policy_file import WORKSPACE_PATHS, PolicyFile, PolicyStatus, policy_from_file
from dragoman.store import Session
from dragoman.turn import default_model, make_registry

_SMALLEST_AMOUNT: Final = Decimal("0.000001")
_STYLES: Final = {"chose": "bold green", "rejected": "red", "not_applicable": "dim"}


async def explain(
    text: str,
    /,
    *,
    model: str | None = None,
    session: str | None = None,
    image: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    workspace: Path | None = None,
    policy: Path | None = None,
    tier: Literal["fast", "balanced", "deep"] | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Explain which model answers a message, and why.

    Parameters
    ----------
    text
        The message. An @model prefix counts.
    model
        A model for this turn, like an @model prefix.
    session
        Treat the message as the next one of this session, with its history, model and workspace.
    image
        An image of the message; repeatable.
    workspace
        The folder whose policy applies. Default: that of the session, or the current folder.
    policy
        A policy file that replaces the policy of the workspace.
    tier
        Treat the message as a delegated task of this tier.
    """
    settings = keys.load()
    registry = make_registry(settings)
    content = (TextBlock(text), *(_picture(path) for path in image))
    current, history, samples = await _read_store(store_url, session)
    here = str(workspace or (current.workspace_path if current else "") or settings.workspace.value or Path.cwd())
    policy_read = _policy(policy, current, here, registry)
    question = Message("", "", Role.USER, content, MessageMetadata(), datetime.now(UTC))
    messages = (*with_summary(history), question)
    facts = collect_facts(
        history,
        content,
        now=datetime.now(UTC).astimezone(),
        override=model,
        sticky=current.active_model if current else None,
        delegate_tier=tier,
        workspace_path=os.path.abspath(Path(here).expanduser()),
        estimated_input_tokens=tokens.estimate(messages),
        least_input_tokens=tokens.estimate(newest_turn(messages)),
    )
    policy_here = policy_read.policy.with_default(default_model(settings, registry))
    decision = decide(facts, policy_here, registry, samples=samples)
    cost = _prompt_cost(settings, decision)
    if json:
        print_json(_to_json(decision, policy_read, cost))
    else:
        _print(console(), decision, policy_read, cost)
    if decision.rejection is not None:
        sys.exit(1)


def check(file: Path, /, *, json: JsonOption = False) -> None:
    """Validate a routing policy, and print each error with its path.

    Parameters
    ----------
    file
        The policy, in YAML.
    """
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        warnings = policy_from_file(file, make_registry(keys.load())).warnings
    except PolicyError as error:
        problems = error.problems
    if json:
        print_json({"valid": not problems, "errors": problems, "warnings": warnings})
    else:
        out = console()
        for style, lines in (("red", problems), ("yellow", warnings)):
            for line in lines:
                out.print(
                    Text("error    " if style == "red" else "warning  ", style).append(escape_line(line), ""),
                    soft_wrap=True,
                )
        count = f"{format_count(len(problems), 'error')}, the policy is not used" if problems else "the policy is valid"
        out.print(count + (f", with {format_count(len(warnings), 'warning')}" if warnings else ""))
    if problems:
        sys.exit(1)


# --- input -----------------------------------------------------------------------------------------------------------


async def _read_store(
    store_url: str | None, session: str | None
) -> tuple[Session | None, tuple[Message, ...], list[routing.PatternSample]]:
    """Read the session, its history and the evaluations of earlier turns.

    Without a session, the store may be absent.
    """
    try:
        async with open_store_at(store_url) as store:
            samples = await store.evaluations.samples()
            if session is None:
                return None, (), samples
            current = await find_session(store, session)
            return current, tuple([row.message async for row in store.history(current.id)]), samples
    except StoreUnusableError:
        if store_url is None and session is None:
            return None, (), []
        raise


def _policy(file: Path | None, session: Session | None, workspace: str, registry: Registry) -> PolicyStatus:
    """Return the policy of the option, the session or the workspace."""
    if file is not None:
        return PolicyStatus(policy=policy_from_file(file, registry), path=str(file))
    if session is not None and session.routing_policy is not None:
        session_policy = routing.read_policy(
            session.routing_policy, registry, home=str(Path.home()), origin=f"session {session.id}"
        )
        return PolicyStatus(policy=session_policy, path=f"session {session.id}")
    return PolicyFile.for_workspace(workspace, registry).read()


def _picture(path: Path) -> ContentBlock:
    if not path.is_file():
        raise InputError("the file does not exist", where=str(path))
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise InputError("not an image file", where=str(path), remedy="Use a .png, .jpg, .gif or .webp file")
    return ImageBlock(ImageSource("file_ref", str(path)), kind)


def _prompt_cost(settings: Settings, decision: Decision) -> Decimal | None:
    """Return the cost of the prompt; None if the model has no price."""
    if decision.rejection is not None:
        return None
    usage = TokenUsage(input_tokens=decision.facts.estimated_input_tokens, output_tokens=0)
    try:
        return receipt(prices_of(settings), decision.chosen_model, usage, datetime.now(UTC)).total_usd
    except UnknownPriceError:
        return None


# --- output ----------------------------------------------------------------------------------------------------------


def _rejection(decision: Decision) -> DragomanError | None:
    try:
        decision.raise_if_rejected()
    except DragomanError as error:
        return error
    return None


def _to_json(decision: Decision, read: PolicyStatus, cost: Decimal | None) -> dict[str, Any]:
    refusal = _rejection(decision)
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


def _print(out: Console, decision: Decision, read: PolicyStatus, cost: Decimal | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("slot", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("model and reason", overflow="fold")
    for entry in decision.chain:
        quiet = "dim" if entry.verdict == "not_applicable" else ""
        verdict = Text("–" if quiet else entry.verdict, _STYLES[entry.verdict])
        table.add_row(Text(entry.policy, quiet), verdict, Text(escape_line(_reason_text(entry)), quiet))
        for alternative in entry.pattern_alternatives or ():
            samples = format_count(alternative.sample_size, "sample")
            text = f"{alternative.model}  score {alternative.score:.3f} on {samples}"
            table.add_row("", "", Text(escape_line(text), "dim"))
    for slot in SLOTS[len(decision.chain) :]:
        table.add_row(Text(slot, "dim"), Text("not reached", "dim"), "")
    out.print(table)
    out.print()
    _print_outcome(out, decision, cost)
    _print_policy(out, read)


def _reason_text(entry: ChainEntry) -> str:
    if entry.candidate_model is None:
        return entry.reason
    text = f"{entry.candidate_model}, {entry.reason}"
    return text if entry.validation_failure is None else f"{text}: {entry.validation_failure}"


def _print_outcome(out: Console, decision: Decision, cost: Decimal | None) -> None:
    refusal = _rejection(decision)
    length = f"about {format_count(decision.facts.estimated_input_tokens, 'token')}"
    if refusal is not None:
        out.print(Text("rejected ", "red").append(f"{escape_line(str(refusal))} [{refusal.code}]", ""), soft_wrap=True)
        out.print(f"prompt   {length}")
        return
    out.print(Text("answers  ").append(escape_line(decision.chosen_model), "bold"), soft_wrap=True)
    omission = "; the oldest turns do not fit and are not sent" if decision.facts.may_omit_turns else ""
    out.print(f"prompt   {length}, {_cost_text(cost)}{omission}")


def _cost_text(cost: Decimal | None) -> str:
    if cost is None:
        return "an unknown price"
    if cost == 0:
        return "free"
    return format_usd(cost) if cost >= _SMALLEST_AMOUNT else f"less than {format_usd(_SMALLEST_AMOUNT)}"


def _print_policy(out: Console, read: PolicyStatus) -> None:
    path = read.path or f"none; expected {WORKSPACE_PATHS[0]} in the workspace"
    out.print(Text(f"policy   {escape_line(path)}", "dim"), soft_wrap=True)
    for style, word, lines in (("red", "error", read.errors), ("yellow", "warning", read.policy.warnings)):
        for line in lines:
            out.print(Text(f"{word:7}  ", style).append(escape_line(line), ""), soft_wrap=True)
