"""Write streams. Every chunk is a response with one part of the answer, written as soon as possible.

Text is written immediately. A call is written complete at its end, and later blocks wait for it. The last chunk
contains the finish reason, usage and the other fields of the reply. A failure ends with a failure reason, or with an
error in place of the last chunk.

Invariant: only a complete message gets the finish reason of a complete message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.dialects.gemini.blocks import unsupported_reason, write_part
from dragoman.dialects.gemini.code_assist import wrap_response
from dragoman.dialects.gemini.error import write_error
from dragoman.dialects.gemini.key_case import NAME
from dragoman.dialects.gemini.reply import (
    DETAILS,
    default_rest,
    default_usage,
    drop_finish_reason,
    write_finish_reason,
    write_with_parts,
)
from dragoman.dialects.gemini.stream_reader import NATIVE_THINKING, REPEATED_FIELDS
from dragoman.dialects.gemini.support import SUPPORT
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
    fold,
)
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.jsontext import join_surrogates
from dragoman.message import (
    Alternative,
    Citation,
    ContentBlock,
    InvalidToolUseBlock,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
)
from dragoman.wire.frames import json_line, sse_frame
from dragoman.wire.residue import apply_diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_Part = dict[str, Any]
_EMPTY_TEXT: Final[_Part] = {"text": ""}


class _OpenCall:
    """A call whose input is incomplete."""

    def __init__(self, start: ToolUseStart) -> None:
        self.start = start
        self.fragments: list[str] = []
        self.end: ToolUseEnd | None = None

    def has_no_input(self) -> bool:
        return not any(fragment.strip() for fragment in self.fragments)

    def to_block(self) -> ContentBlock:
        """Return the call as ``fold`` would: valid or invalid."""
        text = ToolUseInputDelta(self.start.index, "".join(self.fragments))
        return fold((self.start, text, self.end or ToolUseEnd(self.start.index))).content[0]


def _join_texts(first: TextBlock, second: TextBlock) -> TextBlock:
    citations = (*_place_citations(first, 0), *_place_citations(second, len(first.text)))
    logprobs = (*first.token_logprobs, *second.token_logprobs)
    return TextBlock(first.text + second.text, citations=citations, token_logprobs=logprobs)


def _place_citations(block: TextBlock, offset: int) -> Iterator[Citation]:
    """Yield the citations of a text that starts at an offset; one without a place refers to the whole text."""
    for citation in block.citations:
        end = len(block.text) if citation.end is None else citation.end
        yield citation.replace(start=offset + (citation.start or 0), end=offset + end)


class StreamWriter(BaseStreamWriter):
    """Convert events to the bytes of a stream."""

    framings = ("sse", "json-array")
    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_reason)

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._is_array = framing == "json-array"
        self._has_items = False  # whether the array has an item
        self._model: str | None = None
        self._wrapper: _Part | None = None
        self._repeated_fields: _Part = {}  # fields that every chunk repeats
        self._content: _Part = {"role": "model"}
        self._candidate: _Part = {"index": 0}
        self._is_usage_written = True
        self._calls: dict[int, _OpenCall] = {}
        self._pending_parts: dict[int, list[_Part]] = {}  # parts that wait for an earlier call
        self._native_thinking: set[int] = set()  # reasoning blocks of this dialect
        self._has_content = False
        self._texts: dict[int, list[TextDelta]] = {}
        self._other_blocks: set[int] = set()  # indexes of written blocks that are not texts
        self._alternatives: list[Alternative] = []
        self._fault: Fault | None = None  # of an invalid call
        self._last_reply: Reply | None = None

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event; the end does not wait for usage, which may follow in a chunk of its own."""
        if self._last_reply is not None:
            return self._write_late_usage(event)
        if isinstance(event, UsageUpdate):
            self._is_usage_written = False  # written with the next chunk
        elif isinstance(event, StreamError):
            self._fault = None
        data = super().feed(event)
        return data + super().close() if isinstance(event, MessageComplete) else data

    def close(self) -> bytes:
        """Return the remaining bytes: an error if the message is incomplete, and the end of the array."""
        data = super().close()
        return data + b"]" if self._is_array else data

    def write_start(self, start: MessageStart) -> bytes:
        """Write nothing: every chunk repeats the fields of the start."""
        notes = get_notes(start.provider_raw, NAME)
        reply = Reply(stop_reason=StopReason.UNKNOWN, model=start.model)
        wire = apply_diff(default_rest(reply, {**notes, "no_finish_reason": True}), notes.get("residue"))
        self._model = start.model
        self._wrapper = notes.get("wrapper")
        self._repeated_fields = {key: wire[key] for key in REPEATED_FIELDS if key in wire} | self.identity
        first: _Part = next(iter(wire.get("candidates") or ()), {})
        content = first.get("content")
        self._content = {key: content[key] for key in content if key != "parts"} if isinstance(content, dict) else {}
        self._candidate = {"index": first["index"]} if "index" in first else {}
        return b""

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write text; citations and token probabilities are in the last chunk."""
        self._texts.setdefault(delta.index, []).append(delta)
        return self._add_text(delta.index, TextBlock(text, delta.provider_raw))

    def write_alternative(self, alternative: Alternative) -> bytes:
        """Keep a further answer for the last chunk."""
        self._alternatives.append(alternative)
        return b""

    def _details(self, *, is_native: bool) -> tuple[ContentBlock, ...]:
        """Return the texts with citations or probabilities, as far as the last chunk needs them.

        A client joins texts that follow each other, so the places of citations count from the start of the joined text.
        """
        if not any(delta.citations or delta.token_logprobs for deltas in self._texts.values() for delta in deltas):
            return ()
        blocks: list[TextBlock] = []
        last = 0
        for index, deltas in sorted(self._texts.items()):
            citations = tuple(citation for delta in deltas for citation in delta.citations)
            logprobs = tuple(item for delta in deltas for item in delta.token_logprobs)
            text = join_surrogates("".join(delta.text for delta in deltas))
            block = TextBlock(text, citations=citations, token_logprobs=logprobs)
            if blocks and not is_native and self._other_blocks.isdisjoint(range(last, index)):
                blocks[-1] = _join_texts(blocks[-1], block)
            else:
                blocks.append(block)
            last = index
        return tuple(blocks)

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write native reasoning."""
        if get_notes(delta.provider_raw, NAME):
            self._native_thinking.add(delta.index)
        if delta.index not in self._native_thinking:
            return b""
        return self._add_text(delta.index, ThinkingBlock(text, delta.signature, delta.provider_raw or NATIVE_THINKING))

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[start.index] = _OpenCall(start)
        return b""

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write nothing: calls are written complete."""
        self._calls[index].fragments.append(text)
        return b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the call; without input, the end of the message shows whether it was truncated."""
        self._calls[end.index].end = end
        if self._calls[end.index].has_no_input():
            return b""
        return self.write_block(end.index, self._calls.pop(end.index).to_block())

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a complete block, if the API supports it."""
        if isinstance(block, InvalidToolUseBlock):
            self.add_loss(block.type, f"an invalid call: {block.reason}")
            self._fault = self._fault or _fold_fault(BlockComplete(0, block), MessageComplete(StopReason.TOOL_USE))
            return b""
        if isinstance(block, TextBlock):
            delta = TextDelta(index, block.text, block.provider_raw, block.citations, block.token_logprobs)
            return self.write_text_delta(delta, block.text)
        return self._add_parts(index, [] if unsupported_reason(block) is not None else [write_part(block)])

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the last chunk: calls without input, finish reason and usage."""
        if self._calls and end.stop_reason is StopReason.MAX_TOKENS:
            start = next(iter(self._calls.values())).start
            return self.write_failure(StreamError(_fold_fault(start.replace(index=0), end)))
        if self._fault is not None:
            return self.write_failure(StreamError(self._fault))
        calls, self._calls = self._calls, {}
        data = b"".join([self.write_block(index, calls[index].to_block()) for index in sorted(calls)])
        raw = dict(end.provider_raw or {})
        raw.pop("no_finish_reason", None)  # a client needs the reason
        reply = Reply(
            content=self._details(is_native=bool(get_notes(raw, NAME))),
            stop_reason=end.stop_reason,
            usage=usage,
            model=self._model,
            provider_raw=raw or None,
            stop_details=end.stop_details,
            alternatives=tuple(self._alternatives),
        )
        return data + self._write_last(reply)

    def write_failure(self, error: StreamError) -> bytes:
        """Write a failure as a finish reason if there is one, else as an error in place of the last chunk."""
        fault, raw = self._fault or error.fault, error.provider_raw
        if self._end is not None:
            raw = raw or self._end.provider_raw
            open_call = next((call for call in self._calls.values() if call.end is None), None)
            if open_call is not None and self._fault is None:
                fault = _fold_fault(open_call.start.replace(index=0), self._end)
        self._calls.clear()
        data = self._write_ready()
        reply = Reply(stop_reason=StopReason.ERROR, fault=fault, usage=self.usage, model=self._model, provider_raw=raw)
        if self._has_content or fault.code != "empty_response":
            reply = drop_finish_reason(reply)
        if write_finish_reason(reply, get_notes(reply.provider_raw, NAME)) is not None:
            return data + self._write_last(reply)
        if not self._is_usage_written:
            data += self._write_frame({**self._pending_usage(), **self._repeated_fields})
        return data + self._write_frame(write_error(fault).wire)

    def _add_text(self, index: int, block: TextBlock | ThinkingBlock) -> bytes:
        part = write_part(block)
        has_content = part.get("text") or part.keys() - {"text", "thought"}
        return self._add_parts(index, [part] if has_content else [])

    def _add_parts(self, index: int, parts: list[_Part]) -> bytes:
        if self._fault is not None:
            return b""  # ignore blocks after an invalid call
        if parts and index not in self._texts:
            self._other_blocks.add(index)
        self._pending_parts.setdefault(index, []).extend(parts)
        return self._write_ready()

    def _write_ready(self) -> bytes:
        """Return the chunks of all blocks that do not wait for a call."""
        limit = min(self._calls, default=None)
        ready = sorted(index for index in self._pending_parts if limit is None or index < limit)
        return b"".join([self._write_chunk(part) for index in ready for part in self._pending_parts.pop(index)])

    def _write_chunk(self, part: _Part) -> bytes:
        self._has_content = True
        candidate = {"content": {"parts": [part], **self._content}, **self._candidate}
        return self._write_frame({"candidates": [candidate], **self._pending_usage(), **self._repeated_fields})

    def _pending_usage(self) -> _Part:
        """Return usage that no chunk has contained yet."""
        if self.usage is None or self._is_usage_written:
            return {}
        self._is_usage_written = True
        return {"usageMetadata": default_usage(self.usage, 0)}

    def _write_frame(self, body: _Part) -> bytes:
        wire = wrap_response(body, self._wrapper)
        if not self._is_array:
            return sse_frame(wire)
        separator, self._has_items = b",\n" if self._has_items else b"[", True
        return separator + json_line(wire)

    def _write_last(self, reply: Reply) -> bytes:
        self._last_reply, self._is_usage_written = reply, True
        return self._write_frame({**self._repeated_fields, **self._last_response(reply)})

    def _last_response(self, reply: Reply) -> _Part:
        """Return the response without the written parts, with an empty text, as the API ends its streams."""
        has_parts = self._has_content or get_notes(reply.provider_raw, NAME).get("form") is None
        return write_with_parts(reply, [_EMPTY_TEXT] if has_parts else [])

    def _write_late_usage(self, event: StreamEvent) -> bytes:
        """Write usage that arrives after the end; other events are ignored."""
        if self._last_reply is None or not isinstance(event, UsageUpdate):
            return b""
        wire = self._last_response(self._last_reply.replace(usage=event.usage))
        return self._write_frame({"usageMetadata": wire["usageMetadata"], **self._repeated_fields})


def _fold_fault(*events: StreamEvent) -> Fault:
    """Return the fault that these events fold to."""
    fault = fold(events).fault
    assert fault is not None
    return fault


stream_writer = StreamWriter
