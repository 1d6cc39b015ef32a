"""When a rule holds: a closed set of predicates, read from data and asked of a turn.

    read_predicate(value, where, problems) -> Predicate, with everything wrong noted under its place
    holds(predicate, facts) -> bool

Several keys side by side must all hold. Regular expressions are searched by an engine whose time grows with the text
alone, whatever the pattern. The one rule: a predicate about something that nobody knows is false.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import time
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import SideEffects
from dragoman.routing.facts import TurnFacts

MOST_PREDICATES: Final = 1_000  # in one file: references in YAML can make a few lines stand for millions
DEEPEST: Final = 20

TimeSpan = tuple[time, time]


class Fact(msgspec.Struct, frozen=True):
    """One thing to be true of a turn."""

    key: str
    value: Any  # of the type that the key has: a text, texts, a number, a truth or a span of time


class Combined(msgspec.Struct, frozen=True):
    """Several predicates as one."""

    key: Literal["all_of", "any_of", "not"]
    parts: tuple[Predicate, ...]


Predicate = Fact | Combined


class Problems:
    """Everything wrong, with its place, and what is worth a warning."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.predicates = 0

    def note(self, where: str, what: str) -> None:
        """One more thing that is wrong."""
        self.errors.append(f"{where}: {what}")

    def warn(self, where: str, what: str) -> None:
        """One more thing that is allowed, and probably not meant."""
        self.warnings.append(f"{where}: {what}")


# --- asking ----------------------------------------------------------------------------------------------------------


def holds(predicate: Predicate, facts: TurnFacts) -> bool:
    """Whether the predicate is true of a turn."""
    match predicate:
        case Combined("all_of", parts):
            return all(holds(part, facts) for part in parts)
        case Combined("any_of", parts):
            return any(holds(part, facts) for part in parts)
        case Combined("not", parts):
            return not holds(parts[0], facts)
        case Fact(key, value):
            return _FACTS[key].holds(value, facts)
    raise AssertionError(predicate)  # pragma: no cover


def mentions(predicate: Predicate, key: str) -> bool:
    """Whether a fact of that name stands anywhere in the predicate."""
    match predicate:
        case Combined(parts=parts):
            return any(mentions(part, key) for part in parts)
        case Fact(key=named):
            return named == key
    raise AssertionError(predicate)  # pragma: no cover


def _is_between(span: TimeSpan, clock: time) -> bool:
    """From the start on, until just before the end; over midnight if the end is before the start."""
    start, end = span
    return start <= clock < end if start <= end else clock >= start or clock < end


def _any_text(wanted: tuple[str, ...], text: str) -> bool:
    folded = text.casefold()
    return any(word.casefold() in folded for word in wanted)


def _includes(wanted: tuple[str, ...], known: tuple[str, ...] | None) -> bool:
    return known is not None and not set(wanted).isdisjoint(known)


@functools.lru_cache(maxsize=512)
def _pattern(pattern: str) -> Any:
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  only those who have rules pay for it

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _is_found(pattern: str, text: str) -> bool:
    return _pattern(pattern).search(text) is not None


# --- reading ---------------------------------------------------------------------------------------------------------


def read_predicate(value: Any, where: str, problems: Problems, depth: int = 0) -> Predicate | None:
    """A predicate from a mapping; what is wrong with it is noted, and then there is none."""
    if not isinstance(value, Mapping):
        problems.note(where, f"a mapping of predicates is expected, not {_kind(value)}")
        return None
    if not value:
        problems.note(where, "a rule needs something to hold; for what always holds there is global_default")
        return None
    if depth == DEEPEST:
        problems.note(where, f"nested deeper than {DEEPEST} levels")
        return None
    parts = [_read_one(str(key), part, f"{where}.{key}", problems, depth) for key, part in value.items()]
    read = tuple(part for part in parts if part is not None)
    return read[0] if len(read) == 1 else Combined("all_of", read)


def _read_one(key: str, value: Any, where: str, problems: Problems, depth: int) -> Predicate | None:
    problems.predicates += 1
    if problems.predicates > MOST_PREDICATES:
        if problems.predicates == MOST_PREDICATES + 1:
            problems.note(where, f"more than {MOST_PREDICATES} predicates in one file")
        return None
    if key in ("all_of", "any_of"):
        return _read_several(key, value, where, problems, depth)
    if key == "not":
        inner = read_predicate(value, where, problems, depth + 1)
        return None if inner is None else Combined("not", (inner,))
    kind = _FACTS.get(key)
    if kind is None:
        problems.note(where, f"no such predicate; there are {', '.join(PREDICATES)}")
        return None
    try:
        read = kind.read(value)
    except ValueError as error:
        problems.note(where, str(error))
        return None
    if isinstance(read, tuple) and len(read) == 2 and isinstance(read[0], time) and read[0] == read[1]:
        problems.warn(where, "begins when it ends, so it never holds")
    return Fact(key, read)


def _read_several(key: Any, value: Any, where: str, problems: Problems, depth: int) -> Predicate | None:
    if not isinstance(value, list) or not value:
        problems.note(where, f"a list with at least one mapping is expected, not {_kind(value)}")
        return None
    if problems.predicates + len(value) > MOST_PREDICATES:
        problems.predicates = MOST_PREDICATES
        problems.note(where, f"more than {MOST_PREDICATES} predicates in one file")
        return None
    parts = [read_predicate(part, f"{where}[{at}]", problems, depth + 1) for at, part in enumerate(value)]
    return Combined(key, tuple(part for part in parts if part is not None))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case list():
            return "a list" if value else "an empty list"
        case Mapping():
            return "a mapping"
        case str():
            return "a text"
        case _:
            return f"{type(value).__name__} {str(value)[:40]}"


def _regex(value: Any) -> str:
    text = _text(value)
    import re2  # noqa: PLC0415

    try:
        _pattern(text)
    except re2.error as error:
        told = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(f"not a regular expression ({told})") from None
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"a text is expected, not {_kind(value)}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"a list with at least one text is expected, not {_kind(value)}")
    return tuple(value)


def _effects(value: Any) -> tuple[str, ...]:
    effects = _texts(value)
    known = [effect.value for effect in SideEffects]
    if unknown := [effect for effect in effects if effect not in known]:
        raise ValueError(f"there are the side effects {', '.join(known)}, not {', '.join(unknown)}")
    return effects


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:  # a truth value is an int to Python, and no number here
        raise ValueError(f"a whole number from 0 is expected, not {_kind(value)}")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"true or false is expected, not {_kind(value)}")
    return value


def _amount(value: Any) -> Decimal:
    if type(value) not in (int, float, str):
        raise ValueError(f"an amount in US dollars is expected, not {_kind(value)}")
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"an amount in US dollars is expected, not {_kind(value)}") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"an amount from 0 is expected, not {_kind(value)}")
    return amount


def _span(value: Any) -> TimeSpan:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"two times [HH:MM, HH:MM] are expected, not {_kind(value)}")
    return _clock(value[0]), _clock(value[1])


def _clock(value: Any) -> time:
    """HH:MM. YAML reads an unquoted 22:00 as a number to the base of 60, which is its minutes."""
    if type(value) is int and 0 <= value < 24 * 60:
        return time(value // 60, value % 60)
    hours, colon, minutes = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(hours) == len(minutes) == 2):
        raise ValueError(f"a time HH:MM is expected, not {_kind(value)}")
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"{value} is no time of day")
    return time(int(hours), int(minutes))


class _FactKind(msgspec.Struct, frozen=True):
    """How the value of a predicate is read, and what it is asked of."""

    read: Callable[[Any], Any]
    holds: Callable[[Any, TurnFacts], bool]


_FACTS: Final = {
    "message_matches": _FactKind(_regex, lambda value, facts: _is_found(value, facts.text)),
    "message_contains_any": _FactKind(_texts, lambda value, facts: _any_text(value, facts.text)),
    "estimated_input_tokens_gt": _FactKind(_whole, lambda value, facts: facts.estimated_input_tokens > value),
    "estimated_input_tokens_lt": _FactKind(_whole, lambda value, facts: facts.estimated_input_tokens < value),
    "has_images": _FactKind(_truth, lambda value, facts: facts.has_images is value),
    "has_tool_calls_in_history": _FactKind(_truth, lambda value, facts: facts.has_tool_calls_in_history is value),
    "side_effects_include": _FactKind(_effects, lambda value, facts: _includes(value, facts.offered_side_effects)),
    "skills_matching_message_includes": _FactKind(_texts, lambda value, facts: _includes(value, facts.skills)),
    "file_extensions_in_context": _FactKind(_texts, lambda value, facts: _includes(value, facts.file_extensions)),
    "workspace_path_matches": _FactKind(_regex, lambda value, facts: _is_found(value, facts.workspace_path)),
    "time_of_day_between": _FactKind(_span, lambda value, facts: _is_between(value, facts.now.time())),
    "cost_today_exceeds_usd": _FactKind(
        _amount, lambda value, facts: facts.cost_today_usd is not None and facts.cost_today_usd > value
    ),
    "team_budget_remaining_lt": _FactKind(
        _amount,
        lambda value, facts: facts.team_budget_remaining_usd is not None and facts.team_budget_remaining_usd < value,
    ),
}
PREDICATES: Final = (*_FACTS, "any_of", "all_of", "not")
