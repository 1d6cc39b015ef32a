"""Residue: the part of a wire object that canonical fields cannot represent. A dialect stores it in ``provider_raw``.

A dialect reads a wire object into canonical fields. ``json_diff.diff`` between what it would write for these fields and
the original wire object is the *residue*: a caching hint, an id, the white space in a string of arguments. The dialect
applies it when it writes the message again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import Loss, Request, ToolDefinition
from dragoman.json_diff import apply_diff, diff, fingerprint
from dragoman.jsontext import validate_json
from dragoman.message import Message, ProviderRaw, ToolResultBlock

__all__ = ["apply_diff", "diff", "fingerprint"]  # dialects import them from here

Residue = dict[str, Any]


def make_notes(dialect: str, default: Any, wire: Any, **notes: Any) -> ProviderRaw | None:
    """Return the value of ``provider_raw``: the residue and the other notes of the dialect."""
    return wrap_residue(dialect, None if _is_same_json(default, wire) else diff(default, wire), **notes)


def wrap_residue(dialect: str, residue: Residue | None, **notes: Any) -> ProviderRaw | None:
    """Return the value of ``provider_raw`` for a given residue."""
    present = {name: note for name, note in notes.items() if note is not None}
    if residue is not None:
        present["residue"] = residue
    if not present:
        return None
    raw = {"dialect": dialect, **present}
    if any(type(note) is dict or type(note) is list for note in present.values()):
        validate_json(raw, "provider_raw")  # not every value of ours does, nor does an event
    return raw


def get_notes(raw: ProviderRaw | None, dialect: str) -> ProviderRaw:
    """Return the notes of this dialect; empty if another dialect made them."""
    return raw if raw is not None and raw.get("dialect") == dialect else {}


def _is_same_json(default: Any, wire: Any) -> bool:
    """Fast check for equality, which is the usual case; ``diff`` compares exactly."""
    try:
        return _sorted_json(default) == _sorted_json(wire)
    except (ValueError, OverflowError, TypeError):  # values that msgspec cannot encode, such as a lone surrogate
        return False


_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode


_RESIDUE_KEYS: Final = frozenset({"set", "drop", "in", "at", "is", "was"})
_DEFAULTS: Final = {"n": 1, "candidateCount": 1, "candidate_count": 1}  # one answer, the default of every API


def foreign_option_losses(request: Request, dialect: str) -> Iterator[Loss]:
    """Return a loss for each option that only another dialect has."""
    for name, origin in foreign_options(request, dialect).items():
        yield Loss("", "", name, dialect, f"only {origin} has such an option")


def foreign_options(request: Request, dialect: str) -> dict[str, str]:
    """Return the options that only another dialect has, each with the name of that dialect."""
    options = dict(_foreign_names(request.provider_raw, dialect))
    for tool in request.tools:
        if isinstance(tool, ToolDefinition) and tool.provider_raw is not None:
            options.update((f"tool.{name}", origin) for name, origin in _foreign_names(tool.provider_raw, dialect))
    return options


# Names of fields that identify or describe an item of one API, and of signatures and cache marks, which only that API
# can verify or use. Nothing that the model reads is left out with them.
_HINTS: Final = frozenset(
    {
        "cache_control",
        "caller",
        "content",
        "format",
        "id",
        "index",
        "phase",
        "prompt_cache_breakpoint",
        "role",
        "status",
        "thoughtSignature",
        "thought_signature",
        "type",
    }
)


def foreign_fields(
    raw: ProviderRaw | None, dialect: str, subject: str
) -> Iterator[tuple[str, Literal["hint", "loss"], str]]:
    """Yield what another dialect noted about a block or a message: name, kind and reason of the report."""
    for name, origin in _foreign_names(raw, dialect):
        is_hint = name.rpartition(".")[2] in _HINTS or (subject, name) == ("tool_result", "name")
        yield f"{subject}.{name}", "hint" if is_hint else "loss", f"only {origin} has such a field"


def foreign_field_losses(messages: Iterable[Message], dialect: str) -> Iterator[Loss]:
    """Return a report for each field of messages and their blocks that only another dialect has."""
    for message in messages:
        notes = [("message", message.metadata.provider_raw)]
        for block in message.content:
            inner = block.content if isinstance(block, ToolResultBlock) else ()
            notes.extend((part.type, getattr(part, "provider_raw", None)) for part in (block, *inner))
        for subject, raw in notes:
            for name, kind, reason in foreign_fields(raw, dialect, subject) if raw is not None else ():
                yield Loss(message.session_id, message.id, name, dialect, reason, kind)


def _foreign_names(raw: ProviderRaw | None, dialect: str) -> Iterator[tuple[str, str]]:
    if raw is None or raw.get("dialect") in (None, dialect):
        return
    for note in raw.values():
        if isinstance(note, dict) and note and note.keys() <= _RESIDUE_KEYS:
            for name in _names_beyond_default(note):
                yield name, raw["dialect"]


def _names_beyond_default(residue: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Return the names that the received wire had beyond the default, as far as their values are meaningful.

    Another spelling of the same value is not an option; an object in place of a scalar is.
    """
    for key, value in _items(residue.get("set")):
        if _is_meaningful(value) and _DEFAULTS.get(key) != value:
            yield f"{prefix}{key}"
    for key, part in _items(residue.get("in")):
        if isinstance(part, dict):
            yield from _names_beyond_default(part, f"{prefix}{key}.")
    if isinstance(residue.get("is"), dict | list) and _is_meaningful(residue["is"]):
        yield prefix.removesuffix(".")


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    """Return the items of an object; none of anything else, which a foreign program may have stored."""
    return value.items() if isinstance(value, dict) else ()


def _is_meaningful(value: Any) -> bool:
    """Whether a value is neither empty nor false."""
    return value is not None and value is not False and value not in ("", [], {})
