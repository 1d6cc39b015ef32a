"""Tests of the protobuf encoding of AG-UI: the published decoder reads every event as it was stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.server.runs import agui_encoder, agui_proto, recovery
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import JUDGES, RUNS, install_client, run_input, run_node

META = {"dragoman": {"message_id": "m1", "seq": 2, "cost": "0.01", "flags": [True, False, None], "nested": {"a": 1.5}}}
USAGE = [
    {"provider": "p", "model": "m", "inputTokens": 12, "outputTokens": 300, "totalTokens": 312, "reasoningTokens": 0}
]
INTERRUPT = {
    "id": "int-1",
    "reason": "tool_call",
    "message": "May it be run?",
    "toolCallId": "tu_1",
    "responseSchema": {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]},
    "metadata": {"dragoman": {"name": "drop", "input": {"n": -3}}},
}
SOURCES = [
    {"type": "data", "value": "AAAA", "mimeType": "image/png"},
    {"type": "url", "value": "https://example.com/a"},
    {"type": "file", "value": "bucket/path", "provider": "dragoman", "mimeType": "application/pdf"},
]
PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "看 \U0001f600"},
    *({"type": kind, "source": source} for kind in ("image", "audio", "video", "document") for source in SOURCES),
]
MESSAGES: list[dict[str, Any]] = [
    {"id": "s", "role": "system", "content": "Be brief."},
    {"id": "u", "role": "user", "content": "Hello", "metadata": {"a": {"b": [1, "x"]}}},
    {"id": "v", "role": "user", "content": PARTS},
    {"id": "r", "role": "reasoning", "content": "Hm.", "encryptedValue": "c2ln"},
    {
        "id": "a",
        "role": "assistant",
        "toolCalls": [{"id": "tu_1", "type": "function", "function": {"name": "drop", "arguments": '{"n":1}'}}],
    },
    {"id": "t", "role": "tool", "toolCallId": "tu_1", "content": "gone", "error": "gone"},
    {"id": "w", "role": "tool", "toolCallId": "tu_1", "content": PARTS[:2]},
    {"id": "e", "role": "assistant", "content": ""},
]
FINISHED = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
EVENTS: list[dict[str, Any]] = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "parentRunId": "q", "protocolVersion": "1.0"},
    {"type": "STEP_STARTED", "stepName": "answer", "metadata": META},
    {"type": "REASONING_START", "messageId": "m.0"},
    {"type": "REASONING_MESSAGE_START", "messageId": "m.0", "role": "reasoning"},
    {"type": "REASONING_MESSAGE_CONTENT", "messageId": "m.0", "delta": "Hm."},
    {"type": "REASONING_MESSAGE_END", "messageId": "m.0"},
    {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "m.0", "encryptedValue": "c2ln"},
    {"type": "REASONING_END", "messageId": "m.0"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "你好" * 200},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"},
    {"type": "TOOL_CALL_START", "toolCallId": "tu_1", "toolCallName": "drop", "parentMessageId": "m"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "tu_1", "delta": '{"n":1}'},
    {"type": "TOOL_CALL_END", "toolCallId": "tu_1"},
    {"type": "STEP_FINISHED", "stepName": "answer"},
    {"type": "TOOL_CALL_RESULT", "messageId": "x", "toolCallId": "tu_1", "content": "gone", "role": "tool"},
    {"type": "TOOL_CALL_RESULT", "messageId": "y", "toolCallId": "tu_1", "content": PARTS, "role": "tool"},
    {"type": "CUSTOM", "name": "dragoman.block", "value": {"block": {"type": "opaque", "wire": [1, None]}}},
    {"type": "MESSAGES_SNAPSHOT", "messages": MESSAGES},
    {"type": "STATE_SNAPSHOT", "snapshot": {"count": 3, "of": "things"}},
    {"type": "STATE_SNAPSHOT", "snapshot": None},
    FINISHED,
    {**FINISHED, "outcome": {"type": "success"}, "usage": USAGE, "metadata": META},
    {**FINISHED, "outcome": {"type": "success", "pendingToolCallIds": ["tu_1", "tu_2"]}},
    {**FINISHED, "outcome": {"type": "interrupt", "interrupts": [INTERRUPT, {"id": "i", "reason": "input_required"}]}},
    {**FINISHED, "outcome": {"type": "cancelled"}},
    {"type": "RUN_ERROR", "message": "It broke.", "code": "broken", "usage": USAGE},
]


async def decode(data: bytes, folder: Path) -> list[dict[str, Any]]:
    """Decode frames with the published decoder."""
    file = folder / "frames"
    file.write_bytes(data)
    status, output = await run_node(install_client("ag-ui-client"), JUDGES / "decode-proto.mjs", str(file))
    assert status == 0, output
    events: list[dict[str, Any]] = json.loads(output)
    return events


async def test_published_decoder_reads_every_event(tmp_path: Path) -> None:
    events = [{**event, "timestamp": 1_790_000_000_000 + at} for at, event in enumerate(EVENTS)]
    decoded = await decode(b"".join(map(agui_proto.encode_frame, events)), tmp_path)
    assert decoded == events
    assert {event["type"] for event in events} == agui_proto.EVENT_TYPES


def test_every_event_type_of_server_has_a_number() -> None:
    modules = (agui_encoder, recovery)
    source = "".join(Path(str(module.__file__)).read_text("utf-8") for module in modules)
    types = set(re.findall(r'"((?:RUN|STEP|TEXT|TOOL|REASONING|CUSTOM|STATE|MESSAGES)_[A-Z_]+|CUSTOM)"', source))
    assert types == agui_proto.EVENT_TYPES


@pytest.mark.parametrize("path", ["/runs", "/runs/{thread}/events"])
async def test_client_receives_protobuf_on_request(chat_server: ServerFixture, tmp_path: Path, path: str) -> None:
    chat_server.fake.reply("Hello.", thinking="Hm.")
    body, accept = run_input("Hello"), {"accept": "application/vnd.ag-ui.event+proto"}
    async with chat_server.client.post(RUNS, json=body, headers=accept) as response:
        frames = await response.read()
    if path != "/runs":
        async with chat_server.client.get(f"{RUNS}/{body['threadId']}/events", headers=accept) as response:
            assert await response.read() == frames
    assert response.headers["content-type"] == "application/vnd.ag-ui.event+proto"
    page = await chat_server.store.runs.events(body["threadId"], 0)
    assert await decode(frames, tmp_path) == [msgspec.json.decode(event.json) for event in page.events]
