"""Whose mail a caller may see, and as whom they may speak.

Mail is of a team: keys of one team share its mailboxes, tasks and evaluations, and a key of no team has those of its
user alone. Without a key, the caller has the mail of nobody's team, which is what the command line and programs on this
machine use. A key with scopes ``agent:ID`` speaks as those agents and reads their mailboxes; one without speaks as any
agent of its team. The one rule: what is asked of mail is asked of ``mail_of(request)``, which knows the caller's team
and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dragoman.letters import is_agent_name
from dragoman.letters.kept import own_team
from dragoman.mail import Mail
from dragoman.server.asking import MAX_JSON_BYTES, whole_body
from dragoman.server.principal import Principal, owned_session, principal_of
from dragoman.server.refusing import Refusal, not_found
from dragoman.server.state import doors_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.store import Session

SCOPE: Final = "mail"
_AGENT: Final = "agent:"


def tenant_of(principal: Principal) -> str:
    """The team that mail is kept under."""
    if principal.is_local:
        return ""
    return principal.team_id or own_team(principal.user_id)


def mail_of(request: Request) -> Mail:
    """The mail of the caller's team."""
    principal = principal_of(request)
    return doors_of(request).mail.of(team_id=tenant_of(principal), user_id=principal.user_id)


def agents_of(principal: Principal) -> frozenset[str]:
    """The agents that a key speaks as; none if it speaks as any."""
    return frozenset(scope.removeprefix(_AGENT) for scope in principal.scopes if scope.startswith(_AGENT))


def refuse_to_speak_as(request: Request, agent: str) -> None:
    """403 unless the caller may speak as this agent."""
    own = agents_of(principal_of(request))
    if own and agent not in own:
        raise Refusal(403, "sender_mismatch", "The key speaks as another agent.")


def evaluator_of(request: Request, named: str | None) -> str:
    """Who the caller judges as: what they named if that is them or an agent of theirs, else 403.

    A key with ``agent:ID`` judges as those agents, any other key as its user or as an agent of its team. A caller on
    this machine without a key may name anybody.
    """
    principal = principal_of(request)
    own = agents_of(principal)
    if named is None:
        return min(own) if own else principal.user_id
    is_own = named in own if own else named == principal.user_id or is_agent_name(named)
    if not is_own and not principal.is_local:
        raise Refusal(403, "sender_mismatch", "The key does not belong to the evaluator. Leave evaluator out.")
    return named


def refuse_mailbox_of(request: Request, recipient: str) -> None:
    """404 unless the caller may read the mailbox of this agent."""
    own = agents_of(principal_of(request))
    if own and recipient not in own:
        raise not_found()


async def letter_body(request: Request) -> bytes:
    """The bytes of a body that should be a letter, which are kept if it is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "unsupported_media_type", "The body has to be application/json.")
    return await whole_body(request, MAX_JSON_BYTES)


async def session_behind(request: Request, session_id: str | None) -> Session | None:
    """The session that a letter says it comes from, if it is the caller's own."""
    if session_id is None:
        return None
    try:
        return await owned_session(request, session_id)
    except Refusal:
        return None
