"""Whose mail a caller may see, and as whom they may speak.

Mail is of a team: keys of one team share its mailboxes, tasks and evaluations, and a key of no team has those of its
user alone. Without a key, the caller has the mail of nobody's team, which is what the command line and programs on this
machine use. A key with scopes ``agent:ID`` speaks as those agents and reads their mailboxes; one without speaks as any
agent of its team. The one rule: what is asked of mail is asked of ``team_mail(request)``, which knows the caller's team
and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dragoman.letters import is_agent_name
from dragoman.letters.records import personal_team
from dragoman.mail import Mail
from dragoman.server.auth.principal import Principal, get_owned_session, get_principal
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import MAX_JSON_BYTES, app_state, read_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.store import Session

SCOPE: Final = "mail"
_AGENT_PREFIX: Final = "agent:"


def mail_team(principal: Principal) -> str:
    """The team that mail is kept under."""
    if principal.is_local:
        return ""
    return principal.team_id or personal_team(principal.user_id)


def team_mail(request: Request) -> Mail:
    """The mail of the caller's team."""
    principal = get_principal(request)
    return app_state(request).mail.for_team(team_id=mail_team(principal), user_id=principal.user_id)


def key_agents(principal: Principal) -> frozenset[str]:
    """The agents that a key speaks as; none if it speaks as any."""
    return frozenset(scope.removeprefix(_AGENT_PREFIX) for scope in principal.scopes if scope.startswith(_AGENT_PREFIX))


def require_sender(request: Request, agent: str) -> None:
    """403 unless the caller may speak as this agent."""
    agents = key_agents(get_principal(request))
    if agents and agent not in agents:
        raise ApiError(403, "sender_mismatch", "The key speaks as another agent.")


def resolve_evaluator(request: Request, name: str | None) -> str:
    """Who the caller judges as: what they named if that is them or an agent of theirs, else 403.

    A key with ``agent:ID`` judges as those agents, any other key as its user or as an agent of its team. A caller on
    this machine without a key may name anybody.
    """
    principal = get_principal(request)
    agents = key_agents(principal)
    if name is None:
        return min(agents) if agents else principal.user_id
    is_own = name in agents if agents else name == principal.user_id or is_agent_name(name)
    if not is_own and not principal.is_local:
        raise ApiError(403, "sender_mismatch", "The key does not belong to the evaluator. Leave evaluator out.")
    return name


def require_mailbox(request: Request, recipient: str) -> None:
    """404 unless the caller may read the mailbox of this agent."""
    agents = key_agents(get_principal(request))
    if agents and recipient not in agents:
        raise not_found_error()


async def read_letter_body(request: Request) -> bytes:
    """The bytes of a body that should be a letter, which are kept if it is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "The body has to be application/json.")
    return await read_body(request, MAX_JSON_BYTES)


async def linked_session(request: Request, session_id: str | None) -> Session | None:
    """The session that a letter says it comes from, if it is the caller's own."""
    if session_id is None:
        return None
    try:
        return await get_owned_session(request, session_id)
    except ApiError:
        return None
