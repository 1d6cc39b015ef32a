"""Read streams. Every chunk is a response with a part of the answer; this module assembles the parts.

There is no end marker. The message ends with the stream, if the last chunk of the answer had a finish reason; relays
add ``[DONE]``, and an array stream ends with its bracket. Content after a finish reason belongs to the answer only if
the provider executed code. Other data after it is kept as ``late`` and is not part of the answer.

Invariant: an incomplete stream ends with a fault.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.gemini.blocks import GeminiMessageBuilder, default_part, is_partial, read_part
from dragoman.dialects.gemini.code_assist import Wrapper, unwrap_response
from dragoman.dialects.gemini.error import read_error
from dragoman.dialects.gemini.key_case import NAME, to_camel
from dragoman.dialects.gemini.partial_calls import PartialCall, raw_arguments
from dragoman.dialects.gemini.reply import (
    add_details,
    default_rest,
    get_finish_reason,
    read_alternative,
    read_rest,
    read_usage,
    rest_notes,
)
from dragoman.errors import FormatError, JsonError
from dragoman.event import (
    AlternativeComplete,
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
from dragoman.jsontext import JsonLimits, expect_list, expect_object, read_json, text_or_none
from dragoman.message import ContentBlock, InvalidToolUseBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from dragoman.wire.faults import BYTE_ORDER_MARK, early_end, redact, stream_error
from dragoman.wire.frames import Frame, make_splitter
from dragoman.wire.residue import make_notes
from dragoman.wire.stream_reader import BaseStreamReader

REPEATED_FIELDS: Final = ("modelVersion", "responseId", "createTime")  # fields that every chunk repeats
NATIVE_THINKING: Final = {"dialect": NAME, "form": "thought"}  # notes on the first delta of reasoning
_RESPONSE_FIELDS: Final = frozenset({"candidates", "usageMetadata", "promptFeedback", *REPEATED_FIELDS})
_PROVIDER_EXECUTED: Final = frozenset({"executableCode", "executable_code", "toolCall", "tool_call"})
_EMPTY_PART_FIELDS: Final = frozenset({"text", "thought", "thoughtSignature", "thought_signature"})
_CHUNK_LIMITS: Final = JsonLimits(
    max_bytes=None, max_depth=150, max_keys=None, max_values=None, integers_of_64_bits=False, unique_keys=False
)  # duplicate keys in arguments are detected when the call is read


class StreamReader(BaseStreamReader):
    """Convert the bytes of a stream to events."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._detects_framing = framing in (None, "sse", "json-array")  # whether the first bytes determine the framing
        self._prefix = b""  # possible byte order mark or white space
        self._top: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._others: dict[int, dict[str, Any]] = {}
        self._builder = GeminiMessageBuilder()
        self._wrapper: Wrapper | None = None
        self._model: str | None = None
        self._open_text: _OpenText | None = None  # text that is still growing
        self._open_call: PartialCall | None = None  # call whose arguments are incomplete
        self._arguments: list[str] = []  # raw arguments of the calls in this chunk
        self._block_count = 0
        self._texts: dict[int, list[str]] = {}  # by block, for places of citations
        self._has_started = False
        self._has_parts = False
        self._has_content = False
        self._has_calls = False
        self._may_continue = False  # the last part was code that the provider executes
        self._has_finish_reason = False
        self._has_done_marker = False

    def read_bytes(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        super().read_bytes(self._detect_framing(data) if self._detects_framing else data, events)

    def _detect_framing(self, data: bytes) -> bytes:
        """Return the bytes from the first one that identifies the framing.

        The API answers some errors with plain JSON instead of server-sent events, and some relays send an array.
        """
        data = self._prefix + data
        text = data.removeprefix(BYTE_ORDER_MARK)
        if not text.strip() or BYTE_ORDER_MARK.startswith(text):
            self._prefix = data
            return b""
        self._prefix, self._detects_framing = b"", False
        first_byte = text.lstrip()[:1]
        self._is_foreign = first_byte == b"<"
        if first_byte in (b"[", b"{"):
            self._splitter = make_splitter("json-array")
            list(self._splitter.feed(b"[" if first_byte == b"{" else b""))
        return text

    def end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:  # noqa: ARG002  the marker is noted
        """Append the end of the message if it has a finish reason, else a fault."""
        tail = self._splitter.tail
        if _is_last_chunk(tail):  # only its final empty line is missing
            self._read_data(tail, events)
            tail = b""
        if self._is_over:
            return
        is_closed = self._has_done_marker or getattr(self._splitter, "is_closed", False)
        is_enough = self._has_started and is_closed and self._is_reason_optional
        if is_enough or (self._has_finish_reason and (self._has_done_marker or not tail.strip())):
            self._emit_end(events)
        else:
            events.append(self._incomplete_end(tail, is_closed=is_closed))

    def _incomplete_end(self, tail: bytes, *, is_closed: bool) -> StreamError:
        if self._has_started or self._head is None or tail:
            return early_end(NAME, None, tail)
        if self._has_done_marker or b"".join(self._head.split()) == b"[]":
            return stream_error(NAME, "empty_response", "the stream is empty")
        if is_closed:
            message = "the response is a JSON array instead of a stream"
            return stream_error(NAME, "bad_content_type", message, head=redact(self._head))
        return early_end(NAME, self._head, tail)

    def _read_frame(self, frame: Frame, events: list[StreamEvent]) -> None:
        try:
            self._read_data(frame.data, events)
        except (FormatError, ValueError, RecursionError) as error:
            self._fail_for(error, events)

    def _read_data(self, data: bytes, events: list[StreamEvent]) -> None:
        if data.strip() == b"[DONE]":  # sent by relays, not by Google
            self._has_done_marker = True
            return
        if self._has_done_marker:
            self._trailing.add(data.decode("utf-8", "backslashreplace"))
            return
        try:
            wire = _decode_chunk(data)
            self._arguments = raw_arguments(data)
        except (msgspec.DecodeError, UnicodeDecodeError, JsonError):
            self._fail(stream_error(NAME, "bad_event", "an event is not JSON or is nested too deep"), events)
            return
        for chunk in wire if type(wire) is list else [wire]:
            if type(chunk) is not dict:
                self._fail(stream_error(NAME, "bad_event", "an event is not a JSON object"), events)
            elif not self._is_over:
                self._read_chunk(chunk, events)

    def _read_chunk(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        chunk, wrapper = unwrap_response(wire)
        self._wrapper = wrapper or self._wrapper
        if chunk.get("error") is not None:
            fault = read_error(None, {}, chunk)
            if fault.request_id is None:
                fault = fault.replace(request_id=text_or_none(self._top.get("responseId")))
            self._fail(StreamError(fault), events)
            return
        if not _RESPONSE_FIELDS & chunk.keys():
            return
        self.mark_recognized()
        self._start(chunk, events)
        for candidate in _get_candidates(chunk):
            self._read_candidate(expect_object(candidate, "candidates"), events)
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason") and not self._first:
            self._has_finish_reason = True
        self._read_usage(chunk, events)
        self._top.update((key, value) for key, value in chunk.items() if key != "candidates")

    def _start(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._has_started:
            return
        self._has_started = True
        self._model = text_or_none(chunk.get("modelVersion"))
        self._builder = GeminiMessageBuilder(str(chunk.get("responseId", "")))
        events.append(MessageStart(self._model, _start_notes(chunk, self._model, self._wrapper)))

    def _read_usage(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        wire = chunk.get("usageMetadata")
        usage = read_usage(wire) if wire is not None and wire != self._top.get("usageMetadata") else None
        if usage is not None:
            events.append(UsageUpdate(usage))

    def _read_candidate(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = wire.get("index", 0)
        content = wire.get("content")
        content = content if isinstance(content, dict) else {}
        parts = [expect_object(part, "parts") for part in expect_list(content.get("parts") or [], "parts")]
        if type(index) is int and index > 0:
            _merge_candidate(self._others.setdefault(index, {}), wire, parts)
            return
        if self._has_finish_reason and not self._may_continue and not all(map(_is_empty_part, parts)):
            self._trailing.add(msgspec.json.encode(wire).decode())
            return
        self._merge_first_candidate(wire, content)
        self._has_parts = self._has_parts or bool(parts)
        for part in parts:
            self._read_part(part, events)
        if wire.get("finishReason") is not None:
            self._has_finish_reason = True
        elif not all(map(_is_empty_part, parts)):
            self._has_finish_reason = False

    def _merge_first_candidate(self, wire: dict[str, Any], content: dict[str, Any]) -> None:
        """Store the fields of the candidate other than its parts."""
        self._first.update((key, value) for key, value in wire.items() if key != "content")
        if "content" in wire:
            existing = self._first.get("content") or ({} if isinstance(wire["content"], dict) else None)
            fields = {key: value for key, value in content.items() if key != "parts"}
            self._first["content"] = {**existing, **fields} if existing is not None else None

    def _read_part(self, item: dict[str, Any], events: list[StreamEvent]) -> None:
        part, _ = to_camel(item)
        call = part.get("functionCall")
        arguments = self._arguments.pop(0) if self._arguments and isinstance(call, dict) else None
        text = part.get("text")
        if isinstance(call, dict) and (self._open_call is not None or is_partial(call)):
            self._read_partial_call(part, call, events)
        elif isinstance(text, str):
            self._read_text(item, text, is_thought=part.get("thought") is True, events=events)
        else:
            self._read_whole_part(item, arguments, events)
        if not _is_empty_part(item):
            self._may_continue = bool(_PROVIDER_EXECUTED & item.keys())

    def _read_whole_part(self, item: dict[str, Any], arguments: str | None, events: list[StreamEvent]) -> None:
        self._close_text(events)
        block = read_part(item, "model", self._builder, "parts")
        index, self._block_count = self._block_count, self._block_count + 1
        self._has_content = True
        match block:
            case ToolUseBlock(call_id, name, value, raw):
                text = arguments if value and arguments else msgspec.json.encode(value).decode()
                self._emit_call(ToolUseStart(index, call_id, name, raw), text, events)
            case InvalidToolUseBlock(call_id, name, input_text, _, raw):
                self._emit_call(ToolUseStart(index, call_id, name, raw), arguments or input_text, events)
            case ThinkingBlock(text, signature, raw):
                events.append(ThinkingDelta(index, text, signature, raw, block.is_summary))
            case _:
                events.append(BlockComplete(index, block))

    def _emit_call(self, start: ToolUseStart, text: str, events: list[StreamEvent]) -> None:
        self._has_calls = True
        events += (start, ToolUseInputDelta(start.index, text), ToolUseEnd(start.index, start.provider_raw))

    def _read_text(self, item: dict[str, Any], text: str, *, is_thought: bool, events: list[StreamEvent]) -> None:
        """Append text. Consecutive parts of one kind form one block; the last signature is kept."""
        if self._open_text is not None and self._open_text.is_thought is not is_thought:
            self._close_text(events)
        if self._open_text is None:
            if not text and item.keys() <= {"text", "thought"}:
                return  # an empty part
            self._open_text = _OpenText(is_thought)
        self._open_text.item.update(item)
        if not text:
            return
        self._has_content = True
        if not is_thought:
            self._texts.setdefault(self._block_count, []).append(text)
            events.append(TextDelta(self._block_count, text))
        elif self._open_text.has_origin:
            events.append(ThinkingDelta(self._block_count, text))
        else:
            events.append(ThinkingDelta(self._block_count, text, None, NATIVE_THINKING, is_summary=True))
            self._open_text.has_origin = True

    def _close_text(self, events: list[StreamEvent]) -> None:
        if self._open_text is None:
            return
        item = {**self._open_text.item, "text": ""}  # its text is already emitted
        match read_part(item, "model", self._builder, "parts"):
            case TextBlock(_, raw) if raw is not None:
                events.append(TextDelta(self._block_count, "", raw))
            case ThinkingBlock(_, signature, raw):
                events.append(ThinkingDelta(self._block_count, "", signature, raw))
        self._open_text = None
        self._block_count += 1

    def _read_partial_call(self, part: dict[str, Any], call: dict[str, Any], events: list[StreamEvent]) -> None:
        """Add partial arguments to a call, and emit the call when it is complete."""
        if self._open_call is None:
            self._close_text(events)
            self._open_call = PartialCall(self._block_count, part, call)
            self._block_count += 1
            self._open_call.id = self._builder.add_call(self._open_call.name, self._open_call.provider_id)
            hint = {"dialect": NAME, "id": self._open_call.provider_id}
            events.append(ToolUseStart(self._open_call.index, self._open_call.id, self._open_call.name, hint))
        if not self._open_call.add(part, call):
            return
        complete, self._open_call, self._has_calls, self._has_content = self._open_call, None, True, True
        notes = {"id": complete.provider_id if complete.provider_id != complete.id else None}
        block = ToolUseBlock(complete.id, complete.name, complete.args)
        events.append(ToolUseInputDelta(complete.index, msgspec.json.encode(complete.args).decode()))
        events.append(
            ToolUseEnd(complete.index, make_notes(NAME, default_part(block, notes), complete.to_part(), **notes))
        )

    def _emit_end(self, events: list[StreamEvent]) -> None:
        self._close_text(events)
        content = self._emit_details(events)
        rest = dict(self._top)
        form: str | None = "none"
        if self._first:
            form = None if self._has_parts else "absent"
            rest["candidates"] = [self._first]
        notes = {
            "form": form,
            "ended": get_finish_reason(rest) if self._has_calls or not self._has_content else None,
            "wrapper": self._wrapper,
            **rest_notes(rest),
        }
        if trailing := getattr(self._splitter, "trailing", b""):
            self._trailing.add(trailing.decode("utf-8", "backslashreplace"))
        reply = read_rest(rest, self._model, has_calls=self._has_calls).replace(content=content)
        others = [self._others[index] for index in sorted(self._others)]
        alternatives = [read_alternative(other, at, self._builder) for at, other in enumerate(others, 1)]
        events.extend(AlternativeComplete(alternative) for alternative in alternatives)
        raw = make_notes(NAME, default_rest(reply, notes), rest, **notes)
        if reply.fault is not None:
            events.append(StreamError(reply.fault, self._trailing.add_to(raw)))
        else:
            events.append(MessageComplete(reply.stop_reason, None, raw, reply.stop_details))

    def _emit_details(self, events: list[StreamEvent]) -> tuple[ContentBlock, ...]:
        """Emit citations and token probabilities, and return the texts that they belong to."""
        if not self._first.keys() & {"groundingMetadata", "logprobsResult"}:
            return ()
        blocks = {index: TextBlock("".join(pieces)) for index, pieces in sorted(self._texts.items())}
        content = add_details(tuple(blocks.values()), self._first)
        for index, block in zip(blocks, content, strict=True):
            if isinstance(block, TextBlock) and (block.citations or block.token_logprobs):
                events.append(TextDelta(index, "", None, block.citations, block.token_logprobs))
        return content


class _OpenText:
    """A text that is still growing, with the fields of its parts."""

    def __init__(self, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.has_origin = False  # a delta with its origin was emitted
        self.item: dict[str, Any] = {}


def _decode_chunk(data: bytes) -> Any:
    """Decode an event. Values nested deeper than a block can hold are rejected."""
    if data.count(b"[") + data.count(b"{") > _CHUNK_LIMITS.max_depth:  # otherwise it cannot exceed the limit
        return read_json(data, _CHUNK_LIMITS)
    return msgspec.json.decode(data)


def _get_candidates(chunk: dict[str, Any]) -> list[Any]:
    return expect_list(chunk.get("candidates") or [], "candidates")


def _is_empty_part(part: dict[str, Any]) -> bool:
    """Return whether a part has no content; it may have a signature."""
    return not part.get("text") and part.keys() <= _EMPTY_PART_FIELDS


def _start_notes(chunk: dict[str, Any], model: str | None, wrapper: Wrapper | None) -> ProviderRaw | None:
    """Return the notes about the response that the first chunk contains."""
    rest: dict[str, Any] = {key: chunk[key] for key in REPEATED_FIELDS if key in chunk}
    notes: dict[str, Any] = {"form": "none", "no_finish_reason": True}
    first = next(iter(_get_candidates(chunk)), None)
    if isinstance(first, dict):
        content = first.get("content")
        fields = {key: first[key] for key in ("content", "index") if key in first}
        if isinstance(content, dict):
            fields["content"] = {key: value for key, value in content.items() if key != "parts"}
        rest["candidates"], notes["form"] = [fields], None
    default = default_rest(Reply(stop_reason=StopReason.UNKNOWN, model=model), notes)
    return make_notes(NAME, default, rest, form=notes["form"], wrapper=wrapper)


def _is_last_chunk(tail: bytes) -> bool:
    """Return whether the remaining bytes are a complete chunk with a finish reason."""
    try:
        wire = _decode_chunk(tail) if tail else {}
        return bool(unwrap_response(wire)[0]["candidates"][0]["finishReason"])
    except (msgspec.DecodeError, UnicodeDecodeError, JsonError, LookupError, TypeError, AttributeError):
        return False


def _merge_candidate(merged: dict[str, Any], wire: dict[str, Any], parts: list[Any]) -> None:
    """Merge a further candidate; its parts are concatenated."""
    old_content = merged.get("content") or {}
    content = wire.get("content")
    merged.update(wire)
    if isinstance(content, dict) or old_content:
        new_content = {**old_content, **(content if isinstance(content, dict) else {})}
        merged["content"] = {**new_content, "parts": [*old_content.get("parts", []), *parts]}


stream_reader = StreamReader
