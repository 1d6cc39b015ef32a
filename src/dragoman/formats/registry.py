"""Names of the formats, and their properties that do not depend on data.

Every dialect and transcript is a format automatically.
"""

from __future__ import annotations

import functools
import itertools
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final

from dragoman import dialects, transcripts
from dragoman.dialects import Dialect
from dragoman.errors import InputError
from dragoman.exchange import Request
from dragoman.message import Message, MessageMetadata, Role, TextBlock

CANONICAL: Final = "canonical"
ENVELOPES: Final = "envelopes"
ENTRIES: Final = "entries"
PAGES: Final = ("markdown", "html")  # write only
UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # most formats have no time
_OWN_FORMATS: Final = (CANONICAL, ENVELOPES, ENTRIES)


@functools.cache
def readable() -> tuple[str, ...]:
    """Return every format that can be read."""
    return (*_OWN_FORMATS, *dialects.names(), *transcripts.FORMATS)


def writable() -> tuple[str, ...]:
    """Return every format that can be written."""
    return (*readable(), *PAGES)


@functools.cache
def resolve_name(name: str, *, to_write: bool = False) -> str:
    """Return the normalized name of a format. Raises ``InputError`` if it is unknown or cannot be read."""
    normalized = name.strip().lower().replace("-", "_").replace(" ", "_")
    choices = writable() if to_write else readable()
    if normalized in choices:
        return normalized
    if normalized in PAGES:
        raise InputError(f"{normalized} is write-only", remedy=f"Use one of {', '.join(choices)}")
    raise InputError(f"there is no format {name!r}", remedy=f"Use one of {', '.join(choices)}")


@functools.cache
def dialect(name: str) -> Dialect | None:
    """Return the dialect of that name, if any."""
    return dialects.load(name) if name in dialects.names() else None


def transcript(name: str) -> ModuleType | None:
    """Return the transcript format of that name, if any."""
    return transcripts.FORMATS.get(name)


@functools.cache
def list_key(name: str) -> str:
    """Return the key of the message list in a dialect's request, or of its only message."""
    module = dialect(name)
    assert module is not None
    message = Message("0", "", Role.USER, (TextBlock("hello"),), MessageMetadata(), UNKNOWN_TIME)
    wire = module.write_request(Request(model=None, messages=(message,))).wire
    lists = (str(key) for key, value in wire.items() if isinstance(value, list) and len(value) == 1)
    texts = (str(key) for key, value in wire.items() if value == "hello")  # one message instead of a list
    return next(itertools.chain(lists, texts))


def has_messages(name: str, value: dict[str, Any]) -> bool:
    """Return whether an object is a request of a dialect, not an exchange with a request."""
    looks_like = getattr(dialect(name), "looks_like", None)
    return list_key(name) in value or (looks_like is not None and looks_like(value))
