"""Transcripts: conversations of frameworks and front ends. One module per format, all with the same names.

| | |
|---|---|
| ``NAME`` | the name of the format, in ``provider_raw`` and losses; equals the module name |
| ``read_messages(wire, *, session_id, created_at) -> tuple[Message, ...]`` | foreign → canonical |
| ``write_messages(messages) -> Written`` | canonical → foreign, with losses |
| ``looks_like(wire) -> bool`` | whether a value may be such a conversation |

``wire`` is a JSON value or its text. Reading and writing in the same format restores the JSON, including the order of
keys; writing and reading restores the messages or reports losses. Session and time are arguments, because most formats
have neither. To add a format, add a module; modules are discovered.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any, Final

_BASE_MODULE: Final = "base"  # shared code, not a format
FORMATS: Final[dict[str, ModuleType]] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if module.name != _BASE_MODULE
}


def get_format(name: str) -> ModuleType:
    """Return the module of a format."""
    if name not in FORMATS:
        raise LookupError(f"no format {name!r}; available: {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(wire: Any) -> str | None:
    """Return the name of the only format that matches a value; ``None`` if no format or more than one matches."""
    matches = [name for name, module in FORMATS.items() if module.looks_like(wire)]
    return matches[0] if len(matches) == 1 else None


__all__ = ["FORMATS", "detect", "get_format"]
