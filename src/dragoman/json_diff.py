"""Differences between two JSON values, as JSON.

    diff(base, target)          the change that turns ``base`` into ``target``; ``None`` if they are equal
    apply_diff(base, change)    the target again

Dialects, transcripts and envelopes use it to keep what canonical fields cannot represent. They compare what they would
write with what they have read, store the difference, and apply it when they write the same message again. A replaced or
removed value is restored only while the value that it replaced has the same fingerprint, so an edit of a canonical
field remains visible.

    {"set": {key: value}}                 keys that ``base`` does not have
    {"drop": {key: fingerprint}}          keys that ``target`` does not have; "gone" if ordered
    {"in": {key: change}}                 changes inside the values of an object
    {"at": {"2": change}}                 changes inside the items of a list of the same length
    {"order": [key, …]}                   the order of keys, only if ordered
    {"is": value, "was": fingerprint}     another value, in place of the one with that fingerprint

With ``ordered=True`` the order of keys counts, in objects and in fingerprints. The keys of a change are stored in
messages and never renamed. Invariant: ``apply_diff(a, diff(a, b)) == b`` for all JSON values ``a`` and ``b``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError

Diff = dict[str, Any]


def diff(base: Any, target: Any, *, ordered: bool = False) -> Diff | None:
    """The change that turns ``base`` into ``target``."""
    if type(base) is dict and type(target) is dict:
        return _diff_objects(base, target, ordered)
    if type(base) is list and type(target) is list and len(base) == len(target):
        parts = {
            str(index): part
            for index, (old, new) in enumerate(zip(base, target, strict=True))
            if (part := diff(old, new, ordered=ordered)) is not None
        }
        return {"at": parts} if parts else None
    kind = type(target)
    if kind is str or kind is int:
        if type(base) is kind and base == target:
            return None
    elif type(base) is kind and kind is not list and repr(base) == repr(target):  # 0.0 is not -0.0
        return None
    return {"is": target, "was": fingerprint(base, ordered=ordered)}


def _diff_objects(base: dict[str, Any], target: dict[str, Any], ordered: bool) -> Diff | None:
    added = {key: value for key, value in target.items() if key not in base}
    removed = {}
    if len(target) - len(added) != len(base):
        removed = {key: fingerprint(value, ordered=ordered) for key, value in base.items() if key not in target}
    inside = {}
    for key, old in base.items():
        if key not in target:
            continue
        new = target[key]
        kind = type(new)
        if (kind is str or kind is int) and type(old) is kind and old == new:
            continue  # most values are equal
        part = diff(old, new, ordered=ordered)
        if part is not None:
            inside[key] = part
    result: Diff = {}
    if added:
        result["set"] = added
    if removed:
        result[_drop_key(ordered)] = removed
    if inside:
        result["in"] = inside
    if ordered and [*(key for key in base if key in target), *added] != list(target):
        result["order"] = list(target)
    return result or None


def apply_diff(base: Any, change: Diff | None, *, ordered: bool = False) -> Any:
    """The target of a change, as far as ``base`` still has the values that the change replaced."""
    if type(change) is not dict:  # no change, or a value that another program has written
        return base
    if "was" in change:
        return change.get("is") if change["was"] == fingerprint(base, ordered=ordered) else base
    if type(base) is list:
        parts = _part(change, "at")
        return [apply_diff(item, parts.get(str(index)), ordered=ordered) for index, item in enumerate(base)]
    if type(base) is not dict:
        return base
    inside, removed = _part(change, "in"), _part(change, _drop_key(ordered))
    result = {
        key: apply_diff(value, inside.get(key), ordered=ordered)
        for key, value in base.items()
        if key not in removed or removed[key] != fingerprint(value, ordered=ordered)
    }
    result.update((key, value) for key, value in _part(change, "set").items() if key not in result)
    order = {key: position for position, key in enumerate(change.get("order", ()))} if ordered else {}
    return dict(sorted(result.items(), key=lambda item: order.get(item[0], len(order)))) if order else result


def _drop_key(ordered: bool) -> str:
    return "gone" if ordered else "drop"


def _part(change: Diff, name: str) -> dict[str, Any]:
    part = change.get(name)
    return part if type(part) is dict else {}


# --- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(value: Any, *, ordered: bool = False) -> str:
    """Sixteen hexadecimal digits over the JSON of a value."""
    if ordered:
        return hashlib.sha256(encode_json(value)).hexdigest()[:16]
    if (type(value) is str and len(value) < _CACHED_LENGTH) or value is None or type(value) is int:
        return _cached_fingerprint(value)  # most values that dialects write are a few constants
    if type(value) is dict and len(value) == 1:
        ((key, count),) = value.items()
        if type(count) is int:  # such as the details of a usage, mostly zero
            return _cached_count_fingerprint(key, count)
    return _fingerprint(value)


def encode_json(value: Any) -> bytes:
    """The JSON of a plain value, with keys in their order."""
    try:
        return msgspec.json.encode(value)
    except (RecursionError, UnicodeEncodeError) as error:
        raise FormatError(f"it cannot be written as JSON ({type(error).__name__})") from None


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(_sorted_json(value).encode()).hexdigest()[:16]


_CACHED_LENGTH: Final = 64
_cached_count_fingerprint: Final = functools.lru_cache(maxsize=512)(lambda key, count: _fingerprint({key: count}))
_cached_fingerprint: Final = functools.lru_cache(maxsize=512, typed=True)(_fingerprint)
# json, not msgspec: a wire object may hold values that msgspec does not encode, such as a lone surrogate.
_sorted_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
