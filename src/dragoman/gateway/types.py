"""Values of the gateway: callers, requests, responses and failures. No I/O."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import ErrorClass, Fault
from dragoman.store import Owners

JSON_TYPE: Final = "application/json"


class Caller(msgspec.Struct, frozen=True):
    """The authenticated caller, who owns the stored calls."""

    user_id: str
    team_id: str | None = None
    is_local: bool = False
    recording: Literal["on", "redacted", "off"] = "on"  # which parts of its calls are stored

    @property
    def owners(self) -> Owners:
        """The owner filter of store queries."""
        return Owners(self.user_id, self.team_id, is_everywhere=self.is_local)


class LocalResponses:
    """The last responses of one connection: their items, by the id of the response."""

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self._items: dict[str, list[Any]] = {}

    def add(self, response_id: str, items: list[Any]) -> None:
        """Keep the items of a conversation up to a response. The oldest response is removed if there are too many."""
        self._items[response_id] = items
        if len(self._items) > self._limit:
            del self._items[next(iter(self._items))]

    def find(self, response_id: object) -> list[Any] | None:
        """Return the items up to a response."""
        return self._items.get(response_id) if isinstance(response_id, str) else None

    def remove(self, response_id: object) -> None:
        """Remove a response."""
        if isinstance(response_id, str):
            self._items.pop(response_id, None)


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived. Names of headers are in lower case."""

    method: str
    path: str
    query: str = ""  # as it arrived, without the question mark
    headers: Mapping[str, str] = {}
    body: bytes = b""
    caller: Caller
    request_id: str = ""
    local_responses: LocalResponses | None = None  # of the connection, if it keeps responses in memory


class GatewayResponse(msgspec.Struct, kw_only=True):
    """A response. A streamed body must be consumed or closed."""

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes | AsyncGenerator[bytes, None] = b""


class GatewayError(Exception):
    """A failed call. The gateway writes it in the caller's dialect."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def invalid_request_error(message: str, status: int = 400, code: str = "invalid_request") -> GatewayError:
    """Return the error for a request that the gateway rejects."""
    return GatewayError(
        Fault(code=code, message=message, error_class=ErrorClass.INVALID_REQUEST, status=status, provider="dragoman")
    )


def not_found_error(message: str, provider_code: str | None = None) -> GatewayError:
    """Return the error for a model or a stored object that does not exist for the caller."""
    return GatewayError(
        Fault(
            code="not_found",
            message=message,
            error_class=ErrorClass.INVALID_REQUEST,
            status=404,
            provider="dragoman",
            provider_code=provider_code,
        )
    )
