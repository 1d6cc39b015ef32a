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

from dragoman.cli.options import JsonOption, StoreOption, YesOption, find_session, open_store_at, resolve_store_url
from dragoman.cli.terminal import (
    confirm,
    console,
    escape_line,
    format_count,
    format_time,
    print_json,
    print_line,
    progress,
)
from dragoman.errors import ConflictError, InputError, StorageError, UnknownSessionError
from dragoman.store import ErasureReceipt, Owners, Session, Store, Verification

if TYPE_CHECKING:
    from dragoman.attachments import Files, UserFiles

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
_NO_ATTACHMENTS_NOTE: Final = "attachments were not looked for: --attachments names where they are"
_PAGE: Final = 500
_MAX_ROWS: Final = 20


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
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Look whether everything in a store is still what was written.

    Parameters
    ----------
    session
        Only this session, and those that it shares its history with.
    """
    async with open_store_at(store_url) as store:
        only = (await find_session(store, session)).id if session is not None else None
        if accept_loss:
            await store.accept_loss()
        with progress("verifying") as report:
            result = await store.verify(only, report)
    if json:
        print_json({"is_sound": result.is_sound, **msgspec.structs.asdict(result)})
        return 0 if result.is_sound else 1
    out = console()
    for damage in result.damage:
        place = f"{damage.session_id}{'' if damage.seq is None else f', message {damage.seq}'}"
        out.print(Text(escape_line(place), "red").append(f"  {escape_line(damage.what)}", "default"), soft_wrap=True)
    counts = ", ".join(
        (
            format_count(result.sessions, "session"),
            format_count(result.messages, "message"),
            format_count(result.blobs, "large piece"),
        )
    )
    verdict = Text("sound", "green") if result.is_sound else Text(f"{len(result.damage)} damaged", "bold red")
    out.print(verdict.append(f": {counts}", "default"))
    if store.mark.path is not None:
        out.print(_mark_note(result, store.mark.path), style="dim", soft_wrap=True, markup=False)
    return 0 if result.is_sound else 1


def _mark_note(result: Verification, mark: Path) -> str:
    """What is known of the end of each session from outside the file."""
    if result.marked is None:
        return f"no mark beside the file ({mark.name}): messages that are missing at the end are not noticed"
    if any("acknowledged up to" in damage.what for damage in result.damage):
        return "if you restored an older copy on purpose, accept it: dragoman verify --accept-loss"
    since = "" if result.marked_since is None else f", which was begun {format_time(result.marked_since)} UTC"
    return f"the end of {format_count(result.marked, 'session')} was compared with {mark.name}{since}"


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
    store_url: StoreOption = None,
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
    async with open_store_at(store_url) as store:
        only = (await find_session(store, session)).id if session is not None else None
        repairs = await store.costs.repair(only, message, dry_run=not write)
    if json:
        print_json({"written": write, "repaired": repairs})
        return
    out = console()
    if not repairs:
        out.print("every usage is possible")
        return
    for item in repairs:
        place = f"{item.session_id}, message {item.seq}" if item.session_id else "deleted sessions"
        owner = f" (counted for {item.user_id}{f' of {item.team_id}' if item.team_id else ''})" if item.user_id else ""
        out.print(Text(escape_line(f"{place}{owner}"), "bold"), soft_wrap=True)
        out.print(Text(f"  {escape_line(item.what)}"), soft_wrap=True)
        for name, before in item.before.items():
            if before != item.after.get(name):
                out.print(
                    Text(f"  {name}: {escape_line(str(before))} → {item.after.get(name, 0)}", "dim"), soft_wrap=True
                )
    count = format_count(len(repairs), "usage")
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
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a session, with the files that only it names. Its forks keep their histories.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, or last.
    """
    from dragoman.attachments import delete_with_files  # noqa: PLC0415  the other commands do without

    async with _files(attachments, store_url) as files, open_store_at(store_url) as store:
        current = await find_session(store, session)
        confirm(f"Delete {_describe(current)}?", yes=yes)
        count = await delete_with_files(store, current.id, Owners.of(current), files)
    if json:
        print_json({"deleted": current, "attachments": None if files is None else count})
        return
    out = console()
    beside = f" and {format_count(count or 0, 'attachment')}" if files is not None else ""
    out.print(f"deleted {_describe(current)}{beside}", markup=False, soft_wrap=True)
    if files is None:
        out.print(_NO_ATTACHMENTS_NOTE, style="dim")


@asynccontextmanager
async def _files(location: str | None, store_url: str | None) -> AsyncIterator[Files | None]:
    """The files of everybody; none if the store is no file, and nobody has said where attachments are."""
    from dragoman.attachments import open_files  # noqa: PLC0415

    url = _attachments_location(location, store_url)
    if url is None:
        yield None
        return
    async with open_files(url) as files:
        yield files


def _attachments_location(location: str | None, store_url: str | None) -> str | None:
    """Where attachments are, if somebody has said so or the store is a file."""
    from dragoman import settings  # noqa: PLC0415  the other commands do without these
    from dragoman.server.config import default_attachments_url  # noqa: PLC0415

    return location or settings.load().serve.get("attachments") or default_attachments_url(resolve_store_url(store_url))


def _describe(session: Session) -> str:
    title = f" {escape_line(session.title)!r}" if session.title else ""
    return f"{session.id}{title} with {format_count(session.last_seq, 'message')}"


# --- retain ----------------------------------------------------------------------------------------------------------


class DeletionFailure(msgspec.Struct, frozen=True):
    """A session that stays, because its files could not be deleted."""

    session_id: str
    fault: str


class RetentionReport(msgspec.Struct, kw_only=True):
    """What went, and what did not."""

    dry_run: bool
    sessions: list[Session]
    attachments: int | None = None  # none if they were not looked for
    large_pieces: int = 0
    left: list[DeletionFailure] = []


async def retain(
    *,
    older_than: Annotated[timedelta, Parameter(allow_leading_hyphen=True)],
    user: str | None = None,
    attachments: AttachmentsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store_url: StoreOption = None,
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
    async with _files(attachments, store_url) as files, open_store_at(store_url) as store:
        before = store.cutoff(older_than)
        old = await store.retain(older_than, user_id=user, dry_run=True)
        done = RetentionReport(dry_run=dry_run, sessions=old)
        if not dry_run:
            if old:
                confirm(
                    f"Delete {format_count(len(old), 'session')}, last changed by {format_time(old[-1].updated_at)}?",
                    yes=yes,
                )
            done = await _delete_old(store, old, before, files)
            done.large_pieces = await store.collect_blobs()
    if json:
        print_json(done)
    else:
        _print_report(done)
    if done.left:
        raise StorageError(
            f"{format_count(len(done.left), 'session')} could not be deleted, because attachments could not be",
            remedy="Delete them again when it can be done",
            code="attachments_left",
        )


async def _delete_old(store: Store, old: list[Session], before: datetime, files: Files | None) -> RetentionReport:
    """Delete old sessions one by one; files that cannot be deleted keep their session, and no other one."""
    from dragoman.attachments import delete_with_files  # noqa: PLC0415

    done = RetentionReport(dry_run=False, sessions=[], attachments=None if files is None else 0)
    with progress("deleting") as report:
        for number, session in enumerate(old):
            report(number, len(old))
            try:
                count = await delete_with_files(store, session.id, Owners.of(session), files, untouched_since=before)
            except (ConflictError, UnknownSessionError):  # a turn has begun in it, or somebody else was quicker
                continue
            except StorageError as error:
                if error.code != "attachments_left":
                    raise
                done.left.append(DeletionFailure(session.id, error.what))
                continue
            if count is not None:
                done.sessions.append(session)
                done.attachments = None if done.attachments is None else done.attachments + count
    return done


def _print_report(done: RetentionReport) -> None:
    out = console()
    for session in done.sessions[:_MAX_ROWS]:
        line = Text(session.id).append(f"  {format_time(session.updated_at)}  {session.last_seq:>7,}  ", "dim")
        print_line(out, line.append(escape_line(session.title or "")))
    if len(done.sessions) > _MAX_ROWS:
        out.print(f"… {len(done.sessions) - _MAX_ROWS:,} more", style="dim")
    for failure in done.left[:_MAX_ROWS]:
        out.print(Text(failure.session_id, "red").append(f"  {escape_line(failure.fault)}", "default"), soft_wrap=True)
    if len(done.left) > _MAX_ROWS:
        out.print(f"… {len(done.left) - _MAX_ROWS:,} more that stay", style="dim")
    files = (
        f" with {format_count(done.attachments, 'attachment')}"
        if done.sessions and done.attachments is not None
        else ""
    )
    blobs = f", and {format_count(done.large_pieces, 'large piece')} that nobody names" if done.large_pieces else ""
    verb = "would delete" if done.dry_run else "deleted"
    out.print(f"{verb} {format_count(len(done.sessions), 'session')}{files}{blobs}")
    if done.sessions and done.attachments is None and not done.dry_run:
        out.print(_NO_ATTACHMENTS_NOTE, style="dim")


# --- erase -----------------------------------------------------------------------------------------------------------


async def erase(
    *,
    user: str,
    attachments: AttachmentsOption = None,
    delete_copies: Annotated[bool, Parameter(negative="")] = False,
    yes: YesOption = False,
    store_url: StoreOption = None,
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
    files = _user_files(user, attachments, store_url)
    async with open_store_at(store_url) as store:
        if not yes:
            count = await _count_sessions(store, user)
            confirm(f"Erase user {user!r} with {count} from this store? It cannot be undone.", yes=yes)
        receipt = await store.erase_user(user, files, delete_copies=delete_copies)
    if json:
        print_json(receipt)
    else:
        _print_receipt(receipt)
    if receipt.attachments_fault is not None:
        raise StorageError(
            f"not all attachments of {user!r} are deleted: {receipt.attachments_fault}",
            remedy="Erase them again when it can be done",
        )


def _user_files(user: str, location: str | None, store_url: str | None) -> UserFiles | None:
    """The files of a person; none if the store is no file, and nobody has said where attachments are."""
    from dragoman.attachments import Owner, UserFiles  # noqa: PLC0415

    url = _attachments_location(location, store_url)
    return UserFiles(url, Owner(user)) if url is not None else None


def _print_receipt(receipt: ErasureReceipt) -> None:
    out = console()
    if not (receipt.sessions or receipt.messages or receipt.attachments):
        out.print(f"nothing of user {escape_line(receipt.user_id)!r} was found; check the spelling", markup=False)
    out.print(
        Text("erased ", "bold").append(escape_line(receipt.user_id)).append(f"  receipt {receipt.id}", "dim"),
        soft_wrap=True,
    )
    out.print(
        ", ".join(
            (
                format_count(receipt.sessions, "session"),
                format_count(receipt.messages, "message"),
                format_count(receipt.tool_calls, "tool call"),
                format_count(receipt.blobs, "large piece"),
                *([format_count(receipt.attachments, "attachment")] if receipt.attachments is not None else []),
            )
        )
    )
    if receipt.attachments is None and receipt.attachments_fault is None:
        out.print(_NO_ATTACHMENTS_NOTE, style="dim")
    if receipt.forks_cut:
        out.print(f"{format_count(receipt.forks_cut, 'session')} of others had shared such messages", style="dim")
    for name in receipt.copies_deleted:
        out.print(f"deleted the copy {escape_line(name)}", style="dim", markup=False)
    for name in receipt.copies_left:
        out.print(
            f"left: {escape_line(name)} beside the store may still hold what was erased", style="red", markup=False
        )
    if any(".schema-" in name for name in receipt.copies_left):
        out.print("erase again with --delete-copies to delete what migrations have left", style="dim")
    out.print(f"{format_time(receipt.erased_at)} UTC; copies and backups elsewhere know nothing of it", style="dim")


async def _count_sessions(store: Store, user: str) -> str:
    sessions = await store.list_sessions(user_id=user, limit=_PAGE)
    return f"{_PAGE} sessions or more" if len(sessions) == _PAGE else format_count(len(sessions), "session")
