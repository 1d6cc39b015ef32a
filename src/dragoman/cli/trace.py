"""``dragoman trace`` and ``dragoman evaluate``: events of a session, and evaluations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter, validators
from rich.console import Console
from rich.text import Text

from dragoman.bus.event_types.system_events import FeedbackExplicit
from dragoman.bus.trace_writer import write_events
from dragoman.cli.options import JsonOption, Positive, SessionArgument, StoreOption, find_session, flag, open_store_at
from dragoman.cli.terminal import (
    console,
    escape_line,
    format_count,
    format_size,
    format_time,
    format_usd,
    print_json,
    print_line,
)
from dragoman.errors import InputError
from dragoman.store import Store
from dragoman.store.trace import SYSTEM
from dragoman.store.types import Evaluation, TraceEvent
from dragoman.turn.events import evaluation_events

_PAGE: Final = 500
_POLL_S: Final = 0.5
_COLOURS: Final = {
    "turn": "bold green",
    "llm": "blue",
    "tool": "magenta",
    "route": "cyan",
    "routing": "cyan",
    "eval": "yellow",
    "feedback": "yellow",
    "delegate": "green",
}
_FAILURE_SUFFIXES: Final = ("failed", "cancelled", "invalid", "failure", "unavailable", "exceeded", "gap_detected")


# --- trace -----------------------------------------------------------------------------------------------------------

FollowOption = Annotated[bool, flag("--follow", "-f", help="Print new events until Ctrl-C.")]


async def trace(
    session: str,
    /,
    *,
    turn: str | None = None,
    type: Annotated[tuple[str, ...], Parameter(name="--type", show_default=False)] = (),  # noqa: A002
    limit: Positive = 200,
    follow: FollowOption = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print the events of a session as a tree.

    Parameters
    ----------
    session
        The session: its id, a unique prefix or suffix of the id, last, or system for events without a session.
    turn
        Only the events of the turn with this id.
    type
        Only events of this type; repeatable.
    limit
        Print only this many events, the newest ones.
    """
    async with open_store_at(store_url) as store:
        session_id = SYSTEM if session == SYSTEM else (await find_session(store, session)).id
        filters = {"types": type or None, "turn_id": turn}
        events = await _read_newest(store, session_id, limit, filters)
        if json and not follow:
            print_json({"session_id": session_id, "events": events})
            return
        out = console()
        tree = _Tree(out)
        if json:
            _print_lines(events)
        else:
            tree.print_all(session_id, events)
        if follow:
            await _follow(store, session_id, events[-1].id if events else "", filters, None if json else tree)


async def _read_newest(store: Store, session_id: str, limit: int, filters: Mapping[str, Any]) -> list[TraceEvent]:
    events: list[TraceEvent] = []
    after = ""
    while page := await store.trace.events(session_id, after, _PAGE, **filters):
        events = [*events, *page][-limit:]
        after = page[-1].id
    return events


async def _follow(store: Store, session_id: str, after: str, filters: Mapping[str, Any], tree: _Tree | None) -> None:
    while True:
        events = await store.trace.events(session_id, after, _PAGE, **filters)
        if not events:
            await asyncio.sleep(_POLL_S)
            continue
        after = events[-1].id
        if tree is None:
            _print_lines(events)
        else:
            tree.print_events(events)


def _print_lines(events: Sequence[TraceEvent]) -> None:
    sys.stdout.buffer.writelines(msgspec.json.encode(event) + b"\n" for event in events)
    sys.stdout.buffer.flush()


class _Tree:
    """Prints events to a console."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._depths: dict[str, int] = {}
        self._turns: dict[str, str] = {}
        self._turn: str | None = None
        self._turn_start: Any = None

    def print_all(self, session_id: str, events: Sequence[TraceEvent]) -> None:
        """Print all events, each below its cause."""
        print_line(
            self._out, Text(escape_line(session_id), "bold").append(f"  {format_count(len(events), 'event')}", "dim")
        )
        children: dict[str | None, list[TraceEvent]] = {}
        event_ids = {event.id for event in events}
        for event in events:
            parent = self._parent(event)
            children.setdefault(parent if parent in event_ids else None, []).append(event)
        stack = list(reversed(children.get(None, [])))
        while stack:
            event = stack.pop()
            self._print(event)
            stack.extend(reversed(children.get(event.id, [])))

    def print_events(self, events: Sequence[TraceEvent]) -> None:
        """Print new events in order."""
        for event in events:
            self._print(event)

    def _parent(self, event: TraceEvent) -> str | None:
        """Return the parent of an event in the tree. Model calls are placed below their turn to limit the depth."""
        if event.type == "turn.started" and event.turn_id is not None:
            self._turns[event.turn_id] = event.id
        if event.type == "llm.call_started":
            return self._turns.get(event.turn_id or "", event.parent_event_id)
        return event.parent_event_id

    def _print(self, event: TraceEvent) -> None:
        depth = self._depths.get(self._parent(event) or "", -1) + 1
        self._depths[event.id] = min(depth, 12)
        if event.turn_id != self._turn or self._turn_start is None:
            self._turn, self._turn_start = event.turn_id, event.timestamp
            head = Text(f"\n{format_time(event.timestamp)}", "dim")
            print_line(self._out, head.append(f"  turn {escape_line(event.turn_id)}" if event.turn_id else "", "dim"))
        since = (event.timestamp - self._turn_start).total_seconds()
        prefix, _, _ = event.type.partition(".")
        colour = "red" if event.type.endswith(_FAILURE_SUFFIXES) else _COLOURS.get(prefix, "default")
        line = Text(f"{since:>9.3f} s  ", "dim").append("  " * self._depths[event.id])
        line.append(escape_line(event.type), colour)
        print_line(self._out, line.append(f"  {escape_line(format_event(event))}", "default"))


def format_event(event: TraceEvent) -> str:
    """Return the payload of an event in one line."""
    payload: dict[str, Any] = event.payload if isinstance(event.payload, dict) else {"payload": event.payload}
    match event.type:
        case "turn.started":
            return " · ".join(
                _non_empty(f"~{payload['estimated_input_tokens']:,} tokens", "images" if payload["has_images"] else "")
            )
        case "turn.completed":
            calls = (
                format_count(payload["llm_call_count"], "call"),
                format_count(payload["tool_call_count"], "tool call"),
            )
            return " · ".join(
                (payload["stop_reason"], *calls, _money(payload["total_cost_usd"]), _time(payload["wall_time_seconds"]))
            )
        case "turn.cancelled":
            return str(payload["reason"])
        case "turn.failed":
            return " · ".join(_non_empty(payload["error_code"], payload["error_message_redacted"]))
        case "route.decided":
            chain = payload["chain"]
            chose = chain[payload["winner_index"]] if 0 <= payload["winner_index"] < len(chain) else {"policy": "none"}
            return " · ".join(_non_empty(payload["chosen_model"], chose["policy"], chose.get("reason", "")))
        case "llm.call_started":
            omitted = payload.get("omitted_messages", 0)
            note = f" · {format_count(omitted, 'older message')} omitted" if omitted else ""
            return f"{payload['model']} · ~{payload['estimated_input_tokens']:,} tokens{note}"
        case "llm.call_completed":
            prompt = sum(payload.get(name, 0) for name in _PROMPT)
            tokens = f"{prompt:,}→{payload['output_tokens']:,} tokens"
            return " · ".join(
                (tokens, _money(payload["cost_usd"]), _time(payload["latency_ms"] / 1000), payload["stop_reason"])
            )
        case "llm.call_failed" | "tool.failed":
            message = payload.get("error_message_redacted") or payload.get("error_message") or ""
            return " · ".join(_non_empty(payload["error_class"], message, _time(payload["latency_ms"] / 1000)))
        case "tool.called":
            return f"{payload['tool_name']} · {payload['side_effects']}"
        case "tool.confirmation_requested":
            return " · ".join(
                _non_empty(payload["tool_name"], payload.get("command_summary") or payload["input_summary"])
            )
        case "tool.confirmation_resolved":
            return " · ".join(_non_empty(payload["decision"], payload.get("scope") or ""))
        case "tool.completed":
            outcome = "" if payload["success"] else "failed"
            effect = payload.get("command_executed") or ", ".join(payload.get("files_modified") or ())
            return " · ".join(
                _non_empty(
                    outcome, format_size(payload["output_size_bytes"]), _time(payload["latency_ms"] / 1000), effect
                )
            )
        case _:
            return ", ".join(f"{name}={_short(value)}" for name, value in payload.items())


_PROMPT: Final = ("input_tokens", "cached_input_tokens", "cache_creation_input_tokens")


def _non_empty(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _money(amount: str | None) -> str:
    return format_usd(None if amount is None else Decimal(amount))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


# --- evaluate --------------------------------------------------------------------------------------------------------

ScoreOption = Annotated[float | None, Parameter(validator=validators.Number(gte=0, lte=1))]


async def evaluate(
    session: SessionArgument,
    /,
    *,
    score: ScoreOption = None,
    success: bool | None = None,
    notes: str | None = None,
    evaluator: str = "user",
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Record an evaluation of the last turn of a session. The routing uses evaluations to choose models.

    Parameters
    ----------
    score
        The score, from 0 (worst) to 1 (best). Either a score or success is required.
    success
        Whether the result was good enough.
    notes
        The reason. Secrets are removed.
    evaluator
        The name of the evaluator.
    """
    if score is None and success is None:
        raise InputError("no score and no success", remedy="Use --score, --success or --no-success")
    async with open_store_at(store_url) as store:
        current = await find_session(store, session)
        turn = await store.evaluations.for_turn(current.id)
        evaluation = await store.evaluations.record(
            current.id, score=score, success=success, notes=notes, evaluator=evaluator, **turn
        )
        payloads = list(evaluation_events(evaluation))
        if evaluator == "user":
            grade = evaluation.score if evaluation.score is not None else float(bool(evaluation.success))
            payloads.append(FeedbackExplicit(score=grade, message_id=evaluation.message_id))
        await write_events(store, *payloads, session_id=current.id, turn_id=evaluation.turn_id)
    if json:
        print_json(evaluation)
        return
    _print_evaluation(console(), evaluation)


def _print_evaluation(out: Console, evaluation: Evaluation) -> None:
    verdict = "" if evaluation.score is None else f"{evaluation.score:g}"
    if evaluation.success is not None:
        verdict = " · ".join(_non_empty(verdict, "success" if evaluation.success else "no success"))
    line = Text("recorded ", "bold").append(verdict, "green" if evaluation.success is not False else "red")
    print_line(out, line.append(f"  {evaluation.id}", "dim"))
    cost = "" if evaluation.cost_usd is None else format_usd(evaluation.cost_usd)
    about = " · ".join(
        _non_empty(f"turn {evaluation.turn_id}" if evaluation.turn_id else "last turn", evaluation.model or "", cost)
    )
    print_line(out, Text(escape_line(about), "dim"))
