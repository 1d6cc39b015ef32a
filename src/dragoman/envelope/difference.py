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


def difference(written: Any, given: Any) -> Difference | None:
    """What makes the given value out of what is written."""
    if text_of(written) == text_of(given):
        return None
    if type(written) is dict and type(given) is dict:
        return _of_objects(written, given)
    if type(written) is list and type(given) is list and len(written) == len(given):
        pairs = enumerate(zip(written, given, strict=True))
        return {"at": {str(at): part for at, (ours, theirs) in pairs if (part := difference(ours, theirs)) is not None}}
    return {"is": given, "was": fingerprint(written)}


def _of_objects(written: dict[str, Any], given: dict[str, Any]) -> Difference:
    parts = {
        "set": {key: item for key, item in given.items() if key not in written},
        "gone": {key: fingerprint(item) for key, item in written.items() if key not in given},
        "in": {
            key: part
            for key, item in written.items()
            if key in given and (part := difference(item, given[key])) is not None
        },
    }
    made: Difference = {name: part for name, part in parts.items() if part}
    if list(restored(written, made)) != list(given):
        made["order"] = list(given)
    return made


def restored(written: Any, remembered: Difference | None) -> Any:
    """What was given, as far as what is written now is what was written then."""
    if remembered is None:
        return written
    if "was" in remembered:
        return remembered["is"] if remembered["was"] == fingerprint(written) else written
    if type(written) is list:
        parts = remembered.get("at", {})
        return [restored(item, parts.get(str(at))) for at, item in enumerate(written)]
    if type(written) is not dict:
        return written
    inside, gone = remembered.get("in", {}), remembered.get("gone", {})
    made = {
        key: restored(item, inside.get(key))
        for key, item in written.items()
        if key not in gone or gone[key] != fingerprint(item)
    }
    made |= {key: item for key, item in remembered.get("set", {}).items() if key not in made}
    order = {key: place for place, key in enumerate(remembered.get("order", ()))}
    return dict(sorted(made.items(), key=lambda pair: order.get(pair[0], len(order)))) if order else made


def fingerprint(value: Any) -> str:
    """What a value is recognised by, short and the same everywhere."""
    return hashlib.sha256(text_of(value)).hexdigest()[:16]


def text_of(value: Any) -> bytes:
    """The JSON of a plain value, with its keys in their order."""
    try:
        return msgspec.json.encode(value)
    except (RecursionError, UnicodeEncodeError) as error:
        raise FormatError(f"it cannot be written as JSON ({type(error).__name__})") from None
