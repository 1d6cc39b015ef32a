"""``dragoman mail``: send letters, read mailboxes, and resend dead letters.

Reading does not lease letters. Invariant: sensitive values are printed as ``***``.
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

from dragoman.cli.options import JsonOption, Positive, StoreOption, flag, open_store_at
from dragoman.cli.terminal import console, escape_line, format_age, print_json, print_line
from dragoman.errors import JsonError
from dragoman.letters import Letter, find_warnings, write_letter
from dragoman.mail import Mail
from dragoman.mail.stored_letter import to_masked

if TYPE_CHECKING:
    from dragoman.letters.records import DeadLetter, MailboxCounts
    from dragoman.store import Store
    from dragoman.store.mailbox.mail_store import LetterStatus

_POLL_S = 0.25
_PAGE = 100
TeamOption = Annotated[str | None, Parameter(help="The team of the mailbox. Default: no team.")]
_STYLES = {"ready": "bold", "done": "dim", "dead": "red", "held": "yellow", "behind": "yellow", "away": "cyan"}


async def send(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    team: TeamOption = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send a letter. When the command ends, the letter is stored. Sending the same letter again changes nothing.

    Parameters
    ----------
    file
        The letter as JSON; - for standard input.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    async with open_store_at(store_url, create=True) as store:
        mail = _open_mail(store, team)
        try:
            receipt = await mail.send(data)
        except JsonError as error:
            where = ", ".join(part for part in (str(file), error.where) if part)
            raise JsonError(error.what, where=where, remedy=error.remedy, code=error.code) from None
        (letter_status,) = await mail.letters(recipient_id=receipt.recipient_id, letter_id=receipt.letter_id, limit=1)
    warnings = [f"{warning} [{warning.code}]" for warning in find_warnings(to_masked(letter_status.letter))]
    if json:
        print_json({**msgspec.to_builtins(receipt), "warnings": warnings})
        return
    out = console()
    for line in warnings:
        out.print(Text("warning  ", "yellow").append(escape_line(line), ""), soft_wrap=True)
    verb = "sent" if receipt.is_new else "already sent"
    out.print(Text(f"{verb} to {receipt.recipient_id}: {receipt.letter_id}"), soft_wrap=True)


async def inbox(
    recipient: str | None = None,
    /,
    *,
    task: str | None = None,
    limit: Positive = 20,
    team: TeamOption = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the mailboxes of a store, or the newest letters of one mailbox.

    Parameters
    ----------
    recipient
        The agent whose letters to list. Default: the counts of all mailboxes.
    task
        List the letters of this task instead of a mailbox.
    limit
        The maximum number of letters.
    """
    async with open_store_at(store_url) as store:
        mail = _open_mail(store, team)
        if task is not None:
            letters = [item for item in await mail.thread(task) if recipient in (None, item.letter.recipient_id)][
                :limit
            ]
        elif recipient is not None:
            letters = [item for _, item in await store.mail.newest(recipient, mail.team_id, limit)]
        else:
            _print_mailboxes(await mail.counts(), json=json)
            return
    if json:
        print_json({"letters": [_to_json(item) for item in letters]})
        return
    out = console()
    for item in letters:
        print_line(out, _line(item))
    if not letters:
        out.print("no letters")


async def watch(
    recipient: str,
    /,
    *,
    team: TeamOption = None,
    store_url: StoreOption = None,
    json: Annotated[bool, flag("--json", help="Print one JSON document per line, for programs.")] = False,
) -> None:
    """Print the letters of a mailbox as they arrive, until Ctrl-C. The letters stay in the mailbox.

    Parameters
    ----------
    recipient
        The agent whose letters to print.
    """
    out = console()
    async with open_store_at(store_url) as store:
        mail = _open_mail(store, team)
        after = await store.mail.last_number(recipient, mail.team_id)
        while True:
            letters = await store.mail.letters_after(recipient, mail.team_id, after, _PAGE)
            for number, item in letters:
                after = number
                _print_letter(out, item, json=json)
            if not letters:
                await asyncio.sleep(_POLL_S)


def _print_letter(out: Console, item: LetterStatus, *, json: bool) -> None:
    if json:
        print_json(_to_json(item))
    else:
        print_line(out, _line(item))


async def list_dead_letters(
    *,
    recipient: str | None = None,
    limit: Positive = 50,
    team: TeamOption = None,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List dead letters, newest first, with the reason.

    Parameters
    ----------
    recipient
        Only letters to this recipient.
    limit
        The maximum number of letters.
    """
    filters = {} if recipient is None else {"recipient_id": recipient}
    async with open_store_at(store_url) as store:
        letters = await _open_mail(store, team).dead_letters(limit=limit, **filters)
    if json:
        print_json({"dead_letters": [_dead_to_json(item) for item in letters]})
        return
    out = console()
    for item in letters:
        out.print(_dead_line(item), soft_wrap=True)
    if not letters:
        out.print("no dead letters")


async def resend(
    dead_id: str, /, *, team: TeamOption = None, store_url: StoreOption = None, json: JsonOption = False
) -> None:
    """Resend a dead letter.

    Parameters
    ----------
    dead_id
        The id of the dead letter, as mail dead prints it.
    """
    async with open_store_at(store_url) as store:
        receipt = await _open_mail(store, team).resend(dead_id)
    if json:
        print_json(receipt)
        return
    console().print(Text(f"resent to {receipt.recipient_id}: {receipt.letter_id}"), soft_wrap=True)


def _open_mail(store: Store, team: str | None) -> Mail:
    return Mail(store, team_id=team)


# --- output ----------------------------------------------------------------------------------------------------------


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
        print_line(out, Text(f"{escape_line(box.recipient_id):{widest}}{counts}"))


def _line(item: LetterStatus) -> Text:
    stored = item.letter
    letter = to_masked(stored)
    when = format_age(stored.created_at, datetime.now(UTC)) if stored.created_at is not None else ""
    line = Text(f"{item.state:<7}", _STYLES.get(item.state, ""))
    line.append(f"{when:>10}  ", "dim").append(f"{stored.sender_id} → {stored.recipient_id}  {stored.task_id}  ")
    return line.append(f"{stored.type}  ", "cyan").append(escape_line(_summary_line(letter)))


def _summary_line(letter: Letter) -> str:
    """Return the content of a letter in one line."""
    match letter.type:
        case "task_result":
            return f"{letter.payload.status}: {letter.payload.result.output}"
        case "error":
            return f"{letter.payload.code}: {letter.payload.message}"
        case _:
            return "needs " + ", ".join(field.id for field in letter.payload.requested_inputs)


def _to_json(item: LetterStatus) -> dict[str, Any]:
    stored = item.letter
    return {
        "letter_id": stored.letter_id,
        "state": item.state,
        "attempts": item.attempts,
        "taken_at": stored.created_at,
        "ended_at": item.ended_at,
        "letter": msgspec.json.decode(write_letter(to_masked(stored, item.attempts))),
    }


def _dead_line(item: DeadLetter) -> Text:
    line = Text(item.id, "bold").append(f"  {format_age(item.died_at, datetime.now(UTC)):>10}  ", "dim")
    ends = f"{item.sender_id or '?'} → {item.recipient_id or '?'}  {item.task_id or '?'}  "
    return line.append(ends).append(f"{item.reason}  ", "red").append(escape_line(item.error))


def _dead_to_json(item: DeadLetter) -> dict[str, Any]:
    """Return all fields except the raw bytes, which may be sensitive."""
    fields = msgspec.to_builtins(item, builtin_types=(datetime,))
    return {name: value for name, value in fields.items() if name not in ("raw", "key_id", "team_id", "user_id")}
