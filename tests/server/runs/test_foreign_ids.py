"""An id of a thread that somebody else has: whoever uses it sees what they would see of any new id."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.server.conftest import Serving
from tests.server.runs.conftest import RUNS, SSE, run_input, user
from tests.server.runs.test_runs import PNG, picture

THREADS = "/api/v1/agent/threads"
_CHANGING = re.compile(
    r"req_[0-9a-f]+|[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{64}|\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|\+00:00)"
    r"|\"(?:timestamp|latency_ms|score)\":[0-9.e-]+"
)


async def answered(server: Serving, method: str, path: str, key: dict[str, str], **given: Any) -> tuple[int, str, str]:
    """Status, names of the headers and body, without what differs from one request to the next."""
    async with server.client.request(method, path, headers={**key, **given.pop("headers", {})}, **given) as answer:
        text = await answer.text()
        assert "~" not in text
        return answer.status, " ".join(sorted(answer.headers)).lower(), _CHANGING.sub("…", text)


async def walked(server: Serving, thread: str, key: dict[str, str]) -> list[tuple[int, str, str]]:
    """Everything that can be asked of a thread, from a first run to its end."""
    said = user([{"type": "text", "text": "Hello"}, picture(PNG)], "m-1")
    seen = []
    server.fake.say("Good day.")
    first = run_input(said, threadId=thread, runId="run-a")
    seen.append(await answered(server, "POST", RUNS, key, json=first, headers=SSE))
    seen.append(await answered(server, "POST", RUNS, key, json=first, headers=SSE))  # the same request again
    server.fake.say("Again.")
    seen.append(
        await answered(server, "POST", RUNS, key, json=run_input(user("Again", "m-2"), threadId=thread, runId="run-b"))
    )
    for path in (
        f"{RUNS}/{thread}/events",
        f"{THREADS}/{thread}",
        f"{THREADS}/{thread}/messages",
        f"{THREADS}/{thread}/messages/m-1/as/canonical",
        f"{THREADS}/{thread}/messages/m-1/as/ag_ui",
        f"{THREADS}/{thread}/export",
        f"{THREADS}/{thread}/cost",
        f"/api/v1/agent/history?threadId={thread}",
        f"/api/v1/agent/search?q=day&threadId={thread}",
        "/api/v1/agent/search?q=day",
        THREADS,
    ):
        seen.append(await answered(server, "GET", path, key))
    seen.append(await answered(server, "POST", f"{RUNS}/{thread}/cancel", key))
    seen.append(await answered(server, "POST", f"{THREADS}/{thread}/fork", key, json={}))
    seen.append(await answered(server, "DELETE", f"{THREADS}/{thread}", key))
    seen.append(await answered(server, "GET", f"{THREADS}/{thread}", key))
    return seen


@pytest.mark.parametrize("whose", ["another user's", "another team's"])
async def test_a_run_under_a_foreign_id_is_like_one_under_a_new_id(keyed_server: Serving, whose: str) -> None:
    ann = await keyed_server.key("ann")
    keyed_server.fake.say("For Ann alone.")
    given = run_input("Hello", threadId="taken")
    async with keyed_server.client.post(RUNS, json=given, headers={**ann, **SSE}) as answer:
        assert "Ann" in await answer.text()
    bob = await keyed_server.key("ann", team_id="blue") if whose == "another team's" else await keyed_server.key("bob")
    bert = (
        await keyed_server.key("bert", team_id="blue") if whose == "another team's" else await keyed_server.key("bert")
    )
    foreign = await walked(keyed_server, "taken", bob)
    fresh = await walked(keyed_server, "never", bert)
    names = re.compile("never|taken|ann|bob|bert")
    for one, other in zip(foreign, fresh, strict=True):
        assert names.sub("…", str(one)) == names.sub("…", str(other))
    assert foreign[0][0] == 200
    assert "Ann" not in str(foreign)
    async with keyed_server.client.get(f"{THREADS}/taken/export", headers=ann) as answer:
        assert "For Ann alone." in await answer.text()
