"""``/metrics`` reports requests and runs of all workers to authorized clients."""

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
    async with server.client.get("/metrics", headers=headers) as answer:
        body: dict[str, Any] = await answer.json()
        assert answer.status == 200, body
        return body


def test_every_worker_answers_for_all_of_them() -> None:
    table = make_shared_table(2)
    first, second = Counters(table, 0), Counters(table, 1)
    for one in (first, second):
        one.name_routes(ROUTES)
        one.begin_request()
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
    found = {(one.method, one.route): (one.requests, one.seconds) for one in second.http().routes}
    assert found == {OTHER_ROUTES: (1, 1.0), ("GET", "/a"): (1, 0.5), ("POST", "/a"): (1, 0.25)}
    runs = second.runs()
    assert (runs.begun, runs.running, runs.cancelled, runs.finished) == (2, 1, 1, 0)


def test_a_worker_that_is_begun_again_goes_on_where_the_last_one_was() -> None:
    table = make_shared_table(1)
    died = Counters(table, 0)
    died.begin_request()
    died.count_request("GET", "", 200, 0.1)
    died.begin_request()
    died.begin_run()
    again = Counters(table, 0)
    assert (again.http().requests, again.http().in_progress) == (1, 0)
    assert (again.runs().begun, again.runs().running) == (1, 0)


async def test_runs_and_requests_are_counted(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    await post_run(chat_server, run_input("Hello"))
    chat_server.fake.fail(500)
    await post_run(chat_server, run_input("Hello"))
    async with slow_run(chat_server):
        told = await get_metrics(chat_server)
        assert (told["runs"]["begun"], told["runs"]["running"]) == (3, 1)
        assert (told["runs"]["finished"], told["runs"]["error"]) == (1, 1)
    async with chat_server.client.get("/nowhere") as answer:
        assert answer.status == 404
    told = await get_metrics(chat_server)
    routes = {(one["method"], one["route"]): one["by_status"] for one in told["http"]["routes"]}
    assert routes["POST", RUNS] == {"2xx": 3}
    assert routes["GET", "/metrics"] == {"2xx": 1}  # the one before
    assert routes["", ""] == {"4xx": 1}
    assert told["http"]["in_progress"] == 1  # this one
    assert [one["worker"] for one in told["workers"]] == [told["system"]["worker"]] == [os.getpid()]
    async with chat_server.client.get("/metrics", headers={"accept": "text/plain"}) as answer:
        text = await answer.text()
    assert f'dragoman_http_requests_total{{method="POST",route="{RUNS}",status="2xx"}} 3.0\n' in text
    assert 'dragoman_runs_ended_total{end="error"} 1.0\n' in text
    assert "dragoman_runs_begun_total 3.0\n" in text


async def test_only_who_may_see_the_whole_server_is_told_of_all_teams(keyed_server: ServerFixture) -> None:
    team = await keyed_server.make_key(scopes=("chat", "mail"))
    told = await get_metrics(keyed_server, **team)
    assert (told.get("http"), told.get("runs"), told.get("workers")) == (None, None, None)
    async with keyed_server.client.get("/metrics", headers={**team, "accept": "text/plain"}) as answer:
        text = await answer.text()
    assert "dragoman_http" not in text
    assert "dragoman_runs" not in text
    operator = await keyed_server.make_key(scopes=("mail", "admin"))
    assert (await get_metrics(keyed_server, **operator))["http"]["requests"] == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here to see processes in")
def test_a_server_of_two_workers_counts_as_one(tmp_path: Path) -> None:
    def healthy(address: str) -> int:
        routes = {one["route"]: one["requests"] for one in get_json(address, "/metrics")["http"]["routes"]}
        return int(routes["/healthz"])

    with run_process(tmp_path, "--port", "0", "--workers", "2", "--store", str(tmp_path / "chats.db")) as (_, address):
        answered = [wait_for_worker(address)]
        while len(set(answered)) < 2 and len(answered) < 5_000:
            answered.append(get_json(address)["worker"])
        assert len(set(answered)) == 2
        deadline = time.monotonic() + 30  # a request is counted right after its answer was sent
        while healthy(address) < len(answered) and time.monotonic() < deadline:
            pass
        assert healthy(address) == len(answered)
        told = get_json(address, "/metrics")
        assert {one["worker"] for one in told["workers"]} == set(answered)
        request = urllib.request.Request(f"{address}/metrics", headers={"accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        assert all(f'dragoman_uptime_seconds{{worker="{pid}"}}' in text for pid in answered)
        os.kill(answered[0], signal.SIGKILL)
        wait_for_worker(address)
        assert healthy(address) > len(answered)  # what the dead one had counted is still there
