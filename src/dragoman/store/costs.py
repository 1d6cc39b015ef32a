"""Usage and cost of messages by group, also under other prices.

    await store.costs.totals("model", since="2026-11-01")          by model, session, user, team, provider or day
    async for call in store.costs.calls(since="2026-11-01"):       every answer with a usage, as it was charged
    await store.costs.add_call(usage, model="…", provider="…")     the usage of a call that no message records
    await store.costs.save_repricing(version, amounts)             what answers cost under another version of prices
    await store.costs.totals("day", version=version)               the totals with those amounts
    await store.costs.find_session("openai:gpt-5", max_seq=50)     a session in which the model answered
    await store.costs.repair(dry_run=True)                         usages that are impossible

Invariants: the usage of a deleted session stays in the totals, without the session. An impossible figure adds nothing
(``message.usage_problems``), so that one row cannot spoil a sum; ``verify`` reports it. No sum overflows. A repricing
never changes the cost that a message records; it is stored beside it, under its version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from dragoman.errors import InputError
from dragoman.message import MAX_TOKENS, Usage
from dragoman.store.operation import UNKNOWN_TIME, Facet, Statement, Steps, from_micros, operation, to_micros
from dragoman.store.types import Owners, PricedCall, Totals, TotalsBy, UsageRepair

Origin = tuple[str | None, str | None, str | None, str | None]  # model, provider, user and team
_PAGE: Final = 500
_RECENT: Final = 200  # answers among which a session is searched
_NO_DAY: Final = UNKNOWN_TIME.date().isoformat()  # of messages without a time
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
_GROUP_COLUMNS: Final = f"day, model, provider, user_id, team_id, {', '.join(COUNTS)}"
_PAST_USAGE: Final = f" UNION ALL SELECT NULL, messages, {_GROUP_COLUMNS}, cost_usd, unpriced FROM past_usage"
_USAGE: Final = f"SELECT session_id, 1 AS messages, {_GROUP_COLUMNS}, cost_usd, unpriced FROM usage{_PAST_USAGE}"
_REPRICED_USAGE: Final = (
    f"SELECT u.session_id AS session_id, 1 AS messages, {_GROUP_COLUMNS}, coalesce(r.cost_usd, u.cost_usd) AS cost_usd,"
    " CASE WHEN r.cost_usd IS NULL THEN u.unpriced ELSE 0 END AS unpriced FROM usage AS u LEFT JOIN repricings AS r"
    f" ON r.session_id = u.session_id AND r.seq = u.seq AND r.pricing_version = ?{_PAST_USAGE}"
)
_BITS: Final = 32
_LOW: Final = (1 << _BITS) - 1


def group_column(by: str) -> str:
    """Return the column that totals are grouped by."""
    if by not in GROUPS:
        raise InputError(f"totals have no group {by!r}", remedy=f"Group by one of {', '.join(GROUPS)}")
    return GROUPS[by]


def possible_count_sql(name: str, messages: str) -> str:
    """SQL for a token count of a row with this number of messages; 0 if the count is impossible."""
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
    # Sorted here, because the engines order text differently.
    return sorted(groups, key=lambda totals: (totals.group is not None, totals.group or ""))


class CostStore(Facet):
    """Usage and costs of a store: ``store.costs``."""

    async def find_session(self, model: str, *, max_seq: int) -> str | None:
        """Return a recent session in which the model answered within its first messages, if there is one."""
        return await self._store._read(_find_session(model, max_seq))

    async def totals(
        self,
        by: TotalsBy = "model",
        *,
        session: str | None = None,
        user: str | None = None,
        team: str | None = None,
        model: str | None = None,
        owners: Owners | None = None,
        since: str | None = None,
        until: str | None = None,
        version: str | None = None,
    ) -> list[Totals]:
        """Return usage and costs by group. Days are in UTC, as 2026-11-15; ``until`` is the first day not counted.

        The group of messages without a time is ``None``.

        With ``version``, calls that were repriced under that version of prices count with that amount.
        """
        filters = {"session_id": session, "user_id": user, "team_id": team, "model": model}
        return await self._store._read(_totals(by, filters, since, until, owners=owners, version=version))

    async def calls(
        self,
        *,
        session: str | None = None,
        model: str | None = None,
        since: str | None = None,
        until: str | None = None,
        after_seq: int = 0,
        owners: Owners | None = None,
    ) -> AsyncIterator[PricedCall]:
        """Yield every answer that has a usage, by session and seq, without those of deleted sessions.

        ``after_seq`` is for one session: it skips the messages up to that seq.
        """
        after = (session or "", after_seq)
        filters = {"u.session_id": session, "u.model": model}
        while page := await self._store._read(_read_calls(after, filters, since, until, owners)):
            for call in page:
                yield call
            after = (page[-1].session_id, page[-1].seq)

    async def add_call(
        self, usage: Usage, *, model: str, provider: str, user_id: str | None = None, team_id: str | None = None
    ) -> None:
        """Count a call that belongs to no message, such as the title of a session. Its session is ``None``."""
        day = self._store.clock().astimezone(UTC).date().isoformat()
        await self._store._write(_add_call(self._store.new_id(), day, usage, (model, provider, user_id, team_id)))

    async def save_repricing(self, version: str, amounts: Iterable[tuple[str, int, Decimal]]) -> int:
        """Store what calls cost under a version of prices, as session, seq and amount; return their number."""
        items = list(amounts)
        now = self._store.clock()
        for start in range(0, len(items), _PAGE):
            await self._store._write(_insert_repricings(version, items[start : start + _PAGE], now))
        return len(items)

    async def versions(self) -> list[str]:
        """Return the versions of prices that have stored repricings."""
        return await self._store._read(_list_versions())

    async def repair(
        self, session_id: str | None = None, seq: int | None = None, *, dry_run: bool = False
    ) -> list[UsageRepair]:
        """Repair impossible usages, in one session or everywhere, and return them; ``dry_run`` changes nothing.

        Impossible counts become 0, and the cost unknown. With ``seq``, the usage of that message is removed even
        if it is possible, and counts for the session's own user. Each repair is an audit event.
        """
        from dragoman.store.usage_repair import repair_usage  # noqa: PLC0415  rarely used

        return await repair_usage(self._store, session_id, seq, dry_run=dry_run)


@operation
def _find_session(model: str, max_seq: int) -> Steps[str | None]:
    rows = yield (
        "SELECT session_id FROM (SELECT session_id, seq, model FROM usage ORDER BY session_id DESC, seq DESC LIMIT ?)"
        " AS recent WHERE model = ? AND seq <= ? ORDER BY session_id DESC LIMIT 1",
        (_RECENT, model, max_seq),
    )
    return str(rows[0][0]) if rows else None


@operation
def _add_call(row_id: str, day: str, usage: Usage, origin: Origin) -> Steps[None]:
    counts = [1, *(getattr(usage, name) for name in COUNTS), int(usage.amount_usd is None)]
    yield insert_past_usage(row_id, day, origin, counts, usage.amount_usd or Decimal(0))


def insert_past_usage(row_id: str, day: str, origin: Origin, counts: Iterable[int], cost_usd: Decimal) -> Statement:
    """Insert usage without a session. ``counts`` are the messages, ``COUNTS``, and the messages without a price."""
    return (
        f"INSERT INTO past_usage (id, day, model, provider, user_id, team_id, messages, {', '.join(COUNTS)}, unpriced,"
        " cost_usd) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row_id, day, *origin, *counts, str(cost_usd)),
    )


def _conditions(filters: dict[str, str | None], since: str | None, until: str | None) -> tuple[list[str], list[Any]]:
    values = {f"{column} = ?": value for column, value in filters.items()} | {"day >= ?": since, "day < ?": until}
    conditions = {condition: value for condition, value in values.items() if value is not None}
    return ["1 = 1", *conditions], list(conditions.values())


@operation
def _totals(
    by: str,
    filters: dict[str, str | None],
    since: str | None,
    until: str | None,
    *,
    owners: Owners | None,
    version: str | None,
) -> Steps[list[Totals]]:
    group = group_column(by)
    conditions, arguments = _conditions(filters, since, until)
    if owners is not None:
        owner_sql, owner_arguments = owners.condition("counted")
        conditions.append(owner_sql)
        arguments.extend(owner_arguments)
    usage, versions = (_USAGE, []) if version is None else (_REPRICED_USAGE, [version])
    rows = yield (
        f"SELECT {group}, {SUMS} FROM ({usage}) AS counted WHERE {' AND '.join(conditions)} GROUP BY {group}",
        (*versions, *arguments),
    )
    if by == "day":
        rows = [(None if row[0] == _NO_DAY else row[0], *row[1:]) for row in rows]
    return totals_from(rows)


@operation
def _read_calls(
    after: tuple[str, int],
    filters: dict[str, str | None],
    since: str | None,
    until: str | None,
    owners: Owners | None,
) -> Steps[list[PricedCall]]:
    conditions, arguments = _conditions(filters, since, until)
    if owners is not None:
        owner_sql, owner_arguments = owners.condition("u")
        conditions.append(owner_sql)
        arguments.extend(owner_arguments)
    rows = yield (
        "SELECT u.session_id, u.seq, u.model, m.metadata_json, m.created_at FROM usage AS u"
        " JOIN messages AS m ON m.session_id = u.session_id AND m.seq = u.seq"
        f" WHERE (u.session_id, u.seq) > (?, ?) AND {' AND '.join(conditions)}"
        f" ORDER BY u.session_id, u.seq LIMIT {_PAGE}",
        (*after, *arguments),
    )
    return [
        PricedCall(session_id, seq, model, usage, from_micros(created_at))
        for session_id, seq, model, metadata_json, created_at in rows
        if (usage := usage_from(msgspec.json.decode(metadata_json))) is not None
    ]


def usage_from(metadata: dict[str, Any]) -> Usage | None:
    """Return the usage in the metadata of a message, without the fields of a newer version."""
    fields = metadata.get("usage")
    if fields is None:
        return None
    return msgspec.convert({name: fields[name] for name in fields if name in Usage.__struct_fields__}, Usage)


@operation
def _insert_repricings(version: str, amounts: Sequence[tuple[str, int, Decimal]], now: datetime) -> Steps[None]:
    for session_id, seq, cost in amounts:
        yield (
            "INSERT INTO repricings (session_id, seq, pricing_version, cost_usd, repriced_at)"
            " SELECT session_id, seq, ?, ?, ? FROM usage WHERE session_id = ? AND seq = ?"  # unless it was deleted
            " ON CONFLICT (session_id, seq, pricing_version)"
            " DO UPDATE SET cost_usd = excluded.cost_usd, repriced_at = excluded.repriced_at",
            (version, str(cost), to_micros(now), session_id, seq),
        )


@operation
def _list_versions() -> Steps[list[str]]:
    rows = yield "SELECT DISTINCT pricing_version FROM repricings ORDER BY pricing_version", ()
    return [row[0] for row in rows]
