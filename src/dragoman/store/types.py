"""Values that a store returns: sessions, rows, tool calls, hits, totals, receipts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, Self

import msgspec

from dragoman.message import Message, Usage

LOCAL_USER: Final = "local"  # the user of this machine, who owns sessions without a user


SESSION_VERSION: Final = 1  # of the columns of a session


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A stored conversation."""

    id: str  # sess_<ulid>
    title: str | None = None  # shown to people
    workspace_path: str = ""  # where its tools work
    active_model: str | None = None  # chosen by a person
    routing_policy: dict[str, Any] | None = None  # its own policy, if any
    user_id: str | None = None  # a pseudonym
    team_id: str | None = None  # a pseudonym
    metadata: dict[str, Any] = {}  # of the application
    parent_session_id: str | None = None  # the session that it was forked from
    parent_seq: int = 0  # the last message that it shares with its parent
    last_seq: int = 0  # seq of its newest message; 0 if it has none
    created_at: datetime
    updated_at: datetime  # time of the last change
    schema_version: int = SESSION_VERSION


class Owners(msgspec.Struct, frozen=True):
    """A selection of sessions by owner: those of a user in one team, or all of a local user."""

    user_id: str
    team_id: str | None = None
    is_everywhere: bool = False  # of any team, and those without a user

    @classmethod
    def of(cls, session: Session) -> Self:
        """Return the owners of a session."""
        if session.user_id in (None, LOCAL_USER):
            return cls(LOCAL_USER, is_everywhere=True)
        return cls(session.user_id, session.team_id)

    def condition(self, table: str) -> tuple[str, tuple[str | None, ...]]:
        """Return the SQL condition of a row of ``sessions``, and its arguments."""
        if self.is_everywhere:
            return f"({table}.user_id = ? OR {table}.user_id IS NULL)", (self.user_id,)
        mine = f"({table}.user_id = ? AND {table}.team_id IS NOT DISTINCT FROM CAST(? AS text))"
        return mine, (self.user_id, self.team_id)


class Row(msgspec.Struct, frozen=True):
    """A message with its seq."""

    seq: int  # 1, 2, 3, … without a gap
    message: Message


class EntryRow(msgspec.Struct, frozen=True):
    """A trace entry with its seq."""

    seq: int  # 1, 2, 3, … without a gap
    agent_key: str | None  # its agent, if any
    entry: dict[str, Any]


ToolCallStatus = Literal["pending", "succeeded", "failed", "cancelled"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call and its status."""

    id: str  # of its ToolUseBlock
    session_id: str
    message_id: str  # the assistant message that made it
    seq: int  # of that message
    result_message_id: str | None = None  # the tool message that answers it
    result_seq: int | None = None
    name: str
    status: ToolCallStatus
    provider: str | None = None  # of the model
    provider_id: str | None = None  # the provider's id
    created_at: datetime
    completed_at: datetime | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that matches a search."""

    session_id: str
    seq: int
    message_id: str
    role: str
    score: float  # the higher the better, comparable within one search
    snippet: str  # the words around the first match
    highlights: tuple[tuple[int, int], ...]  # where in the snippet the matches are: from, to
    created_at: datetime


TotalsBy = Literal["session", "user", "team", "model", "provider", "day"]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Usage and cost of a group of messages."""

    group: str | None  # the session, user, team, model, provider or day, if any
    messages: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal  # of the messages that have a price
    unpriced: int = 0  # messages without a price, which cost_usd does not include

    @property
    def amount_usd(self) -> Decimal | None:
        """The cost of the messages with a price; None if no message of the group has one."""
        return cost_or_none(self.cost_usd, self.unpriced, self.messages)


def cost_or_none(cost_usd: Decimal, unpriced: int, calls: int) -> Decimal | None:
    """Return a sum of costs, or None if none of the calls that it sums has a price."""
    return None if 0 < calls <= unpriced else cost_usd


def total_usd(totals: Iterable[Totals]) -> Decimal | None:
    """Return the cost of several groups together, or None if none of their messages has a price."""
    groups = list(totals)
    cost_usd = sum((group.cost_usd for group in groups), Decimal(0))
    return cost_or_none(cost_usd, sum(group.unpriced for group in groups), sum(group.messages for group in groups))


class PricedCall(msgspec.Struct, frozen=True):
    """An answer of a model, with its usage and cost."""

    session_id: str
    seq: int
    model: str | None
    usage: Usage
    created_at: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a session."""

    session_id: str
    owner: str
    expires_at: datetime


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event."""

    id: str  # a ULID; events of a session have the order of their ids
    timestamp: datetime
    session_id: str  # "system" for none
    turn_id: str | None = None
    parent_event_id: str | None = None  # its cause
    type: str
    actor: str  # user, agent, system, tool or worker
    sensitivity: str  # private, user_controlled, pseudonymous or aggregatable
    payload: Any  # a JSON object, without secrets


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A rating of a turn, a message or a task."""

    id: str  # evl_<ulid>
    team_id: str = ""  # "" for none
    session_id: str  # "system" for none
    turn_id: str | None = None  # the subject
    message_id: str | None = None
    task_id: str | None = None
    agent_id: str | None = None  # that did the work
    plan_id: str | None = None
    evaluator: str  # a user or a program
    model: str | None = None  # the model that answered
    score: float | None = None  # from 0 to 1
    success: bool | None = None  # whether it is good enough
    cost_usd: Decimal | None = None  # of the subject
    duration_ms: float | None = None  # of the subject
    notes: str | None = None  # without secrets
    fingerprint: dict[str, Any] | None = None  # a routing.Fingerprint as JSON
    metrics: dict[str, float] | None = None  # as reported: memory_usage_mb and so on
    created_at: datetime


class EvaluationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and sums of all evaluations of an agent or a model."""

    group: str
    count: int  # evaluations
    tasks: int  # different tasks among them
    with_success: int  # evaluations with a success
    succeeded: int
    with_score: int
    score_sum: float
    cost_usd: Decimal
    last_at: datetime


DamageKind = Literal["corrupt", "lost", "mark", "usage"]  # a row, messages at the end, the mark, an impossible usage


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that ``verify`` found."""

    session_id: str
    seq: int | None
    what: str
    is_as_written: bool = False  # unchanged, but impossible: a usage
    kind: DamageKind = "corrupt"


class UsageRepair(msgspec.Struct, frozen=True, kw_only=True):
    """A repaired usage, or one to repair."""

    session_id: str  # "" for the totals of deleted sessions
    seq: int | None
    message_id: str | None
    user_id: str | None  # whose usage it was
    team_id: str | None
    what: str  # the problem
    before: dict[str, Any]  # the old usage
    after: dict[str, Any]  # the new usage


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``verify``."""

    sessions: int
    messages: int
    blobs: int
    damage: tuple[Damage, ...]
    marked: int | None = None  # sessions compared with the mark beside the file; None without a mark
    marked_since: datetime | None = None  # the mark detects no loss before this time

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage at all."""
        return not self.damage

    @property
    def is_intact(self) -> bool:
        """Whether everything is as it was written; an impossible usage may be."""
        return all(row.is_as_written for row in self.damage)


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of the erasure of a user, without any content."""

    id: str
    user_id: str
    sessions: int
    messages: int
    tool_calls: int
    blobs: int
    forks_cut: int  # sessions of others that shared such messages
    erased_at: datetime
    attachments: int | None = None  # deleted files; None if none were looked for, or some could not be deleted
    attachments_fault: str | None = None  # why some may remain
    copies_deleted: tuple[str, ...] = ()  # copies of a migration beside the database
    copies_left: tuple[str, ...] = ()  # files beside the database that may contain erased data


class SizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a store and of its tables."""

    engine: str
    sessions: int
    messages: int
    content_bytes: int  # of the JSON of messages
    database_bytes: int
    blobs: int
    blob_bytes: int
    tables: dict[str, int]  # bytes of each table with its indexes
