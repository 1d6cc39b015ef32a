"""Modules that are imported when they are used, so that only the workers that run their tests pay for large libraries.

openai: Any = LazyModule("openai")
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Imports a module when one of its public attributes is read. pytest reads private ones of everything it collects."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
