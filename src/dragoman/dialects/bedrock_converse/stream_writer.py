"""Write streams: events to AWS event-stream frames, each as soon as possible.

Blocks are sequential, as the provider sends them. Other providers interleave blocks: text that continues after another
block starts a new block, and a call with incomplete input stays open beside the next one. Written data is not stored.

Invariant: reasoning is written only if its first event marks it as native.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from dragoman.dialects.bedrock_converse.blocks import (
    default_block,
    ignore_loss,
    to_compact_json,
    try_parse_object,
    unsupported_reason,
    write_blocks,
)
from dragoman.dialects.bedrock_converse.citations import write_citations
from dragoman.dialects.bedrock_converse.mappings import MALFORMED, NAME
from dragoman.dialects.bedrock_converse.reply import DETAILS, fault_stop_reason, write_end
from dragoman.dialects.bedrock_converse.stream_reader import FRAMINGS
from dragoman.dialects.bedrock_converse.support import SUPPORT
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
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.jsontext import list_or_empty
from dragoman.message import Citation, ContentBlock, InvalidToolUseBlock, ProviderRaw, TokenUsage, ToolUseBlock
from dragoman.wire.faults import stream_error
from dragoman.wire.frames import aws_event_line, aws_frame, aws_frame_as_json
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_FRAMES: Final = dict(zip(FRAMINGS, (aws_frame, aws_frame_as_json, aws_event_line), strict=True))
_STOP_FIELDS: Final = ("stopReason", "additionalModelResponseFields")  # other fields are in metadata
_STRUCTURE: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)  # JSON structure
_EXCEPTIONS: Final = (
    "internalServerException",
    "modelStreamErrorException",
    "serviceUnavailableException",
    "throttlingException",
    "validationException",
)


class _OpenCall:
    """A call on the wire, and whether its input is a complete JSON value."""

    def __init__(self, at: int) -> None:
        self.index = at
        self.is_stopped = False
        self._depth = 0
        self._has_started = False
        self._in_text = False
        self._is_escaped = False  # the last fragment ended with a backslash

    def add(self, text: str) -> None:
        """Add a fragment of the input."""
        start, self._is_escaped = int(self._is_escaped), self._is_escaped and not text
        for token in _STRUCTURE.finditer(text, start):
            self._read_token(token[0])

    def _read_token(self, token: str) -> None:
        if token == "\\":
            self._is_escaped = True
        elif token == '"':
            self._in_text = not self._in_text
        elif not self._in_text and token in "{[":
            self._has_started = True
            self._depth += 1
        elif not self._in_text and token in "}]":
            self._depth -= 1

    @property
    def is_complete(self) -> bool:
        """Whether only white space can follow."""
        return self._has_started and self._depth == 0


class StreamWriter(BaseStreamWriter):
    """Convert events to the bytes of a stream."""

    framings = FRAMINGS
    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(partial(unsupported_reason, place="reply"))

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._frame = _FRAMES[self.framing]
        self._block_count = 0  # blocks on the wire
        self._open_text: tuple[int, int] | None = None  # index of the open text, and its position on the wire
        self._calls: dict[int, _OpenCall] = {}  # open calls
        self._native_thinking: set[int] = set()  # native reasoning
        self._signature: str | None = None
        self._has_unusable = False
        self._has_extra_input = False  # a call received input after its input was complete

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        self._signature = event.signature if isinstance(event, ThinkingDelta) else None
        return super().feed(event)

    def write_start(self, start: MessageStart) -> bytes:
        """Write messageStart."""
        reply = Reply(stop_reason=StopReason.UNKNOWN, provider_raw=start.provider_raw)
        return self._frame(write_end(reply)["output"]["message"], "messageStart")

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write text, followed by its citations."""
        notes = get_notes(delta.provider_raw, NAME)
        was_empty = notes.get("form") == "empty" and not text
        deltas: list[dict[str, Any]] = [{"text": text}] if text or was_empty else []
        deltas.extend({"citation": citation} for citation in _get_citations(notes, delta.citations))
        return self._write_deltas(delta.index, deltas)

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning, followed by its signature."""
        is_first = index not in self._native_thinking
        if is_first and not get_notes(raw, NAME):
            return b""
        self._native_thinking.add(index)
        parts = [{"text": text}] if text or is_first else []
        signature_parts = [{"signature": self._signature}] if self._signature is not None else []
        return self._write_deltas(index, [{"reasoningContent": part} for part in (*parts, *signature_parts)])

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call."""
        notes = get_notes(start.provider_raw, NAME)
        default = default_block(ToolUseBlock(start.id, start.name, {}), notes)
        call = apply_diff(default, notes.get("residue"))["toolUse"]
        closed = self._close_blocks()
        self._calls[start.index] = _OpenCall(self._block_count)
        return closed + self._write_block_start(
            {"toolUse": {key: value for key, value in call.items() if key != "input"}}
        )

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write a fragment of the input of a call."""
        call = self._calls[index]
        if call.is_stopped:
            self._has_extra_input = self._has_extra_input or bool(text.strip())
            return b""
        call.add(text)
        return self._write_delta(call.index, {"toolUse": {"input": text}})

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return self._stop_call(self._calls.pop(end.index))

    def write_block(self, index: int, block: ContentBlock) -> bytes:  # noqa: ARG002  written immediately
        """Write a complete block, if a stream supports it."""
        self._has_unusable = self._has_unusable or isinstance(block, InvalidToolUseBlock)
        return b"".join(self._write_whole_block(wire) for wire in write_blocks([block], "reply", ignore_loss))

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the end of the message and its usage."""
        if self._has_extra_input:
            return self.write_failure(
                stream_error(NAME, "tool_input_invalid", "a call received input after its input was complete")
            )
        reply = Reply(stop_reason=end.stop_reason, stop_sequence=end.stop_sequence, usage=usage)
        return self._write_end(reply.replace(provider_raw=end.provider_raw))

    def write_failure(self, error: StreamError) -> bytes:
        """Write a failure as a stop reason if there is one, else as an exception."""
        fault = error.fault
        if fault_stop_reason(fault) is not None and self._is_fault_visible(fault):
            end = Reply(stop_reason=StopReason.ERROR, fault=fault, usage=self.usage)
            return self._write_end(end.replace(provider_raw=error.provider_raw))
        reply = Reply(stop_reason=StopReason.UNKNOWN, usage=self.usage)
        metadata = b"" if self.usage is None else self._write_metadata(write_end(reply))
        return metadata + self._frame({"message": fault.message}, _exception_name(fault), "exception")

    def _is_fault_visible(self, fault: Fault) -> bool:
        """Return whether a reader finds the same fault although the stop reason is normal."""
        if fault.code == "empty_response":
            return self._block_count == 0
        return fault.provider_code in MALFORMED or (self._has_unusable and not self._calls)

    def _write_end(self, reply: Reply) -> bytes:
        wire = write_end(reply)
        stop = {key: wire[key] for key in _STOP_FIELDS if key in wire}
        calls = b"".join(self._stop_call(call) for call in self._calls.values())
        return self._close_blocks() + calls + self._frame(stop, "messageStop") + self._write_metadata(wire)

    def _write_metadata(self, wire: dict[str, Any]) -> bytes:
        rest = {key: value for key, value in wire.items() if key not in ("output", *_STOP_FIELDS)}
        return self._frame(rest, "metadata") if rest else b""

    def _close_blocks(self) -> bytes:
        """End the open text and all calls with complete input, because another block starts."""
        ends = b""
        if self._open_text is not None:
            ends = self._frame({"contentBlockIndex": self._open_text[1]}, "contentBlockStop")
            self._open_text = None
        return ends + b"".join(self._stop_call(call) for call in self._calls.values() if call.is_complete)

    def _stop_call(self, call: _OpenCall) -> bytes:
        if call.is_stopped:
            return b""
        call.is_stopped = True
        return self._frame({"contentBlockIndex": call.index}, "contentBlockStop")

    def _write_deltas(self, index: int, deltas: list[dict[str, Any]]) -> bytes:
        closed = b""
        if deltas and (self._open_text is None or self._open_text[0] != index):
            closed = self._close_blocks()
            self._open_text = (index, self._block_count)
            self._block_count += 1
        position = self._open_text[1] if self._open_text is not None else 0
        return closed + b"".join(self._write_delta(position, delta) for delta in deltas)

    def _write_block_start(self, start: dict[str, Any] | None) -> bytes:
        """Write the start of a block; text and reasoning start with their first delta."""
        position, self._block_count = self._block_count, self._block_count + 1
        return (
            b"" if start is None else self._frame({"contentBlockIndex": position, "start": start}, "contentBlockStart")
        )

    def _write_delta(self, position: int, delta: dict[str, Any]) -> bytes:
        return self._frame({"contentBlockIndex": position, "delta": delta}, "contentBlockDelta")

    def _write_whole_block(self, wire: dict[str, Any]) -> bytes:
        start, deltas = _split_block(wire)
        position, started = self._block_count, self._close_blocks() + self._write_block_start(start)
        stop = self._frame({"contentBlockIndex": position}, "contentBlockStop")
        return started + b"".join(self._write_delta(position, delta) for delta in deltas) + stop


def _get_citations(notes: ProviderRaw, citations: tuple[Citation, ...]) -> list[Any]:
    """Return the citations of a text."""
    if notes.get("form") != "citations" and not citations:
        return []
    wire = {"content": [{"text": ""}], **({"citations": write_citations(citations)} if citations else {})}
    cited = apply_diff({"citationsContent": wire}, notes.get("residue"))["citationsContent"]
    return list_or_empty(cited.get("citations")) if isinstance(cited, dict) else []


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the start of a block, if it needs one, and its deltas."""
    match block:
        case {"citationsContent": dict(citations_content)} if all(
            map(_is_text, list_or_empty(citations_content.get("content")))
        ):
            deltas = [{"text": part["text"]} for part in list_or_empty(citations_content.get("content"))]
            return None, deltas + [
                {"citation": citation} for citation in list_or_empty(citations_content.get("citations"))
            ]
        case {"reasoningContent": {"reasoningText": dict(reasoning_text)}}:
            return None, [{"reasoningContent": {key: value}} for key, value in reasoning_text.items()]
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
    """Return the input of a call as text. An invalid input must not become valid by quoting it or leaving it empty."""
    if isinstance(value, str) and value.strip() and try_parse_object(value) is None:
        return value
    return to_compact_json(value)


def _exception_name(fault: Fault) -> str:
    """Return the name of the exception for a fault; streams support only a few."""
    native_name = (fault.provider_code or "")[:1].lower() + (fault.provider_code or "")[1:]
    if native_name in _EXCEPTIONS:
        return native_name
    match fault.error_class:
        case ErrorClass.RATE_LIMIT:
            return "throttlingException"
        case ErrorClass.INVALID_REQUEST | ErrorClass.CONTEXT_OVERFLOW | ErrorClass.AUTH:
            return "validationException"
        case ErrorClass.SERVER_ERROR:
            return "internalServerException"
        case _:
            return "modelStreamErrorException"


stream_writer = StreamWriter
