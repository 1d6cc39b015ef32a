"""Requests that nobody thought of, made from the server's own description of itself.

Each operation gets its share of what fits its schema and of what does not; half of those that name a thread name one
that exists, so that they get further than the 404. ``DRAGOMAN_FAULTS=long`` sends two thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.conftest import scale
from tests.server.conftest import run_test_server
from tests.store.faults.conftest import times

REQUESTS = times(scale(50, 300), 2_000)
THREAD = "fuzzed"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a thread of its own, with a thread in it that has something to be found."""
    folder = tmp_path_factory.mktemp("fuzzed")
    told: dict[str, str] = {}
    is_up, may_end = threading.Event(), threading.Event()

    async def serve() -> None:
        async with run_test_server(folder) as server:
            session = await server.store.create_session(THREAD, user_id="local")
            await server.agent.run(session.id, "What is a dragoman?")
            told["address"] = server.base_url
            is_up.set()
            while not may_end.is_set():
                await asyncio.sleep(0.05)
            assert (await server.store.verify()).is_sound
            told["end"] = "sound"

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        yield told["address"]
    finally:
        may_end.set()
        thread.join(60)
    assert told.get("end") == "sound"


def test_nothing_that_is_sent_makes_the_server_fail(address: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # of its own dependencies
        import schemathesis
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks as openapi
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    operations = [one for one in operations if not one.path.endswith("/stream")]  # which has no end
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    checks = [
        not_a_server_error,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
        openapi.status_code_conformance,
    ]
    pairs = list(itertools.product(operations, modes))[:: scale(26, 1)]  # most time goes into making their generators
    statuses: Counter[int] = Counter()
    for number in itertools.count(1):  # what takes no parameters has one request only, so the others get more
        for operation, mode in pairs:
            _send(address, operation, mode, number, statuses=statuses, checks=checks)
        if sum(statuses.values()) >= REQUESTS:
            break
    told = f"{sum(statuses.values())} requests to {len(pairs)} operations: {dict(sorted(statuses.items()))}"
    print(told)  # noqa: T201
    assert not [status for status in statuses if status >= 500], told
    assert {200, 404, 422} <= set(statuses), told


def _send(address: str, operation: Any, mode: Any, number: int, *, statuses: Counter[int], checks: list[Any]) -> None:
    @seed(number)
    @settings(
        max_examples=4,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
    def send(case: Any, is_known: bool) -> None:
        for place in (case.path_parameters, case.query):
            for name in ("threadId", "id"):
                if is_known and case.method != "DELETE" and place and name in place:
                    place[name] = THREAD
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), float | int):
            case.body["wait_s"] = 0  # to wait is not to fail
        response = case.call(base_url=address, timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    with contextlib.suppress(Unsatisfiable):  # there is nothing that does not fit what takes anything
        send()
