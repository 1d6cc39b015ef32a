"""Tests of the chat protocol: every example of its text over a real socket, and its whole flow.

The examples are written by hand. If the text of the protocol is available, they are compared with it. The flow runs with
files in a folder, in a bucket of a real S3 server, and in storage that behaves like Supabase.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData

from dragoman.attachments import parse_signed_url
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.store.operation import from_micros
from dragoman.tools import tool
from tests.attachments.samples import PDF, TEXT, gif, jpeg, png, webp
from tests.attachments.supabase_server import KEY, SECRET, SupabaseServer
from tests.conftest import CORPUS
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import RUNS, event_types, post_run, run_input, user
from tests.server.test_threads import API, SOME_DAY, read_error_code, read_json
from tests.store.test_blobs import bucket
from tests.turn.fake_agent import DIALECTS

__all__ = ["bucket"]

FILE = {"bucket": "agent-files", "path": "agent-inputs/u/t/r/img.jpg", "mime_type": "image/jpeg"}
SUPABASE_URL = "https://xxx.supabase.co/storage/v1/object/sign/agent-files/agent-inputs/u/t/r/img.jpg?token="
QUESTION = "帮我看看这张图"

BASIC = {"run_id": "run_1773286460762"}
STAGE = {
    "run_id": "run_1773286460762",
    "stage": "intent",
    "latency_ms": 2610,
    "message_id": "intent-run_1773286460762",
}
TOOL = {
    "run_id": "run_1773287162123",
    "stage": "tool_execution",
    "latency_ms": 1500,
    "message_id": "tool_run_abc123",
    "tool_name": "calendar_create_event",
}
REQUEST: dict[str, Any] = {
    "threadId": "thread-123",
    "runId": "run-456",
    "messages": [
        {
            "id": "msg-1",
            "role": "user",
            "content": [
                {"type": "text", "text": QUESTION},
                {"type": "binary", "mimeType": "image/jpeg", "url": f"{SUPABASE_URL}xxx"},
            ],
        }
    ],
}
STORED = {"user_message_attachments": FILE}
HISTORY = {
    "messages": [
        {
            "id": "msg-1",
            "seq": 1,
            "role": "user",
            "content": QUESTION,
            "metadata": STORED,
            "timestamp": "2026-03-13T10:00:00Z",
        }
    ]
}
SIGNED = {"bucket": "agent-files", "path": "agent-inputs/u/t/r/img.jpg", "url": f"{SUPABASE_URL}yyy"}
EXAMPLES = [BASIC, STAGE, TOOL, REQUEST, STORED, HISTORY, SIGNED]


def test_examples_match_text_of_protocol() -> None:
    found = sorted((CORPUS.parent / "seeds").glob("001-*"))
    if not found:
        pytest.skip(f"the protocol's text is not at {CORPUS.parent / 'seeds'}")
    lines = [
        line for line in found[0].read_text().splitlines() if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line)
    ]
    blocks = re.findall(r"``` json\n(.*?)\n```", "\n".join(lines), re.DOTALL)
    assert [json.loads(block) for block in blocks] == EXAMPLES


# --- metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [BASIC, STAGE, TOOL], ids=["basic", "stage", "tool"])
async def test_metadata_of_message_is_in_history(chat_server: ServerFixture, example: dict[str, Any]) -> None:
    known = {name: value for name, value in example.items() if name in MessageMetadata.__struct_fields__}
    extra = {name: value for name, value in example.items() if name not in known}
    metadata = MessageMetadata(**known, extra=extra or None)
    session = await chat_server.store.create_session("thread-123", user_id="local")
    message = Message("", "", Role.ASSISTANT, (TextBlock("done"),), metadata, from_micros(SOME_DAY))
    await chat_server.store.append(session.id, message)
    found = await read_json(chat_server.client.get(f"{API}/history?threadId=thread-123"))
    (row,) = found["messages"]
    assert row["metadata"] == example
    assert row["timestamp"] == "2026-03-13T10:00:00Z"


async def test_metadata_of_tool_result_is_in_history(chat_server: ServerFixture) -> None:
    """The name of the tool is that of the answered call."""
    call = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "calendar_create_event", {})
    call_message = Message("", "", Role.ASSISTANT, (call,), MessageMetadata(), from_micros(SOME_DAY))
    metadata = MessageMetadata(**{name: TOOL[name] for name in ("run_id", "stage", "latency_ms", "message_id")})
    result = Message(
        "", "", Role.TOOL, (ToolResultBlock(call.id, (TextBlock("ok"),)),), metadata, from_micros(SOME_DAY)
    )
    session = await chat_server.store.create_session("thread-123", user_id="local")
    await chat_server.store.append(session.id, [call_message, result])
    _, row = (await read_json(chat_server.client.get(f"{API}/history?threadId=thread-123")))["messages"]
    assert row["metadata"] == {**TOOL, "tool_call_id": call.id}


# --- messages with images --------------------------------------------------------------------------------------------


async def post_events(server: ServerFixture, body: Any, headers: dict[str, str]) -> list[dict[str, Any]]:
    return await post_run(server, body, **headers)


async def test_examples_of_message_with_image(tmp_path: Path) -> None:
    """User u has uploaded img.jpg. Request, stored metadata, history and URL are those of the protocol."""
    async with run_test_server(tmp_path, require_keys=True) as server:
        key = await server.make_key("u")
        await server.state.attachments._storage.write(FILE["path"], jpeg(), {})
        location = {"bucket": FILE["bucket"], "path": FILE["path"]}
        signed = await read_json(server.client.get(f"{API}/attachments/signed-url", params=location, headers=key))
        assert signed == {**SIGNED, "url": signed["url"]}
        own_url = SUPABASE_URL.replace("https://xxx.supabase.co", server.base_url)
        assert signed["url"].startswith(own_url)

        body = json.loads(json.dumps(REQUEST).replace(f"{SUPABASE_URL}xxx", signed["url"]))
        server.fake.reply("Ein Bild.")
        await post_events(server, body, key)
        assert base64.b64encode(jpeg()).decode() in json.dumps(server.fake.bodies[0])

        (row, _) = await server.store.read("thread-123")
        metadata = row.message.metadata
        assert {
            "bucket": metadata.attachments[0].bucket,
            "path": metadata.attachments[0].path,
            "mime_type": "image/jpeg",
        } == FILE
        found = await read_json(server.client.get(f"{API}/history?threadId=thread-123", headers=key))
        first = found["messages"][0]
        assert {**first, "timestamp": "2026-03-13T10:00:00Z"} == HISTORY["messages"][0]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", first["timestamp"])
        assert found["messages"][1]["content"] == "Ein Bild."
        assert signed["url"].partition("token=")[2].encode() not in (tmp_path / "chats.db").read_bytes()


async def test_url_of_another_project_is_rejected_and_nothing_is_stored(
    chat_server: ServerFixture,
) -> None:
    assert await read_error_code(chat_server.client.post(RUNS, json=REQUEST), 422) == "foreign_attachment_url"
    assert await read_error_code(chat_server.client.get(f"{API}/history?threadId=thread-123"), 404) == "not_found"


def test_signed_url_is_parsed_as_specified() -> None:
    location = parse_signed_url(f"{SUPABASE_URL}xxx", ("https://xxx.supabase.co",)).location
    assert (location.bucket, location.path) == (FILE["bucket"], FILE["path"])


# --- the flow --------------------------------------------------------------------------------------------------------

ServerOpener = Callable[[], AbstractAsyncContextManager[ServerFixture]]


@pytest.fixture(params=["folder", "s3", "s3 itself", "supabase"])
def open_server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerOpener:
    """Return a function that opens a server with this storage."""
    monkeypatch.setenv("DRAGOMAN_SIGNING_KEYS", f"first:{'s' * 40}")

    @asynccontextmanager
    async def open_with_storage() -> AsyncIterator[ServerFixture]:
        if request.param == "supabase":
            monkeypatch.setenv("SUPABASE_SERVICE_ROLE_KEY", KEY)
            monkeypatch.setenv("SUPABASE_JWT_SECRET", SECRET)
            storage = SupabaseServer()
            runner = await storage.start()
            try:
                url = f"supabase://{storage.url}/agent-files?scheme=http"
                async with run_test_server(tmp_path, attachments=url) as server:
                    yield server
            finally:
                await runner.cleanup()
        elif request.param == "folder":
            async with run_test_server(tmp_path) as server:
                yield server
        else:
            direct = "&direct=true" if request.param == "s3 itself" else ""
            async with run_test_server(tmp_path, attachments=f"{bucket_url}{direct}") as server:
                yield server

    bucket_url = request.getfixturevalue("bucket") if request.param.startswith("s3") else ""
    return open_with_storage


async def upload_file(server: ServerFixture, data: bytes, declared: str, name: str) -> dict[str, Any]:
    form = FormData()
    form.add_field("threadId", "thread-123")
    form.add_field("runId", "run-456")
    form.add_field("file", io.BytesIO(data), filename=name, content_type=declared)
    return dict(await read_json(server.client.post(f"{API}/attachments", data=form)))


async def test_flow_from_upload_to_displayed_image(open_server: ServerOpener) -> None:
    async with open_server() as server:
        # 1. The file is uploaded.
        file = await upload_file(server, png(), "image/png", "cat.png")
        assert file["mime_type"] == "image/png"
        assert f"/storage/v1/object/sign/{file['bucket']}/{file['path']}?token=" in file["url"]
        # 2. and 3. A message contains its URL, which is parsed.
        parsed = server.state.attachments.parse_signed_url(file["url"])
        assert (parsed.bucket, parsed.path) == (file["bucket"], file["path"])
        part = {"type": "binary", "mimeType": "image/png", "url": file["url"]}
        body = run_input(
            user([{"type": "text", "text": QUESTION}, part], "msg-1"), threadId="thread-123", runId="run-456"
        )
        server.fake.reply("A cat.")
        events = await post_run(server, body)
        assert event_types(events)[0] == "RUN_STARTED"
        assert event_types(events)[-1] == "RUN_FINISHED"
        assert base64.b64encode(png()).decode() in json.dumps(server.fake.bodies[0])
        # 4. and 5. The location is stored, and the history contains it.
        found = await read_json(server.client.get(f"{API}/history?threadId=thread-123"))
        question, answer = found["messages"]
        location = {name: file[name] for name in ("bucket", "path", "mime_type")}
        assert (question["id"], question["seq"], question["role"], question["content"]) == (
            "msg-1",
            1,
            "user",
            QUESTION,
        )
        assert question["metadata"] == {"user_message_attachments": location}
        assert (answer["seq"], answer["role"], answer["content"]) == (2, "assistant", "A cat.")
        assert answer["metadata"]["run_id"] == "run-456"
        assert answer["metadata"]["message_id"] == answer["id"]
        assert answer["metadata"]["stage"] == "answer"
        assert answer["metadata"]["latency_ms"] >= 0
        # 6. A new URL displays it in a page.
        params = {"bucket": location["bucket"], "path": location["path"]}
        signed = await read_json(server.client.get(f"{API}/attachments/signed-url", params=params))
        assert signed == {**params, "url": signed["url"]}
        async with server.client.get(signed["url"]) as response:
            assert (response.status, await response.read()) == (200, png())
            assert response.content_type == "image/png"
        # The file is deleted with its thread.
        async with server.client.delete(f"{API}/threads/thread-123") as response:
            assert response.status == 204
        assert (
            await read_error_code(server.client.get(f"{API}/attachments/signed-url", params=params), 404) == "not_found"
        )


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_several_files_of_message_reach_model(tmp_path: Path, dialect: str) -> None:
    async with run_test_server(tmp_path, dialect) as server:
        files = [
            await upload_file(server, png(), "image/png", "a.png"),
            await upload_file(server, jpeg(), "image/jpeg", "b.jpg"),
            await upload_file(server, TEXT, "text/plain", "notes.txt"),
        ]
        parts = [{"type": "binary", "mimeType": file["mime_type"], "url": file["url"]} for file in files]
        server.fake.reply("Two pictures and a text.")
        body = run_input(user([{"type": "text", "text": "Compare"}, *parts]), threadId="thread-123", runId="run-456")
        await post_run(server, body)
        request_text = json.dumps(server.fake.bodies[0], ensure_ascii=False)
        assert server.fake.refusals == []
        for data in (png(), jpeg()):
            assert base64.b64encode(data).decode() in request_text
        assert "帮我看看这张图\\nand a second line" in request_text
        found = await read_json(server.client.get(f"{API}/history?threadId=thread-123"))
        question = found["messages"][0]
        assert question["content"] == "Compare"
        places = [{name: file[name] for name in ("bucket", "path", "mime_type")} for file in files]
        assert question["metadata"] == {"user_message_attachments": places}


async def test_every_accepted_type_can_be_sent_with_message(chat_server: ServerFixture) -> None:
    files = {"image/gif": gif(), "image/webp": webp(), "application/pdf": PDF}
    chat_server.agent.services.settings.catalog.model("anthropic")
    for number, (mime_type, data) in enumerate(files.items()):
        file = await upload_file(chat_server, data, mime_type, "x")
        part = {"type": "binary", "mimeType": mime_type, "url": file["url"]}
        body = run_input(user([{"type": "text", "text": "see"}, part]), threadId=f"t{number}", runId="r")
        async with chat_server.client.post(RUNS, json=body, headers={"accept": "text/event-stream"}) as response:
            text = await response.text()
        assert response.status == 200, text
        if mime_type.startswith("image/"):
            assert base64.b64encode(data).decode() in json.dumps(chat_server.fake.bodies[-1])
        found = await read_json(chat_server.client.get(f"{API}/history?threadId=t{number}"))
        assert found["messages"][0]["metadata"]["user_message_attachments"]["mime_type"] == mime_type


async def test_run_with_tool_has_stages(tmp_path: Path) -> None:
    @tool(side_effects="none", requires_workspace=False)
    async def calendar_create_event(title: str) -> str:
        """Put something into the calendar."""
        await asyncio.sleep(0)
        return f"created {title}"

    async with run_test_server(tmp_path, agent_options={"tools": [calendar_create_event]}) as server:
        server.fake.call("calendar_create_event", {"title": "tea"})
        server.fake.reply("It is in the calendar.")
        await post_run(server, run_input("Tea at five", threadId="t", runId="run_1"))
        rows = (await read_json(server.client.get(f"{API}/history?threadId=t")))["messages"]
        assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
        _, call, result, answer = (row["metadata"] for row in rows)
        assert {metadata["run_id"] for metadata in (call, result, answer)} == {"run_1"}
        assert (call["stage"], result["stage"], answer["stage"]) == ("intent", "tool_execution", "answer")
        assert call["tool_calls"][0]["name"] == result["tool_name"] == "calendar_create_event"
        assert result["tool_call_id"] == call["tool_calls"][0]["id"]
        assert (rows[2]["content"], rows[3]["content"]) == ("created tea", "It is in the calendar.")
