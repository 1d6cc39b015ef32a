"""Values that a store returns: sessions, rows, tool calls, hits, totals, receipts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, Self

import msgspec

from dragoman.message import Message, Usage

LOCAL_USER: Final = "local"  # the one person of this machine, whose is what is nobody's


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A stored conversation."""

    id: str  # sess_<ulid>
    title: str | None = None  # what people call it
    workspace_path: str = ""  # where its tools work
    active_model: str | None = None  # the model that a person chose for it
    routing_policy: dict[str, Any] | None = None  # how its models are chosen, where that is its own
    user_id: str | None = None  # whose it is, as a pseudonym
    team_id: str | None = None  # whose team's it is, as a pseudonym
    metadata: dict[str, Any] = {}  # anything else an application wants to keep with it
    parent_session_id: str | None = None  # the session that it was forked from
    parent_seq: int = 0  # up to which message it shares that one's history
    last_seq: int = 0  # the number of its newest message; 0 if it has none
    created_at: datetime
    updated_at: datetime  # when a message was last added or something about it changed
    schema_version: int = 1


class Owners(msgspec.Struct, frozen=True):
    """Whose sessions somebody may see: those of a user in one team, and perhaps those that are nobody's."""

    user_id: str
    team_id: str | None = None
    is_everywhere: bool = False  # whatever the team is, and those of no user as well

    @classmethod
    def of(cls, session: Session) -> Self:
        """Whose a session is."""
        if session.user_id in (None, LOCAL_USER):
            return cls(LOCAL_USER, is_everywhere=True)
        return cls(session.user_id, session.team_id)

    def condition(self, table: str) -> tuple[str, tuple[str | None, ...]]:
        """That a row of ``sessions`` is one of theirs: SQL, and its arguments."""
        if self.is_everywhere:
            return f"({table}.user_id = ? OR {table}.user_id IS NULL)", (self.user_id,)
        mine = f"({table}.user_id = ? AND {table}.team_id IS NOT DISTINCT FROM CAST(? AS text))"
        return mine, (self.user_id, self.team_id)


class Row(msgspec.Struct, frozen=True):
    """A message in its place."""

    seq: int  # 1, 2, 3, … without a gap
    message: Message


class EntryRow(msgspec.Struct, frozen=True):
    """A trace entry in its place."""

    seq: int  # 1, 2, 3, … without a gap
    agent_key: str | None  # whose it is, where it is of one agent
    entry: dict[str, Any]


ToolCallStatus = Literal["pending", "succeeded", "failed", "cancelled"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, and what became of it."""

    id: str  # the ToolUseBlock's
    session_id: str
    message_id: str  # the assistant message that made it
    seq: int  # that message's place
    result_message_id: str | None = None  # the tool message that answers it
    result_seq: int | None = None
    name: str
    status: ToolCallStatus
    provider: str | None = None  # who was asked
    provider_id: str | None = None  # what they call it
    created_at: datetime
    completed_at: datetime | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that fits a search."""

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
    """What a group of messages consumed and cost."""

    group: str | None  # the session, user, team, model, provider or day; None where there is none
    messages: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal  # of the messages that have a price
    unpriced: int = 0  # messages for which no price was known: what they cost is not in cost_usd

    @property
    def amount_usd(self) -> Decimal | None:
        """What the messages with a price cost; None if no message of the group has one."""
        return cost_or_none(self.cost_usd, self.unpriced, self.messages)


def cost_or_none(cost_usd: Decimal, unpriced: int, calls: int) -> Decimal | None:
    """Return a sum of costs, or None if none of the calls that it sums has a price."""
    return None if 0 < calls <= unpriced else cost_usd


def total_usd(totals: Iterable[Totals]) -> Decimal | None:
    """Return the cost of several groups together, or None if none of their messages has a price."""
    groups = list(totals)
    cost_usd = sum((one.cost_usd for one in groups), Decimal(0))
    return cost_or_none(cost_usd, sum(one.unpriced for one in groups), sum(one.messages for one in groups))


class PricedCall(msgspec.Struct, frozen=True):
    """An answer of a model, and what it was charged."""

    session_id: str
    seq: int
    model: str | None
    usage: Usage
    created_at: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run a turn in a session, for a while."""

    session_id: str
    owner: str
    expires_at: datetime


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, as it was written down."""

    id: str  # a ULID; events of a session have the order of their ids
    timestamp: datetime
    session_id: str  # "system" if it was in none
    turn_id: str | None = None
    parent_event_id: str | None = None  # because of which other event
    type: str
    actor: str  # user, agent, system, tool or worker
    sensitivity: str  # private, user_controlled, pseudonymous or aggregatable
    payload: Any  # a JSON object, without secrets


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """How good something was."""

    id: str  # evl_<ulid>
    team_id: str = ""  # who may see it besides those of its session; "" where there is no team
    session_id: str  # "system" if what was judged is of none
    turn_id: str | None = None  # what was judged
    message_id: str | None = None
    task_id: str | None = None
    agent_id: str | None = None  # who did it
    plan_id: str | None = None
    evaluator: str  # who judged
    model: str | None = None  # the model that answered
    score: float | None = None  # from 0 to 1
    success: bool | None = None  # whether it is good enough
    cost_usd: Decimal | None = None  # of what was judged
    duration_ms: float | None = None  # of what was judged
    notes: str | None = None  # without secrets
    fingerprint: dict[str, Any] | None = None  # what the turn looked like when it began: a routing.Fingerprint as JSON
    metrics: dict[str, float] | None = None  # what the task used, as reported: memory_usage_mb and so on
    created_at: datetime


class EvaluationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an agent or a model was judged, ever, and how well."""

    group: str
    count: int  # evaluations
    tasks: int  # different tasks among them
    with_success: int  # those that say whether it was good enough
    succeeded: int
    with_score: int
    score_sum: float
    cost_usd: Decimal
    last_at: datetime


DamageKind = Literal["corrupt", "lost", "mark", "usage"]  # a row, messages at the end, the mark, an impossible usage


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a store that is not as it was written."""

    session_id: str
    seq: int | None
    what: str
    is_as_written: bool = False  # unchanged, but impossible: a usage
    kind: DamageKind = "corrupt"


class UsageRepair(msgspec.Struct, frozen=True, kw_only=True):
    """A usage that was put right, or would be."""

    session_id: str  # "" of what deleted sessions have left in the totals
    seq: int | None
    message_id: str | None
    user_id: str | None  # who it was counted for
    team_id: str | None
    what: str  # what is wrong with it
    before: dict[str, Any]  # the usage as it was
    after: dict[str, Any]  # and as it is now, or would be


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at everything found."""

    sessions: int
    messages: int
    blobs: int
    damage: tuple[Damage, ...]
    marked: int | None = None  # sessions whose end was compared with the mark beside the file; none if there was none
    marked_since: datetime | None = None  # when that mark was begun: it knows nothing of what was lost before

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged, and nothing impossible is written."""
        return not self.damage

    @property
    def is_intact(self) -> bool:
        """Whether everything is as it was written."""
        return all(one.is_as_written for one in self.damage)


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased of one user, to be kept as evidence. It names nothing of what was said."""

    id: str
    user_id: str
    sessions: int
    messages: int
    tool_calls: int
    blobs: int
    forks_cut: int  # other people's sessions that had shared such messages
    erased_at: datetime
    attachments: int | None = None  # files that were deleted; none if nobody looked for any, or not all could be
    attachments_fault: str | None = None  # why some of them may be left
    copies_deleted: tuple[str, ...] = ()  # copies beside the database that a migration had made
    copies_left: tuple[str, ...] = ()  # files beside the database that may still hold what was erased


class SizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """How big a store is, and what of it."""

    engine: str
    sessions: int
    messages: int
    content_bytes: int  # of the texts that messages are kept as
    database_bytes: int
    blobs: int
    blob_bytes: int
    tables: dict[str, int]  # bytes of each table with its indexes, where the engine tells
