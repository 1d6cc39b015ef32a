"""``dragoman letter``: validate letters, and print their JSON Schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

from dragoman.cli.options import JsonOption
from dragoman.cli.terminal import console, escape_line, format_count, print_json
from dragoman.errors import InputError, LetterError
from dragoman.jsontext import DECODE_ERRORS
from dragoman.letters import find_warnings, letter_id, read_letter, read_schema_file


class _LetterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one letter."""

    place: str
    valid: bool
    code: str | None = None
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    type: str | None = None
    letter_id: str | None = None


def validate(file: Annotated[Path, Parameter(allow_leading_hyphen=True)], /, *, json: JsonOption = False) -> int:
    """Validate a file of letters, and print each error with its path.

    Parameters
    ----------
    file
        One letter as JSON, or one per line; - for standard input.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    reports = [_check_letter(part, place) for place, part in _parts(data, str(file))]
    if json:
        print_json({"valid": all(report.valid for report in reports), "letters": reports})
    else:
        _print(reports)
    return 0 if all(report.valid for report in reports) else 1


def schema() -> None:
    """Print the JSON Schema of letters, draft 2020-12."""
    sys.stdout.buffer.write(read_schema_file())
    sys.stdout.buffer.flush()


def _parts(data: bytes, name: str) -> list[tuple[str, bytes]]:
    """Split a file into letters: one per line if there are several lines and the first is complete JSON."""
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [(f"{name}:{number}", line) for number, line in lines]
    return [(name, data)]


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except DECODE_ERRORS:
        return False
    return True


def _check_letter(data: bytes, place: str) -> _LetterReport:
    try:
        letter = read_letter(data)
    except LetterError as error:
        return _LetterReport(place=place, valid=False, code=error.code, errors=error.problems)
    except InputError as error:
        return _LetterReport(place=place, valid=False, code=error.code, errors=(str(error),))
    odd = tuple(f"{warning} [{warning.code}]" for warning in find_warnings(letter))
    return _LetterReport(place=place, valid=True, warnings=odd, type=letter.type, letter_id=letter_id(letter))


def _print(reports: list[_LetterReport]) -> None:
    out = console()
    several = len(reports) > 1

    def line(kind: str, style: str, text: Any, place: str) -> None:
        before = f"{place} " if several else ""
        out.print(Text(f"{kind:<9}", style).append(escape_line(f"{before}{text}"), ""), soft_wrap=True)

    for report in reports:
        for problem in report.errors:
            line("error", "red", problem, report.place)
        for odd in report.warnings:
            line("warning", "yellow", odd, report.place)
    wrong = sum(not report.valid for report in reports)
    if several:
        out.print(
            f"{format_count(len(reports), 'letter')}, {wrong} of them not valid"
            if wrong
            else f"{format_count(len(reports), 'letter')}, all valid"
        )
    elif wrong:
        out.print(f"not valid [{reports[0].code}]", markup=False)
    else:
        out.print(f"valid: {reports[0].type} {reports[0].letter_id}", soft_wrap=True)
