"""What a store does, written once for every engine; how that is written down.

An operation is a generator. It yields statements, ``(sql, arguments)``, is sent the rows that each one gives, and
returns its result. An engine runs it: in a thread for SQLite, with ``await`` for PostgreSQL, in both cases inside one
transaction. So there is one logic, and no second copy of it for another way of waiting.

The SQL is what both engines understand; ``?`` marks an argument. The one rule: no text of a caller ever becomes part of
a statement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar

from dragoman.errors import FormatError

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
FOR_UPDATE: Final = " FOR NO KEY UPDATE"  # rows to be changed; an engine that has one writer at a time leaves it out
Result = TypeVar("Result", covariant=True)  # noqa: PLC0105  it reads as a name
Params = ParamSpec("Params")


class Operation(Generic[Result]):
    """Something to be done. To iterate over it is to begin it, which an engine may do more than once."""

    def __init__(self, begin: Callable[[], Generator[Statement, Rows, Result]]) -> None:
        self._begin = begin

    def __iter__(self) -> Generator[Statement, Rows, Result]:
        return self._begin()


class VolatileOperation(Operation[Result]):
    """Something that matters only while the machine runs: it need not survive a power cut."""


class BulkOperation(Operation[Result]):
    """Something of many steps. Nobody's event loop waits for it, and how long it takes says nothing of the disk."""


def operation(steps: Callable[Params, Generator[Statement, Rows, Result]]) -> Callable[Params, Operation[Result]]:
    """Make a function whose steps are these."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> Operation[Result]:
        return Operation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


def bulk_operation(
    steps: Callable[Params, Generator[Statement, Rows, Result]],
) -> Callable[Params, BulkOperation[Result]]:
    """The same for many steps."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> BulkOperation[Result]:
        return BulkOperation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


def validate_arguments(arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a statement. Not every engine can hold a NUL in a text, so none is given one."""
    for argument in arguments:
        if type(argument) is str and "\0" in argument:
            raise FormatError("a name or an id holds a NUL", where=repr(argument[:80]), remedy="Leave it out")
    return arguments
