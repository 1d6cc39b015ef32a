"""What was consumed and what it cost, by group. The one rule: what was deleted was paid for as well."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import Any, Final

from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.values import Owners, Totals

GROUPS: Final = {
    "session": "session_id",
    "user": "user_id",
    "team": "team_id",
    "model": "model",
    "provider": "provider",
    "day": "day",
}
_COUNTED: Final = (
    "day, model, provider, user_id, team_id, input_tokens, output_tokens, cached_input_tokens,"
    " cache_creation_input_tokens, reasoning_tokens, cost_usd"
)
_EVER_USED: Final = (  # what sessions that were deleted have cost was paid as well
    f"SELECT session_id, 1 AS messages, {_COUNTED} FROM usage"
    f" UNION ALL SELECT NULL, messages, {_COUNTED} FROM past_usage"
)


@operation
def totals(
    by: str, wanted: dict[str, str], since: str | None, until: str | None, owners: Owners | None = None
) -> Generator[Statement, Rows, list[Totals]]:
    """What was consumed and what it cost, by group; days are in UTC, and ``until`` is the first day not counted."""
    group = GROUPS[by]
    conditions, arguments = ["1 = 1"], list[Any]()
    for name, value in wanted.items():
        conditions.append(f"{GROUPS[name]} = ?")
        arguments.append(value)
    for sign, day in ((">=", since), ("<", until)):
        if day is not None:
            conditions.append(f"day {sign} ?")
            arguments.append(day)
    if owners is not None:
        mine, whose = owners.condition("ever")
        conditions.append(mine)
        arguments.extend(whose)
    rows = yield (
        f"SELECT {group}, sum(messages), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens),"
        f" sum(cache_creation_input_tokens), sum(reasoning_tokens), decimal_sum(cost_usd) FROM ({_EVER_USED})"
        f" AS ever WHERE {' AND '.join(conditions)} GROUP BY {group}",
        arguments,
    )
    found = [
        Totals(
            group=row[0],
            messages=int(row[1]),
            input_tokens=int(row[2]),
            output_tokens=int(row[3]),
            cached_input_tokens=int(row[4]),
            cache_creation_input_tokens=int(row[5]),
            reasoning_tokens=int(row[6]),
            cost_usd=Decimal(str(row[7])),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.group is not None, one.group or ""))  # engines sort each in their own way
