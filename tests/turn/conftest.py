"""Async tests run in their own event loop."""

from __future__ import annotations

from tests.store.conftest import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]
