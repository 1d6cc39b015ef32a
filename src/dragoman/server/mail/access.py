"""Access rules of mail: the team and the agents of a caller.

Keys of one team share its mailboxes, tasks and evaluations; a key without a team has those of its user. A caller
without a key has the mail without a team, which the command line and programs on this machine use. A key with scopes
``agent:ID`` sends as these agents and reads their mailboxes; a key without them acts as any agent of its team.

Invariant: handlers read mail only through ``team_mail(request)``, which is limited to the team of the caller.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from dragoman.letters import is_agent_name
from dragoman.letters.records import personal_team
from dragoman.mail import Mail
from dragoman.server.auth.principal import Principal, get_owned_session, get_principal
from dragoman.server.http.endpoint import Endpoint
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import MAX_JSON_BYTES, app_state, read_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.store import Session

SCOPE: Final = "mail"
mail_endpoint: Final = partial(Endpoint, scope=SCOPE)
_AGENT_PREFIX: Final = "agent:"


def mail_team(principal: Principal) -> str:
    """Return the team id under which the mail of a caller is stored."""
    if principal.is_local:
        return ""
    return principal.team_id or personal_team(principal.user_id)


def team_mail(request: Request) -> Mail:
    """Return the mail of the caller's team."""
    principal = get_principal(request)
    return app_state(request).mail.for_team(team_id=mail_team(principal), user_id=principal.user_id)


def key_agents(principal: Principal) -> frozenset[str]:
    """Return the agents of a key; empty if it acts as any agent."""
    return frozenset(scope.removeprefix(_AGENT_PREFIX) for scope in principal.scopes if scope.startswith(_AGENT_PREFIX))


def require_sender(request: Request, agent: str) -> None:
    """Raise 403 unless the caller may send as this agent."""
    agents = key_agents(get_principal(request))
    if agents and agent not in agents:
        raise ApiError(403, "sender_mismatch", "The key belongs to another agent.")


def resolve_evaluator(request: Request, name: str | None) -> str:
    """Return the evaluator: ``name`` if the caller may use it, else 403.

    A key with ``agent:ID`` evaluates as these agents, another key as its user or as an agent of its team. A caller on
    this machine without a key may use any name.
    """
    principal = get_principal(request)
    agents = key_agents(principal)
    if name is None:
        return min(agents) if agents else principal.user_id
    is_own = name in agents if agents else name == principal.user_id or is_agent_name(name)
    if not is_own and not principal.is_local:
        raise ApiError(403, "sender_mismatch", "The key does not belong to the evaluator. Omit evaluator.")
    return name


def get_recipient(request: Request) -> str:
    """Return the recipient of the path; 404 unless the caller may read its mailbox."""
    recipient: str = request.path_params["recipient"]
    if "\0" in recipient:
        raise ApiError(422, "invalid_character", "recipient contains a NUL.")
    agents = key_agents(get_principal(request))
    if agents and recipient not in agents:
        raise not_found_error()
    return recipient


async def read_letter_body(request: Request) -> bytes:
    """Return the body of a request that should be a letter."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "The body must be application/json.")
    return await read_body(request, MAX_JSON_BYTES)


async def linked_session(request: Request, session_id: str | None) -> Session | None:
    """Return the session of a letter if it belongs to the caller."""
    if session_id is None:
        return None
    try:
        return await get_owned_session(request, session_id)
    except ApiError:
        return None
