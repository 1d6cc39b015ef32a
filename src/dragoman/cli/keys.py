"""``dragoman keys``: who may ask a server, made, listed and taken back.

The one rule: a key is shown once, when it is made, and is nowhere afterwards.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from dragoman.bus.catalogue import GatewayKeyIssued, GatewayKeyRevoked
from dragoman.cli.event import write_event
from dragoman.cli.store_option import JsonOption, StoreOption, opened, url_from
from dragoman.cli.terminal import age, console, print_json, print_line, safe_line
from dragoman.errors import InputError
from dragoman.server.keys import new_key, peppers_for
from dragoman.server.scopes import SCOPES, is_scope
from dragoman.store import ApiKey

KeysFile = Annotated[
    str | None,
    Parameter(
        name="--keys-file",
        env_var="DRAGOMAN_SERVE_KEYS_FILE",
        help="The file of the pepper that keys are hashed with. Without it, one beside the store.",
    ),
]
_PSEUDONYM: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


async def create(
    *,
    user: str | None = None,
    team: str | None = None,
    name: str | None = None,
    scope: tuple[str, ...] = ("chat",),
    expires: Annotated[timedelta | None, Parameter(allow_leading_hyphen=True)] = None,
    keys_file: KeysFile = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key, and show it once.

    Parameters
    ----------
    user
        Whose it is: a pseudonym, never a name or an address. Without it, a new one is made.
    team
        Whose team's it is, as a pseudonym.
    name
        What you call it, to know it again in the list.
    scope
        What it allows: chat, tools, history:write, mail, admin, or agent:ID to speak as that agent; say it again for
        more. Without tools, the model uses none of the server's tools in the runs of this key.
    expires
        For how long it is good: 90d, 12w, 1y. Without it, until it is taken back.
    """
    for one in scope:
        if not is_scope(one):
            known = ", ".join(sorted(SCOPES))
            raise InputError(f"{one!r} is no scope", remedy=f"Known are {known}, and agent:ID")
    for what, value in (("--user", user), ("--team", team)):
        if value is not None and not _PSEUDONYM.fullmatch(value):
            raise InputError(f"{what} has to be 1 to 128 of A-Z a-z 0-9 _ . : -", remedy="Use a pseudonym")
    if expires is not None and expires <= timedelta():
        raise InputError("--expires lies in the past", remedy="Say for how long it is good, as in 90d")
    expires_at = None if expires is None else _end_of(expires)
    made = new_key(peppers_for(url_from(store), keys_file))
    async with opened(store, may_begin=True) as kept:
        key = await kept.create_key(
            made.public_id,
            made.secret_hash,
            user_id=user or kept.new_id(),
            team_id=team,
            name=name,
            scopes=sorted(set(scope)),
            expires_at=expires_at,
        )
        await write_event(
            kept, GatewayKeyIssued(gateway_key_id=key.public_id, user_id=key.user_id, team_id=key.team_id)
        )
    if json:
        print_json({**_shown(key), "key": made.text})
        return
    sys.stdout.write(f"{made.text}\n")
    sys.stdout.flush()
    whose = f"It is of user {key.user_id}{f', team {key.team_id}' if key.team_id else ''}, for {' '.join(key.scopes)}."
    sys.stderr.write(f"Keep it: it is shown this once. {whose}\n")


def _end_of(expires: timedelta) -> datetime:
    try:
        return datetime.now(UTC) + expires
    except OverflowError:
        raise InputError("--expires is beyond the year 9999", remedy="Leave it out for a key that stays good") from None


async def list_keys(
    *,
    user: str | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the keys of a store: whose they are, what they allow, when they were used.

    Parameters
    ----------
    user
        Only this user's.
    """
    async with opened(store) as kept:
        found = await kept.list_keys(user_id=user)
    if json:
        print_json({"keys": [_shown(key) for key in found]})
        return
    out = console()
    if not found:
        out.print("no keys")
    now = datetime.now(UTC)
    for key in found:
        print_line(out, _line(key, now))


async def revoke(key: str, *, store: StoreOption = None, json: JsonOption = False) -> None:
    """Take a key back. Servers refuse it within a second.

    Parameters
    ----------
    key
        Its id, as the list shows it; or the whole key.
    """
    public_id = key.split("_")[2] if key.startswith("ak_") and key.count("_") >= 4 else key
    async with opened(store) as kept:
        taken = await kept.revoke_key(public_id)
        await write_event(kept, GatewayKeyRevoked(gateway_key_id=taken.public_id))
    if json:
        print_json(_shown(taken))
    else:
        console().print(f"The key {taken.public_id} opens nothing any more.", markup=False)


def _shown(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in key.__struct_fields__ if name != "secret_hash"}


def _line(key: ApiKey, now: datetime) -> Text:
    state = "revoked" if key.revoked_at is not None else "good" if key.is_good(now) else "expired"
    used = "never used" if key.last_used_at is None else f"used {age(key.last_used_at, now)}"
    line = Text.assemble((key.public_id, "bold"), f"  {state:<7}  {safe_line(key.user_id)}")
    parts = [f"team {key.team_id}" if key.team_id else "", " ".join(key.scopes), key.name or "", used]
    return line.append("  " + "  ".join(safe_line(part) for part in parts if part))
