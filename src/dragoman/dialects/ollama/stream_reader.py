"""Read streams: one object per line with a part of the message; the last one is done.

Calls and images arrive complete. Invariant: only a line with ``done`` ends a message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.ollama.blocks import NAME, NATIVE, arguments_text, content_form, read_blocks, read_call, text_at
from dragoman.dialects.ollama.error import read_error
from dragoman.dialects.ollama.reply import REPEATED_FIELDS, default_start, reply_from
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
from dragoman.jsontext import OWN, expect_list, expect_object, read_json, text_or_none
from dragoman.message import ProviderRaw, TokenLogprob
from dragoman.wire.logprobs import read_logprobs
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import make_notes
from dragoman.wire.stream_reader import BaseStreamReader
from dragoman.wire.tool_definitions import read_arguments

_STREAM_FIELDS: Final = frozenset({"message", "done"})  # a line has at least one of these


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

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "ndjson", quirks)
        self._message: dict[str, Any] = {}
        self._seed: str | None = None  # the start time, from which ids of calls are derived
        self._indexes: dict[str, int] = {}
        self._builder = MessageBuilder()
        self._logprobs: tuple[TokenLogprob, ...] = ()  # of the text of the current line

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
        self._logprobs = read_logprobs(wire.get("logprobs"))
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
        """Append text. Only the first piece is stored, as a placeholder."""
        if not self._message.get(key) and (value is not None or key not in self._message):
            self._message[key] = value
        if text and key == "thinking":
            events.append(ThinkingDelta(self._block_index(key), text, None, dict(NATIVE)))
        elif text or (self._logprobs and key in self._indexes):  # probabilities may follow their text
            logprobs, self._logprobs = self._logprobs, ()
            events.append(TextDelta(self._block_index(key), text, None, (), logprobs))

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
    fields = {key: wire[key] for key in REPEATED_FIELDS if key in wire}
    role = {"role": message["role"]} if "role" in message else {}
    return make_notes(
        NAME, default_start(text_or_none(wire.get("model"))), {**fields, "message": role}, form=content_form(message)
    )


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


stream_reader = StreamReader
