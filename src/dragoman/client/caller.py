"""The client: asks, waits, asks again, and gives the answer out as it arrives.

A whole answer and a stream go the same way: try, and after a fault that may pass wait and try again. Sleep, clocks and
chance are arguments, so that tests need not wait. The one rule: once an event of a stream was given out, the call is
never made again; and the stream ends with exactly one ``MessageComplete`` or ``StreamError``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from dragoman.client.addresses import address_of, headers_of, wants_stream
from dragoman.client.broken import Broken, network_fault
from dragoman.client.call import Call, Journal, Limits
from dragoman.client.waiting import said_should_retry, wait_s, with_date_read
from dragoman.dialects.parts.faults import redacted
from dragoman.errors import InputError
from dragoman.event import MessageComplete, StreamError, StreamEvent
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason

if TYPE_CHECKING:
    from dragoman.client.transport import Answer, Transport

_AFTER_THE_END_S: Final = 2.0  # how long a server may take to close a stream that has ended
_REQUEST_IDS: Final = ("x-request-id", "request-id", "x-amzn-requestid", "x-goog-request-id")
_TELLING: Final = frozenset((*_REQUEST_IDS, "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms"))
_LIMITS: Final = ("x-ratelimit-", "anthropic-ratelimit-", "ratelimit-")


class Client:
    """Calls providers. One for each event loop; to be used with ``async with``, or closed with ``close``."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.limits = limits or Limits()
        self.sleep = sleep
        self.clock = clock
        self.now = now
        self.chance = chance
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. The client can be used again, and then begins anew."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def transport(self) -> Transport:
        """The pool of connections, which begins with the first call."""
        if self._transport is None:
            from dragoman.client.transport import Transport  # noqa: PLC0415  aiohttp is slow to load

            self._transport = Transport()
        return self._transport

    async def send(self, call: Call, journal: Journal | None = None) -> Reply:
        """A whole answer. One that failed is a reply too: its fault says why, after the last try."""
        attempts = _Attempts(self, call, journal or Journal(), streamed=False)
        while True:
            reply = await attempts.whole()
            if reply.fault is None or not await attempts.has_waited_after(reply.fault):
                return reply

    async def stream(self, call: Call, journal: Journal | None = None) -> AsyncGenerator[StreamEvent, None]:
        """The events of an answer as they arrive. Closing the iterator closes the connection."""
        attempts = _Attempts(self, call, journal or Journal(), streamed=True)
        while True:
            failed = None
            is_untouched = True
            async with aclosing(attempts.events()) as events:
                async for event in events:
                    if is_untouched and type(event) is StreamError:
                        failed = event
                        break
                    is_untouched = False
                    yield event
            if failed is None:
                return
            if not await attempts.has_waited_after(failed.fault):
                yield failed
                return


class _Attempts:
    """The tries of one call."""

    def __init__(self, client: Client, call: Call, journal: Journal, *, streamed: bool) -> None:
        provider = call.endpoint.provider
        if wants_stream(provider.dialect, call.wire) is (not streamed):
            raise ValueError(
                f"wire: written {'for a whole answer' if streamed else 'for a stream'}; see Options.stream"
            )
        self.client = client
        self.call = call
        self.journal = journal
        self.streamed = streamed
        self.address = address_of(call.endpoint, call.adapter.model.name, streamed=streamed)
        self.headers = headers_of(call.endpoint, streamed=streamed)
        self.body = msgspec.json.encode(call.wire)
        self.began = client.clock()
        self.should_retry: bool | None = None  # what the last answer said
        self._begin()

    def _begin(self) -> None:
        self.tried = self.client.clock()
        self.broken: Fault | None = None  # how the connection failed while the answer was read
        self.has_ended = False  # the answer has, and only the end of the stream is missing
        self.should_retry = None

    # --- a whole answer ----------------------------------------------------------------------------------------------

    async def whole(self) -> Reply:
        """One try."""
        reply = await self._whole()
        self._ended()
        if reply.fault is None:
            return reply
        return reply.replace(fault=self._known(reply.fault), provider_raw=self._without_key(reply.provider_raw))

    async def _whole(self) -> Reply:
        self._count()
        try:
            with await self._answer() as answer:
                self._note(answer)
                if not 200 <= answer.status < 300:
                    return _failed(await self._refusal(answer))
                return self._read(await self._all_of(answer))
        except Broken as error:
            return _failed(error.fault)

    def _read(self, data: bytes) -> Reply:
        if self.broken is not None:
            return _failed(self.broken)
        if not data.strip():
            return _failed(_server_fault("empty_response", "nothing came"))
        try:
            reply: Reply = self.call.adapter.dialect.read_reply(data)
        except InputError:
            raw = {"dialect": self.call.adapter.dialect.NAME, "head": redacted(data)}
            return _failed(_server_fault("bad_content_type", "what came is not an answer"), raw)
        return reply

    async def _all_of(self, answer: Answer) -> bytes:
        limit = self.client.limits.answer_bytes
        return b"".join([piece async for piece in self._pieces(answer, limit)])

    # --- a stream ----------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """One try: events, and at last how it ended."""
        self._count()
        end: StreamEvent | None = None
        try:
            with await self._answer() as answer:
                self._note(answer)
                if not 200 <= answer.status < 300:
                    end = StreamError(await self._refusal(answer))
                else:
                    pieces = self._pieces(answer, self.client.limits.stream_bytes)
                    async with aclosing(pieces), aclosing(self._translated(pieces)) as events:
                        async for event in events:
                            kind = type(event)
                            if kind is not MessageComplete and kind is not StreamError:
                                yield event
                                continue
                            end = event
                            self.has_ended = True
                            if kind is StreamError:
                                break
        except InputError as error:  # what a reader could not take; what it gave before stands
            end = StreamError(_server_fault("bad_event", error.what))
        except Broken as error:
            end = StreamError(error.fault)
        self._ended()
        yield self._last(end)

    def _translated(self, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[StreamEvent, None]:
        # A generator, though it is declared as an iterator.
        return cast("AsyncGenerator[StreamEvent, None]", self.call.adapter.stream_response(pieces, self.call.context))

    def _last(self, end: StreamEvent | None) -> StreamEvent:
        match end:
            case MessageComplete():
                return end
            case StreamError(fault, raw):
                fault = self.broken if self.broken and fault.code in _OF_AN_EARLY_END else fault
                return StreamError(self._known(fault), self._without_key(raw))
            case _:
                return StreamError(self._known(self.broken or _INCOMPLETE))

    # --- what both do ------------------------------------------------------------------------------------------------

    def _answer(self) -> Awaitable[Answer]:
        return self.client.transport().post(
            self.address,
            self.headers,
            self.body,
            connect_s=self.call.timeouts.connect_s,
            head_s=max(0.0, self._patience_s(0)),
        )

    async def _pieces(self, answer: Answer, limit: int) -> AsyncGenerator[bytes, None]:
        """What arrives, until it ends, breaks, falls silent or is too much; ``broken`` says which."""
        total = line = since_turn = 0  # bytes: of everything, of the last line so far, and since other tasks ran
        longest = self.client.limits.line_bytes if self.streamed else limit
        while True:
            patience_s = self._patience_s(total)
            try:
                piece = await answer.piece(patience_s) if patience_s > 0 else _raise_timeout()
            except TimeoutError:
                self.broken = network_fault(*self._what_took_too_long(total))
                return
            except Broken as error:
                self.broken = error.fault
                return
            if not piece:
                return
            if not total:
                self.journal.first_byte_ms = self._ms_since(self.tried)
            total += len(piece)
            end = piece.rfind(b"\n")
            line = line + len(piece) if end < 0 else len(piece) - end - 1
            if total > limit or line > longest:
                what = f"more than {limit} bytes came" if total > limit else f"a line has more than {longest} bytes"
                self.broken = Fault(code="too_large", message=what, error_class=ErrorClass.OTHER)
                if total <= limit and end >= 0:
                    yield piece[: end + 1]  # the events before it
                return
            since_turn += len(piece)
            if since_turn < _TURN_BYTES:
                yield piece
                continue
            since_turn = 0
            for at in range(0, len(piece), _TURN_BYTES):
                yield piece[at : at + _TURN_BYTES]
                await asyncio.sleep(0)

    def _patience_s(self, received: int) -> float:
        """How long the next piece may take."""
        timeouts = self.call.timeouts
        left_s = self.began + timeouts.whole_s - self.client.clock()
        if not self.streamed:
            return left_s
        if self.has_ended:
            return min(left_s, _AFTER_THE_END_S)
        if received:
            return min(left_s, timeouts.silence_s)
        return min(left_s, self.tried + timeouts.first_byte_s - self.client.clock())

    def _what_took_too_long(self, received: int) -> tuple[str, str]:
        if self.client.clock() - self.began >= self.call.timeouts.whole_s:
            return "timeout", f"the answer was not whole after {self.call.timeouts.whole_s:g} seconds"
        if received:
            return "stream_broken", f"nothing came for {self.call.timeouts.silence_s:g} seconds"
        return "timeout", f"the answer did not begin in {self.call.timeouts.first_byte_s:g} seconds"

    async def _refusal(self, answer: Answer) -> Fault:
        """What an answer says that is none."""
        data = b"".join([piece async for piece in self._pieces(answer, self.client.limits.error_bytes)])
        fault: Fault = self.call.adapter.dialect.read_error(answer.status, answer.headers, data)
        return with_date_read(fault, answer.headers, self.client.now())

    def _note(self, answer: Answer) -> None:
        journal = self.journal
        journal.status = answer.status
        told = {name: value for name, value in answer.headers.items() if name in _TELLING or name.startswith(_LIMITS)}
        journal.headers = told
        journal.request_id = next((told[name] for name in _REQUEST_IDS if name in told), None) if told else None
        self.should_retry = said_should_retry(answer.headers)

    def _count(self) -> None:
        self._begin()
        self.journal.attempts += 1

    def _ended(self) -> None:
        self.journal.latency_ms = self._ms_since(self.began)

    def _ms_since(self, then: float) -> int:
        return round((self.client.clock() - then) * 1000)

    def _known(self, fault: Fault) -> Fault:
        """The fault with what only we know: who failed, the name of the request; and without the key."""
        key = self.call.endpoint.key
        return fault.replace(
            provider=self.call.endpoint.provider.key,
            request_id=fault.request_id or self.journal.request_id,
            message=key.withheld_from(fault.message) if key else fault.message,
        )

    def _without_key(self, raw: dict[str, Any] | None) -> dict[str, Any] | None:
        key = self.call.endpoint.key
        if raw is None or key is None:
            return raw
        return {name: key.withheld_from(value) if isinstance(value, str) else value for name, value in raw.items()}

    async def has_waited_after(self, fault: Fault) -> bool:
        """Whether there is to be another try; if so, its time has come."""
        call, client = self.call, self.client
        delay_s = wait_s(fault, self.journal.retry_count, call.retries, client.chance(), is_worth=self.should_retry)
        if delay_s is None or client.clock() + delay_s >= self.began + call.timeouts.whole_s:
            return False
        self.journal.retries.append((fault, delay_s))
        if call.on_retry is not None:
            call.on_retry(fault, delay_s)
        await client.sleep(delay_s)
        return True


_TURN_BYTES: Final = 32 * 1024  # of a stream that are read before other tasks run, although more may be there already
_OF_AN_EARLY_END: Final = ("stream_incomplete", "empty_response", "bad_content_type")
_INCOMPLETE: Final = Fault(
    code="stream_incomplete",
    message="the stream ended before the message did",
    error_class=ErrorClass.NETWORK,
    retryable=True,
)


def _failed(fault: Fault, raw: dict[str, Any] | None = None) -> Reply:
    return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)


def _server_fault(code: str, message: str) -> Fault:
    return Fault(code=code, message=message, error_class=ErrorClass.SERVER_ERROR, retryable=True)


def _raise_timeout() -> bytes:
    raise TimeoutError
