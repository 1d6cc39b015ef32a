"""``dragoman keys``: create, list and revoke the API keys of a server."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from dragoman.bus.event_types.system_events import GatewayKeyIssued, GatewayKeyRevoked
from dragoman.bus.trace_writer import write_events
from dragoman.cli.options import JsonOption, StoreOption, open_store_at, resolve_store_url
from dragoman.cli.terminal import console, escape_line, format_age, print_json, print_line
from dragoman.errors import InputError
from dragoman.server.auth.api_keys import load_peppers, new_key
from dragoman.server.auth.scopes import SCOPES, is_scope
from dragoman.store import ApiKey

_Scopes = Annotated[
    tuple[str, ...],
    Parameter(
        show_default=False,
        help="A scope of the key: chat, tools, history:write, mail, admin, agent:ID to act as that agent, record:off or"
        " record:redacted; repeatable. Without tools, runs of this key cannot use the tools of the server."
        " Default: chat.",
    ),
]
KeysFile = Annotated[
    str | None,
    Parameter(
        name="--keys-file",
        env_var="DRAGOMAN_SERVE_KEYS_FILE",
        help="The file with the pepper, the secret in the hashes of keys. Default: a file beside the store.",
    ),
]
_PSEUDONYM: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


async def create(
    *,
    user: str | None = None,
    team: str | None = None,
    name: str | None = None,
    scope: _Scopes = ("chat",),
    expires: Annotated[timedelta | None, Parameter(allow_leading_hyphen=True)] = None,
    keys_file: KeysFile = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create an API key, and print it once.

    Parameters
    ----------
    user
        The user of the key: a pseudonym, never a name or an address. Default: a new one.
    team
        The team of the key, as a pseudonym.
    name
        A name that identifies the key in the list.
    expires
        How long the key is valid: 90d, 12w, 1y. Default: until it is revoked.
    """
    for scope_name in scope:
        if not is_scope(scope_name):
            scope_names = ", ".join(sorted(SCOPES))
            raise InputError(
                f"{scope_name!r} is not a scope", remedy=f"Use {scope_names}, record:off, record:redacted or agent:ID"
            )
    for option, value in (("--user", user), ("--team", team)):
        if value is not None and not _PSEUDONYM.fullmatch(value):
            raise InputError(f"{option} must have 1 to 128 characters of A-Z a-z 0-9 _ . : -", remedy="Use a pseudonym")
    if expires is not None and expires <= timedelta():
        raise InputError("--expires is not positive", remedy="Use a duration such as 90d")
    expires_at = None if expires is None else _expiry_time(expires)
    credentials = new_key(load_peppers(resolve_store_url(store_url), keys_file))
    async with open_store_at(store_url, create=True) as store:
        key = await store.keys.create(
            credentials.public_id,
            credentials.secret_hash,
            user_id=user or store.new_id(),
            team_id=team,
            name=name,
            scopes=sorted(set(scope)),
            expires_at=expires_at,
        )
        await write_events(
            store, GatewayKeyIssued(gateway_key_id=key.public_id, user_id=key.user_id, team_id=key.team_id)
        )
    if json:
        print_json({**_to_json(key), "key": credentials.text})
        return
    sys.stdout.write(f"{credentials.text}\n")
    sys.stdout.flush()
    owner = f"User {key.user_id}{f', team {key.team_id}' if key.team_id else ''}, scopes {' '.join(key.scopes)}."
    sys.stderr.write(f"The key is not shown again. {owner}\n")


def _expiry_time(expires: timedelta) -> datetime:
    try:
        return datetime.now(UTC) + expires
    except OverflowError:
        raise InputError("--expires is after the year 9999", remedy="Omit it for a key without expiry") from None


async def list_keys(
    *,
    user: str | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the API keys of a store with their users, scopes and last use.

    Parameters
    ----------
    user
        Only keys of this user.
    """
    async with open_store_at(store_url) as store:
        api_keys = await store.keys.list(user_id=user)
    if json:
        print_json({"keys": [_to_json(key) for key in api_keys]})
        return
    out = console()
    if not api_keys:
        out.print("no keys")
    now = datetime.now(UTC)
    for key in api_keys:
        print_line(out, _line(key, now))


async def revoke(key: str, /, *, store_url: StoreOption = None, json: JsonOption = False) -> None:
    """Revoke an API key. Servers reject it within one second.

    Parameters
    ----------
    key
        The id of the key, as keys list prints it, or the whole key.
    """
    public_id = key.split("_")[2] if key.startswith("ak_") and key.count("_") >= 4 else key
    async with open_store_at(store_url) as store:
        row = await store.keys.revoke(public_id)
        await write_events(store, GatewayKeyRevoked(gateway_key_id=row.public_id))
    if json:
        print_json(_to_json(row))
    else:
        console().print(f"The key {row.public_id} is revoked.", markup=False)


def _to_json(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in key.__struct_fields__ if name != "secret_hash"}


def _line(key: ApiKey, now: datetime) -> Text:
    state = "revoked" if key.revoked_at is not None else "valid" if key.is_valid(now) else "expired"
    used = "never used" if key.last_used_at is None else f"used {format_age(key.last_used_at, now)}"
    line = Text.assemble((key.public_id, "bold"), f"  {state:<7}  {escape_line(key.user_id)}")
    parts = [f"team {key.team_id}" if key.team_id else "", " ".join(key.scopes), key.name or "", used]
    return line.append("  " + "  ".join(escape_line(part) for part in parts if part))
