"""Dialects: how each wire is spoken, one module each (a file, or a folder of them), all with the same names.

| | read (they → us) | write (us → them) |
|---|---|---|
| request | ``read_request(wire) -> Request`` | ``write_request(request, quirks=()) -> Written`` |
| reply | ``read_reply(wire) -> Reply`` | ``write_reply(reply) -> Written`` |
| stream | ``stream_reader(framing=None, quirks=())`` | ``stream_writer(framing=None)`` |
| error | ``read_error(status, headers, body) -> Fault`` | ``write_error(fault) -> Written`` |

``wire`` is an object or the JSON text of one. Reading and writing for the same dialect gives the same wire again. What
the canonical fields cannot say is kept as residue, as the difference between what we would have written and what came;
see ``parts.residue``. Adding a dialect is adding a module here: everything else finds it by itself. ``quirks`` name
what a provider does otherwise than its dialect; a module that knows any lists them as ``QUIRKS``, and ignores others.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType


def names() -> tuple[str, ...]:
    """Every dialect there is."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of a dialect, by its name."""
    module = sys.modules.get(f"{__name__}.{name}") if name.isidentifier() else None
    if module is not None:  # to look for every dialect there is takes a hundred times as long
        return module
    if name not in names():
        raise LookupError(f"no dialect {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
