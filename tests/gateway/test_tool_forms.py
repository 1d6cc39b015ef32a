"""Tool forms of the Responses API work with providers of other APIs. Calls return in the same form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.gateway.tool_forms import join_name
from tests.fake_providers import call_part, text_part
from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture

PATCH = '*** Begin Patch\n*** Add File: a\n+é "x"\n*** End Patch'
MEMBER = {
    "type": "function",
    "name": "spawn",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
TOOLS = [
    {"type": "namespace", "name": "workers", "description": "Workers.", "tools": [MEMBER]},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    },
]
FOREIGN = [name for name in CLIENTS if name != "openai_responses"]


async def respond(server: ServerFixture, model: str, items: list[Any], *, stream: bool) -> list[dict[str, Any]]:
    """Call the Responses API and return the output items."""
    body = {"model": model, "input": items, "tools": TOOLS, "stream": stream, "store": False}
    async with server.client.post("/v1/responses", json=body) as response:
        data = await response.read()
        assert response.status == 200, data
    if not stream:
        return list(msgspec.json.decode(data)["output"])
    events = [msgspec.json.decode(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    items_done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == items_done
    texts = [event["input"] for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert texts == [item["input"] for item in items_done if item["type"] == "custom_tool_call"]
    return items_done


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", FOREIGN)
async def test_namespaces_and_custom_tools_reach_every_provider(
    gateway_server: ServerFixture, model: str, stream: bool
) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(call_part("workers__spawn", {"n": 2}), call_part("apply_patch", {"input": PATCH}))
    question = {"type": "message", "role": "user", "content": "hi"}
    spawn, patch = await respond(gateway_server, model, [question], stream=stream)
    assert (spawn["type"], spawn["namespace"], spawn["name"]) == ("function_call", "workers", "spawn")
    assert msgspec.json.decode(spawn["arguments"]) == {"n": 2}
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    fake.answer_with(text_part("Done."))
    results = [
        {"type": "function_call_output", "call_id": spawn["call_id"], "output": "ok"},
        {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "patched"},
    ]
    (answer,) = await respond(gateway_server, model, [question, spawn, patch, *results], stream=stream)
    assert answer["content"][0]["text"] == "Done."
    assert fake.refusals == []
    sent = str(fake.bodies[1])
    assert sent.count("workers__spawn") >= 2  # the definition and the call
    assert "patched" in sent


def test_joined_name_is_limited_and_unique() -> None:
    first, second = join_name("n" * 50, "a" * 50), join_name("n" * 50, "a" * 49 + "b")
    assert join_name("workers", "spawn") == "workers__spawn"
    assert len(first) == len(second) == 64
    assert first != second
