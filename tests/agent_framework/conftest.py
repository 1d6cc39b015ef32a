"""Tests may be coroutines: each runs in a loop of its own."""

from __future__ import annotations

from tests.store.conftest import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]
