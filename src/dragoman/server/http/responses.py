"""What is answered: a value as JSON, and where a list goes on.

    answer(value)                              200, never kept by anybody on the way
    await large_json_response(size, make)             the same for a large value, made and encoded off the event loop
    make_cursor(principal, session)             where the next page of sessions begins
    parse_cursor(principal, text)                the same, read again; 400 if we did not make it for them

The one rule: a cursor is a place in the caller's own list. Whoever changes one, or brings another's, is told so, and
what is listed is asked for by its owner in any case.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.offload import run_off_loop
from dragoman.server.auth.principal import Principal
from dragoman.server.http.http_errors import ApiError
from dragoman.store import Owners, Session

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGEST_BYTES: Final = 12  # bytes that tell a cursor that was changed


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return _bytes_response(msgspec.json.encode(value), status, headers)


async def large_json_response(size: int, make: Callable[[], Any]) -> Response:
    """The value that a function returns, as JSON. ``size`` is about how many bytes it has."""
    return _bytes_response(await run_off_loop(size, lambda: msgspec.json.encode(make())))


def _bytes_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        data, status, media_type="application/json", headers={"cache-control": "no-store", **(headers or {})}
    )


def get_owners(principal: Principal) -> Owners:
    """Whose sessions a caller may see, as a store is asked for them."""
    return Owners(principal.user_id, principal.team_id, is_everywhere=principal.is_local)


def make_cursor(principal: Principal, session: Session) -> str:
    """Where the list goes on behind a session."""
    micros = (session.updated_at - _EPOCH) // timedelta(microseconds=1)
    position = msgspec.json.encode((micros, name_from_id(session.id)))
    return base64.urlsafe_b64encode(_digest(principal, position) + position).rstrip(b"=").decode()


def parse_cursor(principal: Principal, text: str) -> tuple[datetime, str]:
    """The time and the name of a session that a cursor holds."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        digest, position = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        is_valid = base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text and digest == _digest(
            principal, position
        )
        micros, name = msgspec.json.decode(position, type=tuple[int, str]) if is_valid else (None, "")
    except (ValueError, msgspec.MsgspecError):
        micros, name = None, ""
    if micros is None:
        raise ApiError(400, "invalid_cursor", "The cursor was changed, or is not yours. Begin again without one.")
    return _EPOCH + timedelta(microseconds=micros), name


def _digest(principal: Principal, position: bytes) -> bytes:
    owner = msgspec.json.encode((principal.user_id, principal.team_id))
    return hashlib.sha256(owner + b"\0" + position).digest()[:_DIGEST_BYTES]
