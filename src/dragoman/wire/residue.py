"""Residue: the difference between what we would have written and what stood on the wire.

    difference(written, wire)        what to remember; None if there is nothing
    restored(written, residue)       the wire again

A dialect reads what it understands into canonical fields. What it would write for these fields, compared with what
came, leaves exactly that which the canonical fields cannot say: a hint about caching, an id, the spacing inside a
string of arguments. That is kept in ``provider_raw`` and put back when the same dialect writes. An edit of the
canonical field shows, because a value that was replaced is put back only while what we would write is still what it
was then.

A residue is plain JSON:

    {"set": {key: value}}                 keys that we would not have written
    {"drop": {key: fingerprint}}          keys that we would have written, with the value that has that fingerprint
    {"in": {key: residue}}                differences inside a value
    {"at": {"2": residue}}                differences inside an item of a list of the same length
    {"is": value, "was": fingerprint}     another value, in place of the one with that fingerprint

The one rule: restored(w, difference(w, x)) is x, whatever w and x are.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dragoman.exchange import Loss, Request, ToolDefinition
from dragoman.jsontext import validate_json
from dragoman.message import ProviderRaw

Residue = dict[str, Any]


def make_notes(dialect: str, default: Any, wire: Any, **notes: Any) -> ProviderRaw | None:
    """What to keep in ``provider_raw``: the residue, and whatever else the dialect wants to remember."""
    return wrap_residue(dialect, None if _is_same_json(default, wire) else diff(default, wire), **notes)


def wrap_residue(dialect: str, residue: Residue | None, **notes: Any) -> ProviderRaw | None:
    """The same with a residue that is known."""
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
    """What this dialect noted; nothing if another one did."""
    return raw if raw is not None and raw.get("dialect") == dialect else {}


def _is_same_json(default: Any, wire: Any) -> bool:
    """Most often there is no difference, and that is quickly seen; if not, ``difference`` looks closely."""
    try:
        return _sorted_json(default) == _sorted_json(wire)
    except (ValueError, OverflowError, TypeError):  # what msgspec cannot write, such as a lone surrogate
        return False


_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode


def diff(default: Any, wire: Any) -> Residue | None:
    """What makes the wire out of what we would have written."""
    if type(default) is dict and type(wire) is dict:
        return _diff_objects(default, wire)
    if type(default) is list and type(wire) is list and len(default) == len(wire):
        parts = {
            str(index): part
            for index, (ours, theirs) in enumerate(zip(default, wire, strict=True))
            if (part := diff(ours, theirs)) is not None
        }
        return {"at": parts} if parts else None
    kind = type(wire)
    if kind is str or kind is int:
        if type(default) is kind and default == wire:
            return None
    elif type(default) is kind and kind is not list and repr(default) == repr(wire):  # 0.0 is not -0.0
        return None
    return {"is": wire, "was": fingerprint(default)}


def _diff_objects(default: dict[str, Any], wire: dict[str, Any]) -> Residue | None:
    residue: Residue = {}
    added = {key: value for key, value in wire.items() if key not in default}
    removed = {key: fingerprint(value) for key, value in default.items() if key not in wire}
    inside = {key: part for key in default if key in wire and (part := diff(default[key], wire[key])) is not None}
    if added:
        residue["set"] = added
    if removed:
        residue["drop"] = removed
    if inside:
        residue["in"] = inside
    return residue or None


def apply_diff(default: Any, residue: Residue | None) -> Any:
    """What stood on the wire, as far as what we would write now is still what we would have written then."""
    if type(residue) is not dict:  # there is none, or somebody else wrote it
        return default
    if "was" in residue:
        return residue.get("is") if residue["was"] == fingerprint(default) else default
    if type(default) is list:
        parts = _part(residue, "at")
        return [apply_diff(item, parts.get(str(index))) for index, item in enumerate(default)]
    if type(default) is not dict:
        return default
    inside, removed = _part(residue, "in"), _part(residue, "drop")
    result = {
        key: apply_diff(value, inside.get(key))
        for key, value in default.items()
        if key not in removed or removed[key] != fingerprint(value)
    }
    result.update((key, value) for key, value in _part(residue, "set").items() if key not in result)
    return result


def _part(residue: Residue, name: str) -> dict[str, Any]:
    part = residue.get(name)
    return part if type(part) is dict else {}


def fingerprint(value: Any) -> str:
    """What a value is recognised by, short and the same everywhere."""
    if (type(value) is str and len(value) < _LONG) or value is None or type(value) is int:
        return _cached_fingerprint(value)  # what we would write is most often one of a few words
    return _fingerprint(value)


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(_to_json(value).encode()).hexdigest()[:16]


_LONG: Final = 64
_cached_fingerprint: Final = functools.lru_cache(maxsize=512, typed=True)(_fingerprint)
# Takes what a wire may hold and msgspec does not.
_to_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


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
