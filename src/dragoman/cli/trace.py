"""``dragoman trace`` and ``dragoman evaluate``: what happened in a session, and how good it was."""

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

from dragoman.bus.catalogue import FeedbackExplicit
from dragoman.cli.event import write_event
from dragoman.cli.store_option import JsonOption, Positive, StoreOption, opened, session_named
from dragoman.cli.terminal import console, counted, dollars, moment, print_json, print_line, safe_line, size
from dragoman.errors import InputError
from dragoman.store import Store
from dragoman.store.trace import SYSTEM
from dragoman.store.values import Evaluation, TraceEvent
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
_BAD: Final = ("failed", "cancelled", "invalid", "failure", "unavailable", "exceeded", "gap_detected")


# --- trace -----------------------------------------------------------------------------------------------------------

FollowOption = Annotated[
    bool,
    Parameter(name=("--follow", "-f"), negative=(), show_default=False, help="Go on with what happens, until Ctrl-C."),
]


async def trace(
    session: str,
    /,
    *,
    turn: str | None = None,
    type: Annotated[tuple[str, ...], Parameter(name="--type")] = (),  # noqa: A002
    limit: Positive = 200,
    follow: FollowOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print what happened in a session, as a tree of causes.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, last, or system for what belongs to none.
    turn
        Only this turn.
    type
        Only events of this type; may be given several times.
    limit
        At most so many events, the newest.
    """
    async with opened(store) as kept:
        session_id = SYSTEM if session == SYSTEM else (await session_named(kept, session)).id
        wanted = {"types": type or None, "turn_id": turn}
        events = await _newest(kept, session_id, limit, wanted)
        if json and not follow:
            print_json({"session_id": session_id, "events": events})
            return
        out = console()
        page = _Tree(out)
        if json:
            _print_lines(events)
        else:
            page.begin(session_id, events)
        if follow:
            await _follow(kept, session_id, events[-1].id if events else "", wanted, None if json else page)


async def _newest(store: Store, session_id: str, limit: int, wanted: Mapping[str, Any]) -> list[TraceEvent]:
    found: list[TraceEvent] = []
    after = ""
    while page := await store.events(session_id, after, _PAGE, **wanted):
        found = [*found, *page][-limit:]
        after = page[-1].id
    return found


async def _follow(store: Store, session_id: str, after: str, wanted: Mapping[str, Any], page: _Tree | None) -> None:
    while True:
        events = await store.events(session_id, after, _PAGE, **wanted)
        if not events:
            await asyncio.sleep(_POLL_S)
            continue
        after = events[-1].id
        if page is None:
            _print_lines(events)
        else:
            page.add(events)


def _print_lines(events: Sequence[TraceEvent]) -> None:
    sys.stdout.buffer.writelines(msgspec.json.encode(event) + b"\n" for event in events)
    sys.stdout.buffer.flush()


class _Tree:
    """Events on their way to a console."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._depths: dict[str, int] = {}
        self._turns: dict[str, str] = {}
        self._turn: str | None = None
        self._began: Any = None

    def begin(self, session_id: str, events: Sequence[TraceEvent]) -> None:
        """Everything so far, each event under the one that it follows from."""
        print_line(self._out, Text(safe_line(session_id), "bold").append(f"  {counted(len(events), 'event')}", "dim"))
        children: dict[str | None, list[TraceEvent]] = {}
        known = {event.id for event in events}
        for event in events:
            parent = self._parent(event)
            children.setdefault(parent if parent in known else None, []).append(event)
        waiting = list(reversed(children.get(None, [])))
        while waiting:
            event = waiting.pop()
            self._print(event)
            waiting.extend(reversed(children.get(event.id, [])))

    def add(self, events: Sequence[TraceEvent]) -> None:
        """What happened since, in its order."""
        for event in events:
            self._print(event)

    def _parent(self, event: TraceEvent) -> str | None:
        """What an event stands under: what it follows from, and every call of a model under its turn, or a long turn
        would leave the screen."""
        if event.type == "turn.started" and event.turn_id is not None:
            self._turns[event.turn_id] = event.id
        if event.type == "llm.call_started":
            return self._turns.get(event.turn_id or "", event.parent_event_id)
        return event.parent_event_id

    def _print(self, event: TraceEvent) -> None:
        depth = self._depths.get(self._parent(event) or "", -1) + 1
        self._depths[event.id] = min(depth, 12)
        if event.turn_id != self._turn or self._began is None:
            self._turn, self._began = event.turn_id, event.timestamp
            head = Text(f"\n{moment(event.timestamp)}", "dim")
            print_line(self._out, head.append(f"  turn {safe_line(event.turn_id)}" if event.turn_id else "", "dim"))
        since = (event.timestamp - self._began).total_seconds()
        prefix, _, _ = event.type.partition(".")
        colour = "red" if event.type.endswith(_BAD) else _COLOURS.get(prefix, "default")
        line = Text(f"{since:>9.3f} s  ", "dim").append("  " * self._depths[event.id])
        line.append(safe_line(event.type), colour)
        print_line(self._out, line.append(f"  {safe_line(told(event))}", "default"))


def told(event: TraceEvent) -> str:
    """What an event says, in a few words."""
    said: dict[str, Any] = event.payload if isinstance(event.payload, dict) else {"payload": event.payload}
    match event.type:
        case "turn.started":
            return " · ".join(
                _some(f"~{said['estimated_input_tokens']:,} tokens", "images" if said["has_images"] else "")
            )
        case "turn.completed":
            calls = counted(said["llm_call_count"], "call"), counted(said["tool_call_count"], "tool call")
            return " · ".join(
                (said["stop_reason"], *calls, _money(said["total_cost_usd"]), _time(said["wall_time_seconds"]))
            )
        case "turn.cancelled":
            return str(said["reason"])
        case "turn.failed":
            return " · ".join(_some(said["error_code"], said["error_message_redacted"]))
        case "route.decided":
            chain = said["chain"]
            chose = chain[said["winner_index"]] if 0 <= said["winner_index"] < len(chain) else {"policy": "none"}
            return " · ".join(_some(said["chosen_model"], chose["policy"], chose.get("reason", "")))
        case "llm.call_started":
            return f"{said['model']} · ~{said['estimated_input_tokens']:,} tokens"
        case "llm.call_completed":
            prompt = sum(said.get(name, 0) for name in _PROMPT)
            tokens = f"{prompt:,}→{said['output_tokens']:,} tokens"
            return " · ".join((tokens, _money(said["cost_usd"]), _time(said["latency_ms"] / 1000), said["stop_reason"]))
        case "llm.call_failed" | "tool.failed":
            message = said.get("error_message_redacted") or said.get("error_message") or ""
            return " · ".join(_some(said["error_class"], message, _time(said["latency_ms"] / 1000)))
        case "tool.called":
            return f"{said['tool_name']} · {said['side_effects']}"
        case "tool.confirmation_requested":
            return " · ".join(_some(said["tool_name"], said.get("command_summary") or said["input_summary"]))
        case "tool.confirmation_resolved":
            return " · ".join(_some(said["decision"], said.get("scope") or ""))
        case "tool.completed":
            ended = "" if said["success"] else "without success"
            did = said.get("command_executed") or ", ".join(said.get("files_modified") or ())
            return " · ".join(_some(ended, size(said["output_size_bytes"]), _time(said["latency_ms"] / 1000), did))
        case _:
            return ", ".join(f"{name}={_short(value)}" for name, value in said.items())


_PROMPT: Final = ("input_tokens", "cached_input_tokens", "cache_creation_input_tokens")


def _some(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _money(amount: str | None) -> str:
    return dollars(None if amount is None else Decimal(amount))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


# --- evaluate --------------------------------------------------------------------------------------------------------

ScoreOption = Annotated[float | None, Parameter(validator=validators.Number(gte=0, lte=1))]


async def evaluate(
    session: str,
    /,
    *,
    score: ScoreOption = None,
    success: bool | None = None,
    notes: str | None = None,
    evaluator: str = "user",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Record how good the last turn of a session was, so that routing can learn from it.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, or last.
    score
        How good, from 0 to 1.
    success
        Whether it was good enough.
    notes
        Why, in words. Secrets are taken out.
    evaluator
        Who says so.
    """
    if score is None and success is None:
        raise InputError("nothing says how good it was", remedy="Give --score, --success or --no-success")
    async with opened(store) as kept:
        found = await session_named(kept, session)
        turn = await kept.judged_turn(found.id)
        made = await kept.record_evaluation(
            found.id, score=score, success=success, notes=notes, evaluator=evaluator, **turn
        )
        told = list(evaluation_events(made))
        if evaluator == "user":
            grade = made.score if made.score is not None else float(bool(made.success))
            told.append(FeedbackExplicit(score=grade, message_id=made.message_id))
        await write_event(kept, *told, session_id=found.id, turn_id=made.turn_id)
    if json:
        print_json(made)
        return
    _print_evaluation(console(), made)


def _print_evaluation(out: Console, made: Evaluation) -> None:
    verdict = "" if made.score is None else f"{made.score:g}"
    if made.success is not None:
        verdict = " · ".join(_some(verdict, "good enough" if made.success else "not good enough"))
    line = Text("recorded ", "bold").append(verdict, "green" if made.success is not False else "red")
    print_line(out, line.append(f"  {made.id}", "dim"))
    cost = "" if made.cost_usd is None else dollars(made.cost_usd)
    about = " · ".join(_some(f"turn {made.turn_id}" if made.turn_id else "the last turn", made.model or "", cost))
    print_line(out, Text(safe_line(about), "dim"))
