"""Words for a terminal: texts that are safe to print, numbers and times for people.

The one rule: no text of a conversation reaches a terminal as it is. A model, a tool or a stranger may have written
control characters into it, and a terminal obeys those.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

_CONTROLS: Final = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_AGES: Final = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "d"))


def escape_controls(text: str) -> str:
    """A text whose control characters are shown and not obeyed; its lines and tabs stay."""
    return _CONTROLS.sub(_visible_character, text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    """The same on one line."""
    return escape_controls(" ".join(text.split()))


def escape_in_place(text: str) -> str:
    """A text on one line that is safe to print, each character in its place."""
    return escape_controls(re.sub(r"\s", " ", text))


def _visible_character(match: re.Match[str]) -> str:
    number = ord(match[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """A number and what it counts: ``1 message``, ``2,000 messages``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_size(number: int) -> str:
    """A number of bytes for people."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def format_usd(amount: Decimal | None) -> str:
    """An amount for people: to a millionth, no zeros at its end, cents at the least; "unpriced" if it is unknown."""
    if amount is None:
        return "unpriced"
    whole, _, part = f"{amount:,.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def format_cost(cost_usd: Decimal, unpriced: int, calls: int) -> str:
    """A sum for people: what the calls with a price cost, and how many of them have none."""
    if not unpriced:
        return format_usd(cost_usd)
    return "unpriced" if unpriced >= calls else f"{format_usd(cost_usd)} + {unpriced:,} unpriced"


def format_time(when: datetime) -> str:
    """A time to the minute, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def to_utc(when: datetime | None) -> datetime | None:
    """A time as a person gives it: in UTC unless it names a zone."""
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def format_age(when: datetime, now: datetime) -> str:
    """How long ago something was, or its date if that is long."""
    seconds = max(0, int((now - when).total_seconds()))
    for below, unit, name in _AGES:
        if seconds < below:
            return f"{seconds // unit} {name} ago"
    return when.astimezone(UTC).strftime("%Y-%m-%d")
