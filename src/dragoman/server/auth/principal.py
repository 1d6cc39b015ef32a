"""The caller of a request, its scopes, and its sessions.

    principal = get_principal(request)                       set for every endpoint that is not public
    session = await get_owned_session(request, thread_id)    404 if it is missing or belongs to another user

On a server for this machine only, the user who started it needs no key: the principal is ``local`` and owns the
sessions of the command line. The owner of the client's socket decides; any other user sends the printed token.

A browser on this machine also runs pages of other sites. A request without a key must name a loopback host (against DNS
rebinding), and its origin must be the server's own. A request that a proxy forwarded needs a key. Invariant: only the
matched route and the credential decide the identity; no other field of a request changes it.

Scopes: ``chat`` (own threads and runs), ``tools`` (the server's tools), ``history:write`` (import messages of all
roles), ``mail`` (letters), ``admin`` (the server's own measures), ``agent:ID`` (send and receive as that agent).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from dragoman.errors import FormatError
from dragoman.ids import ids_for_owner
from dragoman.server.auth.local_access import PEER, Peer, can_find_users, cookie_name
from dragoman.server.auth.scopes import SCOPES, TOOLS
from dragoman.server.config import ServerConfig, is_loopback
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state
from dragoman.store import ApiKey, Owners, Session, Store
from dragoman.store.types import LOCAL_USER

if TYPE_CHECKING:
    from starlette.requests import Request

# Returns the id of the user of a request, or none to reject it; for an application that mounts this one.
FindUser = Callable[["Request"], "str | Awaitable[str | None] | None"]

PROXY_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Principal(msgspec.Struct, frozen=True):
    """The caller of a request."""

    user_id: str
    team_id: str | None
    key_id: str | None
    scopes: frozenset[str]
    is_local: bool

    def owns(self, session: Session) -> bool:
        """Whether a session belongs to the caller."""
        if self.is_local:
            return session.user_id in (None, LOCAL_USER)
        return session.user_id == self.user_id and session.team_id == self.team_id

    @property
    def owners(self) -> Owners:
        """The owner filter of store queries."""
        return Owners(self.user_id, self.team_id, is_everywhere=self.is_local)

    def session_ids(self, thread_id: str) -> tuple[str, ...]:
        """The possible ids of the caller's session: its name, or another id if another user's session has the name."""
        return ids_for_owner(thread_id, self.user_id, self.team_id)


LOCAL: Final = Principal(LOCAL_USER, None, None, SCOPES, True)


def get_principal(request: Request) -> Principal:
    """The authenticated caller."""
    principal: Principal = request.state.principal
    return principal


async def get_owned_session(request: Request, thread_id: str) -> Session:
    """The caller's session, or 404 if it is missing or belongs to another user."""
    session = await find_thread(app_state(request).store, get_principal(request), thread_id)
    if session is None:
        raise not_found_error()
    return session


async def find_thread(store: Store, principal: Principal, thread_id: str) -> Session | None:
    """The caller's session of that name, or ``None``.

    If another user's session has the name as its id, the caller's session has another id. That id is never shown and is
    not accepted in requests, because it would reveal that the other session exists.
    """
    ids = principal.session_ids(thread_id)
    try:
        sessions = await store.read_sessions(*ids) if ids else []
    except FormatError:  # not a possible id
        return None
    return next((session for session in sessions if principal.owns(session)), None)


async def find_session(store: Store, principal: Principal, session_id: str) -> Session | None:
    """The caller's session by an id from the store. For names from a request use ``find_thread``."""
    try:
        session = await store.find_session(session_id)
    except FormatError:  # not a possible id
        return None
    return session if session is not None and principal.owns(session) else None


async def authenticate(request: Request) -> Principal:
    """Authenticate the caller; 401 if that fails."""
    authorizations = request.headers.getlist("authorization")
    state = app_state(request)
    if state.find_user is not None:
        return await _authenticate_user(request, state.find_user)
    is_open = not state.requires_keys
    has_token = is_open and bool(authorizations) and state.token.is_bearer(authorizations[0])
    if authorizations and not has_token:
        return await _authenticate_key(request, authorizations[0])
    if not is_open:
        raise credentials_error()
    return await _authenticate_local(request, has_token=has_token)


async def authenticate_local(request: Request, keys: Iterable[str]) -> Principal:
    """Authenticate a caller of a server without keys; ``keys`` are texts that may be the token of the server."""
    token = app_state(request).token
    return await _authenticate_local(request, has_token=any(token.is_token(key) for key in keys))


async def _authenticate_local(request: Request, *, has_token: bool) -> Principal:
    require_local_request(request)
    if not has_token and not await _is_own_user(request):
        raise _token_error()
    return LOCAL


async def _authenticate_user(request: Request, find_user: FindUser) -> Principal:
    """Authenticate with the users of the application that mounts this one."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "").lower()
    is_own = origin is None or urlsplit(origin).netloc.lower() == host
    if not is_own and origin not in app_state(request).config.allow_origin:
        raise ApiError(403, "origin_not_allowed", "Only pages of this server may send requests.")
    found = find_user(request)
    user_id = await found if inspect.isawaitable(found) else found
    if user_id is None:
        raise ApiError(401, "unauthorized", "The application does not know the user of this request.")
    return Principal(user_id, None, None, frozenset(("chat", TOOLS)), False)


async def _is_own_user(request: Request) -> bool:
    """Whether the caller is the user who started the server, or has a valid cookie.

    If the kernel does not report socket owners, every local user counts as that user, unless there are tools.
    """
    state, uid = app_state(request), await get_peer_uid(request)
    is_local = request.client is not None and is_loopback(request.client.host)  # a mounted server may listen elsewhere
    if uid is None and not can_find_users() and is_local and not len(state.agent.tools):
        return True
    if uid is not None and uid == os.geteuid():
        return True
    may_have_cookie = uid is not None or not can_find_users()
    return may_have_cookie and state.token.is_cookie(request.cookies.get(cookie_name(state.config.port)), uid)


async def get_peer_uid(request: Request) -> int | None:
    """The local user at the other end of the connection; ``None`` if it is unknown."""
    peer = getattr(request.state, PEER, None) or Peer(request.scope.get("client"), request.scope.get("server"))
    return await peer.uid()


def _token_error() -> ApiError:
    message = (
        "This server belongs to another user of this machine. Open the URL with the token that it printed when it"
        " started, or send Authorization: Bearer TOKEN."
    )
    return ApiError(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})


async def _authenticate_key(request: Request, authorization: str) -> Principal:
    scheme, _, text = authorization.partition(" ")
    key = await app_state(request).keys.verify(text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise credentials_error()
    return principal_from(key)


def principal_from(key: ApiKey) -> Principal:
    """The owner of a valid key."""
    return Principal(key.user_id, key.team_id, key.public_id, frozenset(key.scopes), False)


def credentials_error() -> ApiError:
    """The same error for a missing and for every invalid key."""
    message = "A valid API key is required: Authorization: Bearer KEY. Create one with dragoman keys create."
    return ApiError(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})


def require_local_request(request: Request) -> None:
    """Reject a request that a page of another site or a proxy sent."""
    headers = request.headers
    host = headers.get("host", "").lower()
    if not is_loopback(strip_port(host)):
        raise ApiError(403, "host_not_allowed", "Without a key, Host must name this machine.")
    if any(name in PROXY_HEADERS for name in headers):
        message = "A proxy forwarded the request. Start the server with --base-url or --require-keys, and send a key."
        raise ApiError(403, "proxy_not_allowed", message)
    origin = headers.get("origin")
    config = app_state(request).config
    allowed_origins = (f"{_scheme(config)}://{host}", *config.allow_origin)
    # Browsers send no Origin with requests for images and scripts, but Sec-Fetch-Site.
    is_cross_site = origin is None and headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if is_cross_site or (origin is not None and origin.lower() not in allowed_origins):
        raise ApiError(403, "origin_not_allowed", "Without a key, only pages of this server may send requests.")


def _scheme(config: ServerConfig) -> str:
    """The scheme of the server's own pages."""
    return urlsplit(config.base_url or "").scheme.lower() or "http"


def strip_port(host: str) -> str:
    """The host of a Host header."""
    return host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
