"""The client: sends a call, retries it, and returns the reply or its events.

A complete reply and a stream use the same steps: an attempt, and after a transient fault a delay and another attempt.
Sleep, clocks and random values are arguments, so that tests need not wait.

Invariant: after the first event of a stream was returned, the call is not retried.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from dragoman.client.call import (
    Call,
    CallLog,
    Limits,
    NetworkError,
    build_headers,
    build_url,
    is_stream_request,
    network_fault,
)
from dragoman.client.retry import resolve_retry_date, retry_delay_s, retry_hint
from dragoman.errors import InputError
from dragoman.event import MessageComplete, StreamError, StreamEvent, TextDelta, ThinkingDelta
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.wire.faults import redact

if TYPE_CHECKING:
    from dragoman.client.transport import Response, Transport
    from dragoman.settings import Endpoint

_CLOSE_TIMEOUT_S: Final = 2.0  # for the server to close a stream that has ended
_FIRST_PAUSE_S: Final = 0.005  # between reads of a stream that is gathered; doubles with each
_YIELD_BYTES: Final = 32 * 1024  # bytes of a stream that are read before other tasks run
_MAX_CACHED_HEADERS: Final = 256
_REQUEST_IDS: Final = ("x-request-id", "request-id", "x-amzn-requestid", "x-goog-request-id")
_LOG_HEADERS: Final = frozenset(
    (*_REQUEST_IDS, "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms")
)
_RATE_LIMIT_PREFIXES: Final = ("x-ratelimit-", "anthropic-ratelimit-", "ratelimit-")
_EARLY_END_CODES: Final = ("stream_incomplete", "empty_response", "bad_content_type")
_TEXTS: Final = (TextDelta, ThinkingDelta)
_INCOMPLETE: Final = Fault(
    code="stream_incomplete",
    message="the stream ended before the message did",
    error_class=ErrorClass.NETWORK,
    retryable=True,
)


class Client:
    """Calls providers. Use one per event loop, with ``async with`` or ``close``."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        random_source: Callable[[], float] = random.random,
    ) -> None:
        self.limits = limits or Limits()
        self.sleep = sleep
        self.clock = clock
        self.now = now
        self.random_source = random_source
        self._transport: Transport | None = None
        self._headers: dict[tuple[int, bool], tuple[Endpoint, dict[str, str]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. The next call opens new ones."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def transport(self) -> Transport:
        """Return the connection pool, which is created for the first call."""
        if self._transport is None:
            from dragoman.client.transport import Transport  # noqa: PLC0415  aiohttp is slow to import

            self._transport = Transport()
        return self._transport

    def headers_for(self, endpoint: Endpoint, *, stream: bool) -> dict[str, str]:
        """Return the headers of a request, cached per endpoint."""
        key = (id(endpoint), stream)
        cached = self._headers.get(key)
        if cached is not None and cached[0] is endpoint:
            return cached[1]
        if len(self._headers) >= _MAX_CACHED_HEADERS:
            self._headers.clear()
        headers = build_headers(endpoint, stream=stream)
        self._headers[key] = endpoint, headers
        return headers

    async def send(self, call: Call, call_log: CallLog | None = None) -> Reply:
        """Return a complete reply. After the last failed attempt the reply contains the fault."""
        attempts = _Attempts(self, call, call_log or CallLog(), stream=False)
        while True:
            reply = await attempts.fetch()
            if reply.fault is None or not await attempts.wait_before_retry(reply.fault):
                return reply

    async def stream(self, call: Call, call_log: CallLog | None = None) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a reply as they arrive. Closing the iterator closes the connection."""
        async with aclosing(self.stream_batches(call, call_log)) as batches:
            async for events in batches:
                for event in events:
                    yield event

    async def stream_batches(
        self, call: Call, call_log: CallLog | None = None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Yield the events of a reply as they arrive, those of one read as one list."""
        attempts = _Attempts(self, call, call_log or CallLog(), stream=True)
        while True:
            error_event = None
            is_first = True
            async with aclosing(attempts.batches()) as batches:
                async for events in batches:
                    if is_first and type(events[0]) is StreamError:
                        error_event = events[0]
                        break
                    is_first = False
                    yield events
            if error_event is None:
                return
            if not await attempts.wait_before_retry(error_event.fault):
                yield [error_event]
                return


class _Attempts:
    """The attempts of one call."""

    def __init__(self, client: Client, call: Call, call_log: CallLog, *, stream: bool) -> None:
        provider = call.endpoint.provider
        if is_stream_request(provider.dialect, call.wire) is (not stream):
            raise ValueError(
                f"wire: written {'for a complete reply' if stream else 'for a stream'}; see Options.stream"
            )
        self.client = client
        self.call = call
        self.call_log = call_log
        self.stream = stream
        self.url = build_url(call.endpoint, call.adapter.model.name, stream=stream)
        self.headers = client.headers_for(call.endpoint, stream=stream)
        self.body = msgspec.json.encode(call.wire)
        self.started_at = client.clock()
        self.attempt_at = self.started_at
        self.read_fault: Fault | None = None  # failure of the connection while the response was read
        self.has_ended = False  # the message is complete, only the end of the stream is missing
        self.pause_s = 0.0  # before the next read
        self.response_headers: Mapping[str, str] = {}

    def _start_attempt(self) -> None:
        self.attempt_at = self.client.clock()
        self.read_fault = None
        self.has_ended = False
        self.pause_s = 0.0
        self.response_headers = {}
        self.call_log.attempts += 1

    # --- a complete reply --------------------------------------------------------------------------------------------

    async def fetch(self) -> Reply:
        """Make one attempt."""
        reply = await self._fetch()
        self._record_latency()
        if reply.fault is None:
            return reply
        fault = self._complete_fault(reply.fault)
        return reply.replace(fault=fault, provider_raw=self._mask_key(reply.provider_raw))

    async def _fetch(self) -> Reply:
        self._start_attempt()
        try:
            with await self._post() as response:
                self._record_response(response)
                if not 200 <= response.status < 300:
                    return _error_reply(await self._read_error(response))
                return self._parse_reply(await self._read_body(response, self.client.limits.answer_bytes))
        except NetworkError as error:
            return _error_reply(error.fault)

    def _parse_reply(self, data: bytes) -> Reply:
        if self.read_fault is not None:
            return _error_reply(self.read_fault)
        if not data.strip():
            return _error_reply(_server_fault("empty_response", "the response is empty"))
        try:
            reply: Reply = self.call.adapter.dialect.read_reply(data)
        except InputError:
            raw = {"dialect": self.call.adapter.dialect.NAME, "head": redact(data)}
            return _error_reply(_server_fault("bad_content_type", "the response is not a reply"), raw)
        return reply

    # --- a stream ----------------------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[list[StreamEvent], None]:
        """Make one attempt: yield its events, the last one is ``MessageComplete`` or ``StreamError``."""
        self._start_attempt()
        end: StreamEvent | None = None
        try:
            with await self._post() as response:
                self._record_response(response)
                if not 200 <= response.status < 300:
                    end = StreamError(await self._read_error(response))
                else:
                    decoder = self.call.adapter.stream_decoder(self.call.context, joins_deltas=True)
                    async with aclosing(self._read_chunks(response, self.client.limits.stream_bytes)) as chunks:
                        chunk: bytes | None = b""
                        while chunk is not None and type(end) is not StreamError:
                            chunk = await anext(chunks, None)
                            events = decoder.close() if chunk is None else decoder.feed(chunk)
                            end = self._pop_end(events) or end
                            self._adjust_pause(events)
                            if events:
                                yield events
        except InputError as error:  # raised by the stream reader; the events before it are valid
            end = StreamError(_server_fault("bad_event", error.what))
        except NetworkError as error:
            end = StreamError(error.fault)
        self._record_latency()
        yield [self._final_event(end)]

    def _pop_end(self, events: list[StreamEvent]) -> StreamEvent | None:
        """Remove the end of the message from a list of events; events after a failure are dropped."""
        end: StreamEvent | None = None
        for index, event in enumerate(events):
            if type(event) is MessageComplete or type(event) is StreamError:
                end = event
            if type(event) is StreamError:
                del events[index:]
                break
        if end is not None:
            self.has_ended = True
            events[:] = [event for event in events if type(event) is not MessageComplete]
        return end

    def _adjust_pause(self, events: list[StreamEvent]) -> None:
        """Read at growing intervals, up to ``gather_s``, from the first text on to the end of the message."""
        if self.has_ended:
            self.pause_s = 0.0
        elif self.pause_s or any(isinstance(event, _TEXTS) for event in events):
            self.pause_s = min(self.pause_s * 2 or _FIRST_PAUSE_S, self.call.gather_s)

    def _final_event(self, end: StreamEvent | None) -> StreamEvent:
        match end:
            case MessageComplete():
                return end
            case StreamError(fault, raw):
                fault = self.read_fault if self.read_fault and fault.code in _EARLY_END_CODES else fault
                return StreamError(self._complete_fault(fault), self._mask_key(raw))
            case _:
                return StreamError(self._complete_fault(self.read_fault or _INCOMPLETE))

    # --- both --------------------------------------------------------------------------------------------------------

    def _post(self) -> Awaitable[Response]:
        return self.client.transport().post(
            self.url,
            self.headers,
            self.body,
            connect_s=self.call.timeouts.connect_s,
            head_s=max(0.0, self._timeout_s(0)),
        )

    async def _read_body(self, response: Response, limit: int) -> bytes:
        return b"".join([chunk async for chunk in self._read_chunks(response, limit)])

    async def _read_chunks(self, response: Response, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body. If it breaks, times out or exceeds a limit, ``read_fault`` contains the cause."""
        total = line = since_yield = 0  # bytes in total, of the current line, and since other tasks ran
        longest = self.client.limits.line_bytes if self.stream else limit
        while True:
            if self.pause_s:
                await response.pause(self.pause_s)
            timeout_s = self._timeout_s(total)
            try:
                chunk = await response.read_chunk(timeout_s) if timeout_s > 0 else _raise_timeout()
            except TimeoutError:
                self.read_fault = network_fault(*self._describe_timeout(total))
                return
            except NetworkError as error:
                self.read_fault = error.fault
                return
            if not chunk:
                return
            if not total and self.stream:
                self.call_log.first_byte_ms = self._ms_since(self.attempt_at)
            total += len(chunk)
            end = chunk.rfind(b"\n")
            line = line + len(chunk) if end < 0 else len(chunk) - end - 1
            if total > limit or line > longest:
                excess = f"response of more than {limit}" if total > limit else f"line of more than {longest}"
                self.read_fault = Fault(code="too_large", message=f"{excess} bytes", error_class=ErrorClass.OTHER)
                if total <= limit and end >= 0:
                    yield chunk[: end + 1]  # the events before the line
                return
            since_yield += len(chunk)
            if since_yield < _YIELD_BYTES:
                yield chunk
                continue
            since_yield = 0
            for start in range(0, len(chunk), _YIELD_BYTES):
                yield chunk[start : start + _YIELD_BYTES]
                await asyncio.sleep(0)

    def _timeout_s(self, received: int) -> float:
        """Return the timeout of the next chunk."""
        timeouts = self.call.timeouts
        left_s = self.started_at + timeouts.whole_s - self.client.clock()
        if not self.stream:
            return left_s
        if self.has_ended:
            return min(left_s, _CLOSE_TIMEOUT_S)
        if received:
            return min(left_s, timeouts.silence_s)
        return min(left_s, self.attempt_at + timeouts.first_byte_s - self.client.clock())

    def _describe_timeout(self, received: int) -> tuple[str, str]:
        timeouts = self.call.timeouts
        if self.client.clock() - self.started_at >= timeouts.whole_s:
            return "timeout", f"the response was not complete after {timeouts.whole_s:g} seconds"
        if received:
            return "stream_broken", f"no data for {timeouts.silence_s:g} seconds"
        return "timeout", f"the response did not start within {timeouts.first_byte_s:g} seconds"

    async def _read_error(self, response: Response) -> Fault:
        """Read the fault of an error response."""
        data = await self._read_body(response, self.client.limits.error_bytes)
        fault: Fault = self.call.adapter.dialect.read_error(response.status, response.headers, data)
        return resolve_retry_date(fault, response.headers, self.client.now())

    def _record_response(self, response: Response) -> None:
        headers = {
            name: value
            for name, value in response.headers.items()
            if name in _LOG_HEADERS or name.startswith(_RATE_LIMIT_PREFIXES)
        }
        self.response_headers = headers
        self.call_log.status = response.status
        self.call_log.headers = headers
        self.call_log.request_id = next((headers[name] for name in _REQUEST_IDS if name in headers), None)

    def _record_latency(self) -> None:
        self.call_log.latency_ms = self._ms_since(self.started_at)

    def _ms_since(self, then: float) -> int:
        return round((self.client.clock() - then) * 1000)

    def _complete_fault(self, fault: Fault) -> Fault:
        """Add provider and request id to a fault, and mask the API key."""
        key = self.call.endpoint.key
        return fault.replace(
            provider=self.call.endpoint.provider.key,
            request_id=fault.request_id or self.call_log.request_id,
            message=key.mask_in(fault.message) if key else fault.message,
        )

    def _mask_key(self, raw: dict[str, Any] | None) -> dict[str, Any] | None:
        key = self.call.endpoint.key
        if raw is None or key is None:
            return raw
        return {name: key.mask_in(value) if isinstance(value, str) else value for name, value in raw.items()}

    async def wait_before_retry(self, fault: Fault) -> bool:
        """Wait for the next attempt; false if there is none."""
        call, client = self.call, self.client
        hint = retry_hint(self.response_headers)
        retry = self.call_log.retry_count
        delay_s = retry_delay_s(fault, retry, call.retries, client.random_source(), provider_hint=hint)
        if delay_s is None or client.clock() + delay_s >= self.started_at + call.timeouts.whole_s:
            return False
        self.call_log.retries.append((fault, delay_s))
        if call.on_retry is not None:
            call.on_retry(fault, delay_s)
        await client.sleep(delay_s)
        return True


def _error_reply(fault: Fault, raw: dict[str, Any] | None = None) -> Reply:
    return Reply(stop_reason=StopReason.ERROR, fault=fault, provider_raw=raw)


def _server_fault(code: str, message: str) -> Fault:
    return Fault(code=code, message=message, error_class=ErrorClass.SERVER_ERROR, retryable=True)


def _raise_timeout() -> bytes:
    raise TimeoutError
