"""Dialects: one package per wire format, all with the same names.

| | read (wire → canonical) | write (canonical → wire) |
|---|---|---|
| request | ``read_request(wire) -> Request`` | ``write_request(request, quirks=(), model=None, fit=True) -> Written`` |
| reply | ``read_reply(wire) -> Reply`` | ``write_reply(reply) -> Written`` |
| stream | ``stream_reader(framing=None, quirks=())`` | ``stream_writer(framing=None)`` |
| error | ``read_error(status, headers, body) -> Fault`` | ``write_error(fault) -> Written`` |

``wire`` is an object or its JSON text. Invariant: reading a wire and writing it in the same dialect yields the same
wire; what the canonical fields cannot express is stored as residue (``wire.residue``). To add a dialect, add a package
here; it is discovered by its name. A request is fitted to the limits of the API and the ``model`` (``wire.limits``);
with ``fit=False`` it is written as it is. ``quirks`` name deviations of a provider from its dialect; a dialect lists
those that it knows as ``QUIRKS`` and ignores others. A dialect with ``HTTP`` can be called (``callable_names``); the
others are further wires of a provider that is called in one of these, and are read and written only.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import typing
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from dragoman.catalog import Model
from dragoman.event import StreamEvent
from dragoman.exchange import Fault, Loss, Reply, Request, Written
from dragoman.wire.support import Support


class StreamReader(Protocol):
    """Reads the stream of a provider: bytes in, events out."""

    def feed(self, data: bytes, /) -> list[StreamEvent]:
        """Return the events that these bytes complete."""
        ...

    def close(self) -> list[StreamEvent]:
        """Return the last events; a fault if the stream ended too early."""
        ...


class StreamWriter(Protocol):
    """Writes the stream of a provider: events in, bytes out."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses of the events so far."""
        ...

    def feed(self, event: StreamEvent, /) -> bytes:
        """Return the bytes that the wire has for one event."""
        ...

    def close(self) -> bytes:
        """Return the last bytes."""
        ...


class Dialect(Protocol):
    """The names that every dialect has. A wire is an object or its JSON text."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of a module
        """The name of the dialect."""
        ...

    @property
    def SUPPORT(self) -> Support:  # noqa: N802  a constant of a module
        """The shared fields that the API has."""
        ...

    def read_request(self, wire: Any, /) -> Request:
        """Read a request. Raises ``InputError`` for an invalid one."""
        ...

    def write_request(
        self, request: Request, /, quirks: Collection[str] = ..., model: Model | None = ..., *, fit: bool = ...
    ) -> Written:
        """Write a request, with the deviations of a provider from the dialect, for a model, within its limits."""
        ...

    def read_reply(self, wire: Any, /) -> Reply:
        """Read a whole reply."""
        ...

    def write_reply(self, reply: Reply, /) -> Written:
        """Write a whole reply."""
        ...

    def stream_reader(self, framing: str | None = ..., quirks: Collection[str] = ...) -> StreamReader:
        """Return a reader for one stream."""
        ...

    def stream_writer(self, framing: str | None = ...) -> StreamWriter:
        """Return a writer for one stream."""
        ...

    def read_error(self, status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
        """Read an error response."""
        ...

    def write_error(self, fault: Fault, /) -> Written:
        """Write an error response."""
        ...


def names() -> tuple[str, ...]:
    """Return the names of all dialects."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def callable_names() -> tuple[str, ...]:
    """Return the names of the dialects in which a provider can be called."""
    return tuple(name for name in names() if hasattr(load(name), "HTTP"))


def names_in_recordings() -> dict[str, str]:
    """Return the name of the dialect for each name that recorded traffic uses."""
    return {alias: name for name in names() for alias in (name.replace("_", "-"), *_aliases_in_recordings(name))}


def _aliases_in_recordings(name: str) -> tuple[str, ...]:
    aliases: tuple[str, ...] = getattr(load(name), "RECORDING_NAMES", ())
    return aliases


@functools.cache
def load(name: str) -> Dialect:
    """Return a dialect: the module of that name."""
    if name not in names():
        raise LookupError(f"no dialect {name!r}; there are {', '.join(names())}")
    return typing.cast("Dialect", importlib.import_module(f"{__name__}.{name}"))
