"""``dragoman search``: messages found by their words."""

from __future__ import annotations

from datetime import datetime

from rich.padding import Padding
from rich.text import Text

from dragoman.cli.options import JsonOption, Positive, StoreOption, find_session, open_store_at
from dragoman.cli.terminal import (
    console,
    escape_in_place,
    escape_line,
    format_count,
    format_time,
    print_json,
    print_line,
    show_spinner,
    to_utc,
)
from dragoman.store import Hit


async def search(
    word: str,
    /,
    *words: str,
    session: str | None = None,
    role: str | None = None,
    model: str | None = None,
    user: str | None = None,
    team: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Positive = 20,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Find messages in which all these words are, the best first.

    Parameters
    ----------
    word
        A word. The last one may be the beginning of one; words in double quotes stand in a row.
    words
        More words.
    session
        Only in this session.
    role
        Only what this role said: user, assistant, system or tool.
    model
        Only what this model said.
    user
        Only in this user's sessions.
    team
        Only in this team's sessions.
    since
        Only from this moment on; in UTC unless it names a zone.
    until
        Only before this moment.
    limit
        At most so many.
    """
    query = " ".join((word, *words))
    async with open_store_at(store_url) as store:
        only = (await find_session(store, session)).id if session is not None else None
        with show_spinner("searching; what is new is indexed first"):
            hits = await store.search(
                query,
                session_id=only,
                role=role,
                model=model,
                user_id=user,
                team_id=team,
                since=to_utc(since),
                until=to_utc(until),
                limit=limit,
            )
        ids = dict.fromkeys(hit.session_id for hit in hits)
        titles = {session_id: (await store.get_session(session_id)).title for session_id in ids}
    if json:
        print_json({"hits": hits})
    elif not hits:
        console().print(f"nothing found for {escape_line(query)!r}", markup=False)
    else:
        _print(hits, titles, limit)
    return 0 if hits else 1


def _print(hits: list[Hit], titles: dict[str, str | None], limit: int) -> None:
    out = console()
    for hit in hits:
        title = titles[hit.session_id]
        heading = Text(hit.session_id, "cyan").append(
            f" · {hit.seq} · {hit.role} · {format_time(hit.created_at)}", "dim"
        )
        print_line(out, heading.append(f" · {escape_line(title)}" if title else "", "dim"))
        snippet = Text(escape_in_place(hit.snippet))
        for begin, end in hit.highlights:
            snippet.stylize("bold yellow", begin, end)
        if out.is_terminal:
            out.print(Padding(snippet, (0, 0, 0, 2)))
        else:
            out.print(Text("  ").append_text(snippet), soft_wrap=True)
    more = f"; more with --limit {limit * 5}" if len(hits) == limit else ""
    out.print(f"{format_count(len(hits), 'message')}{more}", style="dim")
