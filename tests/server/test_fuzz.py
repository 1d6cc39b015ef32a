"""Fuzz tests of the server: requests generated from its OpenAPI document.

Each operation receives requests that match its schema and requests that do not. Half of the requests with a thread id use
an existing thread, so that they pass the 404 check. ``DRAGOMAN_FAULTS=long`` sends two thousand requests.
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
    """Run a server with one non-empty thread in its own OS thread, and return its address."""
    folder = tmp_path_factory.mktemp("fuzzed")
    result: dict[str, str] = {}
    is_ready, may_end = threading.Event(), threading.Event()

    async def serve() -> None:
        async with run_test_server(folder) as server:
            session = await server.store.create_session(THREAD, user_id="local")
            await server.agent.run(session.id, "What is a dragoman?")
            result["address"] = server.base_url
            is_ready.set()
            while not may_end.is_set():
                await asyncio.sleep(0.05)
            assert (await server.store.verify()).is_sound
            result["end"] = "sound"

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_ready.wait(60)
        yield result["address"]
    finally:
        may_end.set()
        thread.join(60)
    assert result.get("end") == "sound"


def test_generated_requests_cause_no_server_error(address: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # warnings of its dependencies
        import schemathesis
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks as openapi
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if not operation.path.endswith("/stream")]  # an endless stream
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    checks = [
        not_a_server_error,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
        openapi.status_code_conformance,
    ]
    pairs = list(itertools.product(operations, modes))[
        :: scale(26, 1)
    ]  # building the generators takes most of the time
    statuses: Counter[int] = Counter()
    for number in itertools.count(1):  # operations without parameters have one request; the others send more
        for operation, mode in pairs:
            _send(address, operation, mode, number, statuses=statuses, checks=checks)
        if sum(statuses.values()) >= REQUESTS:
            break
    summary = f"{sum(statuses.values())} requests to {len(pairs)} operations: {dict(sorted(statuses.items()))}"
    print(summary)  # noqa: T201
    assert not [status for status in statuses if status >= 500], summary
    assert {200, 404, 422} <= set(statuses), summary


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
            case.body["wait_s"] = 0  # do not wait
        response = case.call(base_url=address, timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    with contextlib.suppress(Unsatisfiable):  # no input violates a schema that accepts everything
        send()
