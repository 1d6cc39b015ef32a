"""Convert streams: one object per line with a part of the message; the last one is done.

Calls and images arrive complete. Invariant: only a line with ``done`` ends a message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.ollama.blocks import (
    NAME,
    NATIVE,
    arguments_text,
    content_form,
    is_native,
    read_blocks,
    read_call,
    text_at,
    unsupported_reply_reason,
    write_call,
)
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.ollama.reply import PLACEHOLDER_TIME, default_reply, reply_from
from dragoman.errors import JsonError
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from dragoman.exchange import Reply, StopReason
from dragoman.jsontext import OWN, expect_list, expect_object, read_json, text_or_none
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.faults import stream_error
from dragoman.wire.frames import json_line, json_text, sse_frame
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.stream_reader import BaseStreamReader
from dragoman.wire.stream_writer import BaseStreamWriter
from dragoman.wire.tool_definitions import read_arguments

_STREAM_FIELDS: Final = frozenset({"message", "done"})  # a line has at least one of these
_TEXT_MARKER: Final = "\0 the words stand here \0"
_REPEATED_FIELDS: Final = ("model", "created_at")


# --- reading ---------------------------------------------------------------------------------------------------------


class _TextMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["assistant"]
    content: str
    thinking: str = ""


class _TextLine(msgspec.Struct, forbid_unknown_fields=True):
    message: _TextMessage
    done: bool
    model: str = ""
    created_at: str = ""


class StreamReader(BaseStreamReader):
    """Convert the bytes of a stream to events, and collect the whole reply without its text for the residue."""

    delta_type = _TextLine

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing or "ndjson")
        self._message: dict[str, Any] = {}
        self._seed: str | None = None  # the start time, from which ids of calls are derived
        self._indexes: dict[str, int] = {}
        self._builder = MessageBuilder()

    def read_delta(self, delta: _TextLine) -> StreamEvent | None:
        """Return the event for more text of a block that already has some."""
        message, text, thought = self._message, delta.message.content, delta.message.thinking
        if delta.done or message.get("role") != "assistant":
            return None
        if text and not thought and message.get("content"):
            return TextDelta(self._indexes["content"], text)
        if thought and not text and message.get("thinking"):
            return ThinkingDelta(self._indexes["thinking"], thought, None, dict(NATIVE))
        return None

    def decode_event(self, data: bytes) -> Any:
        """Decode a line. Only calls need the strict reader, which detects duplicate keys in their input."""
        if b'"tool_calls"' not in data:
            return msgspec.json.decode(data)
        try:
            return read_json(data, OWN)
        except JsonError as error:
            if error.code != "duplicate_key":
                raise
            return _decode_inputs_as_text(data)

    def read_event(self, wire: dict[str, Any], _name: str | None, events: list[StreamEvent]) -> None:
        """Read one line."""
        if wire.get("error") is not None:
            events.append(StreamError(read_error(None, {}, wire)))
            return
        if not _STREAM_FIELDS & wire.keys():
            return
        self.mark_recognized()
        if self._seed is None:
            self._seed = f"{wire.get('created_at')}#"
            events.append(MessageStart(text_or_none(wire.get("model")), _start_notes(wire)))
        if wire.get("message") is not None:
            self._read_message(expect_object(wire["message"], "message"), events)
            self.expects_delta = bool(self._message.get("content") or self._message.get("thinking"))
        if wire.get("done") is True:
            reply = reply_from({**wire, "message": self._message})
            if reply.usage is not None:
                events.append(UsageUpdate(reply.usage))
            events.append(MessageComplete(reply.stop_reason, reply.stop_sequence, reply.provider_raw))

    def _read_message(self, message: dict[str, Any], events: list[StreamEvent]) -> None:
        for key, value in message.items():
            match key:
                case "thinking" | "content":
                    self._read_text(key, text_at(message, key, "message"), value, events)
                case "tool_calls" if value is not None:
                    self._read_calls(expect_list(value, "message.tool_calls"), events)
                case "images" if value:
                    self._read_images(value, events)
                case "tool_calls" | "images":
                    self._message.setdefault(key, value)
                case _:
                    self._message[key] = value

    def _read_text(self, key: str, text: str, value: Any, events: list[StreamEvent]) -> None:
        """Append text. The first text stands for all of it, which is never noted."""
        if not self._message.get(key) and (value is not None or key not in self._message):
            self._message[key] = value
        if text and key == "thinking":
            events.append(ThinkingDelta(self._block_index(key), text, None, dict(NATIVE)))
        elif text:
            events.append(TextDelta(self._block_index(key), text))

    def _read_images(self, images: Any, events: list[StreamEvent]) -> None:
        blocks = read_blocks({"role": "assistant", "images": images}, "message", self._builder, "")
        self._get_list("images").extend(images)
        events.extend(BlockComplete(self._block_index(f"picture {len(self._indexes)}"), block) for block in blocks)

    def _read_calls(self, calls: list[Any], events: list[StreamEvent]) -> None:
        existing = self._get_list("tool_calls")
        for call in calls:
            where = f"message.tool_calls[{len(existing)}]"
            block = read_call(expect_object(call, where), where, self._builder, f"{self._seed}{len(existing)}")
            index = self._block_index(where)
            events.append(ToolUseStart(index, block.id, block.name, block.provider_raw))
            events.append(ToolUseInputDelta(index, arguments_text(call["function"].get("arguments"))))
            events.append(ToolUseEnd(index, block.provider_raw))
            existing.append(call)

    def _get_list(self, key: str) -> list[Any]:
        if not self._message.get(key):
            self._message[key] = []
        items: list[Any] = self._message[key]
        return items

    def _block_index(self, key: str) -> int:
        return self._indexes.setdefault(key, len(self._indexes))


def _start_notes(wire: dict[str, Any]) -> ProviderRaw | None:
    """Return the notes about the reply that the first line contains."""
    message = wire["message"] if isinstance(wire.get("message"), dict) else {"role": "assistant", "content": ""}
    fields = {key: wire[key] for key in _REPEATED_FIELDS if key in wire}
    role = {"role": message["role"]} if "role" in message else {}
    return make_notes(
        NAME, _default_start(text_or_none(wire.get("model"))), {**fields, "message": role}, form=content_form(message)
    )


def _default_start(model: str | None) -> dict[str, Any]:
    model_field = {"model": model} if model is not None else {}
    return {**model_field, "created_at": PLACEHOLDER_TIME, "message": {"role": "assistant"}}


class _RawFunction(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _RawCall(msgspec.Struct):
    function: _RawFunction


class _RawMessage(msgspec.Struct):
    tool_calls: list[_RawCall]


class _RawLine(msgspec.Struct):
    message: _RawMessage


def _decode_inputs_as_text(data: bytes) -> Any:
    """Decode a line; an input with duplicate keys is kept as text and is unusable."""
    wire = msgspec.json.decode(data)
    line = msgspec.json.decode(data, type=_RawLine)
    for call, raw in zip(wire["message"]["tool_calls"], line.message.tool_calls, strict=True):
        text = bytes(raw.function.arguments).decode()
        if read_arguments(text)[1] is not None:
            call["function"]["arguments"] = text
    return wire


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  no quirks
    """Return a reader for streams of this dialect."""
    return StreamReader(framing)


# --- writing ---------------------------------------------------------------------------------------------------------


class StreamWriter(BaseStreamWriter):
    """Convert events to lines, each with a message."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "ndjson", "sse"):
            raise LookupError(f"{NAME} streams are lines of JSON, not {framing!r}")
        super().__init__(NAME)
        self._write_frame = sse_frame if framing == "sse" else _write_json_line
        self._model: str | None = None
        self._repeated_fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {}  # fields of every message: role and content
        self._text_templates: dict[str, tuple[bytes, bytes]] = {}
        self._text_blocks: dict[str, set[int]] = {"content": set(), "thinking": set()}
        self._calls: dict[int, tuple[ToolUseStart, list[str]]] = {}
        self._calls_without_input: list[ToolUseBlock] = []  # at the token limit, these are truncated
        self._unusable_call: str | None = None

    def write_start(self, start: MessageStart) -> bytes:
        """Write nothing: the first line starts the message."""
        self._model = start.model
        notes = get_notes(start.provider_raw, NAME)
        start_fields = apply_diff(_default_start(start.model), notes.get("residue"))
        self._repeated_fields = {key: start_fields[key] for key in _REPEATED_FIELDS if key in start_fields}
        role, content = (
            ("role",) if "role" in start_fields["message"] else (),
            {} if notes.get("form") else {"content": ""},
        )
        self._message = {**{key: start_fields["message"][key] for key in role}, **content}
        self._text_templates = {key: self._make_template(key) for key in ("content", "thinking")}
        return b""

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write text. A message has one text; a second block continues it."""
        line = self._write_line_text("content", index, text)
        self.set_text_template(TextDelta, index, raw, self._text_templates["content"])
        return line

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning."""
        if not get_notes(raw, NAME) and index not in self._text_blocks["thinking"]:
            return b""
        line = self._write_line_text("thinking", index, text)
        self.set_text_template(ThinkingDelta, index, raw, self._text_templates["thinking"])
        return line

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[start.index] = (start, [])
        return b""

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[index][1].append(text)
        return b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the call."""
        start, pieces = self._calls.pop(end.index)
        text = "".join(pieces)
        value, problem = read_arguments(text)
        if problem is not None:
            return self._write_call(InvalidToolUseBlock(start.id, start.name, text, problem, end.provider_raw))
        call = ToolUseBlock(start.id, start.name, value, end.provider_raw)
        if text.strip():
            return self._write_call(call)
        self._calls_without_input.append(call)
        return b""

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a complete block, if the API supports it."""
        match block:
            case TextBlock(text, raw):
                return self.write_text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.write_thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._write_call(block)
            case ImageBlock(source) if unsupported_reply_reason(block) is None:
                return self._write_line({"images": [source.data]})
            case _:
                return b""

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the line that is done, with all fields that were added since the start."""
        is_limit = end.stop_reason is StopReason.MAX_TOKENS
        truncated = next((call.name for call in self._calls_without_input if is_limit and not is_native(call)), None)
        if self._unusable_call is not None or truncated is not None:
            problem = f"the input of a call of {truncated or self._unusable_call!r} cannot be used"
            return self.write_failure(
                stream_error(NAME, "tool_input_truncated" if is_limit else "tool_input_invalid", problem)
            )
        calls = self._write_pending_calls()
        notes = get_notes(end.provider_raw, NAME)
        reply = Reply(stop_reason=end.stop_reason, usage=usage, model=self._model)
        default = default_reply(reply, (), notes.get("form"))
        if not notes:
            default["created_at"] = self._repeated_fields.get("created_at", PLACEHOLDER_TIME)
        return calls + self._write_frame(apply_diff(default, notes.get("residue")))

    def write_failure(self, error: StreamError) -> bytes:
        """Write the error as a line."""
        return self._write_frame(write_error(error.fault).wire)

    def _write_line_text(self, key: str, index: int, text: str) -> bytes:
        started = self._text_blocks[key]
        if index not in started:
            text = "\n" + text if started else text
            started.add(index)
        return self._write_line({key: text}) if text else b""

    def _write_call(self, block: ToolUseBlock | InvalidToolUseBlock) -> bytes:
        if isinstance(block, InvalidToolUseBlock) and not is_native(block):
            self._unusable_call = self._unusable_call or block.name
            return b""
        return self._write_pending_calls() + self._write_line({"tool_calls": [write_call(block)]})

    def _write_pending_calls(self) -> bytes:
        """Write the calls without input that waited for the end."""
        calls, self._calls_without_input = self._calls_without_input, []
        return b"".join(self._write_line({"tool_calls": [write_call(call)]}) for call in calls)

    def _make_template(self, key: str) -> tuple[bytes, bytes]:
        """Return the bytes before and after a text in a line."""
        before, _, after = self._write_line({key: _TEXT_MARKER}).rpartition(json_text(_TEXT_MARKER))
        return before, after

    def _write_line(self, message: dict[str, Any]) -> bytes:
        return self._write_frame({**self._repeated_fields, "message": {**self._message, **message}, "done": False})


def _write_json_line(wire: Any) -> bytes:
    return json_line(wire) + b"\n"


def stream_writer(framing: str | None = None) -> StreamWriter:
    """Return a writer for streams of this dialect."""
    return StreamWriter(framing)
