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
from typing import Any, Final

import msgspec

from dragoman.message import ProviderRaw
from dragoman.value import check_plain

Residue = dict[str, Any]


def noted(dialect: str, written: Any, wire: Any, **notes: Any) -> ProviderRaw | None:
    """What to keep in ``provider_raw``: the residue, and whatever else the dialect wants to remember."""
    return kept(dialect, None if _are_the_same(written, wire) else difference(written, wire), **notes)


def kept(dialect: str, residue: Residue | None, **notes: Any) -> ProviderRaw | None:
    """The same with a residue that is known."""
    noted = {name: note for name, note in notes.items() if note is not None}
    if residue is not None:
        noted["residue"] = residue
    if not noted:
        return None
    raw = {"dialect": dialect, **noted}
    if any(type(note) is dict or type(note) is list for note in noted.values()):
        check_plain(raw, "provider_raw")  # not every value of ours does, nor does an event
    return raw


def notes_of(raw: ProviderRaw | None, dialect: str) -> ProviderRaw:
    """What this dialect noted; nothing if another one did."""
    return raw if raw is not None and raw.get("dialect") == dialect else {}


def _are_the_same(written: Any, wire: Any) -> bool:
    """Most often there is no difference, and that is quickly seen; if not, ``difference`` looks closely."""
    try:
        return _sorted_json(written) == _sorted_json(wire)
    except (ValueError, OverflowError, TypeError):  # what msgspec cannot write, such as a lone surrogate
        return False


_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode


def difference(written: Any, wire: Any) -> Residue | None:
    """What makes the wire out of what we would have written."""
    if type(written) is dict and type(wire) is dict:
        return _object_difference(written, wire)
    if type(written) is list and type(wire) is list and len(written) == len(wire):
        parts = {
            str(index): part
            for index, (ours, theirs) in enumerate(zip(written, wire, strict=True))
            if (part := difference(ours, theirs)) is not None
        }
        return {"at": parts} if parts else None
    kind = type(wire)
    if kind is str or kind is int:
        if type(written) is kind and written == wire:
            return None
    elif type(written) is kind and kind is not list and repr(written) == repr(wire):  # 0.0 is not -0.0
        return None
    return {"is": wire, "was": fingerprint(written)}


def _object_difference(written: dict[str, Any], wire: dict[str, Any]) -> Residue | None:
    residue: Residue = {}
    added = {key: value for key, value in wire.items() if key not in written}
    dropped = {key: fingerprint(value) for key, value in written.items() if key not in wire}
    inside = {key: part for key in written if key in wire and (part := difference(written[key], wire[key])) is not None}
    if added:
        residue["set"] = added
    if dropped:
        residue["drop"] = dropped
    if inside:
        residue["in"] = inside
    return residue or None


def restored(written: Any, residue: Residue | None) -> Any:
    """What stood on the wire, as far as what we would write now is still what we would have written then."""
    if type(residue) is not dict:  # there is none, or somebody else wrote it
        return written
    if "was" in residue:
        return residue.get("is") if residue["was"] == fingerprint(written) else written
    if type(written) is list:
        parts = _part(residue, "at")
        return [restored(item, parts.get(str(index))) for index, item in enumerate(written)]
    if type(written) is not dict:
        return written
    inside, dropped = _part(residue, "in"), _part(residue, "drop")
    made = {
        key: restored(value, inside.get(key))
        for key, value in written.items()
        if key not in dropped or dropped[key] != fingerprint(value)
    }
    made.update((key, value) for key, value in _part(residue, "set").items() if key not in made)
    return made


def _part(residue: Residue, name: str) -> dict[str, Any]:
    part = residue.get(name)
    return part if type(part) is dict else {}


def fingerprint(value: Any) -> str:
    """What a value is recognised by, short and the same everywhere."""
    if (type(value) is str and len(value) < _LONG) or value is None or type(value) is int:
        return _known_fingerprint(value)  # what we would write is most often one of a few words
    return _fingerprint(value)


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(_text_of(value).encode()).hexdigest()[:16]


_LONG: Final = 64
_known_fingerprint: Final = functools.lru_cache(maxsize=512, typed=True)(_fingerprint)
# Takes what a wire may hold and msgspec does not.
_text_of: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
