"""``dragoman verify``, ``delete``, ``retain`` and ``erase``: whether a store is sound, and what goes for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.text import Text

from dragoman.cli.store_option import JsonOption, StoreOption, YesOption, opened, session_named, url_from
from dragoman.cli.terminal import ask, console, counted, moment, print_json, print_line, progress, safe_line
from dragoman.errors import ConflictError, InputError, StorageError, UnknownSessionError
from dragoman.store import ErasureReceipt, Owners, Session, Store, Verification

if TYPE_CHECKING:
    from dragoman.attachments import Erasing, Files

DryRunOption = Annotated[
    bool,
    Parameter(name="--dry-run", negative=(), show_default=False, help="Only say what would be deleted."),
]
AttachmentsOption = Annotated[
    str | None,
    Parameter(
        name="--attachments",
        env_var="DRAGOMAN_SERVE_ATTACHMENTS",
        help="Where attachments are kept, as for serve. Without it, where the configuration file says, or a folder"
        " beside the SQLite file of the store.",
    ),
]
_NOT_LOOKED_FOR: Final = "attachments were not looked for: --attachments names where they are"
_PAGE: Final = 500
_SHOWN: Final = 20


# --- verify ----------------------------------------------------------------------------------------------------------


async def verify(
    session: str | None = None,
    /,
    *,
    accept_loss: Annotated[
        bool,
        Parameter(
            name="--accept-loss",
            negative=(),
            show_default=False,
            help="Accept that messages are missing at the end of sessions, and begin the mark anew from what is there.",
        ),
    ] = False,
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
        if accept_loss:
            await kept.accept_loss()
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
    if kept.mark.path is not None:
        out.print(_marked(found, kept.mark.path), style="dim", soft_wrap=True, markup=False)
    return 0 if found.is_sound else 1


def _marked(found: Verification, mark: Path) -> str:
    """What is known of the end of each session from outside the file."""
    if found.marked is None:
        return f"no mark beside the file ({mark.name}): messages that are missing at the end are not noticed"
    if any("acknowledged up to" in damage.what for damage in found.damage):
        return "if you restored an older copy on purpose, accept it: dragoman verify --accept-loss"
    since = "" if found.marked_since is None else f", which was begun {moment(found.marked_since)} UTC"
    return f"the end of {counted(found.marked, 'session')} was compared with {mark.name}{since}"


# --- repair-usage ----------------------------------------------------------------------------------------------------


async def repair_usage(
    session: str | None = None,
    /,
    *,
    message: int | None = None,
    write: Annotated[
        bool,
        Parameter(
            name="--write",
            negative=(),
            show_default=False,
            help="Write the repair. Without it, nothing is written.",
        ),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Put right what messages say that they consumed, where that is impossible or was forged.

    Parameters
    ----------
    session
        Only this session.
    message
        Take the usage of this message away, whatever it says: its number in the session, as show has it.
    """
    async with opened(store) as kept:
        only = (await session_named(kept, session)).id if session is not None else None
        found = await kept.repair_usage(only, message, dry_run=not write)
    if json:
        print_json({"written": write, "repaired": found})
        return
    out = console()
    if not found:
        out.print("every usage is possible")
        return
    for one in found:
        place = f"{one.session_id}, message {one.seq}" if one.session_id else "deleted sessions"
        whose = f" (counted for {one.user_id}{f' of {one.team_id}' if one.team_id else ''})" if one.user_id else ""
        out.print(Text(safe_line(f"{place}{whose}"), "bold"), soft_wrap=True)
        out.print(Text(f"  {safe_line(one.what)}"), soft_wrap=True)
        for name, before in one.before.items():
            if before != one.after.get(name):
                out.print(Text(f"  {name}: {safe_line(str(before))} → {one.after.get(name, 0)}", "dim"), soft_wrap=True)
    count = counted(len(found), "usage")
    if write:
        out.print(f"{count} repaired; dragoman trace system --type usage.repaired says what stood there")
    else:
        out.print(f"nothing was written; --write repairs {count}", style="dim")


# --- delete ----------------------------------------------------------------------------------------------------------


async def delete(
    session: str,
    /,
    *,
    attachments: AttachmentsOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a session, with the files that only it names. Its forks keep their histories.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, or last.
    """
    from dragoman.attachments import delete_with_files  # noqa: PLC0415  the other commands do without

    async with _files(attachments, store) as files, opened(store) as kept:
        found = await session_named(kept, session)
        ask(f"Delete {_described(found)}?", yes=yes)
        count = await delete_with_files(kept, found.id, Owners.of(found), files)
    if json:
        print_json({"deleted": found, "attachments": None if files is None else count})
        return
    out = console()
    beside = f" and {counted(count or 0, 'attachment')}" if files is not None else ""
    out.print(f"deleted {_described(found)}{beside}", markup=False, soft_wrap=True)
    if files is None:
        out.print(_NOT_LOOKED_FOR, style="dim")


@asynccontextmanager
async def _files(given: str | None, store: str | None) -> AsyncIterator[Files | None]:
    """The files of everybody; none if the store is no file, and nobody has said where attachments are."""
    from dragoman.attachments import open_files  # noqa: PLC0415

    place = _place(given, store)
    if place is None:
        yield None
        return
    async with open_files(place) as files:
        yield files


def _place(given: str | None, store: str | None) -> str | None:
    """Where attachments are, if somebody has said so or the store is a file."""
    from dragoman import settings  # noqa: PLC0415  the other commands do without these
    from dragoman.server.options import attachments_beside  # noqa: PLC0415

    return given or settings.load().serve.get("attachments") or attachments_beside(url_from(store))


def _described(session: Session) -> str:
    title = f" {safe_line(session.title)!r}" if session.title else ""
    return f"{session.id}{title} with {counted(session.last_seq, 'message')}"


# --- retain ----------------------------------------------------------------------------------------------------------


class Left(msgspec.Struct, frozen=True):
    """A session that stays, because its files could not be deleted."""

    session_id: str
    fault: str


class Retained(msgspec.Struct, kw_only=True):
    """What went, and what did not."""

    dry_run: bool
    sessions: list[Session]
    attachments: int | None = None  # none if they were not looked for
    large_pieces: int = 0
    left: list[Left] = []


async def retain(
    *,
    older_than: Annotated[timedelta, Parameter(allow_leading_hyphen=True)],
    user: str | None = None,
    attachments: AttachmentsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the sessions in which nothing has happened for a while, each with the files that only it names.

    Parameters
    ----------
    older_than
        For how long: 90d, 12w, 36h, 2y.
    user
        Only this user's sessions.
    """
    if older_than < timedelta():
        raise InputError("--older-than lies in the future", remedy="Say for how long nothing has happened, as in 90d")
    async with _files(attachments, store) as files, opened(store) as kept:
        before = kept.cutoff(older_than)
        old = await kept.retain(older_than, user_id=user, dry_run=True)
        done = Retained(dry_run=dry_run, sessions=old)
        if not dry_run:
            if old:
                ask(f"Delete {counted(len(old), 'session')}, last changed by {moment(old[-1].updated_at)}?", yes=yes)
            done = await _retained(kept, old, before, files)
            done.large_pieces = await kept.collect_blobs()
    if json:
        print_json(done)
    else:
        _show_retained(done)
    if done.left:
        raise StorageError(
            f"{counted(len(done.left), 'session')} could not be deleted, because attachments could not be",
            remedy="Delete them again when it can be done",
            code="attachments_left",
        )


async def _retained(store: Store, old: list[Session], before: datetime, files: Files | None) -> Retained:
    """Delete old sessions one by one; files that cannot be deleted keep their session, and no other one."""
    from dragoman.attachments import delete_with_files  # noqa: PLC0415

    done = Retained(dry_run=False, sessions=[], attachments=None if files is None else 0)
    with progress("deleting") as seen:
        for number, session in enumerate(old):
            seen(number, len(old))
            try:
                count = await delete_with_files(store, session.id, Owners.of(session), files, untouched_since=before)
            except (ConflictError, UnknownSessionError):  # a turn has begun in it, or somebody else was quicker
                continue
            except StorageError as error:
                if error.code != "attachments_left":
                    raise
                done.left.append(Left(session.id, error.what))
                continue
            if count is not None:
                done.sessions.append(session)
                done.attachments = None if done.attachments is None else done.attachments + count
    return done


def _show_retained(done: Retained) -> None:
    out = console()
    for session in done.sessions[:_SHOWN]:
        line = Text(session.id).append(f"  {moment(session.updated_at)}  {session.last_seq:>7,}  ", "dim")
        print_line(out, line.append(safe_line(session.title or "")))
    if len(done.sessions) > _SHOWN:
        out.print(f"… {len(done.sessions) - _SHOWN:,} more", style="dim")
    for one in done.left[:_SHOWN]:
        out.print(Text(one.session_id, "red").append(f"  {safe_line(one.fault)}", "default"), soft_wrap=True)
    if len(done.left) > _SHOWN:
        out.print(f"… {len(done.left) - _SHOWN:,} more that stay", style="dim")
    files = f" with {counted(done.attachments, 'attachment')}" if done.sessions and done.attachments is not None else ""
    let_go = f", and {counted(done.large_pieces, 'large piece')} that nobody names" if done.large_pieces else ""
    verb = "would delete" if done.dry_run else "deleted"
    out.print(f"{verb} {counted(len(done.sessions), 'session')}{files}{let_go}")
    if done.sessions and done.attachments is None and not done.dry_run:
        out.print(_NOT_LOOKED_FOR, style="dim")


# --- erase -----------------------------------------------------------------------------------------------------------


async def erase(
    *,
    user: str,
    attachments: AttachmentsOption = None,
    delete_copies: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a person from a store, with the files that they have uploaded, and print the receipt.

    Parameters
    ----------
    user
        Who: the user_id of their sessions and messages.
    delete_copies
        Delete the copies beside the database that earlier versions' migrations have made (NAME.schema-N), too.
    """
    files = _files_of(user, attachments, store)
    async with opened(store) as kept:
        if not yes:
            count = await _sessions_of(kept, user)
            ask(f"Erase user {user!r} with {count} from this store? It cannot be undone.", yes=yes)
        receipt = await kept.erase_user(user, files, delete_copies=delete_copies)
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
    from dragoman.attachments import Erasing, Owner  # noqa: PLC0415

    place = _place(given, store)
    return Erasing(place, Owner(user)) if place is not None else None


def _show(receipt: ErasureReceipt) -> None:
    out = console()
    if not (receipt.sessions or receipt.messages or receipt.attachments):
        out.print(f"nothing of user {safe_line(receipt.user_id)!r} was found; check the spelling", markup=False)
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
        out.print(_NOT_LOOKED_FOR, style="dim")
    if receipt.forks_cut:
        out.print(f"{counted(receipt.forks_cut, 'session')} of others had shared such messages", style="dim")
    for name in receipt.copies_deleted:
        out.print(f"deleted the copy {safe_line(name)}", style="dim", markup=False)
    for name in receipt.copies_left:
        out.print(f"left: {safe_line(name)} beside the store may still hold what was erased", style="red", markup=False)
    if any(".schema-" in name for name in receipt.copies_left):
        out.print("erase again with --delete-copies to delete what migrations have left", style="dim")
    out.print(f"{moment(receipt.erased_at)} UTC; copies and backups elsewhere know nothing of it", style="dim")


async def _sessions_of(store: Store, user: str) -> str:
    found = await store.list_sessions(user_id=user, limit=_PAGE)
    return f"{_PAGE} sessions or more" if len(found) == _PAGE else counted(len(found), "session")
