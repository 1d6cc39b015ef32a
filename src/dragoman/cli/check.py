"""``dragoman check``: what is wrong with a conversation, and the same conversation without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import dragoman
from dragoman.errors import InputError
from dragoman.jsontext import OWN, read_json
from dragoman.message import Message
from dragoman.rules import RULES


def check_file(
    file: Path,
    *,
    repair_to: Annotated[Path | None, Parameter(name="--repair-to")] = None,
) -> int:
    """Check a file of messages, and repair it if asked.

    Prints every breach with its rule and its place. Exit code 0: nothing is wrong. 1: something is. 2: the file cannot
    be read.

    Parameters
    ----------
    file
        Messages of one session in the canonical format: one a line (JSONL), or one JSON array.
    repair_to
        Write a history that breaks no rule to this file, one message a line. The checked file is never changed.
    """
    console = Console()
    messages = messages_from(file)
    breaches = dragoman.check(messages)
    if breaches:
        table = Table("message", "rule", "where", "what")
        for column in table.columns:
            column.overflow = "fold"  # never cut: an id is there to be copied
        for breach in breaches:
            table.add_row(*(escape(text) for text in (breach.message_id, breach.rule, breach.where, breach.what)))
        console.print(table)
        for rule in dict.fromkeys(breach.rule for breach in breaches):
            console.print(f"[bold]{rule}[/bold]  {escape(RULES[rule].statement)}")
    console.print(f"{len(messages)} messages, {len(breaches)} breach{'' if len(breaches) == 1 else 'es'}")
    if repair_to is not None:
        _write_repaired(console, messages, file, repair_to)
    return 1 if breaches else 0


def messages_from(file: Path) -> tuple[Message, ...]:
    """The messages of a JSONL file or of a file that holds one JSON array."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file)) from None
    if data.lstrip()[:1] == b"[":
        with _naming(str(file)):
            read_json(data, OWN)
        items = enumerate(msgspec.json.decode(data, type=list[msgspec.Raw]))
        parts = [(f"{file}, item {index}", bytes(item)) for index, item in items]
    else:
        lines = enumerate(data.split(b"\n"), 1)
        parts = [(f"{file}, line {number}", line) for number, line in lines if line.strip()]
    messages = []
    for where, part in parts:
        with _naming(where):
            messages.append(dragoman.decode(part))
    return tuple(messages)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the file and the line in front of what is wrong there."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error), where=where, code=error.code) from None


def _write_repaired(console: Console, messages: tuple[Message, ...], file: Path, target: Path) -> None:
    if target.resolve() == file.resolve():
        raise InputError("is the file that is being checked", where=str(target), remedy="Name another file")
    repaired = dragoman.repair(messages)
    for action in repaired.actions:
        console.print(f"[bold]{action.rule}[/bold]  {escape(action.message_id)}  {escape(action.what)}")
    try:
        target.write_bytes(b"".join(dragoman.encode(message) + b"\n" for message in repaired.messages))
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", where=str(target)) from None
    console.print(f"wrote {len(repaired.messages)} messages to {escape(str(target))}", soft_wrap=True)
