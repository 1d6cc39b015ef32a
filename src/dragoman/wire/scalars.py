"""Single values of a wire, if they are what they should be. What they are not is left to the residue."""

from __future__ import annotations

from typing import Any


def text_or_none(value: Any) -> str | None:
    """A text."""
    return value if isinstance(value, str) else None


def text_tuple(value: Any) -> tuple[str, ...]:
    """A list of texts; nothing if it is anything else."""
    return tuple(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else ()


def list_or_empty(value: Any) -> list[Any]:
    """A list; an empty one if it is anything else."""
    return value if isinstance(value, list) else []


def integer_or_none(value: Any) -> int | None:
    """A whole number; true and false are none."""
    return value if type(value) is int else None


def number_or_none(value: Any) -> int | float | None:
    """A number; true and false are none."""
    return value if type(value) in (int, float) else None


def count_or_zero(value: Any) -> int:
    """How many; 0 if it is no count."""
    return value if type(value) is int and value >= 0 else 0


def flag_or_none(value: Any) -> bool | None:
    """True or false."""
    return value if isinstance(value, bool) else None
