"""What a call is: whom to ask, what, how long to wait and how often to try; and the journal of how it went.

Values only; nothing here waits or opens anything. The one rule: a call can be made again, so it is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.adapter import Adapter, RequestContext
from dragoman.exchange import Fault
from dragoman.settings import Endpoint


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait, in seconds. None of them counts the time that the one who reads the stream takes."""

    connect_s: float = 10.0  # for the connection
    first_byte_s: float = 180.0  # of a stream, from the request to the first byte of the answer
    silence_s: float = 60.0  # between two pieces of a stream
    whole_s: float = 1800.0  # for the answer from its first try to its end


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often to try again, and how long to wait before."""

    max_retries: int = 2  # after the first try
    first_wait_s: float = 1.0  # doubled for each further one
    longest_wait_s: float = 30.0
    jitter: float = 0.25  # more or less, so that many do not come back at once
    max_retry_after_s: float = 60.0  # a provider that asks for more patience gets none: the fault says how long


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is taken, in bytes after decompression."""

    answer_bytes: int = 64 * 2**20  # whole
    stream_bytes: int = 256 * 2**20  # streamed
    line_bytes: int = 16 * 2**20  # one line of a stream, which is one event; a picture comes in one
    error_bytes: int = 256 * 2**10  # the text of a failure; what is beyond is not read


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to ask.

    ``wire`` is what ``adapter.to_wire`` wrote, with ``Options(stream=True)`` if it is to be streamed and without if
    not; the client refuses to make a call that asks for the other one.
    """

    endpoint: Endpoint  # where, and with which key
    adapter: Adapter  # how it is spoken
    wire: Any  # what is asked
    context: RequestContext  # whose answer it will be
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    on_retry: Callable[[Fault, float], None] | None = None  # told why, and how many seconds are waited


class CallLog:
    """How a call went. Give a fresh one to ``send`` or ``stream``; it is filled in as things happen."""

    __slots__ = ("attempts", "first_byte_ms", "headers", "latency_ms", "request_id", "retries", "status")

    def __init__(self) -> None:
        self.attempts = 0  # tries so far
        self.retries: list[tuple[Fault, float]] = []  # each one that failed and was made again, and the wait after it
        self.status: int | None = None  # of the last answer
        self.request_id: str | None = None  # what the provider calls the request
        self.headers: dict[str, str] = {}  # the last answer's, as far as they tell of limits and of the request
        self.first_byte_ms: int | None = None  # from the last try to its first byte
        self.latency_ms: int | None = None  # from the first try to the end

    @property
    def retry_count(self) -> int:
        """How often it was tried again."""
        return max(0, self.attempts - 1)
