"""Who calls: by a key, or as the one person of this machine. And which sessions are theirs.

    principal = get_principal(request)                      who calls; the route is not reached without
    session = await get_owned_session(request, thread_id)      their session, or the one 404

Without a key, on a server that only this machine reaches, the caller is ``local`` and owns what the command line made.
That is the user whose server it is, by the user of the connection's socket; any other user of the machine sends the
token that the server printed.

A browser on this machine runs pages of strangers, so there a request has to name this machine as its host (a name that
was made to point here is refused) and, where it says which page it comes from, that page has to be ours. What a proxy
has passed on comes from somebody else, who needs a key. The one rule:
who calls is decided here, from the matched route and the credential alone; no field of a request changes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from dragoman.errors import FormatError, UnknownSessionError
from dragoman.ids import ids_for_owner
from dragoman.server.auth.local_access import PEER, Peer, can_find_users, cookie_name
from dragoman.server.config import ServerConfig, is_loopback
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state
from dragoman.store import Owners, Session, Store
from dragoman.store.types import LOCAL_USER

if TYPE_CHECKING:
    from starlette.requests import Request

TOOLS: Final = "tools"
ADMIN: Final = "admin"
SCOPES: Final = frozenset(("chat", TOOLS, "history:write", "mail", ADMIN))
_AGENT: Final = re.compile(r"agent:[A-Za-z0-9_.:-]{1,128}")
_PROXY_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Principal(msgspec.Struct, frozen=True):
    """Who calls."""

    user_id: str
    team_id: str | None
    key_id: str | None
    scopes: frozenset[str]
    is_local: bool

    def owns(self, session: Session) -> bool:
        """Whether a session is theirs."""
        if self.is_local:
            return session.user_id in (None, LOCAL_USER)
        return session.user_id == self.user_id and session.team_id == self.team_id

    @property
    def owners(self) -> Owners:
        """The owner filter of store queries."""
        return Owners(self.user_id, self.team_id, is_everywhere=self.is_local)

    def session_ids(self, thread_id: str) -> tuple[str, ...]:
        """The ids that their session of that name may have: the name, or another where somebody else's has it."""
        return ids_for_owner(thread_id, self.user_id, self.team_id)


def is_scope(name: str) -> bool:
    """Whether there is such a scope."""
    return name in SCOPES or _AGENT.fullmatch(name) is not None


LOCAL: Final = Principal(LOCAL_USER, None, None, SCOPES, True)


def get_principal(request: Request) -> Principal:
    """Who calls."""
    principal: Principal = request.state.principal
    return principal


async def get_owned_session(request: Request, thread_id: str) -> Session:
    """A session of the caller, by the name that they know; a missing one and somebody else's are the same 404."""
    session = await find_thread(app_state(request).store, get_principal(request), thread_id)
    if session is None:
        raise not_found_error()
    return session


async def find_thread(store: Store, principal: Principal, thread_id: str) -> Session | None:
    """The caller's session of that name, if there is one.

    Where somebody else's session has the name as its id, the caller's has another id, which is never shown and under
    which nothing is found: it would show that the other session exists.
    """
    for session_id in principal.session_ids(thread_id):
        session = await find_session(store, principal, session_id)
        if session is not None:
            return session
    return None


async def find_session(store: Store, principal: Principal, session_id: str) -> Session | None:
    """The caller's session of an id that comes from the store. What a request names is a ``thread_id``."""
    with contextlib.suppress(UnknownSessionError, FormatError):
        session = await store.get_session(session_id)
        return session if principal.owns(session) else None
    return None


async def authenticate(request: Request) -> Principal:
    """Who calls, found out from the request; 401 if that cannot be."""
    authorizations = request.headers.getlist("authorization")
    state = app_state(request)
    is_open = not state.config.requires_keys
    has_token = is_open and bool(authorizations) and state.token.is_bearer(authorizations[0])
    if authorizations and not has_token:
        return await _authenticate_key(request, authorizations[0])
    if not is_open:
        raise credentials_error()
    require_local_request(request)
    if not has_token and not await _is_own_user(request):
        raise _token_error()
    return LOCAL


async def _is_own_user(request: Request) -> bool:
    """Whether the caller is the user whose server this is, or has been given a cookie.

    Where no system tells who calls, everybody on this machine counts as that user, unless there are tools.
    """
    state, uid = app_state(request), await get_peer_uid(request)
    if uid is None and not can_find_users() and not len(state.agent.tools):
        return True
    if uid is not None and uid == os.geteuid():
        return True
    may_have_cookie = uid is not None or not can_find_users()
    return may_have_cookie and state.token.is_cookie(request.cookies.get(cookie_name(state.config.port)), uid)


async def get_peer_uid(request: Request) -> int | None:
    """The user of this machine at the other end of the connection; none if that cannot be found out."""
    peer = getattr(request.state, PEER, None) or Peer(request.scope.get("client"), request.scope.get("server"))
    return await peer.uid()


def _token_error() -> ApiError:
    message = (
        "This server belongs to another user of this machine. Open the URL with a token that it printed when it"
        " started, or send that: Authorization: Bearer TOKEN."
    )
    return ApiError(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})


async def _authenticate_key(request: Request, authorization: str) -> Principal:
    scheme, _, text = authorization.partition(" ")
    key = await app_state(request).keys.verify(text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise credentials_error()
    return Principal(key.user_id, key.team_id, key.public_id, frozenset(key.scopes), False)


def credentials_error() -> ApiError:
    """The one answer to every key that is not good, and to none."""
    message = "A key is needed: Authorization: Bearer KEY. Make one with dragoman keys create."
    return ApiError(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})


def require_local_request(request: Request) -> None:
    """Refuse what a page of somebody else makes a browser of this machine send."""
    host = request.headers.get("host", "").lower()
    if not is_loopback(_strip_port(host)):
        raise ApiError(403, "host_not_allowed", "Without a key, this server answers only to a name of this machine.")
    if any(name in request.headers for name in _PROXY_HEADERS):
        message = "A proxy stands in front of this server. Start it with --base-url or --require-keys, and send a key."
        raise ApiError(403, "proxy_not_allowed", message)
    origin = request.headers.get("origin")
    extra_origins = app_state(request).config.allow_origin
    allowed_origins = (f"{_scheme(app_state(request).config)}://{host}", *extra_origins)
    # A browser does not name the page that fetches a picture or a script, but it says that it is another's.
    is_cross_site = origin is None and request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if is_cross_site or (origin is not None and origin.lower() not in allowed_origins):
        raise ApiError(403, "origin_not_allowed", "Without a key, only pages of this server may ask.")


def _scheme(config: ServerConfig) -> str:
    """The scheme of the server's own pages: http, unless its base URL names another."""
    return urlsplit(config.base_url or "").scheme.lower() or "http"


def _strip_port(host: str) -> str:
    return host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
