"""Telegraph: a small wire format that only the tests use, as a complete dialect in one file.

request   {"model": "m1", "limit": 100, "heat": 0.5, "tools": [{"name": …, "about": …, "input": …}], "lines": [LINE]}
reply     {"model": "m1", "end": "done", "in": 8, "out": 42, "lines": [LINE]}
stream    {"begin": "m1"}, each LINE, and {"end": "done", "in": 8, "out": 42}: one object a line
error     {"error": "slow down"}
LINE      {"role": "user", "text": "Hi."}
          {"role": "assistant", "call": "c1", "tool": "read_file", "input": {"path": "README.md"}}
          {"role": "tool", "answer": "c1", "text": "# Project Foo"}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    fold,
)
from dragoman.exchange import (
    ErrorClass,
    Fault,
    Loss,
    OpaqueTool,
    Options,
    Reply,
    Request,
    SideEffects,
    StopReason,
    ToolDefinition,
    Written,
)
from dragoman.ids import DEFAULT_ID_FORMAT, format_id
from dragoman.jsontext import accepts_json_text, expect_list, expect_object
from dragoman.message import ContentBlock, Role, TextBlock, TokenUsage, ToolResultBlock, ToolUseBlock
from dragoman.wire.frames import json_line, make_splitter
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes

NAME: Final = "telegraph"
ENDS: Final = {"done": StopReason.END_TURN, "limit": StopReason.MAX_TOKENS, "calls": StopReason.TOOL_USE}
_END_NAMES: Final = {reason: name for name, reason in ENDS.items()}
_OPTIONS: Final = ("max_output_tokens", "temperature", "stream")  # the options of this wire; the URL selects a stream


# --- request ---------------------------------------------------------------------------------------------------------


@accepts_json_text()
def read_request(body: dict[str, Any]) -> Request:
    """Read a request."""
    builder = MessageBuilder()
    for index, item in enumerate(expect_list(body.get("lines"), "$.lines")):
        block = _read_line(item, f"$.lines[{index}]", builder)
        answers = block.tool_use_id if isinstance(block, ToolResultBlock) else None
        builder.add(Role(item["role"]), [block], parent_id=answers)
    request = Request(
        model=body.get("model"),
        messages=tuple(builder.messages),
        tools=tuple(
            _read_tool(expect_object(tool, "$.tools")) for tool in expect_list(body.get("tools", []), "$.tools")
        ),
        options=Options(max_output_tokens=body.get("limit"), temperature=body.get("heat")),
    )
    rest = {key: value for key, value in body.items() if key not in ("lines", "tools")}
    return request.replace(provider_raw=make_notes(NAME, _default_head(request), rest))


def write_request(
    request: Request,
    quirks: Collection[str] = (),
    model: object = None,
    *,
    fit: bool = True,
) -> Written:
    """Write a request and report its losses."""
    losses = [
        Loss("", "", name, NAME, "this wire has no such option")
        for name in Options.__struct_fields__
        if name not in _OPTIONS and getattr(request.options, name) != getattr(Options(), name)
    ]
    lines = []
    ids: dict[str, str] = {}  # provider ids of calls, for the results of these calls
    for message in request.messages:
        kept, lost = _write_lines(message.role.value, message.content, ids)
        lines.extend(kept)
        losses.extend(Loss(message.session_id, message.id, kind, NAME, "no such line") for kind in lost)
    wire = apply_diff(_default_head(request), get_notes(request.provider_raw, NAME).get("residue"))
    tools = [_write_tool(tool) for tool in request.tools if isinstance(tool, ToolDefinition)]
    foreign = [tool for tool in request.tools if isinstance(tool, OpaqueTool)]
    losses.extend(Loss("", "", "tool", NAME, f"a tool of {tool.dialect}") for tool in foreign)
    return Written({**wire, **({"tools": tools} if tools else {}), "lines": lines}, tuple(losses))


def _default_head(request: Request) -> dict[str, Any]:
    head = {"model": request.model, "limit": request.options.max_output_tokens, "heat": request.options.temperature}
    return {key: value for key, value in head.items() if value is not None}


def _read_tool(wire: dict[str, Any]) -> ToolDefinition:
    tool = ToolDefinition(wire["name"], wire["about"], wire["input"], SideEffects.EXECUTE)
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool), wire))


def _default_tool(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "about": tool.description, "input": tool.input_schema}


def _write_tool(tool: ToolDefinition) -> Any:
    return apply_diff(_default_tool(tool), get_notes(tool.provider_raw, NAME).get("residue"))


# --- lines -----------------------------------------------------------------------------------------------------------


def _read_line(wire: Any, where: str, builder: MessageBuilder) -> TextBlock | ToolUseBlock | ToolResultBlock:
    block: TextBlock | ToolUseBlock | ToolResultBlock
    provider_id: str | None = None
    match expect_object(wire, where):
        case {"role": "assistant", "call": str(provider_id), "tool": str(name), "input": dict(value)}:
            block = ToolUseBlock(builder.call_id(provider_id), name, value)
        case {"role": "tool", "answer": str(provider_id), "text": str(text)}:
            block = ToolResultBlock(builder.result_id(provider_id), (TextBlock(text),))
        case {"role": "user" | "assistant" | "system", "text": str(text)}:
            block = TextBlock(text)
        case _:
            raise FormatError("a line says, calls or answers something", where=where)
    return block.replace(
        provider_raw=make_notes(NAME, _default_line(wire["role"], block, provider_id), wire, id=provider_id)
    )


def _default_line(role: str, block: ContentBlock, provider_id: str | None) -> dict[str, Any] | None:
    """Return the line of a block without notes; ``None`` if this wire cannot express it."""
    match block:
        case TextBlock(text):
            return {"role": role, "text": text}
        case ToolUseBlock(call_id, name, value):
            return {
                "role": "assistant",
                "call": provider_id or format_id(call_id, DEFAULT_ID_FORMAT),
                "tool": name,
                "input": value,
            }
        case ToolResultBlock(call_id, content):
            text = "".join(part.text for part in content if isinstance(part, TextBlock))
            return {"role": "tool", "answer": provider_id or format_id(call_id, DEFAULT_ID_FORMAT), "text": text}
        case _:
            return None


def _write_lines(
    role: str, blocks: Iterable[ContentBlock], ids: dict[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines, and the types of the blocks that have no line."""
    lines, lost = [], []
    for block in blocks:
        notes = get_notes(getattr(block, "provider_raw", None), NAME)
        provider_id = notes.get("id")
        if isinstance(block, ToolUseBlock) and provider_id is not None:
            ids[block.id] = provider_id
        elif isinstance(block, ToolResultBlock):
            provider_id = provider_id or ids.get(block.tool_use_id)
            lost.extend(part.type for part in block.content if not isinstance(part, TextBlock))
            lost.extend(["is_error"] if block.is_error else [])
        default = _default_line(role, block, provider_id)
        if default is None:
            lost.append(block.type)
        else:
            lines.append(apply_diff(default, notes.get("residue")))
    return lines, lost


# --- reply -----------------------------------------------------------------------------------------------------------


@accepts_json_text()
def read_reply(body: dict[str, Any]) -> Reply:
    """Read a reply."""
    builder = MessageBuilder()
    items = enumerate(expect_list(body.get("lines"), "$.lines"))
    has_failed = body.get("end") == "error"
    reply = Reply(
        content=tuple(_read_line(item, f"$.lines[{index}]", builder) for index, item in items),
        stop_reason=StopReason.ERROR if has_failed else ENDS.get(str(body.get("end")), StopReason.UNKNOWN),
        usage=TokenUsage(input_tokens=body["in"], output_tokens=body["out"]) if "in" in body else None,
        model=body.get("model"),
        fault=Fault(code="server_error", message="it failed", provider=NAME) if has_failed else None,
    )
    rest = {key: value for key, value in body.items() if key != "lines"}
    return reply.replace(provider_raw=make_notes(NAME, _default_end(reply), rest))


def write_reply(reply: Reply) -> Written:
    """Write a reply and report its losses."""
    lines, lost = _write_lines("assistant", reply.content, {})
    rest = apply_diff(_default_end(reply), get_notes(reply.provider_raw, NAME).get("residue"))
    return Written({**rest, "lines": lines}, tuple(Loss("", "", kind, NAME, "no such line") for kind in lost))


def _default_end(reply: Reply) -> dict[str, Any]:
    wire: dict[str, Any] = {"model": reply.model} if reply.model is not None else {}
    wire["end"] = "error" if reply.fault is not None else _END_NAMES.get(reply.stop_reason, "done")
    if reply.usage is not None:
        wire.update({"in": reply.usage.input_tokens, "out": reply.usage.output_tokens})
    return wire


# --- stream ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Converts bytes to events."""

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = make_splitter(framing or "ndjson")
        self._builder = MessageBuilder()
        self._model: dict[str, Any] = {}
        self._count = 0
        self._over = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that these bytes complete."""
        return [event for frame in self._splitter.feed(data) for event in self._events(frame.data)]

    def close(self) -> list[StreamEvent]:
        """Return the last events of the stream: a fault if it is incomplete."""
        events = [event for frame in self._splitter.close() for event in self._events(frame.data)]
        return events if self._over else [*events, self._fault_event("stream_incomplete", "it ended too early")]

    def _events(self, data: bytes) -> list[StreamEvent]:
        if self._over:
            return []
        try:
            return self._read(expect_object(msgspec.json.decode(data), "line"))
        except (msgspec.DecodeError, FormatError, ValueError, RecursionError) as error:
            return [self._fault_event("bad_event", str(error))]

    def _read(self, wire: dict[str, Any]) -> list[StreamEvent]:
        if "error" in wire:
            self._over = True
            return [StreamError(read_error(None, {}, wire))]
        if "begin" in wire:
            self._model = {"model": wire["begin"]} if wire["begin"] is not None else {}
            return [MessageStart(wire["begin"])]
        if "end" in wire:
            self._over = True
            whole = read_reply({**self._model, **wire, "lines": []})
            usage = [UsageUpdate(whole.usage)] if whole.usage is not None else []
            return [*usage, MessageComplete(whole.stop_reason, None, whole.provider_raw)]
        index, self._count = self._count, self._count + 1
        block = _read_line(wire, f"line {index}", self._builder)
        if isinstance(block, ToolUseBlock):
            value = ToolUseInputDelta(index, msgspec.json.encode(block.input).decode())
            return [ToolUseStart(index, block.id, block.name), value, ToolUseEnd(index, block.provider_raw)]
        if isinstance(block, ToolResultBlock):
            raise FormatError("an answer holds no results", where=f"line {index}")
        return [TextDelta(index, block.text, block.provider_raw)]

    def _fault_event(self, code: str, message: str) -> StreamError:
        self._over = True
        return StreamError(Fault(code=code, message=message, retryable=True, provider=NAME))


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:
    """Return a stream reader of this dialect."""
    return StreamReader(framing)


class StreamWriter:
    """Converts events to bytes, all of them at the end."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "ndjson"):
            raise LookupError(f"{NAME} streams are lines of JSON, not {framing!r}")
        self._taken: list[StreamEvent] = []
        self.losses: tuple[Loss, ...] = ()  # known at the end

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes of an event. Nothing is written before the end of the reply."""
        self._taken.append(event)
        return b""

    def close(self) -> bytes:
        """Return the stream."""
        reply = fold(self._taken)
        written = write_reply(reply)
        wire, self.losses = written.wire, written.losses
        begin, lines = {"begin": wire.pop("model", None)}, wire.pop("lines")
        end = wire if reply.fault is None else write_error(reply.fault).wire
        return b"".join(json_line(line) + b"\n" for line in [begin, *lines, end])


def stream_writer(framing: str | None = None) -> StreamWriter:
    """Return a stream writer of this dialect."""
    return StreamWriter(framing)


# --- error -----------------------------------------------------------------------------------------------------------

_BY_STATUS: Final = {401: ("unauthorized", ErrorClass.AUTH), 429: ("rate_limited", ErrorClass.RATE_LIMIT)}


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Read an error response."""
    message = body.get("error") if isinstance(body, dict) else None
    code, error_class = _BY_STATUS.get(status or 500, ("server_error", ErrorClass.SERVER_ERROR))
    return Fault(
        code=code,
        message=str(message or "no message"),
        error_class=error_class,
        retryable=error_class is not ErrorClass.AUTH,
        retry_after_s=float(headers["retry-after"]) if "retry-after" in headers else None,
        status=status,
        provider=NAME,
    )


def write_error(fault: Fault) -> Written:
    """Write a fault."""
    return Written({"error": fault.message})
