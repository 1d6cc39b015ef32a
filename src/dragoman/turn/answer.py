"""The answer to a question, whole or while it arrives.

answer = await agent.ask("What is a ULID?")            an ``Answer``; ``AnswerError`` if the turn fails
async for text in agent.stream("What is a ULID?"):     its text, as it arrives
stream.events(), await stream.answer()                 the events of the turn; the answer after its end
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

import msgspec

from dragoman.errors import AnswerError, InputError
from dragoman.event import TextDelta
from dragoman.exchange import StopReason
from dragoman.html_repr import answer_html
from dragoman.message import UNPRICED, Message, Role, TokenUsage, Usage
from dragoman.output_format import Output, OutputError
from dragoman.store import Row
from dragoman.turn.types import AnswerEnd, PendingCall, ToolResultEvent, TurnEnd, TurnEvent, TurnStart

T_co = TypeVar("T_co", covariant=True)

_COUNTS: Final = tuple(
    field.name for field in msgspec.structs.fields(TokenUsage) if field.name.endswith("_tokens")
)  # disjoint buckets and their parts, so each can be added up


class Answer(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """The answer to one question, with the usage and the cost of all calls that it took."""

    session_id: str  # the session that holds question and answer: pass it as ``session`` to continue
    message: Message  # the last message of the model
    messages: tuple[Message, ...]  # all answers and tool results of the turn, in order
    end: TurnEnd  # the end of the turn
    parsed: T_co  # the value, if the question has an ``output``; otherwise none

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.message.text

    @property
    def model(self) -> str:
        """The id of the model that answered."""
        return self.end.model

    @property
    def cost(self) -> Decimal | None:
        """The cost of all calls in USD; none if no call has a known price."""
        return self.end.cost_usd

    @property
    def usage(self) -> Usage:
        """The tokens, the cost and the latency of all calls."""
        usages = [message.metadata.usage for message in self.messages if message.metadata.usage is not None]
        counts = {name: sum(getattr(usage, name) for usage in usages) for name in _COUNTS}
        return Usage(
            **counts,
            estimated=any(usage.estimated for usage in usages),
            cost_usd=self.cost,
            pricing_version=usages[-1].pricing_version if usages else UNPRICED,
            latency_ms=sum(usage.latency_ms for usage in usages),
        )

    @property
    def stop_reason(self) -> StopReason:
        """Why the model stopped."""
        return self.end.stop_reason

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for you: pass their results as ``answers``, or ``approvals``, to the next ``ask``."""
        return self.end.pending

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return answer_html(self.messages, f"{self.model} · {self.cost if self.cost is not None else 'no price'}")


class AnswerStream(Generic[T_co]):
    """An answer while it arrives: iterate over it for the text, over ``events()`` for everything.

    It can be iterated once. Leaving the loop cancels the turn.
    """

    def __init__(
        self, events: AsyncGenerator[TurnEvent, None], output: Output[Any] | None, session_id: str = ""
    ) -> None:
        self._events = events
        self._output = output
        self._session_id = session_id
        self._messages: list[Message] = []
        self._end: TurnEnd | None = None

    async def events(self) -> AsyncIterator[TurnEvent]:
        """The events of the turn as they happen."""
        async with aclosing(self._events):
            async for event in self._events:
                self._record(event)
                yield event

    def _record(self, event: TurnEvent) -> None:
        match event:
            case TurnStart(question=Row(message=message)):
                self._session_id = message.session_id
            case AnswerEnd(row=row) | ToolResultEvent(row=row):
                self._messages.append(row.message)
            case TurnEnd():
                self._end = event

    async def __aiter__(self) -> AsyncIterator[str]:
        async for event in self.events():
            if isinstance(event, TextDelta):
                yield event.text
        await self.answer()  # raises the fault of the turn

    async def answer(self) -> Answer[T_co]:
        """The whole answer, after the rest has arrived. Raises ``AnswerError`` if the turn ended with a fault."""
        async for _ in self.events():
            pass
        if self._end is None:
            raise InputError("the loop over the answer was left before its end", remedy="Ask again")
        answers = [message for message in self._messages if message.role is Role.ASSISTANT]
        message = answers[-1] if answers else Message.assistant()  # without one, calls are still pending
        fields: dict[str, Any] = {
            "session_id": self._session_id,
            "message": message,
            "messages": tuple(self._messages),
            "end": self._end,
        }
        if self._end.fault is not None:
            raise AnswerError(self._end.fault, Answer(**fields, parsed=None))
        return Answer(**fields, parsed=self._parse(message.text))

    def _parse(self, text: str) -> Any:
        if self._output is None or (self._end is not None and self._end.pending):
            return None
        try:
            return self._output.parse(text)
        except OutputError:  # the turn has validated it
            return None
