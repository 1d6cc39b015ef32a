"""Streams of Converse, written: events in, frames of AWS out, each as soon as it can be said.

One block follows the other, as this provider sends them. Other providers mix them: a text that goes on after another
block began is written as a further block, and a call whose input is not whole stays open beside the next one. Nothing
is kept of what was written.

The one rule: reasoning is said only if the first of its events tells that it came from here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dragoman.dialects.bedrock_converse.blocks import compact, lose_nothing, natural_block, object_of, written_blocks
from dragoman.dialects.bedrock_converse.reader import FRAMINGS
from dragoman.dialects.bedrock_converse.reply import word_of_fault, written_end
from dragoman.dialects.bedrock_converse.words import MALFORMED, NAME
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import aws_frame, decoded_aws_frame
from dragoman.dialects.parts.residue import notes_of, restored
from dragoman.dialects.parts.scalars import list_in
from dragoman.dialects.parts.writing import EventWriter
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.message import ContentBlock, InvalidToolUseBlock, ProviderRaw, TokenUsage, ToolUseBlock

_FRAMES: Final = dict(zip(FRAMINGS, (aws_frame, decoded_aws_frame), strict=True))
_OF_THE_STOP: Final = ("stopReason", "additionalModelResponseFields")  # metadata says the rest
_SIGNS: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)  # what the structure of JSON is made of
_EXCEPTIONS: Final = (
    "internalServerException",
    "modelStreamErrorException",
    "serviceUnavailableException",
    "throttlingException",
    "validationException",
)


class _Call:
    """A call on the wire, and whether its input is a whole value by now."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.is_stopped = False
        self._depth = 0
        self._has_begun = False
        self._in_text = False
        self._is_escaped = False  # by a sign at the end of what came last

    def grow(self, text: str) -> None:
        """More of its input."""
        start, self._is_escaped = int(self._is_escaped), self._is_escaped and not text
        for sign in _SIGNS.finditer(text, start):
            self._take(sign[0])

    def _take(self, sign: str) -> None:
        if sign == "\\":
            self._is_escaped = True
        elif sign == '"':
            self._in_text = not self._in_text
        elif not self._in_text and sign in "{[":
            self._has_begun = True
            self._depth += 1
        elif not self._in_text and sign in "}]":
            self._depth -= 1

    @property
    def is_whole(self) -> bool:
        """Whether nothing can follow but blanks."""
        return self._has_begun and self._depth == 0


class StreamWriter(EventWriter):
    """Events in, bytes out."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, *FRAMINGS):
            raise LookupError(f"{NAME} streams are AWS event streams, not {framing!r}")
        super().__init__(NAME)
        self._frame = _FRAMES[framing or FRAMINGS[0]]
        self._count = 0  # of the blocks on the wire
        self._speaking: tuple[int, int] | None = None  # the text or reasoning that is open, and its number on the wire
        self._calls: dict[int, _Call] = {}  # those that have not ended
        self._own: set[int] = set()  # reasoning that came from here
        self._signature: str | None = None
        self._has_unusable = False
        self._has_too_much = False  # a call went on after its input was whole

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        self._signature = event.signature if isinstance(event, ThinkingDelta) else None
        return super().feed(event)

    def begun(self, start: MessageStart) -> bytes:
        """The message begins."""
        known = Reply(stop_reason=StopReason.UNKNOWN, provider_raw=start.provider_raw)
        return self._frame(written_end(known)["output"]["message"], "messageStart")

    def text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More words; citations stand behind them."""
        notes = notes_of(raw, NAME)
        came_empty = notes.get("form") == "empty" and not text
        words = [{"text": text}] if text or came_empty else []
        return self._spoken(index, [*words, *({"citation": citation} for citation in _citations(notes))])

    def thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """More reasoning, if it is our own; its signature stands behind it."""
        is_first = index not in self._own
        if is_first and not notes_of(raw, NAME):
            return b""
        self._own.add(index)
        words = [{"text": text}] if text or is_first else []
        signed = [{"signature": self._signature}] if self._signature is not None else []
        return self._spoken(index, [{"reasoningContent": part} for part in (*words, *signed)])

    def call_begun(self, start: ToolUseStart) -> bytes:
        """A call begins."""
        notes = notes_of(start.provider_raw, NAME)
        natural = natural_block(ToolUseBlock(start.id, start.name, {}), notes)
        call = restored(natural, notes.get("residue"))["toolUse"]
        settled = self._settled()
        self._calls[start.index] = _Call(self._count)
        return settled + self._begun({"toolUse": {key: value for key, value in call.items() if key != "input"}})

    def call_input(self, index: int, text: str) -> bytes:
        """More of the input of a call."""
        call = self._calls[index]
        if call.is_stopped:
            self._has_too_much = self._has_too_much or bool(text.strip())
            return b""
        call.grow(text)
        return self._delta(call.at, {"toolUse": {"input": text}})

    def call_ended(self, end: ToolUseEnd) -> bytes:
        """A call is complete."""
        return self._stopped(self._calls.pop(end.index))

    def whole(self, index: int, block: ContentBlock) -> bytes:  # noqa: ARG002  it is written at once
        """A block in one piece; nothing, if no stream can carry it."""
        self._has_unusable = self._has_unusable or isinstance(block, InvalidToolUseBlock)
        return b"".join(self._written_whole(wire) for wire in written_blocks([block], "reply", lose_nothing))

    def completed(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """The proper end of the message, and what it consumed."""
        if self._has_too_much:
            return self.failed(stream_error(NAME, "tool_input_invalid", "a call went on after its input was whole"))
        reply = Reply(stop_reason=end.stop_reason, stop_sequence=end.stop_sequence, usage=usage)
        return self._written_end(reply.replace(provider_raw=end.provider_raw))

    def failed(self, error: StreamError) -> bytes:
        """A failure: as a reason for stopping, where one says so, or as an exception."""
        fault = error.fault
        if word_of_fault(fault) is not None and self._shows(fault):
            end = Reply(stop_reason=StopReason.ERROR, fault=fault, usage=self.usage)
            return self._written_end(end.replace(provider_raw=error.provider_raw))
        spent = Reply(stop_reason=StopReason.UNKNOWN, usage=self.usage)
        consumed = b"" if self.usage is None else self._metadata(written_end(spent))
        return consumed + self._frame({"message": fault.message}, _exception(fault), "exception")

    def _shows(self, fault: Fault) -> bool:
        """Whether one who reads the stream finds the same fault, although it ends like any other."""
        if fault.code == "empty_response":
            return self._count == 0
        return fault.provider_code in MALFORMED or (self._has_unusable and not self._calls)

    def _written_end(self, reply: Reply) -> bytes:
        wire = written_end(reply)
        stop = {key: wire[key] for key in _OF_THE_STOP if key in wire}
        calls = b"".join(self._stopped(call) for call in self._calls.values())
        return self._settled() + calls + self._frame(stop, "messageStop") + self._metadata(wire)

    def _metadata(self, wire: dict[str, Any]) -> bytes:
        rest = {key: value for key, value in wire.items() if key not in ("output", *_OF_THE_STOP)}
        return self._frame(rest, "metadata") if rest else b""

    def _settled(self) -> bytes:
        """The ends of what has ended because something else begins."""
        ends = b""
        if self._speaking is not None:
            ends = self._frame({"contentBlockIndex": self._speaking[1]}, "contentBlockStop")
            self._speaking = None
        return ends + b"".join(self._stopped(call) for call in self._calls.values() if call.is_whole)

    def _stopped(self, call: _Call) -> bytes:
        if call.is_stopped:
            return b""
        call.is_stopped = True
        return self._frame({"contentBlockIndex": call.at}, "contentBlockStop")

    def _spoken(self, index: int, deltas: list[dict[str, Any]]) -> bytes:
        settled = b""
        if deltas and (self._speaking is None or self._speaking[0] != index):
            settled = self._settled()
            self._speaking = (index, self._count)
            self._count += 1
        at = self._speaking[1] if self._speaking is not None else 0
        return settled + b"".join(self._delta(at, delta) for delta in deltas)

    def _begun(self, start: dict[str, Any] | None) -> bytes:
        """A block begins; texts and reasoning do so with their first delta."""
        at, self._count = self._count, self._count + 1
        return b"" if start is None else self._frame({"contentBlockIndex": at, "start": start}, "contentBlockStart")

    def _delta(self, at: int, delta: dict[str, Any]) -> bytes:
        return self._frame({"contentBlockIndex": at, "delta": delta}, "contentBlockDelta")

    def _written_whole(self, wire: dict[str, Any]) -> bytes:
        start, deltas = _parts(wire)
        at, begun = self._count, self._settled() + self._begun(start)
        stop = self._frame({"contentBlockIndex": at}, "contentBlockStop")
        return begun + b"".join(self._delta(at, delta) for delta in deltas) + stop


def _citations(notes: ProviderRaw) -> list[Any]:
    """What a text cites; its words do not matter for that."""
    if notes.get("form") != "citations":
        return []
    cited = restored({"citationsContent": {"content": [{"text": ""}]}}, notes.get("residue"))["citationsContent"]
    return list_in(cited.get("citations")) if isinstance(cited, dict) else []


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _parts(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """How a block begins, where that has to be said, and its deltas."""
    match block:
        case {"citationsContent": dict(cited)} if all(map(_is_text, list_in(cited.get("content")))):
            deltas = [{"text": part["text"]} for part in list_in(cited.get("content"))]
            return None, deltas + [{"citation": citation} for citation in list_in(cited.get("citations"))]
        case {"reasoningContent": {"reasoningText": dict(said)}}:
            return None, [{"reasoningContent": {key: value}} for key, value in said.items()]
        case {"toolUse": dict(call)}:
            start = {key: value for key, value in call.items() if key != "input"}
            return {"toolUse": start}, [{"toolUse": {"input": _input_text(call.get("input"))}}]
        case {"toolResult": dict(result)}:
            start = {key: value for key, value in result.items() if key != "content"}
            return {"toolResult": start}, [{"toolResult": result.get("content") or []}]
        case {"image": dict(image)}:
            rest = {key: value for key, value in image.items() if key != "format"}
            return {"image": {"format": image.get("format")}}, [{"image": rest}]
        case _:
            return None, [block]


def _input_text(value: Any) -> str:
    """The input of a call as text. What is none must not look like one, though it be in quotes or empty."""
    if isinstance(value, str) and value.strip() and object_of(value) is None:
        return value
    return compact(value)


def _exception(fault: Fault) -> str:
    """One of the few failures that a stream can tell of."""
    own = (fault.provider_code or "")[:1].lower() + (fault.provider_code or "")[1:]
    if own in _EXCEPTIONS:
        return own
    match fault.error_class:
        case ErrorClass.RATE_LIMIT:
            return "throttlingException"
        case ErrorClass.INVALID_REQUEST | ErrorClass.CONTEXT_OVERFLOW | ErrorClass.AUTH:
            return "validationException"
        case ErrorClass.SERVER_ERROR:
            return "internalServerException"
        case _:
            return "modelStreamErrorException"


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
