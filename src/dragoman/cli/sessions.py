"""``dragoman sessions`` and ``dragoman fork``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rich.text import Text

from dragoman.cli.options import JsonOption, Positive, SessionArgument, StoreOption, find_session, open_store_at
from dragoman.cli.terminal import console, escape_line, format_age, format_count, print_json, print_line, to_utc
from dragoman.store import Session, Store

_PAGE = 200


async def sessions(
    *,
    user: str | None = None,
    team: str | None = None,
    since: datetime | None = None,
    before: str | None = None,
    limit: Positive = 20,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the sessions of a store, most recently changed first.

    Parameters
    ----------
    user
        Only sessions of this user.
    team
        Only sessions of this team.
    since
        Only sessions that changed since this time; UTC unless it has a time zone.
    before
        Only sessions that changed before this session: the last one of the previous page.
    limit
        The maximum number of sessions.
    """
    async with open_store_at(store_url) as store:
        cursor = await find_session(store, before) if before is not None else None
        owner = {"user_id": user, "team_id": team}
        rows = await _list_sessions(store, owner, cursor, to_utc(since), limit + 1)
    page, is_more = rows[:limit], len(rows) > limit
    if json:
        print_json({"sessions": page, "is_more": is_more})
        return
    if not page:
        console().print("no sessions")
        return
    out = console()
    for line in session_lines(page, datetime.now(UTC)):
        print_line(out, line)
    if is_more:
        out.print(f"… more: --limit {limit * 5}, or --before {page[-1].id[-6:]}", style="dim")


async def _list_sessions(
    store: Store, owner: dict[str, str | None], cursor: Session | None, since: datetime | None, limit: int
) -> list[Session]:
    rows: list[Session] = []
    while len(rows) < limit:
        page_size = min(_PAGE, limit - len(rows))
        page = await store.list_sessions(**owner, before=cursor, limit=page_size)
        rows.extend(session for session in page if since is None or session.updated_at >= since)
        if len(page) < page_size or (since is not None and page[-1].updated_at < since):
            break
        cursor = page[-1]
    return rows


def session_lines(sessions: list[Session], now: datetime) -> Iterator[Text]:
    """Yield a line per session. The shortest unique suffix of the id is highlighted."""
    widest = max(len(session.id) for session in sessions)
    yield Text(f"{'session':{widest}}  {'changed':>10}  {'messages':>8}  title", "dim")
    enough = _suffix_length([session.id for session in sessions])
    for session in sessions:
        line = Text(session.id[:-enough], "dim").append(session.id[-enough:], "not dim bold")
        line.append(" " * (widest - len(session.id)))
        line.append(f"  {format_age(session.updated_at, now):>10}  {session.last_seq:>8,}  ", "not dim")
        yield line.append_text(_title(session))


def _suffix_length(ids: list[str]) -> int:
    """Return how many trailing characters distinguish the ids."""
    length = 6
    while length < max(map(len, ids)) and len({session_id[-length:] for session_id in ids}) < len(set(ids)):
        length += 1
    return length


def _title(session: Session) -> Text:
    title = Text()
    if session.parent_session_id is not None:
        title.append(f"⑂ {session.parent_session_id[-6:]} at {session.parent_seq}  ", "cyan")
    return title.append(escape_line(session.title or ""))


async def fork(
    session: SessionArgument,
    /,
    *,
    at: str | None = None,
    title: str | None = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a session that shares the history of another one up to a message.

    Parameters
    ----------
    at
        The last shared message: its number or id. Default: the newest message.
    title
        The title of the new session. Default: the title of the original.
    """
    async with open_store_at(store_url) as store:
        origin = await find_session(store, session)
        new_session = await store.fork(origin.id, int(at) if at is not None and at.isdecimal() else at, title=title)
    if json:
        print_json(new_session)
        return
    console().print(new_session.id, soft_wrap=True)
    console().print(
        f"shares {format_count(new_session.parent_seq, 'message')} of {origin.id}", style="dim", soft_wrap=True
    )
