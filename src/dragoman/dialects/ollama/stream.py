"""Streams of Ollama chat, both ways: one object a line, each with a piece of the message, and the last one is done.

Calls and pictures come whole. The one rule: only a line that is done ends a message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.ollama.blocks import (
    NAME,
    OF_OURS,
    arguments_text,
    cannot_answer,
    form_of,
    is_own,
    read_blocks,
    read_call,
    text_at,
    written_call,
)
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.ollama.reply import NO_TIME, natural_reply, reply_from
from dragoman.dialects.parts.body import a_list, an_object
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import json_line, json_text, sse_frame
from dragoman.dialects.parts.functions import read_arguments
from dragoman.dialects.parts.reading import FrameReader
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.dialects.parts.writing import EventWriter
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
from dragoman.jsontext import OWN, read_json
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

_SPOKEN: Final = frozenset({"message", "done"})  # a line with neither is none of ours
_HERE: Final = "\0 the words stand here \0"
_EVERY_LINE: Final = ("model", "created_at")


# --- reading ---------------------------------------------------------------------------------------------------------


class StreamReader(FrameReader):
    """Bytes in, events out. The lines are put together to the answer that would have come whole, without its words."""

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing or "ndjson")
        self._message: dict[str, Any] = {}
        self._seed: str | None = None  # what the ids of nameless calls are made of: when the answer began
        self._indexes: dict[str, int] = {}
        self._conversation = Conversation()

    def words(self, data: bytes) -> StreamEvent | None:
        """The next words of a line that says nothing else, in a text that has begun."""
        said = self._message
        if not said.get("content") and not said.get("thinking"):
            return None
        try:
            line = _PLAIN.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        text, thought = line.message.content, line.message.thinking
        if line.done or said.get("role") != "assistant":
            return None
        if text and not thought and said.get("content"):
            return TextDelta(self._indexes["content"], text)
        if thought and not text and said.get("thinking"):
            return ThinkingDelta(self._indexes["thinking"], thought, None, dict(OF_OURS))
        return None

    def decoded(self, data: bytes) -> Any:
        """The value of a line. Only the input of a call needs the careful reader, for two equal keys in it."""
        if b'"tool_calls"' not in data:
            return msgspec.json.decode(data)
        try:
            return read_json(data, OWN)
        except JsonError as error:
            if error.code != "duplicate_key":
                raise
            return _with_inputs_as_texts(data)

    def take(self, wire: dict[str, Any], _name: str | None, events: list[StreamEvent]) -> None:
        """One line."""
        if wire.get("error") is not None:
            events.append(StreamError(read_error(None, {}, wire)))
            return
        if not _SPOKEN & wire.keys():
            return
        self.understood()
        if self._seed is None:
            self._seed = f"{wire.get('created_at')}#"
            events.append(MessageStart(text_or_none(wire.get("model")), _known_at_the_start(wire)))
        if wire.get("message") is not None:
            self._take_message(an_object(wire["message"], "message"), events)
        if wire.get("done") is True:
            whole = reply_from({**wire, "message": self._message})
            if whole.usage is not None:
                events.append(UsageUpdate(whole.usage))
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))

    def _take_message(self, message: dict[str, Any], events: list[StreamEvent]) -> None:
        for key, value in message.items():
            match key:
                case "thinking" | "content":
                    self._take_text(key, text_at(message, key, "message"), value, events)
                case "tool_calls" if value is not None:
                    self._take_calls(a_list(value, "message.tool_calls"), events)
                case "images" if value:
                    self._take_pictures(value, events)
                case "tool_calls" | "images":
                    self._message.setdefault(key, value)
                case _:
                    self._message[key] = value

    def _take_text(self, key: str, text: str, value: Any, events: list[StreamEvent]) -> None:
        """The first words stand for all of them: they are never part of what is noted at the end."""
        if not self._message.get(key) and (value is not None or key not in self._message):
            self._message[key] = value
        if text and key == "thinking":
            events.append(ThinkingDelta(self._index(key), text, None, dict(OF_OURS)))
        elif text:
            events.append(TextDelta(self._index(key), text))

    def _take_pictures(self, pictures: Any, events: list[StreamEvent]) -> None:
        blocks = read_blocks({"role": "assistant", "images": pictures}, "message", self._conversation, "")
        self._grown("images").extend(pictures)
        events.extend(BlockComplete(self._index(f"picture {len(self._indexes)}"), block) for block in blocks)

    def _take_calls(self, calls: list[Any], events: list[StreamEvent]) -> None:
        known = self._grown("tool_calls")
        for call in calls:
            where = f"message.tool_calls[{len(known)}]"
            block = read_call(an_object(call, where), where, self._conversation, f"{self._seed}{len(known)}")
            index = self._index(where)
            events.append(ToolUseStart(index, block.id, block.name, block.provider_raw))
            events.append(ToolUseInputDelta(index, arguments_text(call["function"].get("arguments"))))
            events.append(ToolUseEnd(index, block.provider_raw))
            known.append(call)

    def _grown(self, key: str) -> list[Any]:
        if not self._message.get(key):
            self._message[key] = []
        grown: list[Any] = self._message[key]
        return grown

    def _index(self, what: str) -> int:
        return self._indexes.setdefault(what, len(self._indexes))


def _known_at_the_start(wire: dict[str, Any]) -> ProviderRaw | None:
    """What is noted at the end about the parts of a reply that its first line tells."""
    message = wire["message"] if isinstance(wire.get("message"), dict) else {"role": "assistant", "content": ""}
    told = {key: wire[key] for key in _EVERY_LINE if key in wire}
    role = {"role": message["role"]} if "role" in message else {}
    return noted(
        NAME, _natural_start(text_or_none(wire.get("model"))), {**told, "message": role}, form=form_of(message)
    )


def _natural_start(model: str | None) -> dict[str, Any]:
    named = {"model": model} if model is not None else {}
    return {**named, "created_at": NO_TIME, "message": {"role": "assistant"}}


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["assistant"]
    content: str
    thinking: str = ""


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True):
    message: _PlainMessage
    done: bool
    model: str = ""
    created_at: str = ""


_PLAIN: Final = msgspec.json.Decoder(_PlainLine)


class _Function(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call]


class _Line(msgspec.Struct):
    message: _Message


def _with_inputs_as_texts(data: bytes) -> Any:
    """A line, with each input that says something twice as the text that it came as. It cannot be used, and is kept."""
    wire = msgspec.json.decode(data)
    line = msgspec.json.decode(data, type=_Line)
    for call, raw in zip(wire["message"]["tool_calls"], line.message.tool_calls, strict=True):
        text = bytes(raw.function.arguments).decode()
        if read_arguments(text)[1] is not None:
            call["function"]["arguments"] = text
    return wire


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


# --- writing ---------------------------------------------------------------------------------------------------------


class StreamWriter(EventWriter):
    """Events in, bytes out: one object a line, never an empty line, and a message in each of them."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "ndjson", "sse"):
            raise LookupError(f"{NAME} streams are lines of JSON, not {framing!r}")
        super().__init__(NAME)
        self._framed = sse_frame if framing == "sse" else _framed_line
        self._model: str | None = None
        self._head: dict[str, Any] = {}
        self._message: dict[str, Any] = {}  # what every message says: its role, and a text, be it empty
        self._around_words: dict[str, tuple[bytes, bytes]] = {}
        self._begun: dict[str, set[int]] = {"content": set(), "thinking": set()}
        self._calls: dict[int, tuple[ToolUseStart, list[str]]] = {}
        self._silent: list[ToolUseBlock] = []  # calls without any input: at the limit, these were cut
        self._unusable: str | None = None

    def begun(self, start: MessageStart) -> bytes:
        """Nothing yet: the first piece begins the message."""
        self._model = start.model
        notes = notes_of(start.provider_raw, NAME)
        known = restored(_natural_start(start.model), notes.get("residue"))
        self._head = {key: known[key] for key in _EVERY_LINE if key in known}
        role, content = ("role",) if "role" in known["message"] else (), {} if notes.get("form") else {"content": ""}
        self._message = {**{key: known["message"][key] for key in role}, **content}
        self._around_words = {key: self._line_around(key) for key in ("content", "thinking")}
        return b""

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """There is one text; a second one goes on from it."""
        line = self._words("content", index, text)
        self.grows(TextDelta, index, raw, self._around_words["content"])
        return line

    def thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Reasoning, if it is of this origin."""
        if not notes_of(raw, NAME) and index not in self._begun["thinking"]:
            return b""
        line = self._words("thinking", index, text)
        self.grows(ThinkingDelta, index, raw, self._around_words["thinking"])
        return line

    def call_begun(self, start: ToolUseStart) -> bytes:
        """Nothing yet: calls are written whole."""
        self._calls[start.index] = (start, [])
        return b""

    def call_input(self, index: int, text: str) -> bytes:
        """Nothing yet: calls are written whole."""
        self._calls[index][1].append(text)
        return b""

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """The call."""
        start, pieces = self._calls.pop(end.index)
        text = "".join(pieces)
        value, problem = read_arguments(text)
        if problem is not None:
            return self._call(InvalidToolUseBlock(start.id, start.name, text, problem, end.provider_raw))
        call = ToolUseBlock(start.id, start.name, value, end.provider_raw)
        if text.strip():
            return self._call(call)
        self._silent.append(call)
        return b""

    def whole(self, index: int, block: ContentBlock) -> bytes:
        """A block in one piece, if this wire can say it."""
        match block:
            case TextBlock(text, raw):
                return self.text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._call(block)
            case ImageBlock(source) if cannot_answer(block) is None:
                return self._line({"images": [source.data]})
            case _:
                return b""

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The line that is done, with everything that was learned since the first one."""
        is_limit = end.stop_reason is StopReason.MAX_TOKENS
        cut = next((call.name for call in self._silent if is_limit and not is_own(call)), None)
        if self._unusable is not None or cut is not None:
            what = f"the input of a call of {cut or self._unusable!r} cannot be used"
            return self.failed(stream_error(NAME, "tool_input_truncated" if is_limit else "tool_input_invalid", what))
        calls = self._heard()
        notes = notes_of(end.provider_raw, NAME)
        reply = Reply(stop_reason=end.stop_reason, usage=usage, model=self._model)
        natural = natural_reply(reply, (), notes.get("form"))
        if not notes:
            natural["created_at"] = self._head.get("created_at", NO_TIME)
        return calls + self._framed(restored(natural, notes.get("residue")))

    def failed(self, error: StreamError) -> bytes:
        """What went wrong, on a line of its own."""
        return self._framed(write_error(error.fault).wire)

    def _words(self, key: str, index: int, text: str) -> bytes:
        known = self._begun[key]
        if index not in known:
            text = "\n" + text if known else text
            known.add(index)
        return self._line({key: text}) if text else b""

    def _call(self, block: ToolUseBlock | InvalidToolUseBlock) -> bytes:
        if isinstance(block, InvalidToolUseBlock) and not is_own(block):
            self._unusable = self._unusable or block.name
            return b""
        return self._heard() + self._line({"tool_calls": [written_call(block)]})

    def _heard(self) -> bytes:
        """The calls without input that waited."""
        calls, self._silent = self._silent, []
        return b"".join(self._line({"tool_calls": [written_call(call)]}) for call in calls)

    def _line_around(self, key: str) -> tuple[bytes, bytes]:
        """What stands before and after a text in a line."""
        before, _, after = self._line({key: _HERE}).rpartition(json_text(_HERE))
        return before, after

    def _line(self, message: dict[str, Any]) -> bytes:
        return self._framed({**self._head, "message": {**self._message, **message}, "done": False})


def _framed_line(wire: Any) -> bytes:
    return json_line(wire) + b"\n"


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
