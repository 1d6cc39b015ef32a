"""``dragoman verify``, ``repair-usage``, ``delete``, ``retain`` and ``erase``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.text import Text

from dragoman.cli.options import (
    JsonOption,
    SessionArgument,
    StoreOption,
    YesOption,
    find_session,
    find_session_id,
    flag,
    open_store_at,
    resolve_store_url,
)
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

DryRunOption = Annotated[bool, flag("--dry-run", help="Only print what would be deleted.")]
AttachmentsOption = Annotated[
    str | None,
    Parameter(
        name="--attachments",
        env_var="DRAGOMAN_SERVE_ATTACHMENTS",
        help="The location of attachments, as for serve. Default: that of the configuration file, or a folder beside"
        " the SQLite file of the store.",
    ),
]
_NO_ATTACHMENTS_NOTE: Final = "attachments were not deleted: set their location with --attachments"
_PAGE: Final = 500
_MAX_ROWS: Final = 20


# --- verify ----------------------------------------------------------------------------------------------------------


async def verify(
    session: str | None = None,
    /,
    *,
    accept_loss: Annotated[
        bool,
        flag(
            "--accept-loss",
            help="Accept that messages at the end of sessions are missing, as after restoring an older copy.",
        ),
    ] = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Verify stored rows and large objects against their hashes.

    Parameters
    ----------
    session
        Only this session, and the sessions whose history it shares.
    """
    async with open_store_at(store_url) as store:
        only = await find_session_id(store, session)
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
            format_count(result.blobs, "large object"),
        )
    )
    verdict = Text("intact", "green") if result.is_sound else Text(f"{len(result.damage)} damaged", "bold red")
    out.print(verdict.append(f": {counts}", "default"))
    if store.mark.path is not None:
        out.print(_mark_note(result, store.mark.path), style="dim", soft_wrap=True, markup=False)
    return 0 if result.is_sound else 1


def _mark_note(result: Verification, mark: Path) -> str:
    """Return what the mark beside the file proves about the end of each session."""
    if result.marked is None:
        return f"no mark beside the file ({mark.name}): missing messages at the end cannot be detected"
    if any(damage.kind == "lost" for damage in result.damage):
        return "if you restored an older copy on purpose, run dragoman verify --accept-loss"
    since = "" if result.marked_since is None else f", created {format_time(result.marked_since)} UTC"
    return f"the end of {format_count(result.marked, 'session')} matches {mark.name}{since}"


# --- repair-usage ----------------------------------------------------------------------------------------------------


async def repair_usage(
    session: str | None = None,
    /,
    *,
    message: int | None = None,
    write: Annotated[bool, flag("--write", help="Write the repair. Without it, nothing is written.")] = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Correct token usage that is impossible or forged.

    Parameters
    ----------
    session
        Only this session.
    message
        Remove the usage of this message: its number in the session, as show prints it.
    """
    async with open_store_at(store_url) as store:
        only = await find_session_id(store, session)
        repairs = await store.costs.repair(only, message, dry_run=not write)
    if json:
        print_json({"written": write, "repaired": repairs})
        return
    out = console()
    if not repairs:
        out.print("no impossible usage found")
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
        out.print(f"{count} repaired; dragoman trace system --type usage.repaired shows the old values")
    else:
        out.print(f"nothing was written; --write repairs {count}", style="dim")


# --- delete ----------------------------------------------------------------------------------------------------------


async def delete(
    session: SessionArgument,
    /,
    *,
    attachments: AttachmentsOption = None,
    yes: YesOption = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a session and the attachments that only it references."""
    from dragoman.attachments import delete_with_files  # noqa: PLC0415

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
    """Open the attachments of all users; None if their location is unknown."""
    from dragoman.attachments import open_files  # noqa: PLC0415

    url = _attachments_location(location, store_url)
    if url is None:
        yield None
        return
    async with open_files(url) as files:
        yield files


def _attachments_location(location: str | None, store_url: str | None) -> str | None:
    """Return the location of attachments: the option, the configuration, or a folder beside a SQLite store."""
    from dragoman import settings  # noqa: PLC0415
    from dragoman.server.config import default_attachments_url  # noqa: PLC0415

    return location or settings.load().serve.get("attachments") or default_attachments_url(resolve_store_url(store_url))


def _describe(session: Session) -> str:
    title = f" {escape_line(session.title)!r}" if session.title else ""
    return f"{session.id}{title} with {format_count(session.last_seq, 'message')}"


# --- retain ----------------------------------------------------------------------------------------------------------


class DeletionFailure(msgspec.Struct, frozen=True):
    """A session that remains, because its attachments could not be deleted."""

    session_id: str
    fault: str


class RetentionReport(msgspec.Struct, kw_only=True):
    """The deleted sessions, and those that remain."""

    dry_run: bool
    sessions: list[Session]
    attachments: int | None = None  # null: location unknown
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
    """Delete sessions without recent changes, and the attachments that only they reference.

    Parameters
    ----------
    older_than
        The minimum time since the last change: 90d, 12w, 36h, 2y.
    user
        Only sessions of this user.
    """
    if older_than < timedelta():
        raise InputError("--older-than is negative", remedy="Use a duration such as 90d")
    async with _files(attachments, store_url) as files, open_store_at(store_url) as store:
        before = store.cutoff(older_than)
        old = await store.retain(older_than, user_id=user, dry_run=True)
        done = RetentionReport(dry_run=dry_run, sessions=old)
        if not dry_run:
            if old:
                newest = format_time(old[-1].updated_at)
                confirm(f"Delete {format_count(len(old), 'session')}, last changed before {newest}?", yes=yes)
            done = await _delete_old(store, old, before, files)
            done.large_pieces = await store.collect_blobs()
    if json:
        print_json(done)
    else:
        _print_report(done)
    if done.left:
        raise StorageError(
            f"{format_count(len(done.left), 'session')} not deleted, because their attachments could not be deleted",
            remedy="Run the command again",
            code="attachments_left",
        )


async def _delete_old(store: Store, old: list[Session], before: datetime, files: Files | None) -> RetentionReport:
    """Delete each session separately. A failure to delete attachments affects only their session."""
    from dragoman.attachments import delete_with_files  # noqa: PLC0415

    done = RetentionReport(dry_run=False, sessions=[], attachments=None if files is None else 0)
    with progress("deleting") as report:
        for number, session in enumerate(old):
            report(number, len(old))
            try:
                count = await delete_with_files(store, session.id, Owners.of(session), files, untouched_since=before)
            except (ConflictError, UnknownSessionError):  # a turn has started, or another process has deleted it
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
        out.print(f"… {len(done.left) - _MAX_ROWS:,} more that remain", style="dim")
    files = (
        f" with {format_count(done.attachments, 'attachment')}"
        if done.sessions and done.attachments is not None
        else ""
    )
    blobs = f", and {format_count(done.large_pieces, 'large object')} without references" if done.large_pieces else ""
    verb = "would delete" if done.dry_run else "deleted"
    out.print(f"{verb} {format_count(len(done.sessions), 'session')}{files}{blobs}")
    if done.sessions and done.attachments is None and not done.dry_run:
        out.print(_NO_ATTACHMENTS_NOTE, style="dim")


# --- erase -----------------------------------------------------------------------------------------------------------


async def erase(
    *,
    user: str,
    attachments: AttachmentsOption = None,
    delete_copies: Annotated[bool, flag("--delete-copies")] = False,
    yes: YesOption = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a user from a store, with the uploaded attachments, and print the receipt.

    Parameters
    ----------
    user
        The user_id of the sessions and messages.
    delete_copies
        Also delete the copies of the store that earlier migrations have left beside it (NAME.schema-N).
    """
    files = _user_files(user, attachments, store_url)
    async with open_store_at(store_url) as store:
        if not yes:
            count = await _count_sessions(store, user)
            confirm(f"Erase user {user!r} with {count} from this store? This cannot be undone.", yes=yes)
        receipt = await store.erase_user(user, files, delete_copies=delete_copies)
    if json:
        print_json(receipt)
    else:
        _print_receipt(receipt)
    if receipt.attachments_fault is not None:
        raise StorageError(
            f"some attachments of {user!r} were not deleted: {receipt.attachments_fault}",
            remedy="Run the command again",
        )


def _user_files(user: str, location: str | None, store_url: str | None) -> UserFiles | None:
    """Return the attachments of a user; None if their location is unknown."""
    from dragoman.attachments import Owner, UserFiles  # noqa: PLC0415

    url = _attachments_location(location, store_url)
    return UserFiles(url, Owner(user)) if url is not None else None


def _print_receipt(receipt: ErasureReceipt) -> None:
    out = console()
    if not (receipt.sessions or receipt.messages or receipt.attachments):
        out.print(f"no data of user {escape_line(receipt.user_id)!r} found; check the id", markup=False)
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
                format_count(receipt.blobs, "large object"),
                *([format_count(receipt.attachments, "attachment")] if receipt.attachments is not None else []),
            )
        )
    )
    if receipt.attachments is None and receipt.attachments_fault is None:
        out.print(_NO_ATTACHMENTS_NOTE, style="dim")
    if receipt.forks_cut:
        out.print(f"{format_count(receipt.forks_cut, 'session')} of other users shared these messages", style="dim")
    for name in receipt.copies_deleted:
        out.print(f"deleted the copy {escape_line(name)}", style="dim", markup=False)
    for name in receipt.copies_left:
        out.print(
            f"not deleted: {escape_line(name)} beside the store may contain erased data", style="red", markup=False
        )
    if any(".schema-" in name for name in receipt.copies_left):
        out.print("run erase again with --delete-copies to delete the copies of migrations", style="dim")
    out.print(f"{format_time(receipt.erased_at)} UTC; backups in other places are not changed", style="dim")


async def _count_sessions(store: Store, user: str) -> str:
    sessions = await store.list_sessions(user_id=user, limit=_PAGE)
    return f"{_PAGE} sessions or more" if len(sessions) == _PAGE else format_count(len(sessions), "session")
