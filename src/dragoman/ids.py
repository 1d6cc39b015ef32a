"""Ids: ULIDs that increase within a session, and the ids of tool calls for each provider.

    message   01K4Q2…            a ULID, increasing within its session also if the clock steps back
    session   sess_01K4Q2…
    tool call tu_01K4Q2…         each provider has its own alphabet and length, and issues its own ids

``ToolIds`` maps the ids of one session to those of each provider. For a provider that did not issue an id, the map
derives one from Dragoman's id alone, so that a call has the same id in every turn and prompt caches remain valid.
Invariant: time and randomness are arguments; no function reads a clock.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections.abc import Callable
from typing import Final

import msgspec

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
TOOL_ID: Final = re.compile(rf"tu_[{ALPHABET}]{{1,26}}")  # short ids are allowed for examples
_FOR_OWNER: Final = re.compile(r"(.+)~[0-9a-f]{24}", re.DOTALL)
_OWNER_MARK: Final = re.compile(r"~[0-9a-f]{24}(?![0-9A-Za-z])")
_RANDOM_BITS: Final = 80
_RANDOM_LIMIT: Final = 1 << _RANDOM_BITS
_LAST: Final = (1 << 128) - 1
_PAIRS: Final = tuple(high + low for high in ALPHABET for low in ALPHABET)
_FIFTY_BITS: Final = (1 << 50) - 1


def ulid(time_ms: int, randomness: int) -> str:
    """Return a ULID: 48 bits of time and 80 bits of randomness, as 26 characters that sort like the number."""
    if not (0 <= time_ms < 1 << 48 and 0 <= randomness < _RANDOM_LIMIT):
        raise ValueError(f"a ULID cannot hold the time {time_ms} ms and the randomness {randomness}")
    return _ulid_from_int((time_ms << _RANDOM_BITS) | randomness)


def ulid_time_ms(text: str) -> int:
    """Return the creation time of a ULID in milliseconds."""
    return _int_from_ulid(text) >> _RANDOM_BITS


def derive_ulid(time_ms: int, *seeds: str) -> str:
    """Return a ULID that depends only on the arguments."""
    digest = hashlib.sha256("\0".join(seeds).encode("utf-8", "surrogatepass")).digest()
    return ulid(time_ms, int.from_bytes(digest[:10]))


def id_for_owner(name: str, *owner: str | None) -> str:
    """Return an id for a name of one owner if another owner already uses the name."""
    digest = hashlib.sha256(repr((name, *owner)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name}~{digest[:24]}"


def ids_for_owner(name: str, *owner: str | None) -> tuple[str, ...]:
    """Return the possible ids for a name of an owner; empty if the name has the format of such an id."""
    return () if _FOR_OWNER.fullmatch(name) else (name, id_for_owner(name, *owner))


def name_from_id(text: str) -> str:
    """Return the name that ``id_for_owner`` received, or the id itself."""
    match = _FOR_OWNER.fullmatch(text)
    return match[1] if match is not None else text


def with_names(text: str) -> str:
    """Replace each id of ``id_for_owner`` in a text with its name."""
    return _OWNER_MARK.sub("", text)


class UlidSource:
    """ULIDs of one session. Each is greater than the one before, also if the clock steps back. Threads may share it.

    ``last`` continues a session from its newest id. ``clock_ms`` returns the time, ``randomness`` 80 random bits.
    """

    def __init__(self, clock_ms: Callable[[], int], randomness: Callable[[], int], last: str | None = None) -> None:
        self._clock_ms = clock_ms
        self._randomness = randomness
        self._last = -1 if last is None else _int_from_ulid(last)
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return a new id, greater than all earlier ids."""
        return _ulid_from_int(self._reserve(1))

    def next_many(self, count: int) -> list[str]:
        """Return consecutive new ids."""
        start = self._reserve(count)
        first = _ulid_from_int(start)
        end = start & 1023  # most ids differ in their last two characters only
        if end + count <= 1024:
            return [first, *[first[:-2] + pair for pair in _PAIRS[end + 1 : end + count]]]
        return [first, *[_ulid_from_int(number) for number in range(start + 1, start + count)]]

    def _reserve(self, count: int) -> int:
        """Return the first of consecutive new numbers."""
        with self._lock:
            time_ms = self._clock_ms()
            if time_ms > self._last >> _RANDOM_BITS:
                number = (time_ms << _RANDOM_BITS) | (self._randomness() % _RANDOM_LIMIT)
            else:  # same millisecond, or the clock stepped back
                number = self._last + 1
            last = number + count - 1
            if last > _LAST:
                raise OverflowError("no greater ULID exists: the last id of this session is the maximum")
            self._last = last
            return number

    def next_tool_id(self) -> str:
        """Return a new id for a tool call."""
        return f"tu_{self.next()}"


def _ulid_from_int(number: int) -> str:
    # Two characters at a time, from small numbers: every event and every message has an id.
    pair, end = _PAIRS, number & _FIFTY_BITS
    return (
        f"{_ulid_prefix(number >> 50)}{pair[end >> 40]}{pair[end >> 30 & 1023]}{pair[end >> 20 & 1023]}"
        f"{pair[end >> 10 & 1023]}{pair[end & 1023]}"
    )


@functools.lru_cache(maxsize=16)
def _ulid_prefix(number: int) -> str:
    """Return the first 16 characters of a ULID, which the ids of one millisecond share."""
    pair, begin, middle = _PAIRS, number >> 50, number & _FIFTY_BITS
    return (
        f"{pair[begin >> 20]}{pair[begin >> 10 & 1023]}{pair[begin & 1023]}"
        f"{pair[middle >> 40]}{pair[middle >> 30 & 1023]}{pair[middle >> 20 & 1023]}{pair[middle >> 10 & 1023]}"
        f"{pair[middle & 1023]}"
    )


def _int_from_ulid(text: str) -> int:
    if len(text) != 26 or text[0] > "7":
        raise ValueError(f"not a ULID: {text!r}")
    number = 0
    for character in text:
        digit = ALPHABET.find(character)
        if digit < 0:
            raise ValueError(f"not a ULID: {text!r} ({character!r} is not in its alphabet)")
        number = number << 5 | digit
    return number


# --- tool ids, as dialects spell them --------------------------------------------------------------------------------


class IdFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The format of tool-call ids that a provider accepts."""

    alphabet: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
    max_length: int = 64
    exact_length: int | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.alphabet or self.room < 1:
            raise ValueError("an id format needs an alphabet, and characters after its prefix")

    @property
    def room(self) -> int:
        """The maximum number of characters after the prefix."""
        return (self.exact_length or self.max_length) - len(self.prefix)

    def accepts(self, text: str) -> bool:
        """Whether the provider accepts this id unchanged."""
        fits = len(text) == self.exact_length if self.exact_length else 0 < len(text) <= self.max_length
        return fits and text.startswith(self.prefix) and not text[len(self.prefix) :].strip(self.alphabet)


DEFAULT_ID_FORMAT: Final = IdFormat()
_MAX_ATTEMPTS: Final = 1_000


@functools.lru_cache(maxsize=16_384)  # a history is written in every turn
def format_default_id(tool_id: str) -> str:
    """Return the id in the format that most providers accept."""
    return format_id(tool_id, DEFAULT_ID_FORMAT)


def format_id(tool_id: str, id_format: IdFormat, attempt: int = 0) -> str:
    """Return the first of these that fits the format: the id, the id with the prefix, a digest of the id."""
    if attempt == 0:
        bare = tool_id.removeprefix("tu_")
        for candidate in (tool_id, id_format.prefix + bare):
            if id_format.accepts(candidate):
                return candidate
    # Letters and digits if possible: some providers reject an id that starts with another character.
    letters = "".join(character for character in id_format.alphabet if character.isalnum()) or id_format.alphabet
    length = id_format.room if id_format.exact_length else min(id_format.room, 26)
    digest = hashlib.shake_256(f"{attempt}\0{tool_id}".encode("utf-8", "surrogatepass")).digest(length * 4)
    characters = [letters[int.from_bytes(digest[at : at + 4]) % len(letters)] for at in range(0, len(digest), 4)]
    return id_format.prefix + "".join(characters)


class ToolIds:
    """The tool-call ids of one session, for each provider.

    ``entries`` is the stored form: (provider, tool id, provider id), in the order of insertion.
    """

    def __init__(self, entries: tuple[tuple[str, str, str], ...] = ()) -> None:
        self._provider_ids: dict[tuple[str, str], str] = {}
        self._tool_ids: dict[tuple[str, str], str] = {}
        self._entries: list[tuple[str, str, str]] = []
        for provider, tool_id, provider_id in entries:
            self.add(provider, tool_id, provider_id)

    @property
    def entries(self) -> tuple[tuple[str, str, str], ...]:
        """All pairs, in the order of insertion."""
        return tuple(self._entries)

    def add(self, provider: str, tool_id: str, provider_id: str) -> None:
        """Store the id that a provider uses for a call. A repeated id belongs to the newest call."""
        if (
            self._provider_ids.get((provider, tool_id)) == provider_id
            and self._tool_ids[provider, provider_id] == tool_id
        ):
            return
        older = self._tool_ids.get((provider, provider_id))
        if older is not None and older != tool_id:
            self._provider_ids.pop((provider, older), None)  # the older call needs another id
        self._provider_ids[provider, tool_id] = provider_id
        self._tool_ids[provider, provider_id] = tool_id
        self._entries.append((provider, tool_id, provider_id))

    def from_provider_id(self, provider: str, provider_id: str) -> str | None:
        """Return the tool id for a provider's id, or ``None``."""
        return self._tool_ids.get((provider, provider_id))

    def to_provider_id(self, provider: str, tool_id: str, id_format: IdFormat = DEFAULT_ID_FORMAT) -> str:
        """Return the id for a provider: the one that it issued, else one in its format."""
        provider_id = self._provider_ids.get((provider, tool_id))
        if provider_id is not None:
            return provider_id
        for attempt in range(_MAX_ATTEMPTS):
            candidate = format_id(tool_id, id_format, attempt)
            if self._tool_ids.get((provider, candidate), tool_id) == tool_id:
                self.add(provider, tool_id, candidate)
                return candidate
        raise ValueError(f"{provider}: no unused id for {tool_id!r}; the id format is too short")
