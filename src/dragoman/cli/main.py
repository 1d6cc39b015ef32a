"""The entry point of ``dragoman``: runs a command, and prints errors.

Invariant: every expected error is one line on standard error (where, what, what to do, code) with exit code 2. A
traceback is a defect.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Final, NoReturn

from cyclopts import CycloptsError

from dragoman.cli.parser import app
from dragoman.errors import DragomanError

_OS_ERROR_CODES: Final[dict[type[OSError], str]] = {
    FileNotFoundError: "file_not_found",
    FileExistsError: "file_exists",
    IsADirectoryError: "is_a_directory",
    NotADirectoryError: "not_a_directory",
    PermissionError: "not_permitted",
}


def main() -> None:
    """Run the command that the arguments name."""
    _set_encodings()
    for argument in sys.argv[1:]:
        if not _is_utf8(argument):
            _fail(f"{argument!a}: the argument is not UTF-8. Use UTF-8 for file names and texts [usage]")
    try:
        sys.exit(app(exit_on_error=False, print_error=False))
    except CycloptsError as error:
        _fail(_usage_text(error))
    except DragomanError as error:
        _fail(f"{error} [{error.code}]")
    except BrokenPipeError:  # the reader of our output has closed its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.filename or 'operating system'}: {error.strerror or error} [{_os_error_code(error)}]")
    except OverflowError as error:  # a duration such as 99999999y
        _fail(f"a number or a duration is too large ({error}) [usage]")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        sys.exit(130)


def _set_encodings() -> None:
    """Let no character fail: files and pipes get UTF-8, a terminal of another encoding gets a replacement."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            is_chosen = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if is_chosen else "utf-8", errors="replace")


def _is_utf8(argument: str) -> bool:
    """Return whether an argument is valid UTF-8. Python decodes other bytes to lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _os_error_code(error: OSError) -> str:
    """Return the stable code of an operating system error."""
    return next((code for kind, code in _OS_ERROR_CODES.items() if isinstance(error, kind)), "system_error")


def _usage_text(error: CycloptsError) -> str:
    """Return the problem with the arguments, and the command that prints the help."""
    text = str(error).strip()
    if text.endswith("..."):  # a truncated list of commands; the help lists all of them
        text = text.partition(" Available commands:")[0]
    text = text if text.endswith((".", "?")) else f"{text}."
    command = " ".join(("dragoman", *(error.command_chain or ()), "--help"))
    return f"{text} See {command} [usage]"


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"dragoman: {' '.join(text.split())}\n")
    sys.exit(2)
