"""Fixtures and letters for the tests of mail, on a store of every engine."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dragoman.letters import Letter, error_letter, needs_input_letter, task_result_letter
from dragoman.mail import Mail
from dragoman.store import Store
from tests.mail.timeouts import run_with_timeout
from tests.store.conftest import (
    Clock,
    clock,
    database_location,
    pass_time,
    runner,
    store,
    store_location,
)
from tests.store.faults.conftest import IS_LONG, rng

__all__ = [
    "Clock",
    "clock",
    "database_location",
    "pass_time",
    "rng",
    "runner",
    "store",
    "store_location",
]

TIMESTAMP = "2026-11-15T12:00:00Z"
_MAX_TEST_S = 3_000 if IS_LONG else 400  # time limit of a test


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test with a time limit."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["runner"].run(run_with_timeout(pyfuncitem.obj(**arguments), _MAX_TEST_S))
    return True


@pytest.fixture
def mail(store: Store, clock: Clock) -> Mail:
    """Mail of a new store, with a clock that the test advances."""
    store.clock = clock
    return Mail(store, random_source=lambda: 0.0)


def result(task: str = "TASK-1", to: str = "ARCH", status: str = "success", **extra: Any) -> Letter:
    """Return a task result letter."""
    fields = {"sender_id": "CA", "output": f"{task} is done", "timestamp": TIMESTAMP, **extra}
    return task_result_letter(recipient_id=to, task_id=task, status=status, **fields)


def request(task: str = "TASK-1", to: str = "HUMAN", **extra: Any) -> Letter:
    """Return a letter that requests a secret and a choice."""
    inputs = [
        {"id": "api_key", "type": "string", "description": "API key", "sensitive": True},
        {"id": "preference", "type": "enum", "options": ["a", "b"], "description": "Which"},
    ]
    fields = {"sender_id": "CA", "timestamp": TIMESTAMP, "requested_inputs": inputs, **extra}
    return needs_input_letter(recipient_id=to, task_id=task, **fields)


def failure(task: str = "TASK-1", to: str = "ARCH", **extra: Any) -> Letter:
    """Return an error letter."""
    fields = {"sender_id": "CA", "timestamp": TIMESTAMP, "code": "FAILED", "message": "It failed", **extra}
    return error_letter(recipient_id=to, task_id=task, **fields)
