"""Is this an entry? Every problem, in words, with the field that it is about.

    problems(entry) -> list of texts       empty if it is one
    checked(entry)  -> a copy of it        or FormatError: unknown_entry_type, invalid_entry

Reading is lenient, because a table of somebody else's may lack columns; what is made or stored here has to be whole.
The one rule: a field that no type declares is nobody's business but JSON's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

from dragoman.entries.types import ANY, OBJECT, SHAPES, TEXT, TYPES, WHOLE, Entry
from dragoman.errors import FormatError
from dragoman.value import check_plain


def problems(entry: Any) -> list[str]:
    """What is wrong with an entry; nothing, if it is one."""
    if not isinstance(entry, Mapping):
        return [f"an entry is an object, not {type(entry).__name__}"]
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in SHAPES:
        return [f"type: {_unknown(entry)}"]
    shape = SHAPES[kind]
    missing = [f"{name}: {kind} needs it" for name in shape.required if name not in entry]
    wrong = [
        f"{name}: {wanted}, not {_kind_of(entry[name])}"
        for name, wanted in (shape.required | shape.optional).items()
        if name in entry and not (_IS[wanted](entry[name]) or (entry[name] is None and name in shape.optional))
    ]
    return missing + wrong + _common(entry) + _not_json(entry)


def checked(entry: Any, where: str = "entry") -> Entry:
    """A copy of an entry; ``FormatError`` if it is none."""
    if type(entry) is dict and _is_right(entry):
        return dict(entry)
    found = problems(entry)
    if not found:
        return dict(entry)
    if isinstance(entry, Mapping) and entry.get("type") not in TYPES:
        raise FormatError(
            _unknown(entry), where=f"{where}.type", remedy=f"Use one of {', '.join(TYPES)}", code="unknown_entry_type"
        )
    raise FormatError("; ".join(found), where=where, code="invalid_entry")


def _is_right(entry: Entry) -> bool:
    """Whether it is an entry with nothing that may be missing, as most are; if not, ``problems`` looks closely."""
    kind = entry.get("type")
    shape = SHAPES.get(kind) if type(kind) is str else None
    if shape is None:
        return False
    for name, wanted in shape.required.items():
        if name not in entry or not (wanted is ANY or _IS[wanted](entry[name])):
            return False
    for name in shape.optional:
        if name in entry:
            return False
    if type(entry.get("timestamp", 0.0)) is not float or type(entry.get("turn_id", "")) is not str:
        return False
    try:
        check_plain(entry, "it")
    except ValueError:
        return False
    return True


def _unknown(entry: Mapping[str, Any]) -> str:
    return f"there is no type {entry['type']!r}" if "type" in entry else "it has no type"


def _common(entry: Mapping[str, Any]) -> list[str]:
    """What every type may have. A row of a table has None where there is nothing."""
    found = []
    time, turn = entry.get("timestamp"), entry.get("turn_id")
    if time is not None and not is_time(time):
        found.append(f"timestamp: seconds since 1970, not {_kind_of(time)}")
    if turn is not None and not isinstance(turn, str):
        found.append(f"turn_id: a text, not {_kind_of(turn)}")
    return found


def is_time(given: Any) -> TypeGuard[float]:
    """Whether it is a number of seconds; 0 is one."""
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def _not_json(entry: Mapping[str, Any]) -> list[str]:
    try:
        check_plain(dict(entry), "it")
    except ValueError as error:
        return [str(error)]
    return []


def _kind_of(given: Any) -> str:
    return repr(given) if isinstance(given, str | int | float) or given is None else type(given).__name__


_IS: Final[dict[str, Callable[[Any], bool]]] = {
    ANY: lambda _: True,
    TEXT: lambda given: isinstance(given, str) and bool(given),
    OBJECT: lambda given: isinstance(given, dict),
    WHOLE: lambda given: isinstance(given, int) and not isinstance(given, bool),
}
