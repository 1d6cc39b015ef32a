"""The Open Responses specification of 2026-04-24 as types, and a client that checks each answer against them.

    client = Client(session, "/v1", model)
    await client.create(input="hi")                    a response, checked
    await client.stream(input="hi")                    the events of a stream, each event and their order checked
    async with client.connect() as socket: await socket.ask(input="hi")        the same over a WebSocket

A field without a default is required. A field may be null only if its type includes ``None``. An optional field may be
absent, but not null.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import msgspec
from msgspec import UNSET, UnsetType

Number = int | float
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
WAIT_S = 60


class _TypedObject(msgspec.Struct, tag_field="type"):
    """An object that its field ``type`` identifies."""


# --- content ---------------------------------------------------------------------------------------------------------


class TopLogProb(msgspec.Struct):
    token: str
    logprob: Number
    bytes: list[int]


class LogProb(TopLogProb):
    top_logprobs: list[TopLogProb]


class UrlCitation(_TypedObject, tag="url_citation"):
    url: str
    start_index: int
    end_index: int
    title: str


class InputText(_TypedObject, tag="input_text"):
    text: str


class OutputText(_TypedObject, tag="output_text"):
    text: str
    annotations: list[UrlCitation]
    logprobs: list[LogProb] | UnsetType = UNSET


class Text(_TypedObject, tag="text"):
    text: str


class SummaryText(_TypedObject, tag="summary_text"):
    text: str


class ReasoningText(_TypedObject, tag="reasoning_text"):
    text: str


class Refusal(_TypedObject, tag="refusal"):
    refusal: str


class InputImage(_TypedObject, tag="input_image"):
    image_url: str | None
    detail: Literal["low", "high", "auto"]


class InputFile(_TypedObject, tag="input_file"):
    filename: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


Part = InputText | OutputText | Text | SummaryText | ReasoningText | Refusal | InputImage | InputFile


# --- items -----------------------------------------------------------------------------------------------------------


class Message(_TypedObject, tag="message", kw_only=True):
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]
    phase: Literal["commentary", "final_answer"] | UnsetType = UNSET


class FunctionCall(_TypedObject, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutput(_TypedObject, tag="function_call_output"):
    id: str
    call_id: str
    output: str | list[Part]
    status: ItemStatus


class Reasoning(_TypedObject, tag="reasoning", kw_only=True):
    id: str
    summary: list[Part]
    content: list[Part] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class Compaction(_TypedObject, tag="compaction"):
    id: str
    encrypted_content: str
    created_by: str | UnsetType = UNSET


Item = Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction


# --- responses -------------------------------------------------------------------------------------------------------


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class IncompleteDetails(msgspec.Struct):
    reason: str


class Error(msgspec.Struct):
    code: str
    message: str


class FunctionTool(_TypedObject, tag="function"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class FunctionChoice(_TypedObject, tag="function"):
    name: str | UnsetType = UNSET


class AllowedTools(_TypedObject, tag="allowed_tools"):
    tools: list[FunctionChoice]
    mode: Literal["none", "auto", "required"]


class TextFormat(_TypedObject, tag="text"):
    pass


class JsonFormat(_TypedObject, tag="json_object"):
    pass


class JsonSchemaFormat(_TypedObject, tag="json_schema"):
    name: str
    description: str | None
    schema: dict[str, Any] | None
    strict: bool


class TextField(msgspec.Struct):
    format: TextFormat | JsonFormat | JsonSchemaFormat
    verbosity: Literal["low", "medium", "high"] | UnsetType = UNSET


class ReasoningField(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None
    summary: Literal["concise", "detailed", "auto"] | None


class Response(msgspec.Struct):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed"]
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Error | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextField
    top_p: Number
    presence_penalty: Number
    frequency_penalty: Number
    top_logprobs: int
    temperature: Number
    reasoning: ReasoningField | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class CompactionResponse(msgspec.Struct):
    id: str
    object: Literal["response.compaction"]
    output: list[Item]
    created_at: int
    usage: Usage


# --- events ----------------------------------------------------------------------------------------------------------


class _Event(_TypedObject):
    sequence_number: int


class _ResponseEvent(_Event):
    response: Response


class CreatedEvent(_ResponseEvent, tag="response.created"):
    pass


class QueuedEvent(_ResponseEvent, tag="response.queued"):
    pass


class InProgressEvent(_ResponseEvent, tag="response.in_progress"):
    pass


class CompletedEvent(_ResponseEvent, tag="response.completed"):
    pass


class FailedEvent(_ResponseEvent, tag="response.failed"):
    pass


class IncompleteEvent(_ResponseEvent, tag="response.incomplete"):
    pass


class _OutputEvent(_Event):
    output_index: int


class ItemAddedEvent(_OutputEvent, tag="response.output_item.added"):
    item: Item


class ItemDoneEvent(_OutputEvent, tag="response.output_item.done"):
    item: Item


class _ItemEvent(_OutputEvent):
    item_id: str


class _PartEvent(_ItemEvent):
    content_index: int


class PartAddedEvent(_PartEvent, tag="response.content_part.added"):
    part: Part


class PartDoneEvent(_PartEvent, tag="response.content_part.done"):
    part: Part


class TextDeltaEvent(_PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[LogProb] | UnsetType = UNSET


class TextDoneEvent(_PartEvent, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[LogProb] | UnsetType = UNSET


class AnnotationAddedEvent(_PartEvent, tag="response.output_text.annotation.added"):
    annotation_index: int
    annotation: UrlCitation | None


class RefusalDeltaEvent(_PartEvent, tag="response.refusal.delta"):
    delta: str


class RefusalDoneEvent(_PartEvent, tag="response.refusal.done"):
    refusal: str


class ReasoningDeltaEvent(_PartEvent, tag="response.reasoning.delta"):
    delta: str


class ReasoningDoneEvent(_PartEvent, tag="response.reasoning.done"):
    text: str


class _SummaryEvent(_ItemEvent):
    summary_index: int


class SummaryPartAddedEvent(_SummaryEvent, tag="response.reasoning_summary_part.added"):
    part: Part


class SummaryPartDoneEvent(_SummaryEvent, tag="response.reasoning_summary_part.done"):
    part: Part


class SummaryDeltaEvent(_SummaryEvent, tag="response.reasoning_summary_text.delta"):
    delta: str


class SummaryDoneEvent(_SummaryEvent, tag="response.reasoning_summary_text.done"):
    text: str


class ArgumentsDeltaEvent(_ItemEvent, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDoneEvent(_ItemEvent, tag="response.function_call_arguments.done"):
    arguments: str


class ErrorPayload(msgspec.Struct):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(_Event, tag="error"):
    error: ErrorPayload


Event = (
    CreatedEvent
    | QueuedEvent
    | InProgressEvent
    | CompletedEvent
    | FailedEvent
    | IncompleteEvent
    | ItemAddedEvent
    | ItemDoneEvent
    | PartAddedEvent
    | PartDoneEvent
    | TextDeltaEvent
    | TextDoneEvent
    | AnnotationAddedEvent
    | RefusalDeltaEvent
    | RefusalDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | SummaryPartAddedEvent
    | SummaryPartDoneEvent
    | SummaryDeltaEvent
    | SummaryDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | ErrorEvent
)


class SocketErrorPayload(msgspec.Struct, kw_only=True):
    type: str | UnsetType = UNSET
    code: str
    message: str
    param: str | UnsetType | None = UNSET


class SocketError(_TypedObject, tag="error"):
    status: int
    error: SocketErrorPayload


# --- checks ----------------------------------------------------------------------------------------------------------


def check_response(wire: Any) -> Response:
    """Check the fields, the status, the usage and the items of a response."""
    response = msgspec.convert(wire, Response)
    assert len({item.id for item in response.output}) == len(response.output), "items share an id"
    assert (response.status == "completed") == (response.completed_at is not None)
    if response.status == "completed":
        assert response.completed_at is not None
        assert response.completed_at >= response.created_at
        assert response.usage is not None
        assert all(getattr(item, "status", "completed") == "completed" for item in response.output)
    return response


class StreamChecker:
    """Checks the events of a stream: their fields, sequence numbers, items and order."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {}  # of the last event
        self._items: list[dict[str, Any]] = []
        self._open: dict[int, str] = {}  # item ids by output index
        self._parts: dict[tuple[str, int], str] = {}  # the text of open parts

    def add(self, wire: dict[str, Any]) -> None:
        event = msgspec.convert(wire, Event)
        assert wire["sequence_number"] == len(self.events)
        self.events.append(wire)
        if isinstance(event, _ResponseEvent):
            self._add_response(wire["response"])
        elif isinstance(event, ItemAddedEvent):
            assert event.output_index == len(self._items) + len(self._open)
            assert getattr(event.item, "status", "in_progress") == "in_progress"
            self._open[event.output_index] = event.item.id
        elif isinstance(event, ItemDoneEvent):
            assert self._open.pop(event.output_index) == event.item.id
            assert not [key for key in self._parts if key[0] == event.item.id], "a part is open"
            self._items.append(wire["item"])
        elif isinstance(event, _ItemEvent):
            assert self._open[event.output_index] == event.item_id
            self._add_part(event)

    def _add_response(self, wire: dict[str, Any]) -> None:
        response = check_response(wire)
        if self.response:
            assert response.id == self.response["id"]
        else:
            assert self.events[0]["type"] == "response.created"
        if response.status in ("queued", "in_progress"):
            assert (response.output, response.usage) == ([], None)
        elif response.status == "completed":
            assert self._open == {}
            assert wire["output"] == self._items
        self.response = wire

    def _add_part(self, event: Any) -> None:
        index = getattr(event, "content_index", getattr(event, "summary_index", 0))
        key = (event.item_id, index)
        match event:
            case PartAddedEvent() | SummaryPartAddedEvent():
                assert key not in self._parts
                self._parts[key] = ""
            case PartDoneEvent() | SummaryPartDoneEvent():
                assert self._parts.pop(key) == getattr(event.part, "text", getattr(event.part, "refusal", None))
            case ArgumentsDoneEvent(arguments=text):
                assert self._parts.pop(key, "") == text
            case TextDoneEvent(text=text) | SummaryDoneEvent(text=text) | RefusalDoneEvent(refusal=text):
                assert self._parts[key] == text
            case ArgumentsDeltaEvent(delta=delta):
                self._parts[key] = self._parts.get(key, "") + delta
            case TextDeltaEvent(delta=delta) | SummaryDeltaEvent(delta=delta) | RefusalDeltaEvent(delta=delta):
                self._parts[key] += delta

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


# --- client ----------------------------------------------------------------------------------------------------------


class Socket:
    """A WebSocket of a client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, model: str) -> None:
        self._socket = socket
        self._model = model

    async def ask(self, **fields: Any) -> dict[str, Any]:
        """Send a request and return its last response or its error event."""
        await self._socket.send_json({"type": "response.create", "model": self._model, "store": False, **fields})
        checker = StreamChecker()
        while True:
            wire = await self._socket.receive_json(timeout=WAIT_S)
            if wire["type"] == "error":
                msgspec.convert(wire, SocketError)
                return dict(wire)
            checker.add(wire)
            if wire["type"] in ENDS:
                return checker.response


class Client:
    """A client for one model."""

    def __init__(self, session: aiohttp.ClientSession, base: str, model: str) -> None:
        self._session = session
        self._base = base
        self._model = model

    async def post(self, path: str = "/responses", **fields: Any) -> tuple[int, Any]:
        """Send a request and return status and body."""
        async with self._session.post(self._base + path, json=fields) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def create(self, **fields: Any) -> dict[str, Any]:
        status, wire = await self.post(**{"model": self._model, **fields})
        assert status == 200, wire
        check_response(wire)
        return dict(wire)

    async def compact(self, **fields: Any) -> dict[str, Any]:
        status, wire = await self.post("/responses/compact", **{"model": self._model, **fields})
        assert status == 200, wire
        msgspec.convert(wire, CompactionResponse)
        return dict(wire)

    async def stream(self, *, has_end: bool = True, **fields: Any) -> StreamChecker:
        """Return the checked stream. ``has_end`` states whether it ends with ``data: [DONE]``."""
        body = {"model": self._model, **fields, "stream": True}
        async with self._session.post(self._base + "/responses", json=body) as response:
            data = await response.read()
            assert response.status == 200, data
            assert response.headers["content-type"].startswith("text/event-stream")
        frames = data.decode().removesuffix("\n\n").split("\n\n")
        assert (frames[-1] == "data: [DONE]") == has_end
        checker = StreamChecker()
        for frame in frames[:-1] if has_end else frames:
            name, text = frame.split("\n")
            wire = msgspec.json.decode(text.removeprefix("data: "))
            assert name == f"event: {wire['type']}"
            checker.add(wire)
        return checker

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Socket]:
        async with self._session.ws_connect(self._base + "/responses") as socket:
            yield Socket(socket, self._model)
