"""Tests of hooks, recording by key, response headers, session affinity and restored signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import SettingsError
from dragoman.gateway.hooks import CallEnd, CallStart, Hooks, load_hook
from dragoman.gateway.types import invalid_request_error
from tests.fake_providers import call_part, text_part, thinking_part
from tests.server.conftest import ServerFixture, run_test_server

TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
QUESTION = {"role": "user", "content": "hi"}


async def chat(server: ServerFixture, model: str, headers: Any = None, **body: Any) -> tuple[int, Any, Any]:
    """Call Chat Completions and return status, headers and body."""
    fields = {"model": model, "messages": [QUESTION], **body}
    async with server.client.post("/v1/chat/completions", json=fields, headers=headers) as response:
        data = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, response.headers, msgspec.json.decode(data) if is_json else data


# --- hooks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["openai_chat", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
async def test_hooks_run_before_and_after_call(gateway_server: ServerFixture, model: str, stream: bool) -> None:
    starts: list[CallStart] = []
    ends: list[CallEnd] = []

    async def before(start: CallStart) -> None:
        starts.append(start)

    async def after(end: CallEnd) -> None:
        ends.append(end)
        raise RuntimeError("is logged")

    gateway_server.state.gateway.hooks = Hooks(before, after)
    fake = gateway_server.fakes[model]
    fake.answer_with(text_part("Yes."))
    assert (await chat(gateway_server, model, stream=stream))[0] == 200
    fake.fail(500, "broken")
    assert (await chat(gateway_server, model, stream=stream))[0] == 500
    (first, second), (success, failure) = starts, ends
    assert (first.name, first.dialect, first.models) == (model, "openai_chat", (f"fake-{model}:model",))
    assert (success.start, failure.start) == (first, second)
    assert (success.model, success.fault) == (f"fake-{model}:model", None)
    assert success.usage is not None
    assert success.usage.output_tokens > 0
    assert success.session_id is not None
    assert failure.fault is not None
    assert (failure.fault.status, failure.usage) == (500, None)


async def test_hook_rejects_call_with_error_of_callers_api(gateway_server: ServerFixture) -> None:
    async def before(_: CallStart) -> None:
        raise invalid_request_error("The budget is spent.", status=402)

    gateway_server.state.gateway.hooks = Hooks(before)
    status, _, body = await chat(gateway_server, "anthropic")
    assert (status, body["error"]["message"]) == (402, "The budget is spent.")
    assert gateway_server.fakes["anthropic"].bodies == []


def test_hook_is_loaded_by_import_path() -> None:
    assert load_hook("msgspec.json:decode", "before_call") is msgspec.json.decode
    assert load_hook(None, "before_call") is None
    for path in ("no_such_module:f", "msgspec:nothing", "msgspec"):
        with pytest.raises(SettingsError, match=r"gateway\.after_call"):
            load_hook(path, "after_call")


# --- recording by key ------------------------------------------------------------------------------------------------


async def test_scope_of_key_selects_recording(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        fake = server.fakes["anthropic"]
        for scope, count in (("record:off", 0), ("record:redacted", 1)):
            headers = await server.make_key(scopes=("chat", scope))
            fake.answer_with(call_part("read_file", {"path": "secret.txt"}))
            assert (await chat(server, "anthropic", headers, tools=[TOOL]))[0] == 200
            sessions = await server.store.list_sessions()
            assert len(sessions) == count
        (session,) = sessions
        rows = await server.store.read(session.id)
        assert session.title is None
        assert "secret" not in str(rows)
        assert "hi" not in [getattr(block, "text", "") for row in rows for block in row.message.content]
        usage = rows[-1].message.metadata.usage
        assert usage is not None
        assert usage.output_tokens > 0
        assert (await server.store.verify()).is_sound


# --- headers and affinity --------------------------------------------------------------------------------------------


async def test_response_header_contains_session_id(gateway_server: ServerFixture) -> None:
    gateway_server.fakes["anthropic"].answer_with(text_part("Yes."))
    _, headers, _ = await chat(gateway_server, "anthropic")
    (session,) = await gateway_server.store.list_sessions()
    assert headers["x-dragoman-session"] == session.id
    assert headers["x-dragoman-model"] == "fake-anthropic:model"


async def test_session_keeps_its_weighted_model(tmp_path: Path) -> None:
    rows = '[gateway.models]\nshared = { models = ["anthropic", "gemini"], weights = [1, 1] }\n'
    async with run_test_server(tmp_path, "anthropic", "gemini", rows=rows) as server:
        chosen = set()
        for number in range(12):
            first = [{"role": "user", "content": f"Question {number}"}]
            more = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
            answers = [await chat(server, "shared", messages=messages) for messages in (first, more)]
            models = {headers["x-dragoman-model"] for _, headers, _ in answers}
            assert len(models) == 1, number
            chosen |= models
            replies = [await chat(server, "shared", {"session-id": str(number)}) for _ in range(2)]
            assert len({headers["x-dragoman-model"] for _, headers, _ in replies}) == 1
        assert chosen == {"fake-anthropic:model", "fake-gemini:model"}


# --- restored signatures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["anthropic", "gemini", "bedrock_converse", "openai_responses"])
async def test_signatures_are_restored_for_their_provider(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(thinking_part("I need the file."), call_part("read_file", {"path": "a"}))
    options = {"tools": [TOOL], "reasoning_effort": "high", "max_completion_tokens": 8000}
    _, _, body = await chat(gateway_server, model, **options)
    message = {name: body["choices"][0]["message"][name] for name in ("role", "content", "tool_calls")}
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Quinces."}
    fake.answer_with(text_part("It says quinces."))
    status, _, body = await chat(gateway_server, model, messages=[QUESTION, message, result], **options)
    assert (status, fake.refusals) == (200, []), body
    assert "I need the file." in str(fake.bodies[1])
    signature = next(iter(fake.issued.signatures))
    assert signature in str(fake.bodies[1])
