"""What was consumed and what it cost, by group.

Invariants: what was deleted was paid for as well, and stays in the totals. An impossible figure adds nothing
(``message.usage_problems``), so that one row cannot spoil a sum; ``verify`` names it. No sum overflows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from dragoman.errors import InputError
from dragoman.message import MAX_TOKENS
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.types import Owners, Totals

GROUPS: Final = {
    "session": "session_id",
    "user": "user_id",
    "team": "team_id",
    "model": "model",
    "provider": "provider",
    "day": "day",
}
COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_creation_input_tokens",
    "reasoning_tokens",
)
_USAGE_COLUMNS: Final = f"day, model, provider, user_id, team_id, {', '.join(COUNTS)}, cost_usd, unpriced"
_ALL_USAGE: Final = (  # what sessions that were deleted have cost was paid as well
    f"SELECT session_id, 1 AS messages, {_USAGE_COLUMNS} FROM usage"
    f" UNION ALL SELECT NULL, messages, {_USAGE_COLUMNS} FROM past_usage"
)
_BITS: Final = 32
_LOW: Final = (1 << _BITS) - 1


def group_column(by: str) -> str:
    """Return the column that totals are grouped by."""
    if by not in GROUPS:
        raise InputError(f"totals have no group {by!r}", remedy=f"Group by one of {', '.join(GROUPS)}")
    return GROUPS[by]


def possible_count_sql(name: str, messages: str) -> str:
    """SQL for a count of so many messages; 0 if it is impossible."""
    return f"CASE WHEN {name} BETWEEN 0 AND {MAX_TOKENS}.0 * {messages} THEN {name} ELSE 0 END"


def _sum_sql(name: str) -> str:
    """SQL for a sum in two halves, neither of which can leave 64 bits."""
    count = possible_count_sql(name, "messages")
    return f"sum(({count}) >> {_BITS}), sum(({count}) & {_LOW})"


SUMS: Final = f"sum(messages), {', '.join(map(_sum_sql, COUNTS))}, decimal_sum(cost_usd), sum(unpriced)"


def totals_from(rows: Iterable[Sequence[Any]]) -> list[Totals]:
    """The totals of rows that are a group and ``SUMS``, in the order of their groups."""
    groups = []
    for group, messages, *halves, cost, unpriced in rows:
        pairs = zip(COUNTS, halves[::2], halves[1::2], strict=True)
        counts = {name: (int(high) << _BITS) + int(low) for name, high, low in pairs}
        amount = Decimal(str(cost))
        groups.append(Totals(group=group, messages=int(messages), **counts, cost_usd=amount, unpriced=int(unpriced)))
    return sorted(
        groups, key=lambda one: (one.group is not None, one.group or "")
    )  # engines sort each in their own way


@operation
def totals(
    by: str, filters: dict[str, str], since: str | None, until: str | None, owners: Owners | None = None
) -> Generator[Statement, Rows, list[Totals]]:
    """What was consumed and what it cost, by group; days are in UTC, and ``until`` is the first day not counted."""
    group = group_column(by)
    conditions, arguments = ["1 = 1"], list[Any]()
    for name, value in filters.items():
        conditions.append(f"{GROUPS[name]} = ?")
        arguments.append(value)
    for sign, day in ((">=", since), ("<", until)):
        if day is not None:
            conditions.append(f"day {sign} ?")
            arguments.append(day)
    if owners is not None:
        owner_sql, owner_arguments = owners.condition("ever")
        conditions.append(owner_sql)
        arguments.extend(owner_arguments)
    rows = yield (
        f"SELECT {group}, {SUMS} FROM ({_ALL_USAGE}) AS ever WHERE {' AND '.join(conditions)} GROUP BY {group}",
        arguments,
    )
    return totals_from(rows)
