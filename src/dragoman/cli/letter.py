"""``dragoman letter``: whether a letter is one, and the schema that says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

from dragoman.cli.store_option import JsonOption
from dragoman.cli.terminal import console, counted, print_json, safe_line
from dragoman.errors import InputError, LetterError
from dragoman.letters import letter_id, published_schema, read_letter, warnings_of


class _Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one letter."""

    place: str
    valid: bool
    code: str | None = None
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    type: str | None = None
    letter_id: str | None = None


def validate(file: Annotated[Path, Parameter(allow_leading_hyphen=True)], *, json: JsonOption = False) -> int:
    """Look whether a file holds letters, and print everything that is wrong, with its place.

    Parameters
    ----------
    file
        One letter as JSON, or one on each line; - for the standard input.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    looked = [_look(part, place) for place, part in _parts(data, str(file))]
    if json:
        print_json({"valid": all(one.valid for one in looked), "letters": looked})
    else:
        _print(looked)
    return 0 if all(one.valid for one in looked) else 1


def schema() -> None:
    """Print the JSON Schema of letters, draft 2020-12."""
    sys.stdout.buffer.write(published_schema())
    sys.stdout.buffer.flush()


def _parts(data: bytes, name: str) -> list[tuple[str, bytes]]:
    """One letter, or one on each line: where there are several lines, and the first is a whole JSON text."""
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [(f"{name}:{number}", line) for number, line in lines]
    return [(name, data)]


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _look(data: bytes, place: str) -> _Looked:
    try:
        letter = read_letter(data)
    except LetterError as error:
        return _Looked(place=place, valid=False, code=error.code, errors=error.problems)
    except InputError as error:
        return _Looked(place=place, valid=False, code=error.code, errors=(str(error),))
    odd = tuple(f"{warning} [{warning.code}]" for warning in warnings_of(letter))
    return _Looked(place=place, valid=True, warnings=odd, type=letter.type, letter_id=letter_id(letter))


def _print(looked: list[_Looked]) -> None:
    out = console()
    several = len(looked) > 1

    def line(kind: str, style: str, said: Any, place: str) -> None:
        before = f"{place} " if several else ""
        out.print(Text(f"{kind:<9}", style).append(safe_line(f"{before}{said}"), ""), soft_wrap=True)

    for one in looked:
        for problem in one.errors:
            line("error", "red", problem, one.place)
        for odd in one.warnings:
            line("warning", "yellow", odd, one.place)
    wrong = sum(not one.valid for one in looked)
    if several:
        out.print(
            f"{counted(len(looked), 'letter')}, {wrong} of them not valid"
            if wrong
            else f"{counted(len(looked), 'letter')}, all valid"
        )
    elif wrong:
        out.print(f"not a letter [{looked[0].code}]", markup=False)
    else:
        out.print(f"a letter: {looked[0].type} {looked[0].letter_id}", soft_wrap=True)
