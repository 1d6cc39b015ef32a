"""Asides: what a request asks for in words that only its own dialect has.

    foreign_options(request, dialect)     those of another dialect than the one that is to write the request
    foreign_option_losses(request, dialect)   a loss for each
    foreign_hints(raw, dialect)          what was noted in the same way about a block or a message

A dialect keeps what it has no canonical field for as residue, and only it writes that again. Written in another
dialect, the request lacks it: the earlier answer that it goes on from, a guardrail, the documents to quote. So each is
named as lost, once for a request. Beside blocks and messages stand hints (where to cache, which id an item has); those
stay behind without a word. The one rule: whatever was asked for by a whole request, or of a tool, is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.exchange import Loss, Request, ToolDefinition
from dragoman.message import ProviderRaw

_RESIDUE_KEYS: Final = frozenset({"set", "drop", "in", "at", "is", "was"})
_DEFAULTS: Final = {"n": 1, "candidateCount": 1, "candidate_count": 1}  # one answer, which is what everybody gives


def foreign_option_losses(request: Request, dialect: str) -> Iterator[Loss]:
    """A loss for everything that was asked for in words that this dialect does not have."""
    for name, origin in foreign_options(request, dialect).items():
        yield Loss("", "", name, dialect, f"only {origin} has such an option")


def foreign_options(request: Request, dialect: str) -> dict[str, str]:
    """What was asked for in words of another dialect, by name, and whose words these are; each once."""
    options = dict(_foreign_names(request.provider_raw, dialect))
    for tool in request.tools:
        if isinstance(tool, ToolDefinition) and tool.provider_raw is not None:
            options.update((f"tool.{name}", origin) for name, origin in _foreign_names(tool.provider_raw, dialect))
    return options


def foreign_hints(raw: ProviderRaw | None, dialect: str) -> list[str]:
    """What was noted about a block or a message in words of another dialect, by name."""
    return [name for name, _ in _foreign_names(raw, dialect)]


def _foreign_names(raw: ProviderRaw | None, dialect: str) -> Iterator[tuple[str, str]]:
    if raw is None or raw.get("dialect") in (None, dialect):
        return
    for note in raw.values():
        if isinstance(note, dict) and note and note.keys() <= _RESIDUE_KEYS:
            for name in _added_names(note):
                yield name, raw["dialect"]


def _added_names(residue: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """What stood on the wire and we would not have written, by name, as far as it says something.

    Another spelling of the same word says nothing new, and an object in the place of a word does.
    """
    for key, value in residue.get("set", {}).items():
        if _is_meaningful(value) and _DEFAULTS.get(key) != value:
            yield f"{prefix}{key}"
    for key, part in residue.get("in", {}).items():
        yield from _added_names(part, f"{prefix}{key}.")
    if isinstance(residue.get("is"), dict | list) and _is_meaningful(residue["is"]):
        yield prefix.removesuffix(".")


def _is_meaningful(value: Any) -> bool:
    """Whether a value is more than nothing, an empty one, or no."""
    return value is not None and value is not False and value not in ("", [], {})
