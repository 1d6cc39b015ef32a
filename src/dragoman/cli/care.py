"""``dragoman verify``, ``delete``, ``retain`` and ``erase``: whether a store is sound, and what goes for good."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.text import Text

from dragoman.cli.store_option import JsonOption, StoreOption, YesOption, opened, session_named, url_from
from dragoman.cli.terminal import ask, console, counted, moment, print_json, print_line, progress, safe_line
from dragoman.errors import InputError, StorageError
from dragoman.store import ErasureReceipt, Session, Store

if TYPE_CHECKING:
    from dragoman.attachments import Erasing

DryRunOption = Annotated[
    bool,
    Parameter(name="--dry-run", negative=(), show_default=False, help="Only say what would be deleted."),
]
_PAGE: Final = 500
_SHOWN: Final = 20


# --- verify ----------------------------------------------------------------------------------------------------------


async def verify(
    session: str | None = None,
    /,
    *,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Look whether everything in a store is still what was written.

    Parameters
    ----------
    session
        Only this session, and those that it shares its history with.
    """
    async with opened(store) as kept:
        only = (await session_named(kept, session)).id if session is not None else None
        with progress("verifying") as seen:
            found = await kept.verify(only, seen)
    if json:
        print_json({"is_sound": found.is_sound, **msgspec.structs.asdict(found)})
        return 0 if found.is_sound else 1
    out = console()
    for damage in found.damage:
        place = f"{damage.session_id}{'' if damage.seq is None else f', message {damage.seq}'}"
        out.print(Text(safe_line(place), "red").append(f"  {safe_line(damage.what)}", "default"), soft_wrap=True)
    looked = ", ".join(
        (counted(found.sessions, "session"), counted(found.messages, "message"), counted(found.blobs, "large piece"))
    )
    verdict = Text("sound", "green") if found.is_sound else Text(f"{len(found.damage)} damaged", "bold red")
    out.print(verdict.append(f": {looked}", "default"))
    return 0 if found.is_sound else 1


# --- delete ----------------------------------------------------------------------------------------------------------


async def delete(
    session: str,
    /,
    *,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a session. Its forks keep their histories.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, or last.
    """
    async with opened(store) as kept:
        found = await session_named(kept, session)
        ask(f"Delete {_described(found)}?", yes=yes)
        await kept.delete_session(found.id)
    if json:
        print_json({"deleted": found})
    else:
        console().print(f"deleted {_described(found)}", markup=False, soft_wrap=True)


def _described(session: Session) -> str:
    title = f" {safe_line(session.title)!r}" if session.title else ""
    return f"{session.id}{title} with {counted(session.last_seq, 'message')}"


# --- retain ----------------------------------------------------------------------------------------------------------


async def retain(
    *,
    older_than: timedelta,
    user: str | None = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the sessions in which nothing has happened for a while.

    Parameters
    ----------
    older_than
        For how long: 90d, 12w, 36h, 2y.
    user
        Only this user's sessions.
    """
    if older_than < timedelta():
        raise InputError("--older-than lies in the future", remedy="Say for how long nothing has happened, as in 90d")
    collected = 0
    async with opened(store) as kept:
        gone = await kept.retain(older_than, user_id=user, dry_run=True)
        if not dry_run:
            if gone:
                ask(f"Delete {counted(len(gone), 'session')}, last changed by {moment(gone[-1].updated_at)}?", yes=yes)
                gone = await kept.retain(older_than, user_id=user)
            collected = await kept.collect_blobs()
    if json:
        print_json({"dry_run": dry_run, "sessions": gone, "large_pieces": collected})
        return
    out = console()
    for session in gone[:_SHOWN]:
        line = Text(session.id).append(f"  {moment(session.updated_at)}  {session.last_seq:>7,}  ", "dim")
        print_line(out, line.append(safe_line(session.title or "")))
    if len(gone) > _SHOWN:
        out.print(f"… {len(gone) - _SHOWN:,} more", style="dim")
    let_go = f", and {counted(collected, 'large piece')} that nobody names" if collected else ""
    out.print(f"{'would delete' if dry_run else 'deleted'} {counted(len(gone), 'session')}{let_go}")


# --- erase -----------------------------------------------------------------------------------------------------------


async def erase(
    *,
    user: str,
    attachments: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_ATTACHMENTS")] = None,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a person from a store, with the files that they have uploaded, and print the receipt.

    Parameters
    ----------
    user
        Who: the user_id of their sessions and messages.
    attachments
        Where attachments are kept, as for serve. Without it, where the configuration file says, or a folder beside the
        SQLite file of the store.
    """
    files = _files_of(user, attachments, store)
    async with opened(store) as kept:
        if not yes:
            count = await _sessions_of(kept, user)
            ask(f"Erase user {user!r} with {count} from this store? It cannot be undone.", yes=yes)
        receipt = await kept.erase_user(user, files)
    if json:
        print_json(receipt)
    else:
        _show(receipt)
    if receipt.attachments_fault is not None:
        raise StorageError(
            f"not all attachments of {user!r} are deleted: {receipt.attachments_fault}",
            remedy="Erase them again when it can be done",
        )


def _files_of(user: str, given: str | None, store: str | None) -> Erasing | None:
    """The files of a person; none if the store is no file, and nobody has said where attachments are."""
    from dragoman import settings  # noqa: PLC0415  the other commands do without all of these
    from dragoman.attachments import Erasing, Owner  # noqa: PLC0415
    from dragoman.server.options import attachments_beside  # noqa: PLC0415

    place = given or settings.load().serve.get("attachments") or attachments_beside(url_from(store))
    return Erasing(place, Owner(user)) if place is not None else None


def _show(receipt: ErasureReceipt) -> None:
    out = console()
    out.print(
        Text("erased ", "bold").append(safe_line(receipt.user_id)).append(f"  receipt {receipt.id}", "dim"),
        soft_wrap=True,
    )
    out.print(
        ", ".join(
            (
                counted(receipt.sessions, "session"),
                counted(receipt.messages, "message"),
                counted(receipt.tool_calls, "tool call"),
                counted(receipt.blobs, "large piece"),
                *([counted(receipt.attachments, "attachment")] if receipt.attachments is not None else []),
            )
        )
    )
    if receipt.attachments is None and receipt.attachments_fault is None:
        out.print("attachments were not looked for: --attachments names where they are", style="dim")
    if receipt.forks_cut:
        out.print(f"{counted(receipt.forks_cut, 'session')} of others had shared such messages", style="dim")
    out.print(f"{moment(receipt.erased_at)} UTC; copies and backups made before know nothing of it", style="dim")


async def _sessions_of(store: Store, user: str) -> str:
    found = await store.list_sessions(user_id=user, limit=_PAGE)
    return f"{_PAGE} sessions or more" if len(found) == _PAGE else counted(len(found), "session")
