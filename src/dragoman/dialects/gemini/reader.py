"""Streams in: bytes to events. Every chunk is a response with a piece of the answer; the pieces are put together here.

There is no last chunk by name. The end is the end of the stream, if the last piece of the answer had a reason for it;
relays say ``[DONE]``, and an array ends where it ends. After a reason the answer goes on only where the model had
code of its own run. Whatever else comes after it is kept as ``late`` and is no part of the answer.

The one rule: a stream that has not ended properly never looks as if it had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from dragoman.dialects.gemini.blocks import Turns, is_partial, natural_part, read_part
from dragoman.dialects.gemini.error import read_error
from dragoman.dialects.gemini.partial import PartialCall, raw_arguments
from dragoman.dialects.gemini.reply import finish_reason_of, natural_rest, read_rest, read_usage, rest_notes
from dragoman.dialects.gemini.spelling import NAME, in_camel
from dragoman.dialects.parts.body import a_list, an_object, unkept
from dragoman.dialects.parts.faults import BYTE_ORDER_MARK, HEAD_BYTES, early_end, redacted, stream_error
from dragoman.dialects.parts.framing import Frame, FramingError, splitter
from dragoman.dialects.parts.late import Late
from dragoman.dialects.parts.reading import EventReader
from dragoman.dialects.parts.residue import noted
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.errors import FormatError, JsonError
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
from dragoman.jsontext import JsonLimits, read_json
from dragoman.message import InvalidToolUseBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock

HEAD: Final = ("modelVersion", "responseId", "createTime")  # what every chunk says again
OWN_THINKING: Final = {"dialect": NAME, "form": "thought"}  # what is known of reasoning when it begins
_OF_A_RESPONSE: Final = frozenset({"candidates", "usageMetadata", "promptFeedback", *HEAD})
_RUN_BY_THE_PROVIDER: Final = frozenset({"executableCode", "executable_code", "toolCall", "tool_call"})
_OF_SILENCE: Final = frozenset({"text", "thought", "thoughtSignature", "thought_signature"})
_CHUNK: Final = JsonLimits(
    max_bytes=None, max_depth=150, max_keys=None, max_values=None, integers_of_64_bits=False, unique_keys=False
)  # two equal keys in arguments are found when the call is read


class StreamReader(EventReader):
    """Bytes in, events out."""

    _dialect = NAME

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        self._splitter = splitter(framing or "sse")
        self._looks = framing in (None, "sse", "json-array")  # at the first bytes, to see which of the two it is
        self._reason_optional = "terminal_reason_optional" in quirks
        self._before = b""  # what may still be a byte order mark or white space
        self._head: bytes | None = b""  # the first bytes, until a chunk has come out of them
        self._is_page = False
        self._top: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._others: dict[int, dict[str, Any]] = {}
        self._turns = Turns()
        self._model: str | None = None
        self._open: _OpenText | None = None  # the text that is still growing
        self._call: PartialCall | None = None  # the call whose arguments are still arriving
        self._arguments: list[str] = []  # of the calls in this chunk, as they stand there
        self._blocks = 0
        self._begun = False
        self._has_parts = False
        self._has_spoken = False
        self._called = False
        self._goes_on = False  # the last part was code that the provider runs
        self._finished = False
        self._done = False
        self._late = Late(NAME)
        self._over = False

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        if self._over:
            return
        data = self._opening(data) if self._looks else data
        if self._head is not None:
            self._head = (self._head + data)[:HEAD_BYTES]
        if not self._is_page:
            self._take_frames(self._splitter.feed(data), events)

    def _opening(self, data: bytes) -> bytes:
        """The bytes from where it is clear what they are.

        The API answers some errors with plain JSON where events were asked for, and a relay with an array.
        """
        data = self._before + data
        text = data.removeprefix(BYTE_ORDER_MARK)
        if not text.strip() or BYTE_ORDER_MARK.startswith(text):
            self._before = data
            return b""
        self._before, self._looks = b"", False
        begin = text.lstrip()[:1]
        self._is_page = begin == b"<"
        if begin in (b"[", b"{"):
            self._splitter = splitter("json-array")
            self._take_frames(self._splitter.feed(b"[" if begin == b"{" else b""), [])
        return text

    def _take_frames(self, frames: Iterable[Frame], events: list[StreamEvent]) -> None:
        try:
            for frame in frames:
                self._take(frame.data, events)
                if self._over:
                    break
        except FramingError as error:
            self._fail("bad_event", str(error), events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        if not self._over and not self._is_page:
            self._take_frames(self._splitter.close(), events)
        if not self._over:
            self._end(events)

    def _end(self, events: list[StreamEvent]) -> None:
        tail = self._splitter.tail
        if _is_last_chunk(tail):  # only its empty line is missing
            self._take(tail, events)
            tail = b""
        if self._over:
            return
        is_closed = self._done or getattr(self._splitter, "is_closed", False)
        is_enough = self._begun and is_closed and self._reason_optional
        if is_enough or (self._finished and (self._done or not tail.strip())):
            self._complete(events)
        else:
            events.append(self._early_end(tail, is_closed=is_closed))
        self._over = True

    def _early_end(self, tail: bytes, *, is_closed: bool) -> StreamError:
        if self._begun or self._head is None or (tail and not self._is_page):
            return early_end(NAME, None, tail)
        if self._done or b"".join(self._head.split()) == b"[]":
            return stream_error(NAME, "empty_response", "nothing came")
        if is_closed:
            what = "a JSON array came instead of a stream"
            return stream_error(NAME, "bad_content_type", what, head=redacted(self._head))
        return early_end(NAME, self._head, tail)

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if data.strip() == b"[DONE]":  # not Google's, but that of relays
            self._done = True
            return
        if self._done:
            self._late.add(data.decode("utf-8", "backslashreplace"))
            return
        try:
            wire = _chunks(data)
            self._arguments = raw_arguments(data)
        except (msgspec.DecodeError, UnicodeDecodeError, JsonError):
            self._fail("bad_event", "an event that is not JSON, or nested too deep", events)
            return
        for chunk in wire if type(wire) is list else [wire]:
            if type(chunk) is not dict:
                self._fail("bad_event", "an event that is no object", events)
            elif not self._over:
                self._take_chunk(chunk, events)

    def _take_chunk(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if chunk.get("error") is not None:
            self._take_error(chunk, events)
            return
        if not _OF_A_RESPONSE & chunk.keys():
            return
        self._head = None
        try:
            self._begin(chunk, events)
            for candidate in _candidates_of(chunk):
                self._take_candidate(an_object(candidate, "candidates"), events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)
            return
        except (ValueError, RecursionError) as error:
            self._fail("bad_event", unkept(error)[1], events)
            return
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason") and not self._first:
            self._finished = True
        self._take_usage(chunk, events)
        self._top.update((key, value) for key, value in chunk.items() if key != "candidates")

    def _take_error(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        fault = read_error(None, {}, chunk)
        if fault.request_id is None:
            fault = fault.replace(request_id=text_or_none(self._top.get("responseId")))
        events.append(StreamError(fault))
        self._over = True

    def _begin(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._begun:
            return
        self._begun = True
        self._model = text_or_none(chunk.get("modelVersion"))
        self._turns = Turns(str(chunk.get("responseId", "")))
        events.append(MessageStart(self._model, _hint(chunk, self._model)))

    def _take_usage(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        wire = chunk.get("usageMetadata")
        usage = read_usage(wire) if wire is not None and wire != self._top.get("usageMetadata") else None
        if usage is not None:
            events.append(UsageUpdate(usage))

    def _take_candidate(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = wire.get("index", 0)
        content = wire.get("content")
        content = content if isinstance(content, dict) else {}
        parts = [an_object(part, "parts") for part in a_list(content.get("parts") or [], "parts")]
        if type(index) is int and index > 0:
            _merge_candidate(self._others.setdefault(index, {}), wire, parts)
            return
        if self._finished and not self._goes_on and not all(map(_is_silent, parts)):
            self._late.add(msgspec.json.encode(wire).decode())
            return
        self._note_candidate(wire, content)
        self._has_parts = self._has_parts or bool(parts)
        for part in parts:
            self._take_part(part, events)
        if wire.get("finishReason") is not None:
            self._finished = True
        elif not all(map(_is_silent, parts)):
            self._finished = False

    def _note_candidate(self, wire: dict[str, Any], content: dict[str, Any]) -> None:
        """Keep what the candidate says beside its parts."""
        self._first.update((key, value) for key, value in wire.items() if key != "content")
        if "content" in wire:
            known = self._first.get("content") or ({} if isinstance(wire["content"], dict) else None)
            more = {key: value for key, value in content.items() if key != "parts"}
            self._first["content"] = {**known, **more} if known is not None else None

    def _take_part(self, item: dict[str, Any], events: list[StreamEvent]) -> None:
        part, _ = in_camel(item)
        call = part.get("functionCall")
        arguments = self._arguments.pop(0) if self._arguments and isinstance(call, dict) else None
        said = part.get("text")
        if isinstance(call, dict) and (self._call is not None or is_partial(call)):
            self._take_partial(part, call, events)
        elif isinstance(said, str):
            self._take_text(item, said, is_thought=part.get("thought") is True, events=events)
        else:
            self._take_whole(item, arguments, events)
        if not _is_silent(item):
            self._goes_on = bool(_RUN_BY_THE_PROVIDER & item.keys())

    def _take_whole(self, item: dict[str, Any], arguments: str | None, events: list[StreamEvent]) -> None:
        self._close_text(events)
        block = read_part(item, "model", self._turns, "parts")
        index, self._blocks = self._blocks, self._blocks + 1
        self._has_spoken = True
        match block:
            case ToolUseBlock(call_id, name, value, raw):
                text = arguments if value and arguments else msgspec.json.encode(value).decode()
                self._take_call(ToolUseStart(index, call_id, name, raw), text, events)
            case InvalidToolUseBlock(call_id, name, input_text, _, raw):
                self._take_call(ToolUseStart(index, call_id, name, raw), arguments or input_text, events)
            case ThinkingBlock(text, signature, raw):
                events.append(ThinkingDelta(index, text, signature, raw))
            case _:
                events.append(BlockComplete(index, block))

    def _take_call(self, start: ToolUseStart, text: str, events: list[StreamEvent]) -> None:
        self._called = True
        events += (start, ToolUseInputDelta(start.index, text), ToolUseEnd(start.index, start.provider_raw))

    def _take_text(self, item: dict[str, Any], text: str, *, is_thought: bool, events: list[StreamEvent]) -> None:
        """Texts of one kind that follow each other are one; its signature is the last one that came."""
        if self._open is not None and self._open.is_thought is not is_thought:
            self._close_text(events)
        if self._open is None:
            if not text and item.keys() <= {"text", "thought"}:
                return  # a part that has nothing to say
            self._open = _OpenText(is_thought)
        self._open.item.update(item)
        if not text:
            return
        self._has_spoken = True
        if not is_thought:
            events.append(TextDelta(self._blocks, text))
        elif self._open.is_known:
            events.append(ThinkingDelta(self._blocks, text))
        else:
            events.append(ThinkingDelta(self._blocks, text, None, OWN_THINKING))
            self._open.is_known = True

    def _close_text(self, events: list[StreamEvent]) -> None:
        if self._open is None:
            return
        item = {**self._open.item, "text": ""}  # its words have gone out
        match read_part(item, "model", self._turns, "parts"):
            case TextBlock(_, raw) if raw is not None:
                events.append(TextDelta(self._blocks, "", raw))
            case ThinkingBlock(_, signature, raw):
                events.append(ThinkingDelta(self._blocks, "", signature, raw))
        self._open = None
        self._blocks += 1

    def _take_partial(self, part: dict[str, Any], call: dict[str, Any], events: list[StreamEvent]) -> None:
        """Some of a call's arguments. It is a call when the last of them has come."""
        if self._call is None:
            self._close_text(events)
            self._call = PartialCall(self._blocks, part, call)
            self._blocks += 1
            self._call.id = self._turns.called(self._call.name, self._call.provider_id)
            hint = {"dialect": NAME, "id": self._call.provider_id}
            events.append(ToolUseStart(self._call.index, self._call.id, self._call.name, hint))
        if not self._call.take(part, call):
            return
        done, self._call, self._called, self._has_spoken = self._call, None, True, True
        notes = {"id": done.provider_id if done.provider_id != done.id else None}
        block = ToolUseBlock(done.id, done.name, done.args)
        events.append(ToolUseInputDelta(done.index, msgspec.json.encode(done.args).decode()))
        events.append(ToolUseEnd(done.index, noted(NAME, natural_part(block, notes), done.part(), **notes)))

    def _complete(self, events: list[StreamEvent]) -> None:
        self._close_text(events)
        rest = dict(self._top)
        form: str | None = "none"
        if self._first:
            form = None if self._has_parts else "absent"
            rest["candidates"] = [self._first]
        notes = {
            "form": form,
            "others": [self._others[index] for index in sorted(self._others)] or None,
            "ended": finish_reason_of(rest) if self._called or not self._has_spoken else None,
            **rest_notes(rest),
        }
        reply = read_rest(rest, self._model, called=self._called)
        raw = self._with_late(noted(NAME, natural_rest(reply, notes), rest, **notes))
        if reply.fault is not None:
            events.append(StreamError(reply.fault, raw))
        else:
            events.append(MessageComplete(reply.stop_reason, None, raw))
        self._over = True

    def _with_late(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        behind = getattr(self._splitter, "late", b"")
        if behind:
            self._late.add(behind.decode("utf-8", "backslashreplace"))
        return self._late.noted(raw)

    def _fail(self, code: str, message: str, events: list[StreamEvent]) -> None:
        events.append(stream_error(NAME, code, message))
        self._over = True


class _OpenText:
    """A text that is still growing: what its parts say beside their words."""

    def __init__(self, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.is_known = False  # it was said where it comes from
        self.item: dict[str, Any] = {}


def _chunks(data: bytes) -> Any:
    """The value of an event; what is nested deeper than a block can hold is refused."""
    if data.count(b"[") + data.count(b"{") > _CHUNK.max_depth:  # else it cannot be deeper than that
        return read_json(data, _CHUNK)
    return msgspec.json.decode(data)


def _candidates_of(chunk: dict[str, Any]) -> list[Any]:
    return a_list(chunk.get("candidates") or [], "candidates")


def _is_silent(part: dict[str, Any]) -> bool:
    """Whether a part says nothing; a signature may come with no words."""
    return not part.get("text") and part.keys() <= _OF_SILENCE


def _hint(chunk: dict[str, Any], model: str | None) -> ProviderRaw | None:
    """What the first chunk shows of the response around the words."""
    rest: dict[str, Any] = {key: chunk[key] for key in HEAD if key in chunk}
    notes: dict[str, Any] = {"form": "none", "unsaid": True}
    first = next(iter(_candidates_of(chunk)), None)
    if isinstance(first, dict):
        content = first.get("content")
        said = {key: first[key] for key in ("content", "index") if key in first}
        if isinstance(content, dict):
            said["content"] = {key: value for key, value in content.items() if key != "parts"}
        rest["candidates"], notes["form"] = [said], None
    natural = natural_rest(Reply(stop_reason=StopReason.UNKNOWN, model=model), notes)
    return noted(NAME, natural, rest, form=notes["form"])


def _is_last_chunk(tail: bytes) -> bool:
    """Whether what was left over is a whole chunk that ends the answer. JSON that is cut is not JSON."""
    try:
        wire = _chunks(tail) if tail else None
        return bool(wire["candidates"][0]["finishReason"])  # type: ignore[index]
    except (msgspec.DecodeError, UnicodeDecodeError, JsonError, LookupError, TypeError):
        return False


def _merge_candidate(known: dict[str, Any], wire: dict[str, Any], parts: list[Any]) -> None:
    """Another candidate than the first: kept as it came, its parts in a row."""
    before = known.get("content") or {}
    content = wire.get("content")
    known.update(wire)
    if isinstance(content, dict) or before:
        merged = {**before, **(content if isinstance(content, dict) else {})}
        known["content"] = {**merged, "parts": [*before.get("parts", []), *parts]}


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:
    """A reader of this dialect's streams."""
    return StreamReader(framing, quirks)
