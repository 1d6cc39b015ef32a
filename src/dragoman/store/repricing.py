"""What calls would have cost under other prices, kept beside what they did cost.

    async for call in store.priced_calls(since="2026-11-01"):    every call that has a usage, as it was charged
        …
    await store.keep_repricing(version, amounts)                 what they cost under another version
    await store.repriced_totals("day", version)                  totals in which those amounts count

The one rule: what a message says that it cost never changes. Another amount has its version, and a table of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.message import Usage
from dragoman.store.costs import COUNTS, GROUPS, SUMS, group_column, totals_from
from dragoman.store.message_rows import from_micros, to_micros
from dragoman.store.operation import Operation, Rows, Statement, operation
from dragoman.store.types import PricedCall, Totals, TotalsBy

_PAGE: Final = 500


class RepricingMethods:
    """What a store can do with other prices."""

    if TYPE_CHECKING:
        clock: Callable[[], datetime]

        async def _read(self, operation: Operation[Any]) -> Any: ...
        async def _write(self, operation: Operation[Any]) -> Any: ...

    async def priced_calls(
        self,
        *,
        session: str | None = None,
        model: str | None = None,
        since: str | None = None,
        until: str | None = None,
        after_seq: int = 0,
    ) -> AsyncIterator[PricedCall]:
        """Every answer of a model that has a usage, by session and place; deleted sessions have none any more.

        ``after_seq`` is for one session: only those behind that place.
        """
        after = (session or "", after_seq)
        while page := await self._read(_read_calls(after, {"session_id": session, "model": model}, since, until)):
            for call in page:
                yield call
            after = (page[-1].session_id, page[-1].seq)

    async def keep_repricing(self, version: str, amounts: Iterable[tuple[str, int, Decimal]]) -> int:
        """Keep what calls cost under a version of prices: session, place and amount; how many there were."""
        given = list(amounts)
        now = self.clock()
        for first in range(0, len(given), _PAGE):
            await self._write(_insert_repricings(version, given[first : first + _PAGE], now))
        return len(given)

    async def pricing_versions(self) -> list[str]:
        """The versions of prices under which something was kept."""
        rows: list[str] = await self._read(_list_versions())
        return rows

    async def repriced_totals(
        self,
        by: TotalsBy,
        version: str,
        *,
        session: str | None = None,
        user: str | None = None,
        team: str | None = None,
        model: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[Totals]:
        """As ``totals``, with what calls cost under that version, where it was kept."""
        named = {"session": session, "user": user, "team": team, "model": model}
        wanted = {name: value for name, value in named.items() if value is not None}
        found: list[Totals] = await self._read(_totals(by, version, wanted, since, until))
        return found


def _conditions(filters: dict[str, str], since: str | None, until: str | None) -> tuple[str, list[Any]]:
    conditions, arguments = ["1 = 1"], list[Any]()
    for column, value in filters.items():
        conditions.append(f"{column} = ?")
        arguments.append(value)
    for sign, day in ((">=", since), ("<", until)):
        if day is not None:
            conditions.append(f"day {sign} ?")
            arguments.append(day)
    return " AND ".join(conditions), arguments


@operation
def _read_calls(
    after: tuple[str, int], columns: dict[str, str | None], since: str | None, until: str | None
) -> Generator[Statement, Rows, list[PricedCall]]:
    filters = {f"u.{name}": value for name, value in columns.items() if value is not None}
    conditions, arguments = _conditions(filters, since, until)
    rows = yield (
        "SELECT u.session_id, u.seq, u.model, m.metadata_json, m.created_at FROM usage AS u"
        " JOIN messages AS m ON m.session_id = u.session_id AND m.seq = u.seq"
        f" WHERE (u.session_id, u.seq) > (?, ?) AND {conditions} ORDER BY u.session_id, u.seq LIMIT {_PAGE}",
        (*after, *arguments),
    )
    return [PricedCall(row[0], row[1], row[2], _usage(row[3]), from_micros(row[4])) for row in rows]


def _usage(metadata_json: str) -> Usage:
    """What a message consumed. What a newer version counts besides is passed over."""
    fields = msgspec.json.decode(metadata_json)["usage"]
    return msgspec.convert({name: fields[name] for name in fields if name in Usage.__struct_fields__}, Usage)


@operation
def _insert_repricings(
    version: str, amounts: Sequence[tuple[str, int, Decimal]], now: datetime
) -> Generator[Statement, Rows, None]:
    for session_id, seq, cost in amounts:
        yield (
            "INSERT INTO repricings (session_id, seq, pricing_version, cost_usd, repriced_at)"
            " SELECT session_id, seq, ?, ?, ? FROM usage WHERE session_id = ? AND seq = ?"  # unless it was deleted
            " ON CONFLICT (session_id, seq, pricing_version)"
            " DO UPDATE SET cost_usd = excluded.cost_usd, repriced_at = excluded.repriced_at",
            (version, str(cost), to_micros(now), session_id, seq),
        )


@operation
def _list_versions() -> Generator[Statement, Rows, list[str]]:
    rows = yield "SELECT DISTINCT pricing_version FROM repricings ORDER BY pricing_version", ()
    return [row[0] for row in rows]


_COUNTS: Final = ", ".join(COUNTS)
_REPRICED_USAGE: Final = (
    f"SELECT u.session_id AS session_id, 1 AS messages, day, model, provider, user_id, team_id, {_COUNTS},"
    " coalesce(r.cost_usd, u.cost_usd) AS cost_usd, CASE WHEN r.cost_usd IS NULL THEN u.unpriced ELSE 0 END AS unpriced"
    " FROM usage AS u LEFT JOIN repricings AS r"
    " ON r.session_id = u.session_id AND r.seq = u.seq AND r.pricing_version = ?"
    f" UNION ALL SELECT NULL, messages, day, model, provider, user_id, team_id, {_COUNTS}, cost_usd, unpriced"
    " FROM past_usage"
)


@operation
def _totals(
    by: str, version: str, filters: dict[str, str], since: str | None, until: str | None
) -> Generator[Statement, Rows, list[Totals]]:
    group = group_column(by)
    conditions, arguments = _conditions({GROUPS[name]: value for name, value in filters.items()}, since, until)
    rows = yield (
        f"SELECT {group}, {SUMS} FROM ({_REPRICED_USAGE}) AS ever WHERE {conditions} GROUP BY {group}",
        (version, *arguments),
    )
    return totals_from(rows)
