"""Tests of ``/metrics``: requests and runs of all workers, for authorized clients."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dragoman.server.admin.counters import OTHER_ROUTES, Counters, make_shared_table
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import RUNS, post_run, run_input
from tests.server.runs.test_runs import slow_run
from tests.server.test_server_process import get_json, run_process, wait_for_worker

ROUTES = [("GET", "/a"), ("POST", "/a")]


async def get_metrics(server: ServerFixture, **headers: str) -> dict[str, Any]:
    async with server.client.get("/metrics", headers=headers) as response:
        body: dict[str, Any] = await response.json()
        assert response.status == 200, body
        return body


def test_every_worker_reports_counters_of_all_workers() -> None:
    table = make_shared_table(2)
    first, second = Counters(table, 0), Counters(table, 1)
    for counters in (first, second):
        counters.name_routes(ROUTES)
        counters.begin_request()
    first.count_request("HEAD", "/a", 200, 0.5)
    second.begin_request()
    second.count_request("POST", "/a", 404, 0.25)
    second.count_request("PATCH", "/unknown", 0, 1.0)
    second.begin_run()
    first.begin_run()
    first.end_run("cancelled")
    assert first.http() == second.http()
    assert (first.http().requests, first.http().in_progress) == (3, 0)
    assert first.http().by_status == {"gone": 1, "2xx": 1, "4xx": 1}
    found = {
        (counters.method, counters.route): (counters.requests, counters.seconds) for counters in second.http().routes
    }
    assert found == {OTHER_ROUTES: (1, 1.0), ("GET", "/a"): (1, 0.5), ("POST", "/a"): (1, 0.25)}
    runs = second.runs()
    assert (runs.begun, runs.running, runs.cancelled, runs.finished) == (2, 1, 1, 0)


def test_restarted_worker_continues_counters_of_its_slot() -> None:
    table = make_shared_table(1)
    killed = Counters(table, 0)
    killed.begin_request()
    killed.count_request("GET", "", 200, 0.1)
    killed.begin_request()
    killed.begin_run()
    restarted = Counters(table, 0)
    assert (restarted.http().requests, restarted.http().in_progress) == (1, 0)
    assert (restarted.runs().begun, restarted.runs().running) == (1, 0)


async def test_runs_and_requests_are_counted(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    await post_run(chat_server, run_input("Hello"))
    chat_server.fake.fail(500)
    await post_run(chat_server, run_input("Hello"))
    async with slow_run(chat_server):
        metrics = await get_metrics(chat_server)
        assert (metrics["runs"]["begun"], metrics["runs"]["running"]) == (3, 1)
        assert (metrics["runs"]["finished"], metrics["runs"]["error"]) == (1, 1)
    async with chat_server.client.get("/nowhere") as response:
        assert response.status == 404
    metrics = await get_metrics(chat_server)
    routes = {(row["method"], row["route"]): row["by_status"] for row in metrics["http"]["routes"]}
    assert routes["POST", RUNS] == {"2xx": 3}
    assert routes["GET", "/metrics"] == {"2xx": 1}  # the previous request
    assert routes["", ""] == {"4xx": 1}
    assert metrics["http"]["in_progress"] == 1  # this request
    assert [row["worker"] for row in metrics["workers"]] == [metrics["system"]["worker"]] == [os.getpid()]
    async with chat_server.client.get("/metrics", headers={"accept": "text/plain"}) as response:
        text = await response.text()
    assert f'dragoman_http_requests_total{{method="POST",route="{RUNS}",status="2xx"}} 3.0\n' in text
    assert 'dragoman_runs_ended_total{end="error"} 1.0\n' in text
    assert "dragoman_runs_begun_total 3.0\n" in text


async def test_server_metrics_require_admin_scope(keyed_server: ServerFixture) -> None:
    team = await keyed_server.make_key(scopes=("chat", "mail"))
    metrics = await get_metrics(keyed_server, **team)
    assert (metrics.get("http"), metrics.get("runs"), metrics.get("workers")) == (None, None, None)
    async with keyed_server.client.get("/metrics", headers={**team, "accept": "text/plain"}) as response:
        text = await response.text()
    assert "dragoman_http" not in text
    assert "dragoman_runs" not in text
    operator = await keyed_server.make_key(scopes=("mail", "admin"))
    assert (await get_metrics(keyed_server, **operator))["http"]["requests"] == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="requires /proc")
def test_two_workers_share_their_counters(tmp_path: Path) -> None:
    def count_health_requests(address: str) -> int:
        routes = {row["route"]: row["requests"] for row in get_json(address, "/metrics")["http"]["routes"]}
        return int(routes["/healthz"])

    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db")) as (_, address):
        workers = [wait_for_worker(address)]
        while len(set(workers)) < 2 and len(workers) < 5_000:
            workers.append(get_json(address)["worker"])
        assert len(set(workers)) == 2
        deadline = time.monotonic() + 30  # a request is counted after its response is sent
        while count_health_requests(address) < len(workers) and time.monotonic() < deadline:
            pass
        assert count_health_requests(address) == len(workers)
        metrics = get_json(address, "/metrics")
        assert {row["worker"] for row in metrics["workers"]} == set(workers)
        request = urllib.request.Request(f"{address}/metrics", headers={"accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
        assert all(f'dragoman_uptime_seconds{{worker="{pid}"}}' in text for pid in workers)
        os.kill(workers[0], signal.SIGKILL)
        wait_for_worker(address)
        assert count_health_requests(address) > len(workers)  # counters of the killed worker remain
