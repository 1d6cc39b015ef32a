"""``dragoman search``: find messages that contain all words."""

from __future__ import annotations

from datetime import datetime

from rich.padding import Padding
from rich.text import Text

from dragoman.cli.options import JsonOption, Positive, StoreOption, find_session_id, open_store_at
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
    """Find messages that contain all words, best matches first.

    Parameters
    ----------
    word
        A word. The last word may be a prefix; words in double quotes are a phrase.
    words
        More words.
    session
        Only messages of this session, including those that a fork shares.
    role
        Only messages of this role: user, assistant, system or tool.
    model
        Only messages of this model.
    user
        Only sessions of this user.
    team
        Only sessions of this team.
    since
        Only messages from this time on; UTC unless it has a time zone.
    until
        Only messages before this time.
    limit
        The maximum number of messages.
    """
    query = " ".join((word, *words))
    async with open_store_at(store_url) as store:
        only = await find_session_id(store, session)
        with show_spinner("searching; new messages are indexed first"):
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
        console().print(f"no messages found for {escape_line(query)!r}", markup=False)
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
