"""The Responses API over a WebSocket: each message of the client is a request, and its events are the messages back.

    connection = ResponseConnection(gateway, handshake)
    async for text in connection.answer(message): ...        the events of one response, in order

Requests of one connection are answered one after the other. A connection keeps its last responses in memory, so that
``previous_response_id`` works with ``"store": false`` as well. A request that fails removes the response it continues.

``"generate": false`` prepares a response without calling a model: a later request continues it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects
from dragoman.exchange import Reply, StopReason
from dragoman.gateway import endpoints
from dragoman.gateway.identity import echo_request, reply_identity
from dragoman.gateway.response_state import DIALECT, to_items
from dragoman.gateway.streams import FrameGate
from dragoman.gateway.types import GatewayRequest, GatewayResponse, LocalResponses
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import TokenUsage

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

PATH: Final = "/v1/responses"
MAX_CONNECTION_S: Final = 3600.0
LIMIT_REACHED: Final = (
    '{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"websocket_connection_limit_reached",'
    '"message":"The connection is open for 60 minutes. Open a new one.","param":null}}'
)
_NOT_FORWARDED: Final = ("connection", "upgrade", "sec-websocket-", "content-length", "openai-beta")
_NOT_IN_BODY: Final = ("type", "generate", "stream", "stream_options", "background")
_WHOLE: Final = ("response.completed", "response.incomplete")
_MAX_ERROR_BYTES: Final = 2_000
_NO_TOKENS: Final = TokenUsage(input_tokens=0, output_tokens=0)


class _Event(msgspec.Struct):
    type: str = ""


class _Failure(msgspec.Struct):
    error: dict[str, Any]


_read_event: Final = msgspec.json.Decoder(_Event).decode


class ResponseConnection:
    """One connection. ``handshake`` is the request that opened it."""

    def __init__(self, gateway: Gateway, handshake: GatewayRequest) -> None:
        headers = {name: text for name, text in handshake.headers.items() if not name.startswith(_NOT_FORWARDED)}
        self._gateway = gateway
        self._handshake = msgspec.structs.replace(handshake, method="POST", path=PATH, headers=headers)
        self._responses = LocalResponses()

    async def answer(self, message: str | bytes) -> AsyncGenerator[str, None]:
        """Yield the events of the response to one message."""
        try:
            event = msgspec.json.decode(message)
        except DECODE_ERRORS as error:
            yield _write_error(400, "invalid_request", f"The message is not JSON: {error}.")
            return
        if not isinstance(event, dict) or event.get("type") != "response.create":
            yield _write_error(400, "invalid_request", 'A message must be an object with "type": "response.create".')
            return
        body = {name: value for name, value in event.items() if name not in _NOT_IN_BODY}
        events = self._prepare(body) if event.get("generate") is False else self._create(body)
        is_whole = False
        try:
            async for text in events:
                is_whole = is_whole or _read_type(text) in _WHOLE
                yield text
        finally:
            await events.aclose()
            if not is_whole:
                self._responses.remove(body.get("previous_response_id"))

    async def _create(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """Yield the events of a response of a model."""
        found = endpoints.match("POST", PATH)
        assert found is not None
        request = msgspec.structs.replace(
            self._handshake, body=msgspec.json.encode({**body, "stream": True}), local_responses=self._responses
        )
        response = await self._gateway.handle(found, request)
        if isinstance(response.body, bytes):
            yield _wrap_failure(response)
            return
        gate = FrameGate("sse")
        try:
            async for data in response.body:
                for frame in gate.feed(data):
                    if (text := _frame_data(frame)) is not None:
                        yield text
        finally:
            await response.body.aclose()

    async def _prepare(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """Yield the events of a response that only keeps its input for a later request."""
        now = self._gateway.services.clock()
        identity = {**reply_identity(DIALECT, self._gateway.new_id(), now), **echo_request(body)}
        reply = Reply(stop_reason=StopReason.END_TURN, model=str(body.get("model") or ""), usage=_NO_TOKENS)
        response = {**dialects.load(DIALECT).write_reply(reply).wire, **identity}
        earlier = self._responses.find(body.get("previous_response_id")) or []
        self._responses.add(response["id"], [*earlier, *to_items(body.get("input"))])
        created = {**response, "status": "in_progress", "completed_at": None, "usage": None}
        for number, (kind, value) in enumerate((("response.created", created), ("response.completed", response))):
            yield msgspec.json.encode({"type": kind, "sequence_number": number, "response": value}).decode()


def _read_type(text: str) -> str:
    try:
        return _read_event(text).type
    except DECODE_ERRORS:  # an event of a newer version
        return ""


def _frame_data(frame: bytes) -> str | None:
    """Return the event of a frame; none for a comment and for the end of the stream."""
    data = b"".join(line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:"))
    return data.decode() if data.startswith(b"{") else None


def _wrap_failure(response: GatewayResponse) -> str:
    """Return the event of a request that was refused. It always has a code and a message, as clients expect."""
    assert isinstance(response.body, bytes)
    try:
        error = msgspec.json.decode(response.body, type=_Failure).error
    except DECODE_ERRORS:  # of a server in between
        error = {"message": response.body[:_MAX_ERROR_BYTES].decode(errors="replace")}
    known = {name: value for name, value in error.items() if value not in (None, "")}
    error = {"type": "server_error", "message": "The request failed.", "param": None, **known}
    error["code"] = str(error.get("code") or error["type"])
    return msgspec.json.encode({"type": "error", "status": response.status, "error": error}).decode()


def _write_error(status: int, code: str, message: str) -> str:
    error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
    return msgspec.json.encode({"type": "error", "status": status, "error": error}).decode()
