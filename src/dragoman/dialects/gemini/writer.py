"""Streams out: events to bytes, each as soon as it can be said. Every chunk is a response with one part of the answer.

Words go out as they come. A call is whole on this wire, so it goes out at its end, and what stands after it waits for
it. The last chunk says the reason, what was consumed, and all that is known about the whole. Whatever folds to a fault
ends with the reason of a failure, or with an error in place of the last chunk.

The one rule: the end is written for a message that ended, and for no other.
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.dialects.gemini.blocks import cannot_say, written_part
from dragoman.dialects.gemini.error import write_error
from dragoman.dialects.gemini.reader import HEAD, OWN_THINKING
from dragoman.dialects.gemini.reply import finish_word, natural_rest, natural_usage, with_parts, without_its_end
from dragoman.dialects.gemini.spelling import NAME
from dragoman.dialects.parts.framing import json_line, sse_frame
from dragoman.dialects.parts.residue import notes_of, restored
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
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
)

_Part = dict[str, Any]
_SILENCE: Final[_Part] = {"text": ""}


class _Call:
    """A call whose input is still arriving."""

    def __init__(self, start: ToolUseStart) -> None:
        self.start = start
        self.fragments: list[str] = []
        self.end: ToolUseEnd | None = None

    def is_silent(self) -> bool:
        return not any(fragment.strip() for fragment in self.fragments)

    def block(self) -> ContentBlock:
        """The call as ``fold`` finds it: one that can be made, or one that cannot."""
        text = ToolUseInputDelta(self.start.index, "".join(self.fragments))
        return fold((self.start, text, self.end or ToolUseEnd(self.start.index))).content[0]


class StreamWriter:
    """Events in, bytes out."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse", "json-array"):
            raise LookupError(f"{NAME} streams are server-sent events or one JSON array, not {framing!r}")
        self._is_array = framing == "json-array"
        self._is_open = False  # the array
        self._model: str | None = None
        self._head: _Part = {}  # what every chunk says again
        self._content: _Part = {"role": "model"}
        self._candidate: _Part = {"index": 0}
        self._usage: TokenUsage | None = None
        self._usage_is_said = True
        self._kinds: dict[int, type[StreamEvent]] = {}  # what opened each block
        self._calls: dict[int, _Call] = {}
        self._waiting: dict[int, list[_Part]] = {}  # for a call that stands before them
        self._own: set[int] = set()  # blocks of reasoning that came from here
        self._halves: dict[int, str] = {}  # first halves of characters
        self._has_spoken = False
        self._fault: Fault | None = None
        self._end: Reply | None = None
        self._over = False

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        if self._over:
            return self._more_usage(event)
        match event:
            case MessageStart():
                return self._begin(event)
            case UsageUpdate(usage):  # goes with the next chunk, as it does there
                self._usage, self._usage_is_said = usage, False
                return b""
            case MessageComplete():
                return self._complete(event)
            case StreamError(fault, raw):
                return self._fail(fault, raw)
        self._fault = self._fault or self._broken_by(event)
        if self._fault is not None:
            return b""  # nothing after it is to be trusted
        self._waiting.setdefault(event.index, []).extend(self._parts(event))
        return self._said()

    def close(self) -> bytes:
        """What is still owed: an error, if the message has not ended; and the end of the array."""
        data = b"" if self._over else self._fail(self._fault or _fault_of(), None)
        return data + b"]" if self._is_array else data

    # --- the parts of an event ---------------------------------------------------------------------------------------

    def _parts(self, event: StreamEvent) -> list[_Part]:
        match event:
            case TextDelta(index, text, None):
                said = self._whole(index, text)
                return [{"text": said}] if said else []
            case TextDelta(index, text, raw):
                return _if_said(TextBlock(self._whole(index, text), raw))
            case ThinkingDelta(index, text, signature, raw):
                if notes_of(raw, NAME):
                    self._own.add(index)
                if index not in self._own:  # reasoning of another origin is never said
                    return []
                return _if_said(ThinkingBlock(self._whole(index, text), signature, raw or OWN_THINKING))
            case ToolUseStart(index):
                self._calls[index] = _Call(event)
            case ToolUseInputDelta(index, fragment):
                self._calls[index].fragments.append(fragment)
            case ToolUseEnd(index):
                return self._called(index, event)
            case BlockComplete(_, block):
                return self._whole_block(block)
        return []

    def _called(self, index: int, end: ToolUseEnd) -> list[_Part]:
        self._calls[index].end = end
        if self._calls[index].is_silent():  # whether it was cut off is known at the end of the message
            return []
        return self._whole_block(self._calls.pop(index).block())

    def _whole_block(self, block: ContentBlock) -> list[_Part]:
        if isinstance(block, InvalidToolUseBlock):
            self._fault = self._fault or _fault_of(BlockComplete(0, block), MessageComplete(StopReason.TOOL_USE))
            return []
        return [] if cannot_say(block) is not None else [written_part(block)]

    def _whole(self, index: int, text: str) -> str:
        """A text without half of a character at its end, which waits for the other half."""
        if text.isascii() and index not in self._halves:
            return text
        text = self._halves.pop(index, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[index], text = text[-1], text[:-1]
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
        if joined.encode("utf-16-le") != text.encode("utf-16-le", "surrogatepass"):
            self._fault = self._fault or _HALF
        return joined

    def _broken_by(self, event: StreamEvent) -> Fault | None:
        """What an event breaks of the order of events: the same as ``fold`` would find."""
        kind = ToolUseStart if isinstance(event, ToolUseInputDelta | ToolUseEnd) else type(event)
        index: int = event.index  # type: ignore[union-attr]
        known = self._kinds.get(index)
        if isinstance(event, ToolUseInputDelta | ToolUseEnd):
            is_right = index in self._calls and self._calls[index].end is None
        elif isinstance(event, ToolUseStart | BlockComplete):
            is_right = known is None
        else:
            is_right = known in (None, kind)
        self._kinds.setdefault(index, kind)
        return None if is_right else _violation(f"a {event.type} for block {index}, which is not open for it")

    # --- chunks ------------------------------------------------------------------------------------------------------

    def _begin(self, start: MessageStart) -> bytes:
        notes = notes_of(start.provider_raw, NAME)
        shape = Reply(stop_reason=StopReason.UNKNOWN, model=start.model)
        wire = restored(natural_rest(shape, {**notes, "unsaid": True}), notes.get("residue"))
        self._model = start.model
        self._head = {key: wire[key] for key in HEAD if key in wire}
        first: _Part = next(iter(wire.get("candidates") or ()), {})
        content = first.get("content")
        self._content = {key: content[key] for key in content if key != "parts"} if isinstance(content, dict) else {}
        self._candidate = {"index": first["index"]} if "index" in first else {}
        return b""

    def _said(self, *, all_of_it: bool = False) -> bytes:
        """The chunks of what need not wait for a call any more."""
        limit = min(self._calls, default=None) if not all_of_it else None
        ready = sorted(index for index in self._waiting if limit is None or index < limit)
        return b"".join([self._chunk(part) for index in ready for part in self._waiting.pop(index)])

    def _chunk(self, part: _Part) -> bytes:
        self._has_spoken = True
        candidate = {"content": {"parts": [part], **self._content}, **self._candidate}
        return self._frame({"candidates": [candidate], **self._consumed(), **self._head})

    def _consumed(self) -> _Part:
        """What was consumed so far, if no chunk has said it yet."""
        if self._usage is None or self._usage_is_said:
            return {}
        self._usage_is_said = True
        return {"usageMetadata": natural_usage(self._usage, 0)}

    def _frame(self, wire: _Part) -> bytes:
        if not self._is_array:
            return sse_frame(wire)
        begin, self._is_open = b",\n" if self._is_open else b"[", True
        return begin + json_line(wire)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _complete(self, end: MessageComplete) -> bytes:
        fault = self._fault or self._fault_of_the_end(end)
        if fault is not None:
            return self._fail(fault, end.provider_raw)
        for index in sorted(self._calls):
            self._waiting.setdefault(index, []).extend(self._whole_block(self._calls[index].block()))
        data = self._said(all_of_it=True)
        raw = {name: note for name, note in (end.provider_raw or {}).items() if name != "unsaid"}  # here it must be
        return data + self._last(
            Reply(stop_reason=end.stop_reason, usage=self._usage, model=self._model, provider_raw=raw or None)
        )

    def _fault_of_the_end(self, end: MessageComplete) -> Fault | None:
        """What is wrong although no event said so. That nothing was said shows by itself."""
        if end.stop_reason is StopReason.ERROR:
            return _fault_of(end)
        if self._halves:
            return _HALF
        if set(self._kinds) != set(range(len(self._kinds))):
            return _violation("a block is missing between the others")
        was_limited = end.stop_reason is StopReason.MAX_TOKENS
        cut = next((call for call in self._calls.values() if was_limited or call.end is None), None)
        return _fault_of(cut.start.replace(index=0), end) if cut is not None else None

    def _fail(self, fault: Fault, raw: ProviderRaw | None) -> bytes:
        data = self._said(all_of_it=True)
        failed = Reply(
            stop_reason=StopReason.ERROR, fault=fault, usage=self._usage, model=self._model, provider_raw=raw
        )
        if self._has_spoken or fault.code != "empty_response":
            failed = without_its_end(failed)
        if finish_word(failed, notes_of(failed.provider_raw, NAME)) is not None:
            return data + self._last(failed)
        if not self._usage_is_said:
            data += self._frame({**self._consumed(), **self._head})
        self._over = True
        return data + self._frame(write_error(fault).wire)

    def _last(self, reply: Reply) -> bytes:
        self._end, self._over, self._usage_is_said = reply, True, True
        return self._frame({**self._head, **self._whole_response(reply)})

    def _whole_response(self, reply: Reply) -> _Part:
        """The response without what was said of it, with an empty text in its place, as the API ends its streams."""
        has_parts = self._has_spoken or notes_of(reply.provider_raw, NAME).get("form") is None
        return with_parts(reply, [_SILENCE] if has_parts else [])

    def _more_usage(self, event: StreamEvent) -> bytes:
        """What was consumed may be told after the end; nothing else may."""
        if self._end is None or not isinstance(event, UsageUpdate):
            return b""
        wire = self._whole_response(self._end.replace(usage=event.usage))
        return self._frame({"usageMetadata": wire["usageMetadata"], **self._head})


_HALF: Final = Fault(code="bad_event", message="half of a character in a text", retryable=True)


def _violation(what: str) -> Fault:
    return Fault(code="protocol_violation", message=what, error_class=ErrorClass.SERVER_ERROR, retryable=True)


def _fault_of(*events: StreamEvent) -> Fault:
    """The fault that these events fold to."""
    fault = fold(events).fault
    assert fault is not None
    return fault


def _if_said(block: TextBlock | ThinkingBlock) -> list[_Part]:
    """The part of some words, if it says anything."""
    part = written_part(block)
    return [part] if part.get("text") or part.keys() - {"text", "thought"} else []


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
