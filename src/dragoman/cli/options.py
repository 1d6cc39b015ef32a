"""Options that several commands share: the store, the session, filters of usage, tools.

A store is named by ``--store``, else by the environment variable ``DRAGOMAN_STORE``, else by the configuration file,
else it is a file in the user's data directory; ``DRAGOMAN_BLOBS`` names another location for large objects. Invariant:
only a command that adds data creates a store.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, unquote

from cyclopts import Parameter, validators

from dragoman.cli.terminal import escape_line
from dragoman.errors import InputError, StoreUnusableError, UnknownSessionError
from dragoman.settings import Settings
from dragoman.store import Session, Store, open_store
from dragoman.store.types import TotalsBy
from dragoman.tools import Tool

if TYPE_CHECKING:
    from dragoman.turn import AgentConfig


def flag(*names: str, **fields: Any) -> Parameter:
    """A switch without a negative form, of which help shows no default. ``fields`` are those of ``Parameter``."""
    return Parameter(name=names or None, negative=(), show_default=False, **fields)


VARIABLE: Final = "DRAGOMAN_STORE"
BLOBS_VARIABLE: Final = "DRAGOMAN_BLOBS"  # location of large objects; default: that of the store
StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        env_var=VARIABLE,
        help="The store: a URL (sqlite:///chats.db, postgresql://…) or the path of a SQLite file."
        " Default: a file in your data directory.",
    ),
]
JsonOption = Annotated[bool, flag("--json", help="Print one JSON document, for programs.")]
YesOption = Annotated[bool, flag("--yes", "-y", help="Do not ask for confirmation.")]
Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]
NonNegative = Annotated[int, Parameter(validator=validators.Number(gte=0))]
SessionArgument = Annotated[str, Parameter(help="The session: its id, a unique prefix or suffix of the id, or last.")]
GroupOption = Annotated[TotalsBy, Parameter(name="--by", help="Group the totals by this.")]
ToolOption = Annotated[
    tuple[str, ...],
    Parameter(
        name="--tool",
        show_default=False,
        help="A built-in tool that the model may use: read_file, list_files, search_files, write_file, run_command or"
        " ask_user; repeatable.",
    ),
]
McpOption = Annotated[
    tuple[str, ...],
    Parameter(
        name="--mcp",
        show_default=False,
        help="An MCP server of the configuration file whose tools the model may use; repeatable.",
    ),
]
DelegateOption = Annotated[
    bool, flag("--delegate", help="Let the model delegate tasks to models of the tiers in the routing policy.")
]
SummarizeOption = Annotated[
    bool, flag("--summarize", help="Summarize the oldest turns of a long conversation instead of omitting them.")
]
PolicyOption = Annotated[
    Path | None,
    Parameter(name="--policy", help="A routing policy file that replaces the policy of the workspace."),
]
TokenCount = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=10**12))]


def default_path() -> Path:
    """Return the default SQLite file."""
    from dragoman.settings import data_folder  # noqa: PLC0415  not needed by all commands

    return data_folder(os.environ) / "store.db"


def resolve_store_url(option: str | None) -> str:
    """Return the URL of the store that the option, the configuration file or the default names."""
    option = option or _store_from_settings()
    if option and re.match("[A-Za-z][A-Za-z0-9+.-]+:", option):  # one letter would be a drive of Windows
        return option
    return f"sqlite:///{quote(str(Path(option) if option else default_path()))}"


def _has_settings() -> bool:
    """Return whether there is a configuration file, without reading it."""
    from dragoman import settings  # noqa: PLC0415  not needed by all commands

    return bool(os.environ.get(settings.CONFIG_VARIABLE)) or settings.default_file(os.environ).exists()


def _store_from_settings() -> str | None:
    """Return the store of the configuration file."""
    from dragoman import settings  # noqa: PLC0415

    return settings.load().store.value or None if _has_settings() else None


def _is_strict() -> bool:
    """Return whether messages that violate a rule are rejected, by the environment or the configuration file."""
    from dragoman import settings  # noqa: PLC0415

    if text := os.environ.get(settings.VARIABLES["strict_append"]):
        return settings.is_true(text)
    return settings.load().is_strict if _has_settings() else False


def mask_password(url: str) -> str:
    """Return the URL without its password."""
    hidden = re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:…@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1…", hidden)


def sqlite_file(option: str | None) -> Path | None:
    """The file of the SQLite store that the option names; none for other stores."""
    url = resolve_store_url(option)
    return Path(unquote(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else None


@asynccontextmanager
async def open_store_at(option: str | None, *, create: bool = False) -> AsyncIterator[Store]:
    """Open the store that the option names. Only with ``create``, a SQLite store that does not exist is created."""
    url, file = resolve_store_url(option), sqlite_file(option)
    if file is not None and not create and not file.exists():
        raise StoreUnusableError(
            "the store does not exist",
            where=str(file),
            remedy=f"Name another one with --store or {VARIABLE}, or create it with dragoman import",
            code="not_a_store",
        )
    async with open_store(url, blobs=os.environ.get(BLOBS_VARIABLE) or None, strict=_is_strict()) as store:
        yield store


async def find_session(store: Store, name: str) -> Session:
    """Return the session with this id, unique prefix or suffix of an id, or ``last``."""
    if name == "last":
        newest = await store.list_sessions(limit=1)
        if not newest:
            raise UnknownSessionError(
                "the store has no sessions", remedy="Start one with dragoman ask or dragoman chat"
            )
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
                f"no session id is {name!r}, or starts or ends with it",
                remedy="List the sessions with dragoman sessions",
            )
        case _:
            ids = ", ".join(session.id for session in matches[:3])
            raise InputError(
                f"{name!r} matches {ids}{' and others' if len(matches) > 3 else ''}", remedy="Use more of the id"
            )


async def find_session_id(store: Store, name: str | None) -> str | None:
    """Return the id of a session that an optional filter names."""
    return None if name is None else (await find_session(store, name)).id


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFilters:
    """The options that select stored model calls."""

    session: Annotated[str | None, Parameter(help="Only this session.")] = None
    model: Annotated[str | None, Parameter(help="Only this model.")] = None
    since: Annotated[date | None, Parameter(help="Only from this day on, in UTC.")] = None
    until: Annotated[date | None, Parameter(help="Only before this day, in UTC.")] = None

    async def resolve(self, store: Store) -> dict[str, Any]:
        """Return the filters of a query, with the full id of the session."""
        fields = {name: value.isoformat() if isinstance(value, date) else value for name, value in vars(self).items()}
        return {**fields, "session": await find_session_id(store, self.session)}


@dataclass(frozen=True, kw_only=True)
class UsageFilters(CallFilters):
    """The options that select usage, also by user and team."""

    user: Annotated[str | None, Parameter(help="Only usage of this user.")] = None
    team: Annotated[str | None, Parameter(help="Only usage of this team.")] = None


def make_agent_config(
    settings: Settings, *, delegate: bool, summarize: bool, policy: Path | None, **fields: Any
) -> AgentConfig:
    """Return the configuration of an agent from the options of a command."""
    from dragoman.settings.policy_file import policy_from_file  # noqa: PLC0415  not needed by all commands
    from dragoman.turn import AgentConfig, make_registry  # noqa: PLC0415

    rules = None if policy is None else policy_from_file(policy, make_registry(settings))
    return AgentConfig(allow_delegation=delegate, summarize=summarize, policy=rules, **fields)


def open_tools(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings
) -> AbstractAsyncContextManager[tuple[Tool, ...]]:
    """Open built-in tools by name, and the tools of MCP servers that the settings name."""
    from dragoman.tools import exposure  # noqa: PLC0415

    return exposure.load_tools(builtin, servers, settings, lambda text: sys.stderr.write(f"{escape_line(text)}\n"))
