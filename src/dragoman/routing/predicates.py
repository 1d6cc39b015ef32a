"""Predicates of rules: a closed set, read from data and evaluated for a turn.

    read_predicate(value, where, problems) -> Predicate; problems are collected with their path
    holds(predicate, facts) -> bool

Several keys of a mapping must all match. Regular expressions run in linear time. Invariant: a predicate about an
unknown fact is false.
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

MAX_PREDICATES: Final = 1_000  # in one file: YAML references can expand a few lines to millions
MAX_DEPTH: Final = 20

TimeSpan = tuple[time, time]


class Fact(msgspec.Struct, frozen=True):
    """One condition."""

    key: str
    value: Any  # a text, texts, a number, a boolean or a time span, depending on the key


class CombinedPredicate(msgspec.Struct, frozen=True):
    """A combination of predicates."""

    key: Literal["all_of", "any_of", "not"]
    parts: tuple[Predicate, ...]


Predicate = Fact | CombinedPredicate


class Problems:
    """Errors and warnings with their path."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.predicates = 0

    def add(self, where: str, what: str) -> None:
        """Add an error."""
        self.errors.append(f"{where}: {what}")

    def warn(self, where: str, what: str) -> None:
        """Add a warning: valid, but probably unintended."""
        self.warnings.append(f"{where}: {what}")


# --- asking ----------------------------------------------------------------------------------------------------------


def holds(predicate: Predicate, facts: TurnFacts) -> bool:
    """Whether the predicate matches a turn."""
    match predicate:
        case CombinedPredicate("all_of", parts):
            return all(holds(part, facts) for part in parts)
        case CombinedPredicate("any_of", parts):
            return any(holds(part, facts) for part in parts)
        case CombinedPredicate("not", parts):
            return not holds(parts[0], facts)
        case Fact(key, value):
            return _FACTS[key].holds(value, facts)
    raise AssertionError(predicate)  # pragma: no cover


def has_predicate(predicate: Predicate, key: str) -> bool:
    """Whether the predicate contains a condition with that key."""
    match predicate:
        case CombinedPredicate(parts=parts):
            return any(has_predicate(part, key) for part in parts)
        case Fact(key=named):
            return named == key
    raise AssertionError(predicate)  # pragma: no cover


def _is_between(span: TimeSpan, clock: time) -> bool:
    """Whether a time is at or after the start and before the end; across midnight if the end is earlier."""
    start, end = span
    return start <= clock < end if start <= end else clock >= start or clock < end


def _contains_any(texts: tuple[str, ...], text: str) -> bool:
    folded = text.casefold()
    return any(word.casefold() in folded for word in texts)


def _includes(values: tuple[str, ...], facts: tuple[str, ...] | None) -> bool:
    return facts is not None and not set(values).isdisjoint(facts)


@functools.lru_cache(maxsize=512)
def _compile_pattern(pattern: str) -> Any:
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  loaded only for rules

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _matches(pattern: str, text: str) -> bool:
    return _compile_pattern(pattern).search(text) is not None


# --- reading ---------------------------------------------------------------------------------------------------------


def read_predicate(value: Any, where: str, problems: Problems, depth: int = 0) -> Predicate | None:
    """Return the predicate of a mapping; add problems and return ``None`` if it is invalid."""
    if not isinstance(value, Mapping):
        problems.add(where, f"a mapping of predicates is expected, not {_describe_value(value)}")
        return None
    if not value:
        problems.add(where, "a rule needs a predicate; for a rule that always matches use global_default")
        return None
    if depth == MAX_DEPTH:
        problems.add(where, f"nested deeper than {MAX_DEPTH} levels")
        return None
    parts = [_read_single(str(key), part, f"{where}.{key}", problems, depth) for key, part in value.items()]
    predicates = tuple(part for part in parts if part is not None)
    return predicates[0] if len(predicates) == 1 else CombinedPredicate("all_of", predicates)


def _read_single(key: str, value: Any, where: str, problems: Problems, depth: int) -> Predicate | None:
    problems.predicates += 1
    if problems.predicates > MAX_PREDICATES:
        if problems.predicates == MAX_PREDICATES + 1:
            problems.add(where, f"more than {MAX_PREDICATES} predicates in one file")
        return None
    if key in ("all_of", "any_of"):
        return _read_list(key, value, where, problems, depth)
    if key == "not":
        inner = read_predicate(value, where, problems, depth + 1)
        return None if inner is None else CombinedPredicate("not", (inner,))
    kind = _FACTS.get(key)
    if kind is None:
        problems.add(where, f"no such predicate; there are {', '.join(PREDICATES)}")
        return None
    try:
        parsed = kind.read(value)
    except ValueError as error:
        problems.add(where, str(error))
        return None
    if isinstance(parsed, tuple) and len(parsed) == 2 and isinstance(parsed[0], time) and parsed[0] == parsed[1]:
        problems.warn(where, "begins when it ends, so it never holds")
    return Fact(key, parsed)


def _read_list(key: Any, value: Any, where: str, problems: Problems, depth: int) -> Predicate | None:
    if not isinstance(value, list) or not value:
        problems.add(where, f"a list with at least one mapping is expected, not {_describe_value(value)}")
        return None
    if problems.predicates + len(value) > MAX_PREDICATES:
        problems.predicates = MAX_PREDICATES
        problems.add(where, f"more than {MAX_PREDICATES} predicates in one file")
        return None
    parts = [read_predicate(part, f"{where}[{at}]", problems, depth + 1) for at, part in enumerate(value)]
    return CombinedPredicate(key, tuple(part for part in parts if part is not None))


def _describe_value(value: Any) -> str:
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


def _read_regex(value: Any) -> str:
    text = _read_text(value)
    import re2  # noqa: PLC0415

    try:
        _compile_pattern(text)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(f"not a regular expression ({reason})") from None
    return text


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"a text is expected, not {_describe_value(value)}")
    return value


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"a list with at least one text is expected, not {_describe_value(value)}")
    return tuple(value)


def _read_effects(value: Any) -> tuple[str, ...]:
    effects = _read_texts(value)
    names = [effect.value for effect in SideEffects]
    if unknown := [effect for effect in effects if effect not in names]:
        raise ValueError(f"there are the side effects {', '.join(names)}, not {', '.join(unknown)}")
    return effects


def _read_count(value: Any) -> int:
    if type(value) is not int or value < 0:  # bool is a subclass of int
        raise ValueError(f"a whole number from 0 is expected, not {_describe_value(value)}")
    return value


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"true or false is expected, not {_describe_value(value)}")
    return value


def _read_amount(value: Any) -> Decimal:
    if type(value) not in (int, float, str):
        raise ValueError(f"an amount in US dollars is expected, not {_describe_value(value)}")
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"an amount in US dollars is expected, not {_describe_value(value)}") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"an amount from 0 is expected, not {_describe_value(value)}")
    return amount


def _read_time_span(value: Any) -> TimeSpan:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"two times [HH:MM, HH:MM] are expected, not {_describe_value(value)}")
    return _read_clock(value[0]), _read_clock(value[1])


def _read_clock(value: Any) -> time:
    """Parse HH:MM. YAML 1.1 reads an unquoted 22:00 as a base-60 number of minutes."""
    if type(value) is int and 0 <= value < 24 * 60:
        return time(value // 60, value % 60)
    hours, colon, minutes = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(hours) == len(minutes) == 2):
        raise ValueError(f"a time HH:MM is expected, not {_describe_value(value)}")
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"{value} is no time of day")
    return time(int(hours), int(minutes))


class _FactKind(msgspec.Struct, frozen=True):
    """Parser and evaluation of a predicate."""

    read: Callable[[Any], Any]
    holds: Callable[[Any, TurnFacts], bool]


_FACTS: Final = {
    "message_matches": _FactKind(_read_regex, lambda value, facts: _matches(value, facts.text)),
    "message_contains_any": _FactKind(_read_texts, lambda value, facts: _contains_any(value, facts.text)),
    "estimated_input_tokens_gt": _FactKind(_read_count, lambda value, facts: facts.estimated_input_tokens > value),
    "estimated_input_tokens_lt": _FactKind(_read_count, lambda value, facts: facts.estimated_input_tokens < value),
    "has_images": _FactKind(_read_bool, lambda value, facts: facts.has_images is value),
    "has_tool_calls_in_history": _FactKind(_read_bool, lambda value, facts: facts.has_tool_calls_in_history is value),
    "side_effects_include": _FactKind(_read_effects, lambda value, facts: _includes(value, facts.offered_side_effects)),
    "skills_matching_message_includes": _FactKind(_read_texts, lambda value, facts: _includes(value, facts.skills)),
    "file_extensions_in_context": _FactKind(_read_texts, lambda value, facts: _includes(value, facts.file_extensions)),
    "workspace_path_matches": _FactKind(_read_regex, lambda value, facts: _matches(value, facts.workspace_path)),
    "time_of_day_between": _FactKind(_read_time_span, lambda value, facts: _is_between(value, facts.now.time())),
    "cost_today_exceeds_usd": _FactKind(
        _read_amount, lambda value, facts: facts.cost_today_usd is not None and facts.cost_today_usd > value
    ),
    "team_budget_remaining_lt": _FactKind(
        _read_amount,
        lambda value, facts: facts.team_budget_remaining_usd is not None and facts.team_budget_remaining_usd < value,
    ),
}
PREDICATES: Final = (*_FACTS, "any_of", "all_of", "not")
