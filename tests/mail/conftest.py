"""Ground for the tests of mail: a store of every engine, its mail, and letters to send."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dragoman.letters import Letter, error_letter, needs_input_letter, task_result_letter
from dragoman.mail import Mail
from dragoman.store import Store
from tests.mail.timeouts import bounded
from tests.store.conftest import (
    Clock,
    clock,
    pass_time,
    place,
    runner,
    shared_place,
    store,
)
from tests.store.faults.conftest import IS_LONG, chance

__all__ = [
    "Clock",
    "chance",
    "clock",
    "pass_time",
    "place",
    "runner",
    "shared_place",
    "store",
]

WHEN = "2026-11-15T12:00:00Z"
_LONGEST_S = 3_000 if IS_LONG else 400  # that a test may take


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, and let none of them wait for ever."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["runner"].run(bounded(pyfuncitem.obj(**given), _LONGEST_S))
    return True


@pytest.fixture
def mail(store: Store, clock: Clock) -> Mail:
    """The mail of a fresh store, with a clock that stands still."""
    store.clock = clock
    return Mail(store, random_source=lambda: 0.0)


def result(task: str = "TASK-1", to: str = "ARCH", status: str = "success", **more: Any) -> Letter:
    """A result of a task."""
    given = {"sender_id": "CA", "output": f"{task} is done", "timestamp": WHEN, **more}
    return task_result_letter(recipient_id=to, task_id=task, status=status, **given)


def request(task: str = "TASK-1", to: str = "HUMAN", **more: Any) -> Letter:
    """A request for a secret and for a choice."""
    wanted = [
        {"id": "api_key", "type": "string", "description": "API key", "sensitive": True},
        {"id": "preference", "type": "enum", "options": ["a", "b"], "description": "Which"},
    ]
    given = {"sender_id": "CA", "timestamp": WHEN, "requested_inputs": wanted, **more}
    return needs_input_letter(recipient_id=to, task_id=task, **given)


def failure(task: str = "TASK-1", to: str = "ARCH", **more: Any) -> Letter:
    """An error."""
    given = {"sender_id": "CA", "timestamp": WHEN, "code": "FAILED", "message": "It failed", **more}
    return error_letter(recipient_id=to, task_id=task, **given)
