"""Write streams: events to server-sent events, each as soon as possible."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.dialects.cohere.blocks import NAME, unsupported_reason, write_call, write_part
from dragoman.dialects.cohere.citations import PLAN, place_of_part, write_citations
from dragoman.dialects.cohere.reply import DETAILS, default_reply, default_start
from dragoman.dialects.cohere.support import SUPPORT
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from dragoman.exchange import Reply, StopReason
from dragoman.jsontext import join_surrogates, list_or_empty
from dragoman.message import (
    CallBlock,
    Citation,
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.frames import json_text, sse_frame
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_STREAMED_FIELDS: Final = ("content", "tool_plan", "tool_calls", "citations")


class _CitedText:
    """A text and its citations, which are written last, with the words that they refer to."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._citations: list[Citation] = []

    def add(self, delta: TextDelta) -> None:
        """Add a piece."""
        self._pieces.append(delta.text)
        self._citations.extend(delta.citations)

    def write(self, place: dict[str, Any]) -> list[dict[str, Any]]:
        """Write the citations."""
        text = join_surrogates("".join(self._pieces)) if self._citations else ""
        return write_citations(text, self._citations, place)


class StreamWriter(BaseStreamWriter):
    """Convert events to the bytes of a stream. A part is open until another block starts; citations come last."""

    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_reason)

    open_call_stop_reasons = (StopReason.MAX_TOKENS,)

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._parts: dict[int, int] = {}  # block index to wire index
        self._part_count = 0
        self._open_part: int | None = None  # its block index
        self._calls: dict[int, int] = {}
        self._plan_index: int | None = None
        self._cited_texts: dict[int, _CitedText] = {}  # by block index

    def write_start(self, start: MessageStart) -> bytes:
        """Write the empty message."""
        notes = get_notes(start.provider_raw, NAME)
        fields = {**apply_diff(default_start(notes.get("form")), notes.get("residue")), **self.identity}
        message = (
            fields["message"] if notes else {**fields["message"], "tool_plan": "", "tool_calls": [], "citations": []}
        )
        empty = {key: type(message[key])() for key in _STREAMED_FIELDS if message.get(key)}
        if isinstance(message.get("content"), str):
            empty["content"] = []
        id_field = {"id": fields["id"]} if "id" in fields else {}
        return _write_event({**id_field, "type": "message-start", "delta": {"message": {**message, **empty}}})

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        if type(event) is TextDelta:
            self._cited_texts.setdefault(event.index, _CitedText()).add(event)
        return super().feed(event)

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write text; its citations come last."""
        return self.write_text(delta.index, text, delta.provider_raw)

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write text of the plan or of a part."""
        is_plan = get_notes(raw, NAME).get("form") == "tool_plan" and index not in self._parts
        if index == self._plan_index or (is_plan and self._plan_index is None):
            self._plan_index = index
            return _write_event({"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}) if text else b""
        return self._write_part_text("text", index, text, TextBlock("", raw))

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning."""
        is_native = bool(get_notes(raw, NAME)) or index in self._parts
        return self._write_part_text("thinking", index, text, ThinkingBlock("", None, raw)) if is_native else b""

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write a call without its input."""
        call = write_call(ToolUseBlock(start.id, start.name, {}, start.provider_raw))
        if isinstance(call["function"].get("arguments"), str):
            call["function"] = {**call["function"], "arguments": ""}
        position = self._calls[start.index] = len(self._calls)
        return self._end_part() + _write_delta("tool-call-start", position, "tool_calls", call)

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write a fragment of the input."""
        piece = {"function": {"arguments": text}}
        return _write_delta("tool-call-delta", self._calls[index], "tool_calls", piece) if text else b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return _write_event({"type": "tool-call-end", "index": self._calls[end.index]})

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a complete block, if the API supports it."""
        match block:
            case TextBlock(text, raw, citations):
                self._cited_texts.setdefault(index, _CitedText()).add(TextDelta(index, text, raw, citations))
                return self.write_text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.write_thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._write_whole_call(index, block)
            case _ if unsupported_reason(block) is None:
                return self._start_part(index, write_part(block)) + self._end_part()
            case _:
                return b""

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the end with all fields that were added since the start."""
        return self._write_message_end(Reply(stop_reason=end.stop_reason, usage=usage), end.provider_raw)

    def write_failure(self, error: StreamError) -> bytes:
        """Write the end of a failed message, with an error in place of the finish reason."""
        reply = Reply(stop_reason=StopReason.ERROR, usage=self.usage, fault=error.fault)
        return self._write_message_end(reply, error.provider_raw)

    def _write_message_end(self, reply: Reply, raw: ProviderRaw | None) -> bytes:
        notes = get_notes(raw, NAME)
        default = default_reply(reply, (), notes.get("form"))
        places = {index: place_of_part(part) for index, part in self._parts.items()}
        if self._plan_index is not None:
            places[self._plan_index] = PLAN
        texts = [(text, places[index]) for index, text in self._cited_texts.items() if index in places]
        citations = [citation for text, place in texts for citation in text.write(place)]
        if citations:
            default["message"]["citations"] = citations
        wire = apply_diff(default, notes.get("residue"))
        frames = [self._end_part()]
        for index, citation in enumerate(list_or_empty(wire["message"].get("citations"))):
            frames.append(_write_delta("citation-start", index, "citations", citation))
            frames.append(_write_event({"type": "citation-end", "index": index}))
        delta = {key: value for key, value in wire.items() if key not in ("id", "message")}
        frames.append(_write_event({"type": "message-end", "delta": delta}))
        return b"".join(frames) + b"data: [DONE]\n\n"

    def _write_part_text(self, key: str, index: int, text: str, empty_block: TextBlock | ThinkingBlock) -> bytes:
        """Continue a part. A part that has ended continues as a new part."""
        started = b""
        if self._open_part != index:
            if not text and index in self._parts:
                return b""
            started = self._start_part(index, {**write_part(empty_block), "type": key, key: ""})
        before, after = template = self._text_template(key, index)
        self.set_text_template(TextDelta if key == "text" else ThinkingDelta, index, empty_block.provider_raw, template)
        return started + (before + json_text(text) + after if text else b"")

    def _text_template(self, key: str, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text of an event."""
        before, _, after = _write_delta("content-delta", self._parts[index], "content", {key: ""}).rpartition(b'""')
        return before, after

    def _start_part(self, index: int, part: dict[str, Any]) -> bytes:
        closed = self._end_part()
        self._open_part = index
        self._parts[index] = self._part_count
        self._part_count += 1
        return closed + _write_delta("content-start", self._parts[index], "content", part)

    def _end_part(self) -> bytes:
        index, self._open_part = self._open_part, None
        return b"" if index is None else _write_event({"type": "content-end", "index": self._parts[index]})

    def _write_whole_call(self, index: int, block: CallBlock) -> bytes:
        text = msgspec.json.encode(block.input).decode() if isinstance(block, ToolUseBlock) else block.input_text
        start = ToolUseStart(index, block.id, block.name, block.provider_raw)
        return (
            self.write_call_start(start) + self.write_call_input(index, text) + self.write_call_end(ToolUseEnd(index))
        )


def _write_delta(kind: str, index: int, key: str, value: Any) -> bytes:
    return _write_event({"type": kind, "index": index, "delta": {"message": {key: value}}})


def _write_event(wire: dict[str, Any]) -> bytes:
    return sse_frame(wire, wire["type"])


stream_writer = StreamWriter
