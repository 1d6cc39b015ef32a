"""Tests of the requests of the mail page: letter states, dead letters, trends and pages."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from dragoman.letters import needs_input_letter, write_letter
from dragoman.mail import stored_letter
from dragoman.server.mail import types
from tests.server.conftest import ServerFixture
from tests.server.test_mail import SECRET, WHEN, Caller, make_result, ops, server
from tests.server.test_threads import read_error_code, read_json

__all__ = ["ops", "server"]


async def letters_by_task(ops: Caller, recipient: str = "ARCH") -> dict[str, dict[str, Any]]:
    """Return the letters of a mailbox by task."""
    found = await read_json(ops.get(f"/inbox/{recipient}"))
    return {row["task_id"]: row for row in found["letters"]}


async def test_letter_response_contains_lease_retry_and_dependencies(server: ServerFixture, ops: Caller) -> None:
    now = server.store.clock()
    for task in ("T-1", "T-2", "T-3"):
        await read_json(ops.post("", make_result(task)), 201)
    await read_json(ops.post("", make_result("T-4", depends_on=["T-9", "T-8"])), 201)
    letter = (await letters_by_task(ops))["T-1"]
    assert (letter["leased_until"], letter["retry_at"], letter["waits_for"]) == (None, None, [])
    deliveries = {row["letter"]["task_id"]: row for row in await ops.receive("ARCH", lease_s=300)}
    failed = deliveries["T-2"]
    path = f"/inbox/ARCH/{failed['letter_id']}"
    await read_json(
        ops.post(f"{path}/nack", {"lease": failed["lease"], "error": "the quota is reached", "retry_after_s": 60})
    )
    found = await letters_by_task(ops)
    assert now < datetime.fromisoformat(found["T-1"]["leased_until"]) <= server.store.clock() + timedelta(seconds=300)
    assert found["T-2"]["leased_until"] is None
    assert datetime.fromisoformat(found["T-2"]["retry_at"]) > now
    assert found["T-2"]["error_class"] == "resource_constraint"
    assert (found["T-4"]["state"], found["T-4"]["waits_for"]) == ("held", ["T-8", "T-9"])
    await read_json(ops.post("", make_result("T-8", recipient_id="NOBODY", success=True)), 201)
    thread = await read_json(ops.get("/tasks/T-4"))
    assert [row["waits_for"] for row in thread["letters"]] == [["T-9"]]


async def test_mailbox_reports_its_newest_letter(server: ServerFixture, ops: Caller) -> None:
    before = server.store.clock()
    await read_json(ops.post("", make_result()), 201)
    (box,) = (await read_json(ops.get("")))["mailboxes"]
    assert datetime.fromisoformat(box["newest_at"]) >= before


async def test_receive_by_id_leaves_other_letters(ops: Caller) -> None:
    for task in ("T-1", "T-2"):
        await read_json(ops.post("", make_result(task)), 201)
    letter_id = (await letters_by_task(ops))["T-2"]["letter_id"]
    (delivery,) = await ops.receive("ARCH", letter_id=letter_id)
    assert delivery["letter_id"] == letter_id
    assert await ops.receive("ARCH", letter_id=letter_id) == []
    assert [row["letter"]["task_id"] for row in await ops.receive("ARCH")] == ["T-1"]


async def test_receive_by_id_respects_task_order(ops: Caller) -> None:
    await read_json(ops.post("", make_result("T-1", output="first")), 201)
    letter_id = (await read_json(ops.post("", make_result("T-1", output="second")), 201))["letter_id"]
    assert await ops.receive("ARCH", letter_id=letter_id) == []
    await read_error_code(ops.post("/inbox/ARCH/receive", {"letter_id": "a b"}), 422)


# --- dead letters ----------------------------------------------------------------------------------------------------


async def test_dead_letter_shows_its_bytes_redacted(server: ServerFixture, ops: Caller) -> None:
    requested = [{"id": "key", "type": "string", "description": "d", "sensitive": True, "default": SECRET}]
    header = {"sender_id": "CA", "recipient_id": "ARCH", "task_id": "T-1", "timestamp": WHEN}
    await read_json(ops.post("", write_letter(needs_input_letter(**header, requested_inputs=requested))), 201)
    (delivery,) = await ops.receive("ARCH")
    rejection = {"lease": delivery["lease"], "error": "no", "error_class": "not_retryable"}
    await read_json(ops.post(f"/inbox/ARCH/{delivery['letter_id']}/nack", rejection))
    invalid_letter = {**json.loads(make_result("T-2")), "task_id": 7}
    invalid_letter["payload"] = {"result": {"inputs": {"key": SECRET}}}
    await read_error_code(ops.post("", invalid_letter), 422)
    async with ops.post("", f'{{"task_id": "T-3", "inputs": "{SECRET}') as response:
        assert response.status == 400
    dead = (await read_json(ops.get("/dead")))["dead_letters"]
    assert len(dead) == 3
    for row in dead:
        detail = await read_json(ops.get(f"/dead/{row['id']}"))
        assert {name: detail[name] for name in row} == row
        assert detail["raw_bytes"] > 0
        assert "task_id" in detail["raw"]
        assert SECRET not in json.dumps(detail)
    for team in ("other", None):
        other = Caller(server, await server.make_key("ada", scopes=("mail",), team_id=team))
        for row in dead:
            assert await read_error_code(other.get(f"/dead/{row['id']}"), 404) == "not_found"


async def test_agent_key_lists_only_its_own_dead_letters(server: ServerFixture, ops: Caller) -> None:
    await read_json(ops.post("", make_result()), 201)
    (delivery,) = await ops.receive("ARCH")
    rejection = {"lease": delivery["lease"], "error_class": "not_retryable"}
    await read_json(ops.post(f"/inbox/ARCH/{delivery['letter_id']}/nack", rejection))
    (dead,) = (await read_json(ops.get("/dead")))["dead_letters"]
    for agent, status in (("CA", 200), ("ARCH", 200), ("OTHER", 404)):
        bot = Caller(server, await server.make_key("bot", scopes=("mail", f"agent:{agent}"), team_id="ops"))
        async with bot.get(f"/dead/{dead['id']}") as response:
            assert response.status == status


# --- trends ----------------------------------------------------------------------------------------------------------


async def test_trends_cover_all_and_each_group_of_one_team(server: ServerFixture, ops: Caller) -> None:
    empty = await read_json(ops.get("/trends"))
    assert empty == {"by": "agent", "step": "hour", "groups": []}
    for number, agent in enumerate(("CA", "CA", "CB")):
        fields = {"task_id": f"T-{number}", "agent_id": agent, "score": 0.2 + 0.3 * number, "success": number > 0}
        await read_json(ops.post("/evaluate", {**fields, "duration_sec": number + 1, "model": "m"}), 201)
    found = await read_json(ops.get("/trends?by=agent"))
    assert [group["name"] for group in found["groups"]] == [None, "CA", "CB"]
    total, first, _ = found["groups"]
    assert (total["summary"]["count"], total["direction"]) == (3, "up")
    assert sum(span["count"] for span in first["spans"]) == 2
    assert first["spans"][-1]["p95_ms"] == pytest.approx(2000)
    assert [group["name"] for group in (await read_json(ops.get("/trends?by=model")))["groups"]] == [None, "m"]
    other = Caller(server, await server.make_key("ada", scopes=("mail",), team_id="other"))
    assert (await read_json(other.get("/trends")))["groups"] == []
    assert await read_error_code(ops.get("/trends?by=moon"), 422) == "invalid_parameter"


# --- large letters ---------------------------------------------------------------------------------------------------


def make_large_letter(task_id: str, size: int = 300_000) -> bytes:
    return make_result(task_id, context={"note": "x" * size})


async def test_mailbox_pages_are_bounded_by_size_and_complete(ops: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "PAGE_SIZE", 500)
    tasks = [f"T-{number}" for number in range(5)]
    for task in tasks:
        await read_json(ops.post("", make_result(task)), 201)
    for path, order in (("/inbox/ARCH?limit=200", tasks[::-1]), ("/inbox/ARCH?limit=1", tasks[::-1])):
        task_ids, page = [], await read_json(ops.get(path))
        while True:
            assert sum(len(json.dumps(row["letter"])) for row in page["letters"]) < 1_000
            task_ids += [row["task_id"] for row in page["letters"]]
            assert page["has_more"] is (page["cursor"] is not None)
            if not page["has_more"]:
                break
            page = await read_json(ops.get(f"{path}&cursor={page['cursor']}"))
        assert task_ids == order


async def test_task_letters_continue_after_a_cursor(ops: Caller) -> None:
    ids = [(await read_json(ops.post("", make_result(output=f"{number}")), 201))["letter_id"] for number in range(3)]
    first = await read_json(ops.get("/tasks/T-1?limit=2"))
    rest = await read_json(ops.get(f"/tasks/T-1?limit=2&cursor={first['cursor']}"))
    assert [row["letter_id"] for row in first["letters"] + rest["letters"]] == ids
    assert (first["has_more"], rest["has_more"], rest["cursor"]) == (True, False, None)


@pytest.mark.parametrize("path", ["/inbox/ARCH", "/tasks/T-1"])
async def test_invalid_cursor_is_rejected(ops: Caller, path: str) -> None:
    assert await read_error_code(ops.get(f"{path}?cursor=x"), 400) == "invalid_cursor"


async def test_letters_beyond_the_response_size_stay_available(ops: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "PAGE_SIZE", 500)
    tasks = [f"T-{number}" for number in range(4)]
    for task in tasks:
        await read_json(ops.post("", make_result(task)), 201)
    received: list[tuple[str, int]] = []
    while deliveries := await ops.receive("ARCH", limit=100):
        assert len(deliveries) <= 2
        received += [(row["letter"]["task_id"], row["attempts"]) for row in deliveries]
    assert received == [(task, 1) for task in tasks]


async def test_large_letters_are_converted_off_the_event_loop(ops: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def record_thread(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return stored_letter.to_masked(*arguments)

    monkeypatch.setattr(types, "to_masked", record_thread)
    await read_json(ops.post("", make_large_letter("T-1")), 201)
    await read_json(ops.get("/inbox/ARCH"))
    await read_json(ops.get("/tasks/T-1"))
    (delivery,) = await ops.receive("ARCH")
    await read_json(ops.get(f"/letters/ARCH/{delivery['letter_id']}"))
    async with ops.get("/inbox/ARCH/stream?last_event_id=0") as stream:
        while b"data:" not in await stream.content.readline():
            pass
    assert len(threads) == 6
    assert threading.get_ident() not in threads


async def test_letter_with_too_many_inputs_is_rejected(ops: Caller) -> None:
    def make_letter(count: int) -> bytes:
        inputs = [{"id": f"i{number}", "type": "string", "description": "x"} for number in range(count)]
        header = {"sender_id": "CA", "recipient_id": "ARCH", "task_id": "T-1", "timestamp": WHEN}
        return write_letter(needs_input_letter(**header, requested_inputs=inputs))

    assert await read_error_code(ops.post("", make_letter(257)), 422) == "too_many_inputs"
    await read_json(ops.post("", make_letter(256)), 201)
