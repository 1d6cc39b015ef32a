"""Operations of a store, written once for every engine.

An operation is a generator. It yields statements ``(sql, arguments)``, receives the rows of each, and returns its
result. An engine runs it inside one transaction: SQLite in a thread, PostgreSQL with ``await``.

The SQL is the subset that both engines understand; ``?`` marks an argument. Invariant: text of a caller is always an
argument, never part of a statement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar

from dragoman.errors import FormatError

if TYPE_CHECKING:
    from dragoman.store.store import Store

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
FOR_UPDATE: Final = " FOR NO KEY UPDATE"  # locks rows that change; SQLite has one writer at a time and drops it
FOR_KEY_SHARE: Final = " FOR KEY SHARE"  # keeps rows from being deleted; SQLite drops it as well
RETURNING_ONE: Final = " RETURNING 1"  # a row for each changed one; SQLite counts them instead
Result = TypeVar("Result", covariant=True)  # noqa: PLC0105  it reads as a name
Params = ParamSpec("Params")
Steps = Generator[Statement, Rows, Result]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN_TIME: Final = _EPOCH  # of a message without a time
_MICROSECOND: Final = timedelta(microseconds=1)
_SIZES: Final = (1, 4, 16, 64, 256)
_INSERT_SIZES: Final = (64, 16, 4, 2, 1)
Item = TypeVar("Item")


class Gather(NamedTuple):
    """Limits of the wait of a quick operation for others with which it shares a commit."""

    size: int = 1  # operations that end the wait
    timeout_s: float = 0.0


NO_GATHER: Final = Gather()


class Operation(Generic[Result]):
    """An operation that an engine can run, and run again after a rollback: each iteration starts it again."""

    is_quick = False  # a few rows by their keys: SQLite may run it on the event loop, see ``engines/loop_writer``
    gather = NO_GATHER

    def __init__(self, start: Callable[[], Steps[Result]]) -> None:
        self._start = start

    def __iter__(self) -> Steps[Result]:
        return self._start()


Outcome = TypeVar("Outcome")
AnyOperation = Operation[Outcome] | Steps[Outcome]  # bare steps can be run once only


class VolatileOperation(Operation[Result]):
    """An operation whose effect need not survive a power cut, such as acquiring a lease. It is committed unsynced."""


class LooseOperation(Operation[Result]):
    """A read whose statements may see different snapshots, so that an engine needs no transaction for it."""


class BatchOperation(Operation[Outcome]):
    """An operation on one item, which an engine may run with others of its kind as one, with fewer statements.

    ``steps`` returns an outcome for each item, or raises if one of them fails; then each is run alone.
    """

    def __init__(self, steps: Callable[[Sequence[Any]], Steps[list[Outcome]]], item: Any) -> None:
        self.steps = steps  # no ``_start``: a method of this object would be a cycle, which only the collector frees
        self.item = item

    def __iter__(self) -> Steps[Outcome]:
        (outcome,) = yield from self.steps((self.item,))
        return outcome


class Part(Operation[Result]):
    """An operation that a caller adds to the transaction of another one. ``result`` is set when it was committed."""

    result: Any

    def __iter__(self) -> Steps[Result]:
        self.result = yield from self._start()
        return self.result  # type: ignore[no-any-return]


def operation(steps: Callable[Params, Steps[Result]]) -> Callable[Params, Operation[Result]]:
    """Decorate a generator function so that a call returns an ``Operation``."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> Operation[Result]:
        return Operation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


def volatile(operation: Operation[Outcome]) -> VolatileOperation[Outcome]:
    """The same operation, committed unsynced."""
    return VolatileOperation(operation.__iter__)


AnyOp = TypeVar("AnyOp", bound=Operation[Any])


def quick(operation: AnyOp, gather: Gather = NO_GATHER) -> AnyOp:
    """The same operation, marked as one that touches a few rows by their keys, and may wait for others."""
    operation.is_quick = True
    operation.gather = gather
    return operation


def volatile_operation(steps: Callable[Params, Steps[Result]]) -> Callable[Params, VolatileOperation[Result]]:
    """Decorate a generator function so that a call returns a ``VolatileOperation``."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> VolatileOperation[Result]:
        return VolatileOperation(functools.partial(steps, *arguments, **kwargs))

    return wrapper


class _EmptyAwaitable:
    """An awaitable that returns immediately."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


NO_SYNC: Final = _EmptyAwaitable()


def loose_operation(steps: Callable[Params, Steps[Result]]) -> Callable[Params, LooseOperation[Result]]:
    """Decorate a generator function so that a call returns a ``LooseOperation``."""

    @functools.wraps(steps)
    def wrapper(*arguments: Params.args, **kwargs: Params.kwargs) -> LooseOperation[Result]:
        return LooseOperation(functools.partial(steps, *arguments, **kwargs))

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


# --- columns ---------------------------------------------------------------------------------------------------------


def length_us(seconds: float) -> int:
    """A length of time in whole microseconds."""
    return round(seconds * 1_000_000)


def to_micros(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the time of microseconds since 1970."""
    return _EPOCH + timedelta(0, 0, micros)


def column_text(text: str) -> str:
    """Return a text for a column, with U+2400 for NUL, which PostgreSQL cannot store."""
    return text.replace("\0", "\u2400")


def optional_column_text(text: str | None) -> str | None:
    return None if text is None else column_text(text)


# --- statements for many rows ----------------------------------------------------------------------------------------
#
# Each function uses few different statements, because an engine plans each new statement.


def in_clause_chunks(values: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield placeholders and values of IN lists, padded with their last value to a few sizes."""
    max_size = _SIZES[-1]
    for first in range(0, len(values), max_size):
        chunk = values[first : first + max_size]
        size = next(size for size in _SIZES if size >= len(chunk))
        yield _placeholders(size), (*chunk, *[chunk[-1]] * (size - len(chunk)))


def insert_chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the items in order, in chunks of the sizes that have a statement."""
    position = 0
    for size in _INSERT_SIZES:
        while len(items) - position >= size:
            yield items[position : position + size]
            position += size


@functools.cache
def values_clause(columns: int, rows: int) -> str:
    """Return the VALUES clause of so many rows and columns."""
    return ", ".join([f"({_placeholders(columns)})"] * rows)


@functools.cache
def _placeholders(count: int) -> str:
    return ", ".join("?" * count)
