"""Transcripts: conversations as people already have them in hand, one module for each format, all with the same names.

| | |
|---|---|
| ``NAME`` | the name of the format, in ``provider_raw`` and losses; the module's own |
| ``read_messages(wire, *, session_id, created_at) -> tuple[Message, ...]`` | they → us |
| ``write_messages(messages) -> Written`` | us → them, with what the format cannot say |
| ``looks_like(wire) -> bool`` | whether a value may be such a conversation |

``wire`` is JSON as Python has it, or the JSON text of that. Reading and writing in the same format gives the same JSON
again, the order of keys included; writing and reading gives the same messages again, or names what is lost. Which
session it is and when something was said are arguments: most of these formats have no word for either. A format is
added by adding a module here; everything else finds it by itself. The one rule: nothing here knows which formats there
are.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any, Final

_BASE_MODULE: Final = "base"  # what the formats have in common is none itself
FORMATS: Final[dict[str, ModuleType]] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if module.name != _BASE_MODULE
}


def get_format(name: str) -> ModuleType:
    """The module of a format, by its name."""
    if name not in FORMATS:
        raise LookupError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(wire: Any) -> str | None:
    """The name of the only format that a value looks like; ``None`` if there is no such format, or more than one."""
    matches = [name for name, module in FORMATS.items() if module.looks_like(wire)]
    return matches[0] if len(matches) == 1 else None


__all__ = ["FORMATS", "detect", "get_format"]
