"""Format texts, numbers and times for people.

Invariant: texts of a conversation are escaped before they are printed, because models, tools and users may write
control characters that a terminal would execute.
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
    """Replace control characters with visible ones. Line breaks and tabs stay."""
    return _CONTROLS.sub(_visible_character, text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    """The same on one line."""
    return escape_controls(" ".join(text.split()))


def escape_in_place(text: str) -> str:
    """The same on one line, with every character in its position."""
    return escape_controls(re.sub(r"\s", " ", text))


def _visible_character(match: re.Match[str]) -> str:
    number = ord(match[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 message``, ``2,000 messages``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_size(number: int) -> str:
    """A number of bytes with a unit."""
    amount, unit = float(number), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{number} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def format_usd(amount: Decimal | None) -> str:
    """An amount with up to six decimals, at least two; "unpriced" if it is unknown."""
    if amount is None:
        return "unpriced"
    whole, _, part = f"{amount:,.6f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def format_cost(cost_usd: Decimal, unpriced: int, calls: int) -> str:
    """A sum, and the number of calls without a price."""
    if not unpriced:
        return format_usd(cost_usd)
    return "unpriced" if unpriced >= calls else f"{format_usd(cost_usd)} + {unpriced:,} unpriced"


def format_time(when: datetime) -> str:
    """A time to the minute, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def to_utc(when: datetime | None) -> datetime | None:
    """Set UTC for a time without a zone."""
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def format_age(when: datetime, now: datetime) -> str:
    """The age in one unit, or the date if it is long ago."""
    seconds = max(0, int((now - when).total_seconds()))
    for below, unit, name in _AGES:
        if seconds < below:
            return f"{seconds // unit} {name} ago"
    return when.astimezone(UTC).strftime("%Y-%m-%d")
