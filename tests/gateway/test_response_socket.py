"""Tests of the Responses API over a WebSocket: events, state of the connection and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dragoman.gateway import Caller, GatewayRequest
from dragoman.gateway.response_socket import ResponseConnection
from tests.conftest import scale
from tests.fake_providers import text_part
from tests.gateway.in_process import open_gateway
from tests.gateway.replies import answer_call, write_stream
from tests.gateway.test_hostile_requests import BODIES, WRONG, places, replace
from tests.gateway.test_passthrough import run_gateway
from tests.server.conftest import ServerFixture, run_test_server
from tests.servers.faulty_server import Answer, make_answer, make_stream

CREATE = {"type": "response.create", "model": "anthropic", "store": False}


class Socket:
    """A connection of a client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def ask(self, text: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its last event."""
        return (await self.ask_all(text, **fields))[-1]

    async def ask_all(self, text: str, **fields: Any) -> list[dict[str, Any]]:
        await self._socket.send_json({**CREATE, "input": text, **fields})
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(await self._socket.receive_json(timeout=60))
        return events

    async def send(self, text: str) -> dict[str, Any]:
        await self._socket.send_str(text)
        event: dict[str, Any] = await self._socket.receive_json(timeout=60)
        return event


@asynccontextmanager
async def connect(server: ServerFixture, path: str = "/v1/responses", **options: Any) -> AsyncIterator[Socket]:
    async with server.client.ws_connect(path, **options) as socket:
        yield Socket(socket)


@pytest.mark.parametrize("model", ["anthropic", "openai_responses"])
async def test_response_has_events_of_stream(gateway_server: ServerFixture, model: str) -> None:
    fake = gateway_server.fakes[model]
    fake.answer_with(text_part("One."))
    async with connect(gateway_server) as socket:
        events = await socket.ask_all("1?", model=model)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == "One."
    assert fake.refusals == []


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_connection_continues_response_that_is_not_stored(gateway_server: ServerFixture, path: str) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(text_part("One."))
    fake.answer_with(text_part("Two."))
    async with connect(gateway_server, path) as socket:
        first = (await socket.ask("1?"))["response"]
        second = (await socket.ask("2?", previous_response_id=first["id"]))["response"]
        assert second["previous_response_id"] == first["id"]
        assert [message["role"] for message in fake.bodies[1]["messages"]] == ["user", "assistant", "user"]
    async with connect(gateway_server) as socket:  # the response is unknown to another connection
        event = await socket.ask("3?", previous_response_id=second["id"])
        assert (event["type"], event["status"]) == ("error", 400)
        assert event["error"]["code"] == "previous_response_not_found"
        fake.answer_with(text_part("Again."))
        assert (await socket.ask("all of it"))["type"] == "response.completed"


async def test_stored_response_is_continued_on_another_connection(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(text_part("One."))
    fake.answer_with(text_part("Two."))
    async with connect(gateway_server) as socket:
        first = (await socket.ask("1?", store=True))["response"]
    async with connect(gateway_server) as socket:
        second = await socket.ask("2?", previous_response_id=first["id"])
    assert second["type"] == "response.completed"
    assert len(fake.bodies[1]["messages"]) == 3


async def test_failed_continuation_removes_previous_response(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(text_part("One."))
    fake.fail(500, "broken")
    async with connect(gateway_server) as socket:
        first = (await socket.ask("1?"))["response"]
        failed = await socket.ask("2?", previous_response_id=first["id"])
        assert (failed["type"], failed["status"]) == ("error", 500)
        again = await socket.ask("2?", previous_response_id=first["id"])
        assert again["error"]["code"] == "previous_response_not_found"


async def test_prepared_response_calls_no_model_and_is_continued(gateway_server: ServerFixture) -> None:
    fake = gateway_server.fakes["anthropic"]
    fake.answer_with(text_part("One."))
    async with connect(gateway_server) as socket:
        prepared = (await socket.ask("Context.", generate=False))["response"]
        assert (prepared["status"], prepared["output"], fake.bodies) == ("completed", [], [])
        await socket.ask("1?", previous_response_id=prepared["id"])
    (body,) = fake.bodies
    assert "Context." in str(body)


async def test_connection_stays_open_after_invalid_message(
    gateway_server: ServerFixture,
) -> None:
    gateway_server.fakes["anthropic"].answer_with(text_part("One."))
    async with connect(gateway_server) as socket:
        for text in ("{", "[]", '{"type":"other"}'):
            event = await socket.send(text)
            assert (event["type"], event["status"]) == ("error", 400)
        unknown = await socket.ask("1?", model="no-such model")
        assert unknown["status"] == 404
        assert (await socket.ask("1?"))["type"] == "response.completed"


async def test_handshake_requires_key_and_path(tmp_path: Path) -> None:
    async with run_test_server(tmp_path, "anthropic", require_keys=True) as server:
        key = await server.make_key()
        for path, headers, status in (("/v1/responses", {}, 401), ("/v1/messages", key, 404), ("/nothing", key, 404)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await server.client.ws_connect(path, headers=headers)
            assert caught.value.status == status
        server.fakes["anthropic"].answer_with(text_part("One."))
        async with connect(server, headers=key) as socket:
            assert (await socket.ask("1?"))["type"] == "response.completed"


async def test_handshake_of_foreign_origin_is_rejected(gateway_server: ServerFixture) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await gateway_server.client.ws_connect("/v1/responses", origin="https://evil.example")
    assert caught.value.status in (401, 403)


HTML = b"<html><body>Bad gateway</body></html>"
FAILURES = {
    "a page": (make_answer(HTML, 502, content_type="text/html"), 502, HTML.decode()),
    "an empty body": (make_answer(b"", 503), 503, "The request failed."),
    "a text in JSON": (make_answer(b'"too busy"', 503), 503, '"too busy"'),
    "a text as the error": (make_answer(b'{"error":"too busy"}', 503), 503, '{"error":"too busy"}'),
    "no message": (make_answer(b'{"error":{"message":null,"code":null}}', 500), 500, "The request failed."),
}


@pytest.mark.parametrize(("answer", "status", "message"), FAILURES.values(), ids=FAILURES)
async def test_error_that_is_not_json_is_an_event(tmp_path: Path, answer: Answer, status: int, message: str) -> None:
    async with run_gateway(tmp_path, answer) as (client, _), client.ws_connect("/v1/responses") as socket:
        event = await Socket(socket).ask("1?", model="up-r:gpt")
    assert (event["type"], event["status"]) == ("error", status)
    assert event["error"] == {"type": "server_error", "code": "server_error", "message": message, "param": None}


@pytest.mark.parametrize("model", ["up-r:gpt", "up-o:gpt", "up-a:claude"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(make_answer(HTML, 200, content_type="text/html"), id="a page"),
        pytest.param(make_answer(b"", 200, content_type="text/event-stream"), id="an empty body"),
        pytest.param(make_stream((b'data: {"type":"response.created","response":\n\n',)), id="half an event"),
        pytest.param(make_stream((b"data: \xff{}\n\n",)), id="not UTF-8"),
        pytest.param(make_stream((b"data: {}\n\n",)), id="an event without a type"),
    ],
)
async def test_invalid_stream_ends_with_error(tmp_path: Path, answer: Answer, model: str) -> None:
    async with run_gateway(tmp_path, answer, answer) as (client, _), client.ws_connect("/v1/responses") as socket:
        for _ in range(2):  # the connection stays open
            event = await Socket(socket).ask("1?", model=model)
            assert event["type"] in ("error", "response.failed")
            error = event["error"] if event["type"] == "error" else event["response"]["error"]
            assert error["code"]
            assert error["message"]


async def test_event_of_unknown_type_is_forwarded(tmp_path: Path) -> None:
    head, end, rest = write_stream("openai_responses").partition(b"event: response.completed")
    data = head + b'data: {"type":1}\n\n' + end + rest
    async with open_gateway(tmp_path, lambda _: make_stream([data])) as gateway:
        handshake = GatewayRequest(method="GET", path="/v1/responses", caller=Caller("ann", None))
        connection = ResponseConnection(gateway.gateway, handshake)
        message = msgspec.json.encode({**CREATE, "model": "openai_responses:m", "input": "hi"})
        events = [msgspec.json.decode(text) async for text in connection.answer(message)]
    assert [event["type"] for event in events[-2:]] == [1, "response.completed"]


async def test_wrong_values_in_a_message_are_errors(tmp_path: Path) -> None:
    bodies = [{**CREATE, **BODIES["/responses"], "model": "anthropic:m", "generate": value} for value in (True, False)]
    async with open_gateway(tmp_path, answer_call) as gateway:
        handshake = GatewayRequest(method="GET", path="/v1/responses", caller=Caller("ann", None))
        connection = ResponseConnection(gateway.gateway, handshake)
        cases = [(body, place, wrong) for body in bodies for place in places(body) for wrong in WRONG]
        for body, place, wrong in cases[:: scale(61, 1)]:
            message = msgspec.json.encode(replace(body, place, "?")).replace(b'"?"', wrong)
            events = [msgspec.json.decode(text) async for text in connection.answer(message)]
            is_answer = events[-1]["type"] == "response.completed"
            assert is_answer or (events[-1]["type"], events[-1]["status"]) == ("error", 400), (place, wrong, events)
