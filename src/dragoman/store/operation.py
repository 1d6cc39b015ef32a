"""Operations: what a store does, written once for every engine.

An operation is a generator. It yields statements ``(sql, arguments)``, receives the rows of each, and returns its
result. An engine runs it inside one transaction: SQLite in a thread, PostgreSQL with ``await``.

The SQL is the subset that both engines understand; ``?`` marks an argument. Invariant: text of a caller is always an
argument, never part of a statement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from dragoman.errors import FormatError

if TYPE_CHECKING:
    from dragoman.store.store import Store

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
FOR_UPDATE: Final = " FOR NO KEY UPDATE"  # locks rows that change; SQLite has one writer at a time and drops it
FOR_KEY_SHARE: Final = " FOR KEY SHARE"  # keeps rows from being deleted; SQLite drops it as well
Result = TypeVar("Result", covariant=True)  # noqa: PLC0105  it reads as a name
Params = ParamSpec("Params")
Steps = Generator[Statement, Rows, Result]


class Operation(Generic[Result]):
    """An operation that an engine can run, and run again after a rollback: each iteration starts it anew."""

    def __init__(self, start: Callable[[], Steps[Result]]) -> None:
        self._start = start

    def __iter__(self) -> Steps[Result]:
        return self._start()


class VolatileOperation(Operation[Result]):
    """An operation whose effect need not survive a power cut, such as acquiring a lease. It is committed unsynced."""


def operation(steps: Callable[Params, Steps[Result]]) -> Callable[Params, Operation[Result]]:
    """Decorate a generator function so that a call returns an ``Operation``."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> Operation[Result]:
        return Operation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


def volatile_operation(steps: Callable[Params, Steps[Result]]) -> Callable[Params, VolatileOperation[Result]]:
    """Decorate a generator function so that a call returns a ``VolatileOperation``."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> VolatileOperation[Result]:
        return VolatileOperation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


class Facet:
    """A group of methods of a store, such as ``store.runs`` or ``store.costs``."""

    def __init__(self, store: Store) -> None:
        self._store = store


def validate_arguments(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a statement; ``FormatError`` for a text with NUL, which PostgreSQL cannot store."""
    for argument in arguments:
        if type(argument) is str and "\0" in argument:
            raise FormatError("a name or an id contains a NUL", where=repr(argument[:80]), remedy="Remove the NUL")
    return arguments
