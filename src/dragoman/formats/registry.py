"""Which formats there are, and what is to be known of one before anything of it is read.

The one rule: a dialect or a transcript that is added elsewhere is a format here without a line of code.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from types import ModuleType
from typing import Final

from dragoman import dialects, transcripts
from dragoman.errors import InputError
from dragoman.exchange import Request
from dragoman.message import Message, MessageMetadata, Role, TextBlock

CANONICAL: Final = "canonical"
ENVELOPES: Final = "envelopes"
ENTRIES: Final = "entries"
PAGES: Final = ("markdown", "html")  # for people: they are written, and never read
UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # most formats do not say when something was said
_OWN_FORMATS: Final = (CANONICAL, ENVELOPES, ENTRIES)


@functools.cache
def readable() -> tuple[str, ...]:
    """Every format that can be read."""
    return (*_OWN_FORMATS, *dialects.names(), *transcripts.FORMATS)


def writable() -> tuple[str, ...]:
    """Every format that can be written."""
    return (*readable(), *PAGES)


@functools.cache
def resolve_name(name: str, *, to_write: bool = False) -> str:
    """The name of a format as we spell it; what is none, or cannot be read, is an ``InputError``."""
    normalized = name.strip().lower().replace("-", "_").replace(" ", "_")
    choices = writable() if to_write else readable()
    if normalized in choices:
        return normalized
    if normalized in PAGES:
        raise InputError(f"{normalized} is for people, and cannot be read", remedy=f"There are {', '.join(choices)}")
    raise InputError(f"there is no format {name!r}", remedy=f"There are {', '.join(choices)}")


@functools.cache
def dialect(name: str) -> ModuleType | None:
    """The dialect of that name, if it is one."""
    return dialects.load(name) if name in dialects.names() else None


def transcript(name: str) -> ModuleType | None:
    """The transcript of that name, if it is one."""
    return transcripts.FORMATS.get(name)


@functools.cache
def list_key(name: str) -> str:
    """Under which key a dialect's request has its messages: the one that a list of one stands under."""
    module = dialect(name)
    assert module is not None
    message = Message("0", "", Role.USER, (TextBlock("hello"),), MessageMetadata(), UNKNOWN_TIME)
    wire = module.write_request(Request(model=None, messages=(message,))).wire
    return next(str(key) for key, value in wire.items() if isinstance(value, list) and len(value) == 1)
