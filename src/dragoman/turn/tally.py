"""What a turn has used so far: calls, tokens, money, time. The one rule: what was charged counts, also if it failed."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from time import perf_counter

from dragoman.exchange import Fault, StopReason
from dragoman.message import Usage
from dragoman.turn.types import PendingCall, TurnEnd


class TurnUsage:
    """The counts of one turn."""

    def __init__(self, turn_id: str, clock: Callable[[], float] = perf_counter) -> None:
        self.turn_id = turn_id
        self.model = ""
        self.llm_calls = 0
        self.tool_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: Decimal | None = None  # of the calls that have a price; none if there was no such call
        self.unpriced_calls = 0
        self._clock = clock
        self._started_at = clock()
        self.end: TurnEnd | None = None

    def add(self, usage: Usage) -> None:
        """Count what one call consumed."""
        self.input_tokens += usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        self.output_tokens += usage.output_tokens
        if usage.amount_usd is None:
            self.unpriced_calls += 1
        else:
            self.cost_usd = (self.cost_usd or Decimal(0)) + usage.amount_usd

    @property
    def known_cost_usd(self) -> Decimal | None:
        """What the calls with a price cost: 0 before the first call, and none if no call has one."""
        return self.cost_usd if self.cost_usd is not None or self.unpriced_calls else Decimal(0)

    @property
    def wall_time_s(self) -> float:
        """Since the turn began."""
        return self._clock() - self._started_at

    def make_end(
        self, stop_reason: StopReason, fault: Fault | None = None, pending: tuple[PendingCall, ...] = ()
    ) -> TurnEnd:
        """The last thing that is told of a turn."""
        self.end = TurnEnd(
            turn_id=self.turn_id,
            stop_reason=stop_reason,
            model=self.model,
            llm_calls=self.llm_calls,
            tool_calls=self.tool_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_usd=self.known_cost_usd,
            unpriced_calls=self.unpriced_calls,
            wall_time_s=self.wall_time_s,
            fault=fault,
            pending=pending,
        )
        return self.end
