"""Modules that are imported when they are used, so that only the workers that run their tests pay for large libraries.

openai: Any = LazyModule("openai")
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Imports a module when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
