"""How things are named: ULIDs that only ever grow, and the spelling of a tool call's id for each dialect.

    message   01K4Q2…            a bare ULID, growing within its session also when the clock steps back
    session   sess_01K4Q2…
    tool call tu_01K4Q2…         ours; each provider has its own alphabet and length, and issues ids of its own

``ToolIds`` is the two-way map of one session between our ids and each provider's. Toward a provider that did not issue
an id, it makes a spelling from our id alone, so that the same call is spelled the same in every turn and prompt caches
hold. The one rule: time and randomness come in as arguments. Nothing here reads a clock.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Final

import msgspec

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
TOOL_ID: Final = re.compile(rf"tu_[{ALPHABET}]{{1,26}}")  # short ones are for people to write, as in examples
_FOR_OWNER: Final = re.compile(r"(.+)~[0-9a-f]{24}", re.DOTALL)
_OWNER_MARK: Final = re.compile(r"~[0-9a-f]{24}(?![0-9A-Za-z])")
_RANDOM_BITS: Final = 80
_RANDOM_LIMIT: Final = 1 << _RANDOM_BITS
_LAST: Final = (1 << 128) - 1
_PAIRS: Final = tuple(high + low for high in ALPHABET for low in ALPHABET)
_FIFTY_BITS: Final = (1 << 50) - 1


def ulid(time_ms: int, randomness: int) -> str:
    """A ULID: 48 bits of time, 80 bits of randomness, as 26 characters that sort like the number."""
    if not (0 <= time_ms < 1 << 48 and 0 <= randomness < _RANDOM_LIMIT):
        raise ValueError(f"no ULID has the time {time_ms} ms and the randomness {randomness}")
    return _ulid_from_int((time_ms << _RANDOM_BITS) | randomness)


def ulid_time_ms(text: str) -> int:
    """The time that a ULID was made at, in milliseconds."""
    return _int_from_ulid(text) >> _RANDOM_BITS


def derive_ulid(time_ms: int, *seeds: str) -> str:
    """The same ULID whenever it is derived from the same words: for what is made up rather than received."""
    digest = hashlib.sha256("\0".join(seeds).encode("utf-8", "surrogatepass")).digest()
    return ulid(time_ms, int.from_bytes(digest[:10]))


def id_for_owner(name: str, *owner: str | None) -> str:
    """An id that stands for a name among what one owner has, where another owner has something of that name."""
    digest = hashlib.sha256(repr((name, *owner)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name}~{digest[:24]}"


def ids_for_owner(name: str, *owner: str | None) -> tuple[str, ...]:
    """The ids that may stand for a name that an owner gives; none for what has the form of such an id itself."""
    return () if _FOR_OWNER.fullmatch(name) else (name, id_for_owner(name, *owner))


def name_from_id(text: str) -> str:
    """The name that an owner knows it by: what ``id_for_owner`` was given, or else the id itself."""
    match = _FOR_OWNER.fullmatch(text)
    return match[1] if match is not None else text


def with_names(text: str) -> str:
    """A text for an owner, such as an error, with the name in place of each id of ``id_for_owner``."""
    return _OWNER_MARK.sub("", text)


class UlidSource:
    """ULIDs of one session, each greater than the one before, whatever the clock does.

    ``last`` continues a session from its newest id. ``clock_ms`` gives the time, ``randomness`` 80 random bits.
    """

    def __init__(self, clock_ms: Callable[[], int], randomness: Callable[[], int], last: str | None = None) -> None:
        self._clock_ms = clock_ms
        self._randomness = randomness
        self._last = -1 if last is None else _int_from_ulid(last)

    def next(self) -> str:
        """A new id, greater than every id before."""
        time_ms = self._clock_ms()
        if time_ms > self._last >> _RANDOM_BITS:
            number = (time_ms << _RANDOM_BITS) | (self._randomness() % _RANDOM_LIMIT)
        else:  # same millisecond, or the clock stepped back
            number = self._last + 1
        if number > _LAST:
            raise OverflowError("the ids of this session are used up: its last one is the greatest ULID there is")
        self._last = number
        return _ulid_from_int(number)

    def next_tool_id(self) -> str:
        """A new id for a tool call."""
        return f"tu_{self.next()}"


def _ulid_from_int(number: int) -> str:
    # Two characters at a time, from three numbers that are small: every event and every message has an id.
    pair, begin, middle, end = _PAIRS, number >> 100, number >> 50 & _FIFTY_BITS, number & _FIFTY_BITS
    return (
        f"{pair[begin >> 20]}{pair[begin >> 10 & 1023]}{pair[begin & 1023]}"
        f"{pair[middle >> 40]}{pair[middle >> 30 & 1023]}{pair[middle >> 20 & 1023]}{pair[middle >> 10 & 1023]}"
        f"{pair[middle & 1023]}{pair[end >> 40]}{pair[end >> 30 & 1023]}{pair[end >> 20 & 1023]}"
        f"{pair[end >> 10 & 1023]}{pair[end & 1023]}"
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
    """What a provider accepts as the id of a tool call that it did not issue itself."""

    alphabet: str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
    max_length: int = 64
    exact_length: int | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.alphabet or self.room < 1:
            raise ValueError("an id needs an alphabet, and room behind its prefix")

    @property
    def room(self) -> int:
        """How many characters there may be behind the prefix."""
        return (self.exact_length or self.max_length) - len(self.prefix)

    def accepts(self, text: str) -> bool:
        """Whether the provider would take this id as it is."""
        fits = len(text) == self.exact_length if self.exact_length else 0 < len(text) <= self.max_length
        return fits and text.startswith(self.prefix) and set(text[len(self.prefix) :]) <= set(self.alphabet)


DEFAULT_ID_FORMAT: Final = IdFormat()
_MAX_ATTEMPTS: Final = 1_000


@functools.lru_cache(maxsize=16_384)  # a history is written again in every turn
def format_default_id(tool_id: str) -> str:
    """The id as most providers take it: as it is, unless it is too long or has other signs than most accept."""
    return format_id(tool_id, DEFAULT_ID_FORMAT)


def format_id(tool_id: str, id_format: IdFormat, attempt: int = 0) -> str:
    """The id in a provider's spelling: as it is, under its prefix, or digested, whichever is the first to fit."""
    if attempt == 0:
        bare = tool_id.removeprefix("tu_")
        for candidate in (tool_id, id_format.prefix + bare):
            if id_format.accepts(candidate):
                return candidate
    # Letters and digits where there are any: some providers refuse an id that begins with a sign.
    letters = "".join(character for character in id_format.alphabet if character.isalnum()) or id_format.alphabet
    length = id_format.room if id_format.exact_length else min(id_format.room, 26)
    digest = hashlib.shake_256(f"{attempt}\0{tool_id}".encode("utf-8", "surrogatepass")).digest(length * 4)
    characters = [letters[int.from_bytes(digest[at : at + 4]) % len(letters)] for at in range(0, len(digest), 4)]
    return id_format.prefix + "".join(characters)


class ToolIds:
    """The ids of one session's tool calls: ours, and what each provider calls them.

    ``entries`` is what a store keeps: (provider, our id, the provider's id), in the order in which they were learned.
    """

    def __init__(self, entries: tuple[tuple[str, str, str], ...] = ()) -> None:
        self._provider_ids: dict[tuple[str, str], str] = {}
        self._tool_ids: dict[tuple[str, str], str] = {}
        self._entries: list[tuple[str, str, str]] = []
        for provider, tool_id, provider_id in entries:
            self.add(provider, tool_id, provider_id)

    @property
    def entries(self) -> tuple[tuple[str, str, str], ...]:
        """Everything learned so far, in its order."""
        return tuple(self._entries)

    def add(self, provider: str, tool_id: str, provider_id: str) -> None:
        """A provider issued this id for that call. Where it uses one id again, the newest call answers to it."""
        if (
            self._provider_ids.get((provider, tool_id)) == provider_id
            and self._tool_ids[provider, provider_id] == tool_id
        ):
            return
        older = self._tool_ids.get((provider, provider_id))
        if older is not None and older != tool_id:
            self._provider_ids.pop((provider, older), None)  # it needs another name from now on
        self._provider_ids[provider, tool_id] = provider_id
        self._tool_ids[provider, provider_id] = tool_id
        self._entries.append((provider, tool_id, provider_id))

    def from_provider_id(self, provider: str, provider_id: str) -> str | None:
        """Our id for what a provider calls so, if it was ever seen."""
        return self._tool_ids.get((provider, provider_id))

    def to_provider_id(self, provider: str, tool_id: str, id_format: IdFormat = DEFAULT_ID_FORMAT) -> str:
        """What to call it toward a provider: its own id if it issued one, else a spelling that it accepts."""
        provider_id = self._provider_ids.get((provider, tool_id))
        if provider_id is not None:
            return provider_id
        for attempt in range(_MAX_ATTEMPTS):
            candidate = format_id(tool_id, id_format, attempt)
            if self._tool_ids.get((provider, candidate), tool_id) == tool_id:
                self.add(provider, tool_id, candidate)
                return candidate
        raise ValueError(f"{provider}: no id is left for {tool_id!r}; its spelling has room for too few")
