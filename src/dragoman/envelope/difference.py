"""What makes one JSON value out of another: what the first cannot say of the second.

    difference(written, given)     what to remember; None if there is nothing
    restored(written, remembered)  the given value again

What is remembered is plain JSON. A value that was replaced or left out is so again only while the written one is still
what it was, by its fingerprint; so an edit of what is written from shows. Unlike the residue of a wire, it keeps the
order of keys. The one rule: restored(w, difference(w, x)) has the bytes of x, whatever w and x are.

    {"set": {key: value}}                keys that were not written
    {"gone": {key: fingerprint}}         keys that were written, of the value with that fingerprint
    {"in": {key: …}}, {"at": {"2": …}}   differences inside a value of an object, inside an item of a list
    {"order": [key, …]}                  where that is not the order that the others give
    {"is": value, "was": fingerprint}    another value, in place of the one with that fingerprint
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from dragoman.errors import FormatError

Difference = dict[str, Any]


def diff(base: Any, target: Any) -> Difference | None:
    """What makes the given value out of what is written."""
    if encode_json(base) == encode_json(target):
        return None
    if type(base) is dict and type(target) is dict:
        return _diff_objects(base, target)
    if type(base) is list and type(target) is list and len(base) == len(target):
        pairs = enumerate(zip(base, target, strict=True))
        return {"at": {str(at): part for at, (ours, theirs) in pairs if (part := diff(ours, theirs)) is not None}}
    return {"is": target, "was": fingerprint(base)}


def _diff_objects(base: dict[str, Any], target: dict[str, Any]) -> Difference:
    parts = {
        "set": {key: item for key, item in target.items() if key not in base},
        "gone": {key: fingerprint(item) for key, item in base.items() if key not in target},
        "in": {
            key: part for key, item in base.items() if key in target and (part := diff(item, target[key])) is not None
        },
    }
    result: Difference = {name: part for name, part in parts.items() if part}
    if list(apply_diff(base, result)) != list(target):
        result["order"] = list(target)
    return result


def apply_diff(base: Any, change: Difference | None) -> Any:
    """What was given, as far as what is written now is what was written then."""
    if change is None:
        return base
    if "was" in change:
        return change["is"] if change["was"] == fingerprint(base) else base
    if type(base) is list:
        parts = change.get("at", {})
        return [apply_diff(item, parts.get(str(at))) for at, item in enumerate(base)]
    if type(base) is not dict:
        return base
    inside, gone = change.get("in", {}), change.get("gone", {})
    result = {
        key: apply_diff(item, inside.get(key))
        for key, item in base.items()
        if key not in gone or gone[key] != fingerprint(item)
    }
    result |= {key: item for key, item in change.get("set", {}).items() if key not in result}
    order = {key: place for place, key in enumerate(change.get("order", ()))}
    return dict(sorted(result.items(), key=lambda pair: order.get(pair[0], len(order)))) if order else result


def fingerprint(value: Any) -> str:
    """What a value is recognised by, short and the same everywhere."""
    return hashlib.sha256(encode_json(value)).hexdigest()[:16]


def encode_json(value: Any) -> bytes:
    """The JSON of a plain value, with its keys in their order."""
    try:
        return msgspec.json.encode(value)
    except (RecursionError, UnicodeEncodeError) as error:
        raise FormatError(f"it cannot be written as JSON ({type(error).__name__})") from None
