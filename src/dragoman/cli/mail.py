"""``dragoman mail``: letters of a store, sent, looked at, watched, and sent again when they were given up.

Looking takes nothing: a letter that is shown here still goes to whoever receives it. The one rule: what is sensitive is
shown as ``***``, whoever looks.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from dragoman.cli.store_option import JsonOption, Positive, StoreOption, opened
from dragoman.cli.terminal import age, console, print_json, print_line, safe_line
from dragoman.errors import JsonError
from dragoman.letters import Letter, warnings_of, write_letter
from dragoman.mail import Mail
from dragoman.mail.posting import shown

if TYPE_CHECKING:
    from dragoman.letters.kept import DeadLetter, MailboxCounts
    from dragoman.store import Store
    from dragoman.store.mail import Standing

_POLL_S = 0.25
_PAGE = 100
TeamOption = Annotated[str | None, Parameter(help="The team whose mail it is. Without one, that of no team.")]
_STYLES = {"ready": "bold", "done": "dim", "dead": "red", "held": "yellow", "behind": "yellow", "away": "cyan"}


async def send(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    *,
    team: TeamOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send a letter: when the command ends, it is safe. The same letter again is one letter.

    Parameters
    ----------
    file
        The letter, as JSON; - for the standard input.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    async with opened(store, may_begin=True) as kept:
        mail = _mail(kept, team)
        try:
            receipt = await mail.send(data)
        except JsonError as error:
            where = ", ".join(part for part in (str(file), error.where) if part)
            raise JsonError(error.what, where=where, remedy=error.remedy, code=error.code) from None
        (standing,) = await mail.letters(recipient_id=receipt.recipient_id, letter_id=receipt.letter_id, limit=1)
    odd = [f"{warning} [{warning.code}]" for warning in warnings_of(shown(standing.posted))]
    if json:
        print_json({**msgspec.to_builtins(receipt), "warnings": odd})
        return
    out = console()
    for line in odd:
        out.print(Text("warning  ", "yellow").append(safe_line(line), ""), soft_wrap=True)
    what = "sent" if receipt.is_new else "was sent before"
    out.print(Text(f"{what} to {receipt.recipient_id}: {receipt.letter_id}"), soft_wrap=True)


async def inbox(
    recipient: str | None = None,
    /,
    *,
    task: str | None = None,
    limit: Positive = 20,
    team: TeamOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the mailboxes of a store, or the newest letters of one.

    Parameters
    ----------
    recipient
        Whose letters. Without it, every mailbox and how much is in it.
    task
        The letters of a task in place of those of a mailbox.
    limit
        At most so many letters.
    """
    async with opened(store) as kept:
        mail = _mail(kept, team)
        if task is not None:
            found = [one for one in await mail.thread(task) if recipient in (None, one.posted.recipient_id)][:limit]
        elif recipient is not None:
            found = [one for _, one in await kept.mail.newest(recipient, mail.team_id, limit)]
        else:
            _print_mailboxes(await mail.counts(), json=json)
            return
    if json:
        print_json({"letters": [_told(one) for one in found]})
        return
    out = console()
    for one in found:
        print_line(out, _line(one))
    if not found:
        out.print("no letters")


async def watch(
    recipient: str,
    /,
    *,
    team: TeamOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what arrives in a mailbox, as it arrives, until Ctrl-C. Nothing is taken out of it.

    Parameters
    ----------
    recipient
        Whose mailbox.
    json
        One JSON document a line.
    """
    out = console()
    async with opened(store) as kept:
        mail = _mail(kept, team)
        after = await kept.mail.last_number(recipient, mail.team_id)
        while True:
            found = await kept.mail.arrivals(recipient, mail.team_id, after, _PAGE)
            for number, standing in found:
                after = number
                _show(out, standing, json=json)
            if not found:
                await asyncio.sleep(_POLL_S)


def _show(out: Console, standing: Standing, *, json: bool) -> None:
    if json:
        print_json(_told(standing))
    else:
        print_line(out, _line(standing))


async def dead(
    *,
    recipient: str | None = None,
    limit: Positive = 50,
    team: TeamOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the letters that were given up and what was no letter, the newest first, with the reason.

    Parameters
    ----------
    recipient
        Only those to this recipient.
    limit
        At most so many.
    """
    wanted = {} if recipient is None else {"recipient_id": recipient}
    async with opened(store) as kept:
        found = await _mail(kept, team).dead_letters(limit=limit, **wanted)
    if json:
        print_json({"dead_letters": [_dead_told(one) for one in found]})
        return
    out = console()
    for one in found:
        out.print(_dead_line(one), soft_wrap=True)
    if not found:
        out.print("no dead letters")


async def resend(
    dead_id: str, /, *, team: TeamOption = None, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Send a letter again that was given up.

    Parameters
    ----------
    dead_id
        Its id among the dead letters.
    """
    async with opened(store) as kept:
        receipt = await _mail(kept, team).resend(dead_id)
    if json:
        print_json(receipt)
        return
    console().print(Text(f"sent again to {receipt.recipient_id}: {receipt.letter_id}"), soft_wrap=True)


def _mail(store: Store, team: str | None) -> Mail:
    return Mail(store, team_id=team)


# --- how it looks ----------------------------------------------------------------------------------------------------


def _print_mailboxes(boxes: list[MailboxCounts], *, json: bool) -> None:
    boxes = [box for box in boxes if box.recipient_id]
    if json:
        print_json({"mailboxes": boxes})
        return
    out = console()
    if not boxes:
        out.print("no mail")
        return
    widest = max(9, *(len(box.recipient_id) for box in boxes))
    names = ("ready", "leased", "waiting", "behind", "held", "away", "done", "dead")
    print_line(out, Text(f"{'recipient':{widest}}" + "".join(f"{name:>8}" for name in names), "dim"))
    for box in boxes:
        counts = "".join(f"{getattr(box, name):>8,}" for name in names)
        print_line(out, Text(f"{safe_line(box.recipient_id):{widest}}{counts}"))


def _line(standing: Standing) -> Text:
    posted = standing.posted
    letter = shown(posted)
    when = age(posted.created_at, datetime.now(UTC)) if posted.created_at is not None else ""
    line = Text(f"{standing.state:<7}", _STYLES.get(standing.state, ""))
    line.append(f"{when:>10}  ", "dim").append(f"{posted.sender_id} → {posted.recipient_id}  {posted.task_id}  ")
    return line.append(f"{posted.type}  ", "cyan").append(safe_line(_gist(letter)))


def _gist(letter: Letter) -> str:
    """What a letter says, in a few words."""
    match letter.type:
        case "task_result":
            return f"{letter.payload.status}: {letter.payload.result.output}"
        case "error":
            return f"{letter.payload.code}: {letter.payload.message}"
        case _:
            return "needs " + ", ".join(wanted.id for wanted in letter.payload.requested_inputs)


def _told(standing: Standing) -> dict[str, Any]:
    posted = standing.posted
    return {
        "letter_id": posted.letter_id,
        "state": standing.state,
        "attempts": standing.attempts,
        "taken_at": posted.created_at,
        "ended_at": standing.ended_at,
        "letter": msgspec.json.decode(write_letter(shown(posted, standing.attempts))),
    }


def _dead_line(one: DeadLetter) -> Text:
    line = Text(one.id, "bold").append(f"  {age(one.died_at, datetime.now(UTC)):>10}  ", "dim")
    ends = f"{one.sender_id or '?'} → {one.recipient_id or '?'}  {one.task_id or '?'}  "
    return line.append(ends).append(f"{one.reason}  ", "red").append(safe_line(one.error))


def _dead_told(one: DeadLetter) -> dict[str, Any]:
    """Everything but its bytes, which may hold anything."""
    told = msgspec.to_builtins(one, builtin_types=(datetime,))
    return {name: value for name, value in told.items() if name not in ("raw", "key_id", "team_id", "user_id")}
