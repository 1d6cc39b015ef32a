"""Tests of evaluations over a real socket: stored scores, totals, trends, metrics and access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dragoman.letters import task_result_letter, write_letter
from dragoman.turn import Agent, TurnStart
from tests.letters.examples import EXAMPLES
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.test_threads import read_error_code, read_json

PREFIXES = ("", "/api/v1/mail")
each_prefix = pytest.mark.parametrize("prefix", PREFIXES)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that requires a key, on each engine."""
    store = None
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_store")
    context: AbstractAsyncContextManager[ServerFixture] = run_test_server(tmp_path, store=store, require_keys=True)
    server = runner.run(context.__aenter__())
    server.headers = runner.run(server.make_key("ada", scopes=("mail", "chat"), team_id="ops"))  # type: ignore[attr-defined]
    yield server
    runner.run(context.__aexit__(None, None, None))


def post(server: ServerFixture, body: Any, headers: dict[str, str] | None = None, path: str = "/evaluate") -> Any:
    data = {"data": body} if isinstance(body, bytes | str) else {"json": body}
    request_headers = {"content-type": "application/json", **(headers or server.headers)}  # type: ignore[attr-defined]
    return server.client.post(path, headers=request_headers, **data)


def get(server: ServerFixture, path: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return server.client.get(path, headers={**(headers or server.headers), **more})  # type: ignore[attr-defined]


@each_prefix
async def test_repeated_letter_is_one_evaluation(server: ServerFixture, prefix: str) -> None:
    created = await read_json(post(server, EXAMPLES["evaluated"], path=f"{prefix}/evaluate"), 201)
    assert created["warnings"] == []
    evaluation = created["evaluation"]
    assert (evaluation["task_id"], evaluation["agent_id"], evaluation["evaluator"]) == ("TASK-070C", "CA", "CA")
    assert (evaluation["success"], evaluation["score"], evaluation["duration_sec"]) == (True, 0.95, 12.34)
    assert evaluation["notes"] == "Task completed with high accuracy"
    for retry in range(1, 5):
        repeated = await read_json(post(server, {**EXAMPLES["evaluated"], "retry_count": retry}), 201)
        assert repeated["evaluation"] == evaluation
    found = await read_json(get(server, f"{prefix}/evaluation/TASK-070C"))
    assert [row["id"] for row in found["evaluations"]] == [evaluation["id"]]


async def test_evaluators_of_one_task_are_distinguished_and_summarized(server: ServerFixture) -> None:
    for evaluator, score in (("QA", 0.2), ("QA", 0.4), ("ARCH", 0.9), ("ARCH", 1.0)):
        fields = {"task_id": "T-1", "agent_id": "CA", "evaluator": evaluator, "score": score, "duration_sec": score}
        await read_json(post(server, fields), 201)
    found = await read_json(get(server, "/evaluation/T-1"))
    assert len(found["evaluations"]) == 4
    assert found["summary"]["average_score"] == 0.625
    assert found["summary"]["durations"]["p95_ms"] == 1000
    assert {name: row["average_score"] for name, row in found["by_evaluator"].items()} == {"QA": 0.3, "ARCH": 0.95}
    assert (found["trend"]["direction"], found["trend"]["change"]) == ("up", 0.65)
    assert [point["score"] for point in found["trend"]["points"]] == [0.2, 0.4, 0.9, 1.0]


async def test_evaluator_defaults_to_the_caller(server: ServerFixture) -> None:
    created = await read_json(post(server, {"task_id": "T-1", "success": True}), 201)
    assert created["evaluation"]["evaluator"] == "ada"
    bound = await server.make_key("bot", scopes=("mail", "agent:QA"), team_id="ops")
    created = await read_json(post(server, {"task_id": "T-1", "success": False}, bound), 201)
    assert created["evaluation"]["evaluator"] == "QA"


async def test_agent_key_cannot_evaluate_as_another_agent(server: ServerFixture) -> None:
    bound = await server.make_key("bot", scopes=("mail", "agent:QA"), team_id="ops")
    fields = {"task_id": "T-1", "evaluator": "ARCH", "score": 1}
    assert await read_error_code(post(server, fields, bound), 403) == "sender_mismatch"
    assert await read_error_code(post(server, {**fields, "evaluator": "bot"}, bound), 403) == "sender_mismatch"
    assert await read_error_code(post(server, EXAMPLES["evaluated"], bound), 403) == "sender_mismatch"


@each_prefix
async def test_recipient_cannot_post_a_score_as_the_sender(server: ServerFixture, prefix: str) -> None:
    letter, path = EXAMPLES["evaluated"], f"{prefix}/evaluate"
    recipient = await server.make_key("bot", scopes=("mail", f"agent:{letter['recipient_id']}"), team_id="ops")
    assert await read_error_code(post(server, letter, recipient, path), 403) == "sender_mismatch"
    assert await server.store.evaluations.find() == []
    sender = await server.make_key("bot", scopes=("mail", f"agent:{letter['sender_id']}"), team_id="ops")
    created = await read_json(post(server, letter, sender, path), 201)
    assert created["evaluation"]["evaluator"] == letter["sender_id"]


async def test_user_evaluates_as_self_or_team_agent_only(
    server: ServerFixture,
) -> None:
    fields = {"task_id": "T-1", "score": 1}
    assert await read_error_code(post(server, {**fields, "evaluator": "grace"}), 403) == "sender_mismatch"
    for evaluator in ("ada", "QA"):
        created = await read_json(post(server, {**fields, "evaluator": evaluator}), 201)
        assert created["evaluation"]["evaluator"] == evaluator


async def test_reused_letter_id_of_another_sender_does_not_hide_a_score(server: ServerFixture) -> None:
    letter = EXAMPLES["evaluated"]
    letter_with_id = {**letter, "context": {"message_id": "m1"}}
    eve = await server.make_key("eve", scopes=("mail", "agent:EVE"), team_id="ops")
    await read_json(post(server, {**letter_with_id, "sender_id": "EVE"}, eve), 201)
    for _ in range(2):
        created = await read_json(post(server, letter_with_id), 201)
        assert created["evaluation"]["evaluator"] == letter["sender_id"]
    found = await read_json(get(server, f"/evaluation/{letter['task_id']}"))
    assert sorted(row["evaluator"] for row in found["evaluations"]) == [letter["sender_id"], "EVE"]


async def test_idempotency_key_records_once(server: ServerFixture) -> None:
    headers = {**server.headers, "idempotency-key": "once"}  # type: ignore[attr-defined]
    first = await read_json(post(server, {"task_id": "T-1", "score": 0.5}, headers), 201)
    second = await read_json(post(server, {"task_id": "T-1", "score": 0.5}, headers), 201)
    assert first == second
    assert len((await read_json(get(server, "/evaluation/T-1")))["evaluations"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("", 400, "invalid_json"),
        ("[]", 422, "invalid_request"),
        ({"task_id": "T-1"}, 422, "empty_evaluation"),
        ({"task_id": "t 1", "score": 1}, 422, "invalid_request"),
        ({"task_id": "T-1", "score": 1.01}, 422, "invalid_request"),
        ({"task_id": "T-1", "score": 1, "cost_usd": 7}, 422, "invalid_request"),
        ({"task_id": "T-1", "success": True, "status": "failed"}, 422, "inconsistent_result"),
        (
            {**EXAMPLES["evaluated"], "payload": {**EXAMPLES["evaluated"]["payload"], "score": 1.01}},
            422,
            "inconsistent_result",
        ),
        (
            {**EXAMPLES["evaluated"], "payload": {**EXAMPLES["evaluated"]["payload"], "success": False}},
            422,
            "inconsistent_result",
        ),
        ({**EXAMPLES["evaluated"], "protocol_version": "9.0"}, 422, "unsupported_protocol_version"),
        (EXAMPLES["error"], 422, "not_a_result"),
    ],
)
async def test_invalid_evaluations_are_rejected_and_not_stored(
    chat_server: ServerFixture, body: Any, status: int, code: str
) -> None:
    chat_server.headers = {}  # type: ignore[attr-defined]
    assert await read_error_code(post(chat_server, body), status) == code
    assert await chat_server.store.evaluations.find() == []


async def test_nan_score_is_an_inconsistent_result(chat_server: ServerFixture) -> None:
    chat_server.headers = {}  # type: ignore[attr-defined]
    data = write_letter(
        task_result_letter(
            sender_id="CA", recipient_id="ARCH", task_id="T", timestamp="2026-01-01T00:00:00Z", output="x", score=0.5
        )
    )
    assert await read_error_code(post(chat_server, data.replace(b"0.5", b"NaN")), 422) == "inconsistent_result"


async def test_contradictory_durations_are_rejected(server: ServerFixture) -> None:
    letter = {**EXAMPLES["evaluated"]}
    letter["payload"] = {**letter["payload"], "metrics": {"duration_ms": 99999}}
    assert await read_error_code(post(server, letter), 422) == "inconsistent_result"
    assert await server.store.evaluations.find() == []


async def test_evaluations_of_team_are_not_found_by_another_team(server: ServerFixture) -> None:
    await read_json(post(server, {"task_id": "T-1", "agent_id": "CA", "score": 1}), 201)
    missing = await read_json(get(server, "/evaluation/NONE"), 404)
    for key in (
        await server.make_key("ada", scopes=("mail",), team_id="other"),
        await server.make_key("ada", scopes=("mail",)),
        await server.make_key("eve", scopes=("mail",)),
    ):
        response = await read_json(get(server, "/evaluation/T-1", key), 404)
        assert {**response["error"], "request_id": ""} == {**missing["error"], "request_id": ""}
        assert (await read_json(get(server, "/api/v1/mail/summaries", key)))["summaries"] == []
        metrics = await read_json(get(server, "/metrics", key))
        assert (metrics["agents"], metrics["tasks"]["evaluations"]) == ([], 0)
    teammate = await server.make_key("grace", scopes=("mail",), team_id="ops")
    assert len((await read_json(get(server, "/evaluation/T-1", teammate)))["evaluations"]) == 1


@pytest.mark.parametrize("path", ["/evaluation/T-1", "/metrics", "/api/v1/mail/summaries"])
async def test_missing_scope_and_missing_key_are_rejected(server: ServerFixture, path: str) -> None:
    chat = await server.make_key("ada", scopes=("chat",), team_id="ops")
    assert await read_error_code(get(server, path, chat), 403) == "missing_scope"
    assert await read_error_code(server.client.get(path), 401) == "unauthorized"


async def test_recent_summaries_of_agents_and_models(server: ServerFixture) -> None:
    for number in range(12):
        fields = {"task_id": f"T-{number}", "agent_id": "CA", "model": "p:m", "score": 0.0 if number < 2 else 1.0}
        await read_json(post(server, fields), 201)
    for by, name in (("agent", "CA"), ("model", "p:m")):
        found = await read_json(get(server, f"/api/v1/mail/summaries?by={by}"))
        assert [
            (row["name"], row["summary"]["count"], row["summary"]["average_score"]) for row in found["summaries"]
        ] == [(name, 10, 1.0)]
        all_rows = await read_json(get(server, f"/api/v1/mail/summaries?by={by}&newest=100"))
        assert all_rows["summaries"][0]["summary"]["count"] == 12
    assert await read_error_code(get(server, "/api/v1/mail/summaries?by=moon"), 422) == "invalid_parameter"


# --- routing samples -------------------------------------------------------------------------------------------------


async def test_letter_linked_to_its_turn_becomes_a_routing_sample(server: ServerFixture) -> None:
    session = await server.store.create_session(user_id="ada", team_id="ops")
    server.fake.reply("done")
    await server.agent.run(session.id, "Write the report")
    created = await read_json(post(server, make_result_letter(session.id, 0.9)), 201)
    assert created["warnings"] == []
    assert created["evaluation"]["model"] == "fake-anthropic:model"
    assert created["evaluation"]["turn_id"] is not None
    (sample,) = await server.store.evaluations.samples(user_id="ada")
    assert (sample.primary_model, sample.success) == ("fake-anthropic:model", 0.9)


async def test_letter_scores_decide_the_model_of_similar_turns(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "openai_chat", "anthropic") as server:
        server.headers = {}  # type: ignore[attr-defined]
        for number in range(6):
            for name, score in (("anthropic", 0.95), ("openai_chat", 0.2)):
                session = await server.store.create_session(user_id="local")
                server.fakes[name].reply("Voilà")
                await server.agent.run(session.id, f"@{name} translate letter {number} into French")
                await read_json(post(server, make_result_letter(session.id, score)), 201)
        server.fakes["anthropic"].reply("Voilà")
        session = await server.store.create_session(user_id="local")
        async with Agent(server.store, settings=server.agent.services.settings) as agent:  # without cached samples
            events = [event async for event in agent.turn(session.id, "translate this letter into French")]
    assert isinstance(events[0], TurnStart)
    decision = events[0].decision
    assert (decision.chosen_model, decision.record.mode.value) == ("fake-anthropic:model", "pattern")


def make_result_letter(session_id: str, score: float) -> bytes:
    letter = task_result_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id="T-9",
        timestamp="2026-01-01T00:00:00Z",
        output="done",
        score=score,
        session_id=session_id,
        message_id=f"result-of-{session_id}",
    )
    return write_letter(letter)


async def test_letter_with_foreign_session_is_not_a_sample(server: ServerFixture) -> None:
    session = await server.store.create_session(user_id="grace", team_id="ops")
    server.fake.reply("done")
    await server.agent.run(session.id, "Write the report")
    created = await read_json(post(server, make_result_letter(session.id, 1)), 201)
    assert created["warnings"][0].endswith("[unknown_session]")
    assert created["evaluation"]["model"] is None
    assert await server.store.evaluations.samples() == []
    assert await server.store.evaluations.find(session.id) == []
    fields = {"task_id": "T-9", "score": 1, "session_id": session.id}
    assert await read_error_code(post(server, fields), 404) == "not_found"


async def test_evaluator_cannot_set_the_model_of_a_turn(server: ServerFixture) -> None:
    session = await server.store.create_session(user_id="ada", team_id="ops")
    server.fake.reply("done")
    await server.agent.run(session.id, "Write the report")
    fields = {"task_id": "T-9", "score": 1, "session_id": session.id, "model": "another:model"}
    created = await read_json(post(server, fields), 201)
    assert created["evaluation"]["model"] == "fake-anthropic:model"


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/mail/metrics"])
async def test_metrics_are_json_by_default(server: ServerFixture, path: str) -> None:
    for number, score in enumerate((0.5, 1.0)):
        fields = {"task_id": f"T-{number}", "agent_id": "CA", "score": score, "success": number == 0, "duration_sec": 2}
        await read_json(post(server, fields), 201)
    await server.state.mail.for_team(team_id="ops").send(EXAMPLES["complete"])
    metrics = await read_json(get(server, path))
    (agent,) = metrics["agents"]
    assert (agent["agent_id"], agent["task_count"], agent["average_score"], agent["success_rate"]) == (
        "CA",
        2,
        0.75,
        0.5,
    )
    assert (agent["durations"]["p50_ms"], agent["durations"]["p99_ms"]) == (2000, 2000)
    assert metrics["mail"]["queue_depth"] == 1
    assert metrics["mail"]["mailboxes"][0]["recipient_id"] == "ARCH"
    assert metrics["system"]["uptime_sec"] > 0
    assert metrics["cost"]["total_usd"] == "0"
    async with get(server, path, accept="text/plain") as response:
        assert response.content_type == "text/plain"
        text = await response.text()
    for line in (
        'dragoman_agent_average_score{agent="CA"} 0.75',
        'dragoman_agent_tasks{agent="CA"} 2.0',
        'dragoman_agent_duration_seconds{agent="CA",quantile="0.99"} 2.0',
        'dragoman_mailbox_letters{recipient="ARCH",state="ready"} 1.0',
        "dragoman_mail_queue_depth 1.0",
        "dragoman_mail_dead_letters 0.0",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("path", ["/evaluate", "/api/v1/mail"])
async def test_task_resources_are_in_evaluations_and_metrics(server: ServerFixture, path: str) -> None:
    for number, memory in enumerate((256, 1024.5)):
        used = {"duration_ms": 5, "memory_usage_mb": memory, "cpu_usage_percent": 150, "network_io_mb": 0, "rows": 7}
        letter = task_result_letter(
            sender_id="CA",
            recipient_id="ARCH",
            task_id="T-1",
            timestamp="2026-01-01T00:00:00Z",
            output=f"done {number}",
            metrics=used,
        )
        await read_json(post(server, write_letter(letter), path=path), 201)
    found = await read_json(get(server, "/evaluation/T-1"))
    reported = [row["metrics"] for row in found["evaluations"]]
    assert reported[-1] == {"memory_usage_mb": 256, "cpu_usage_percent": 150, "network_io_mb": 0}
    memory_used = {"count": 2, "average": 640.25, "most": 1024.5}
    assert found["summary"]["resources"]["memory_usage_mb"] == memory_used
    assert sorted(found["summary"]["resources"]) == ["cpu_usage_percent", "memory_usage_mb", "network_io_mb"]
    metrics = await read_json(get(server, "/metrics"))
    assert metrics["agents"][0]["resources"]["memory_usage_mb"] == memory_used
    assert metrics["tasks"]["resources"]["cpu_usage_percent"] == {"count": 2, "average": 150, "most": 150}
    async with get(server, "/metrics", accept="text/plain") as response:
        lines = (await response.text()).splitlines()
    assert 'dragoman_agent_memory_usage_mb{agent="CA",statistic="average"} 640.25' in lines
    assert 'dragoman_agent_memory_usage_mb{agent="CA",statistic="max"} 1024.5' in lines
    assert 'dragoman_agent_cpu_usage_percent{agent="CA",statistic="max"} 150.0' in lines
    assert (await server.store.verify()).is_sound


async def test_metrics_stay_readable_for_any_reported_amount(chat_server: ServerFixture) -> None:
    chat_server.headers = {}  # type: ignore[attr-defined]
    for number in range(3):
        letter = json.loads(make_result_letter("none", 1).decode().replace("result-of-none", f"m{number}"))
        used = {"memory_usage_mb": 1.7e308, "disk_usage_mb": 2**63, "network_io_mb": 1e12}
        letter["payload"] |= {"duration_sec": [1e308, 1e20, 1e3][number], "metrics": used}
        await read_json(post(chat_server, letter), 201)
        await read_json(post(chat_server, letter, path="/api/v1/mail"), 201)
    metrics = await read_json(get(chat_server, "/metrics"))
    assert metrics["agents"][0]["resources"] == {"network_io_mb": {"count": 3, "average": 1e12, "most": 1e12}}
    assert metrics["agents"][0]["durations"]["count"] == 1
    async with get(chat_server, "/metrics", accept="text/plain") as response:
        assert response.status == 200
    await read_json(get(chat_server, "/evaluation/T-9"))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "application/json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "application/json"),
        ("application/json, text/plain;q=0.9", "application/json"),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "text/plain"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "application/openmetrics-text"),
        ("text/plain;version=abc;escaping=x", "text/plain"),
        ("text/plain;q=abc", "application/json"),
    ],
)
async def test_accept_header_selects_the_format(chat_server: ServerFixture, accept: str, content_type: str) -> None:
    async with chat_server.client.get("/metrics", headers={"accept": accept}) as response:
        assert (response.status, response.content_type) == (200, content_type)
        assert response.headers["vary"] == "Accept"


async def test_prometheus_own_parser_reads_both_texts(chat_server: ServerFixture) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
    from prometheus_client.parser import text_string_to_metric_families as read_plain

    chat_server.headers = {}  # type: ignore[attr-defined]
    await read_json(post(chat_server, {"task_id": "T", "agent_id": 'a"b\\c\n', "score": 0.5}), 201)
    for accept, read in (("text/plain", read_plain), ("application/openmetrics-text", read_open)):
        async with chat_server.client.get("/metrics", headers={"accept": accept}) as response:
            families = {family.name: family for family in read(await response.text())}
        (sample,) = families["dragoman_agent_average_score"].samples
        assert (sample.labels, sample.value) == ({"agent": 'a"b\\c\n'}, 0.5)
