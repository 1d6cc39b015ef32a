"""Which store a command works on, and which session.

A store is named by ``--store``, else by the variable ``DRAGOMAN_STORE``, else by the configuration file, else it is a
file in the user's data directory; ``DRAGOMAN_BLOBS`` names another place for large content than the store's own. A
session is named by its id, by a beginning or an end of it that no other has, or as ``last``. The one rule: only a
command that adds something makes a store where there is none; a name that was mistyped makes nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, unquote

from cyclopts import Parameter, validators

from dragoman.errors import InputError, StoreUnusableError, UnknownSessionError
from dragoman.store import Session, Store, open_store

VARIABLE: Final = "DRAGOMAN_STORE"
BLOBS_VARIABLE: Final = "DRAGOMAN_BLOBS"  # where large content is kept, if not in the store's own place
StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        env_var=VARIABLE,
        help="The store: a URL (sqlite:///chats.db, postgresql://…) or the path of a SQLite file."
        " Without it, a file in your data directory.",
    ),
]
JsonOption = Annotated[
    bool,
    Parameter(
        name="--json", negative=(), show_default=False, help="Print one JSON document, and nothing else, for programs."
    ),
]
YesOption = Annotated[
    bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Do it without asking.")
]
Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]
NonNegative = Annotated[int, Parameter(validator=validators.Number(gte=0))]
TokenCount = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=10**12))]


def default_path() -> Path:
    """The file that is used when none is named."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        folder = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(folder) / "dragoman" / "store.db"


def resolve_store_url(option: str | None) -> str:
    """The URL of the store that is meant."""
    option = option or _store_from_settings()
    if option and re.match("[A-Za-z][A-Za-z0-9+.-]+:", option):  # one letter would be a drive of Windows
        return option
    return f"sqlite:///{quote(str(Path(option) if option else default_path()))}"


def _store_from_settings() -> str | None:
    """The store that the configuration file names, if there is such a file."""
    from dragoman import settings  # noqa: PLC0415  what a command does without should cost it nothing

    if not (os.environ.get(settings.CONFIG_VARIABLE) or settings.default_file(os.environ).exists()):
        return None  # what is not there need not be looked for
    return settings.load().store.value or None


def _is_strict() -> bool:
    """Whether messages that break a rule are refused: as the environment says, or else the configuration file."""
    from dragoman import settings  # noqa: PLC0415

    if text := os.environ.get(settings.VARIABLES["strict_append"]):
        return settings.is_true(text)
    if not (os.environ.get(settings.CONFIG_VARIABLE) or settings.default_file(os.environ).exists()):
        return False
    return settings.load().is_strict


def mask_password(url: str) -> str:
    """A URL that may be shown."""
    hidden = re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:…@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1…", hidden)


@asynccontextmanager
async def open_store_at(option: str | None, *, create: bool = False) -> AsyncIterator[Store]:
    """The store that is meant, open. Where there is none, one is begun only if the command may."""
    url = resolve_store_url(option)
    file = Path(unquote(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else None
    if file is not None and not create and not file.exists():
        raise StoreUnusableError(
            "there is no store here",
            where=str(file),
            remedy=f"Name another one with --store or {VARIABLE}, or begin this one with dragoman import",
            code="not_a_store",
        )
    async with open_store(url, blobs=os.environ.get(BLOBS_VARIABLE) or None, strict=_is_strict()) as store:
        yield store


async def find_session(store: Store, name: str) -> Session:
    """The session that a person means."""
    if name == "last":
        newest = await store.list_sessions(limit=1)
        if not newest:
            raise UnknownSessionError("there are no sessions in this store", remedy="Add some with dragoman import")
        return newest[0]
    try:
        return await store.get_session(name)
    except UnknownSessionError:
        matches = await store.find_sessions(name, limit=4) if name else []
    match matches:
        case [session]:
            return session
        case []:
            raise UnknownSessionError(
                f"no session's id is {name!r}, or begins or ends so",
                remedy="See which there are with dragoman sessions",
            )
        case _:
            ids = ", ".join(session.id for session in matches[:3])
            raise InputError(
                f"{name!r} may be {ids}{' and others' if len(matches) > 3 else ''}", remedy="Write more of the id"
            )
