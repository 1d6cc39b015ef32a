"""What a turn has used so far: calls, tokens, money, time. The one rule: what was charged counts, also if it failed."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from time import perf_counter

from dragoman.exchange import Fault, StopReason
from dragoman.message import Usage
from dragoman.turn.values import Pending, TurnEnded


class Tally:
    """The counts of one turn."""

    def __init__(self, turn_id: str, seconds: Callable[[], float] = perf_counter) -> None:
        self.turn_id = turn_id
        self.model = ""
        self.llm_calls = 0
        self.tool_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd = Decimal(0)
        self._seconds = seconds
        self._began = seconds()
        self.over: TurnEnded | None = None

    def add(self, usage: Usage) -> None:
        """Count what one call consumed."""
        self.input_tokens += usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        self.output_tokens += usage.output_tokens
        self.cost_usd += usage.cost_usd

    @property
    def wall_time_s(self) -> float:
        """Since the turn began."""
        return self._seconds() - self._began

    def ended(
        self, stop_reason: StopReason, fault: Fault | None = None, pending: tuple[Pending, ...] = ()
    ) -> TurnEnded:
        """The last thing that is told of a turn."""
        self.over = TurnEnded(
            turn_id=self.turn_id,
            stop_reason=stop_reason,
            model=self.model,
            llm_calls=self.llm_calls,
            tool_calls=self.tool_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_usd=self.cost_usd,
            wall_time_s=self.wall_time_s,
            fault=fault,
            pending=pending,
        )
        return self.over
