"""Writing a stream: events come in, and the bytes that this API would have sent go out, each as soon as it can.

A text or a piece of reasoning is done when the next item begins, a call when its end is said. The last event repeats
the whole response, so every word is kept until then; what was learnt about an item after it was done is said there.

The one rule: a message that did not end properly is never written as one that did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    BETWEEN,
    NAME,
    cannot_say,
    is_part,
    nobody_minds,
    part_text,
    read_reasoning,
    written_items,
    written_part,
)
from dragoman.dialects.openai_responses.error import provider_code
from dragoman.dialects.openai_responses.reply import named_item, natural_reply, whole_part, write_reply
from dragoman.dialects.parts.faults import stream_error
from dragoman.dialects.parts.framing import sse_frame
from dragoman.dialects.parts.residue import difference, notes_of, restored
from dragoman.dialects.parts.scalars import list_in
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
    judged,
)
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)

_CUT: Final = Fault(code="tool_input_truncated", message="a call was cut off", retryable=True)

Frames = list[dict[str, Any]]


class _DisorderError(Exception):
    """An event that cannot come here."""


class _Block:
    """A block in the making: its events, and where on the wire it stands."""

    def __init__(self, kind: type[StreamEvent], about: dict[str, Any] | None) -> None:
        self.kind = kind
        self.about = about  # its address; none if this wire cannot say it
        self.events: list[StreamEvent] = []
        self.half = ""  # of a character, the other half of which is still to come
        self.is_torn = False  # half of a character stood alone
        self.is_open = True
        self.has_ended = False  # of a call: that its end was said
        self.part = -1  # of reasoning: the one that grows
        self.words: list[str] = []  # of that part
        self.at = 0  # how far into it
        self.cuts: list[int] = []
        self._made: ContentBlock | None = None

    def take(self, event: StreamEvent) -> None:
        self.events.append(event)
        self._made = None

    def cut(self) -> None:
        """A call whose input never came, because the limit did."""
        if isinstance(self.block, ToolUseBlock):
            made, why = self.block, "the output limit came before its input"
            self._made = InvalidToolUseBlock(made.id, made.name, "", why, made.provider_raw)

    def whole(self, text: str) -> str:
        """What can be written of a text now: half a character waits for the other half."""
        if text.isascii() and not self.half:
            return text
        text = self.half + text
        self.half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        units = text[: len(text) - len(self.half)].encode("utf-16-le", "surrogatepass")
        whole = units.decode("utf-16-le", "ignore")
        self.is_torn = self.is_torn or whole.encode("utf-16-le") != units
        return whole

    @property
    def block(self) -> ContentBlock:
        if self._made is None:
            self._made = _with_its_text(fold(self.events).content[0], self.events)
        return self._made


def _with_its_text(block: ContentBlock, events: list[StreamEvent]) -> ContentBlock:
    """A call with its input as it was said, not as we would say it; one that was cut off, with what was known of it."""
    first = events[0]
    if not isinstance(first, ToolUseStart):
        return block
    raw = block.provider_raw if isinstance(block, ToolUseBlock | InvalidToolUseBlock) else None
    if isinstance(block, InvalidToolUseBlock) and raw is None:
        return block.replace(provider_raw=first.provider_raw)
    text = "".join(event.partial_json for event in events if isinstance(event, ToolUseInputDelta))
    if notes_of(raw, NAME) or not isinstance(block, ToolUseBlock) or not text.strip():
        return block
    natural = written_items([block.replace(provider_raw=None)], Role.ASSISTANT, None, nobody_minds)[0]
    residue = difference(natural, {**natural, "arguments": text})
    return block.replace(provider_raw={"dialect": NAME, "residue": residue} if residue else None)


class StreamWriter:
    """Events in, bytes out."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._number = 0
        self._start: MessageStart | None = None
        self._hint: ProviderRaw = {}  # what this dialect knew at the start
        self._said: list[_Block] = []  # in the order in which they began
        self._blocks: dict[int, _Block] = {}  # by their index
        self._current: list[_Block] = []  # of the message item, or the reasoning, that grows
        self._places = 0
        self._usage: TokenUsage | None = None
        self._end: MessageComplete | None = None
        self._is_over = False

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        frames: Frames = []
        if not self._is_over:
            try:
                self._take(event, frames)
            except _DisorderError as problem:
                self._fail(stream_error(NAME, "protocol_violation", str(problem)), frames)
        return self._framed(frames)

    def close(self) -> bytes:
        """What is still owed; a failure, if the message had not ended."""
        frames: Frames = []
        if self._end is not None and not self._is_over:
            self._finish(self._end, frames)
        elif not self._is_over:
            self._fail(stream_error(NAME, "stream_incomplete", "the stream ended before the response did"), frames)
        return self._framed(frames)

    def _framed(self, frames: Frames) -> bytes:
        first, self._number = self._number, self._number + len(frames)
        numbered = enumerate(frames, first)
        return b"".join(sse_frame({**wire, "sequence_number": number}, wire["type"]) for number, wire in numbered)

    def _take(self, event: StreamEvent, frames: Frames) -> None:
        if self._end is not None:  # what counts after the end is what it consumed
            if isinstance(event, UsageUpdate):
                self._usage = event.usage
                self._finish(self._end, frames)
            return
        if self._start is None and not isinstance(event, MessageStart | StreamError):
            self._begin(MessageStart(), frames)
        match event:
            case MessageStart():
                self._begin(event, frames)
            case TextDelta() | ThinkingDelta():
                self._take_words(event, frames)
            case ToolUseStart():
                self._begin_call(event, frames)
            case ToolUseInputDelta():
                self._take_input(event, frames)
            case ToolUseEnd():
                self._end_call(event, frames)
            case BlockComplete():
                self._take_whole(event, frames)
            case UsageUpdate():
                self._usage = event.usage
            case MessageComplete():
                self._end = event
                if self._usage is not None or event.stop_reason is StopReason.ERROR:
                    self._finish(event, frames)
            case StreamError():
                self._fail(event, frames)

    # The response

    def _begin(self, start: MessageStart, frames: Frames) -> None:
        if self._start is not None:
            raise _DisorderError("the message begins a second time")
        self._start, self._hint = start, notes_of(start.provider_raw, NAME)
        natural = natural_reply(Reply(stop_reason=StopReason.UNKNOWN, model=start.model))
        wire = restored(natural, self._hint.get("residue"))
        unknown = [
            key for key in ("usage", "error", "incomplete_details", "completed_at") if key in {**natural, **wire}
        ]
        begun = {**wire, **dict.fromkeys(unknown), "status": "in_progress", "output": []}
        frames.append({"type": "response.created", "response": begun})
        frames.append({"type": "response.in_progress", "response": begun})

    def _finish(self, end: MessageComplete, frames: Frames) -> None:
        problem = self._problem_at_the_end(end)
        if problem is not None:
            self._fail(problem, frames)
            return
        waiting = [block for block in self._said if block.is_open and block.kind is ToolUseStart]
        cut = [block for block in waiting if not block.has_ended or end.stop_reason is StopReason.MAX_TOKENS]
        for block in cut:
            block.cut()
        reply = self._reply(end.stop_reason, end.provider_raw)
        if cut:
            reply = reply.replace(stop_reason=StopReason.ERROR, fault=_CUT)
        wire = write_reply(judged(reply)).wire
        status = wire.get("status")
        self._close_current(frames, is_cut=status != "completed" and not self._hint)
        for block in waiting:
            self._close_call(block, frames, is_cut=block in cut)
        kind = status if status in ("incomplete", "failed") else "completed"
        frames.append({"type": f"response.{kind}", "response": wire})
        self._is_over = True

    def _problem_at_the_end(self, end: MessageComplete) -> StreamError | None:
        if end.stop_reason is StopReason.ERROR:
            return stream_error(NAME, "unexplained_error", "the answer ended as failed, and nobody said why")
        if any(block.half or block.is_torn for block in self._said):
            return stream_error(NAME, "bad_event", "half of a character in a text")
        if set(self._blocks) != set(range(len(self._blocks))):
            return stream_error(NAME, "protocol_violation", "a block is missing between the others")
        return None

    def _fail(self, error: StreamError, frames: Frames) -> None:
        fault = error.fault
        self._is_over = True
        if self._start is None:
            said = {"code": provider_code(fault), "message": fault.message, "param": None}
            frames.append({"type": "error", **said})
            return
        reply = self._reply(StopReason.ERROR, error.provider_raw, fault)
        wire = write_reply(reply).wire
        open_ids = {block.about["item_id"] for block in self._said if block.is_open and block.about is not None}
        output = [_cut_off(item) if _name_of(item) in open_ids else item for item in wire["output"]]
        wire = {**wire, "status": "failed", "error": _error_of(fault), "output": output}
        frames.append({"type": "response.failed", "response": wire})

    def _reply(self, stop_reason: StopReason, raw: ProviderRaw | None, fault: Fault | None = None) -> Reply:
        content = tuple(block.block for block in self._said)
        own: ProviderRaw | None = None
        if self._hint:  # what failed may know less at its end than at its start
            own = {**(self._hint if fault is not None else {}), **notes_of(raw, NAME)} or self._hint
        model = self._start.model if self._start is not None else None
        return Reply(
            content=content, stop_reason=stop_reason, usage=self._usage, model=model, fault=fault, provider_raw=own
        )

    # Items

    def _begin_item(self, wire: dict[str, Any], frames: Frames, **empty: Any) -> dict[str, Any]:
        """The address of an item that begins now."""
        self._close_current(frames)
        place = self._places
        self._places += 1
        item = wire if self._hint else named_item(place, wire)
        begun = {**item, **empty}
        if "status" in begun:
            begun["status"] = "in_progress"
        frames.append({"type": "response.output_item.added", "output_index": place, "item": begun})
        return {"item_id": _name_of(item), "output_index": place}

    def _done_item(self, blocks: list[_Block], *, is_cut: bool = False) -> dict[str, Any]:
        item = written_items([block.block for block in blocks], Role.ASSISTANT, None, nobody_minds)[0]
        about = blocks[0].about or {}
        item = item if self._hint else named_item(about["output_index"], item, is_cut=is_cut)
        return _cut_off(item) if is_cut else item

    def _close_current(self, frames: Frames, *, is_cut: bool = False) -> None:
        """The item that grew is done."""
        blocks, self._current = self._current, []
        if blocks:
            self._close_part(blocks[-1], frames)
            item = self._done_item(blocks, is_cut=is_cut)
            place = (blocks[0].about or {})["output_index"]
            frames.append({"type": "response.output_item.done", "output_index": place, "item": item})

    def _close_part(self, block: _Block, frames: Frames) -> None:
        if block.is_open:
            block.is_open = False
            frames.extend(self._thought_done(block) if block.kind is ThinkingDelta else self._part_done(block))

    # Words

    def _take_words(self, event: TextDelta | ThinkingDelta, frames: Frames) -> None:
        block = self._blocks.get(event.index)
        if block is not None and block.kind is not type(event):
            raise _DisorderError(f"words for block {event.index}, which is another block")
        if block is None or (event.text and not block.is_open and block.about is not None):
            block = self._open_words(event, block, frames)
        if block.about is None:
            return
        block.take(event)
        text = block.whole(event.text)
        if block.kind is ThinkingDelta:
            self._think(block, text, event.provider_raw, frames)
        elif text:
            frames.append(_words_delta(block, text))

    def _open_words(self, event: TextDelta | ThinkingDelta, before: _Block | None, frames: Frames) -> _Block:
        """A block begins. Words for one that is done already stand in an item of their own."""
        raw = event.provider_raw
        if before is not None and raw is None and self._hint:
            raw = {"dialect": NAME}
        opened: ContentBlock = (
            TextBlock("", raw) if isinstance(event, TextDelta) else ThinkingBlock("", event.signature, raw)
        )
        if cannot_say(opened, Role.ASSISTANT) is not None:
            return self._know(event.index, _Block(type(event), None))
        if isinstance(opened, TextBlock):
            return self._open_part(event.index, opened, frames)
        return self._open_thought(event.index, opened, frames)

    def _know(self, index: int, block: _Block) -> _Block:
        self._blocks[index] = block
        if block.about is not None:
            self._said.append(block)
        return block

    def _open_part(self, index: int, opened: ContentBlock, frames: Frames) -> _Block:
        """A part of a message: of the one that grows, unless it came as one of its own."""
        notes = notes_of(getattr(opened, "provider_raw", None), NAME)
        joins = bool(self._current) and self._current[-1].kind is TextDelta and notes.get("item") is None
        if joins:
            self._close_part(self._current[-1], frames)
            about = {**(self._current[0].about or {}), "content_index": len(self._current)}
        else:
            envelope = restored({"role": "assistant"}, notes.get("item"))
            about = {**self._begin_item({**envelope, "content": []}, frames), "content_index": 0}
        block = self._know(index, _Block(TextDelta, about))
        self._current.append(block)
        part = self._part(opened)
        empty: dict[str, Any] = {key: [] for key in ("annotations", "logprobs") if key in part}
        frames.append({"type": "response.content_part.added", **about, "part": {**part, **empty}})
        return block

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        part = written_part(block, Role.ASSISTANT)
        return part if self._hint else whole_part(part)

    def _part_done(self, block: _Block) -> Iterator[dict[str, Any]]:
        about, part = block.about or {}, self._part(block.block)
        text = part_text(part)
        for index, annotation in enumerate(list_in(part.get("annotations"))):
            kind = "response.output_text.annotation.added"
            yield {"type": kind, **about, "annotation_index": index, "annotation": annotation}
        if part.get("type") == "refusal":
            yield {"type": "response.refusal.done", **about, "refusal": text}
        elif text is not None:
            yield {"type": "response.output_text.done", **about, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **about, "part": part}

    # Reasoning

    def _open_thought(self, index: int, opened: ContentBlock, frames: Frames) -> _Block:
        wire = written_items([opened], Role.ASSISTANT, None, nobody_minds)[0]
        empty: dict[str, Any] = {key: [] for key in ("summary", "content") if key in wire}
        block = self._know(index, _Block(ThinkingDelta, self._begin_item(wire, frames, **empty)))
        self._current.append(block)
        return block

    def _think(self, block: _Block, text: str, raw: ProviderRaw | None, frames: Frames) -> None:
        """More of a reasoning text. Where its summaries were joined, one ends and the next begins."""
        block.cuts = notes_of(raw, NAME).get("cuts") or block.cuts
        while 0 <= block.part < len(block.cuts) - 1 or (block.part < 0 < len(block.cuts) - 1 and text):
            room = block.cuts[max(block.part, 0)] - block.at
            if room < 0 or text[room : room + len(BETWEEN)] != BETWEEN:
                break
            self._think_on(block, text[:room], frames)
            frames.extend(self._thought_done(block))
            block.part, block.at, block.words = block.part + 1, 0, []
            frames.extend(_thought_added(block))
            text = text[room + len(BETWEEN) :]
        if text:
            self._think_on(block, text, frames)

    def _think_on(self, block: _Block, text: str, frames: Frames) -> None:
        if block.part < 0:
            block.part = 0
            frames.extend(_thought_added(block))
        block.at += len(text)
        block.words.append(text)
        if text:
            frames.append({"type": f"response.{_source(block)}_text.delta", **_thought(block), "delta": text})

    def _thought_done(self, block: _Block) -> Iterator[dict[str, Any]]:
        if block.part < 0:
            return
        text = "".join(block.words)
        yield {"type": f"response.{_source(block)}_text.done", **_thought(block), "text": text}
        if _source(block) == "reasoning_summary":
            part = {"type": "summary_text", "text": text}
            yield {"type": "response.reasoning_summary_part.done", **_thought(block), "part": part}

    # Calls

    def _begin_call(self, event: ToolUseStart, frames: Frames) -> None:
        if event.index in self._blocks:
            raise _DisorderError(f"block {event.index} begins a second time")
        opened = ToolUseBlock(event.id, event.name, {}, event.provider_raw)
        wire = written_items([opened], Role.ASSISTANT, None, nobody_minds)[0]
        about = self._begin_item(wire, frames, arguments="")
        self._know(event.index, _Block(ToolUseStart, about)).take(event)

    def _take_input(self, event: ToolUseInputDelta, frames: Frames) -> None:
        block = self._open_call(event.index)
        block.take(event)
        text = block.whole(event.partial_json)
        if text:
            block.at += len(text.strip())
            frames.append({"type": "response.function_call_arguments.delta", **(block.about or {}), "delta": text})

    def _open_call(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None or block.kind is not ToolUseStart or block.has_ended:
            raise _DisorderError(f"block {index} is no open tool call")
        return block

    def _end_call(self, event: ToolUseEnd, frames: Frames) -> None:
        """A call is complete; but whether it has no input, or the limit came before it, only the end can say."""
        block = self._open_call(event.index)
        block.take(event)
        block.has_ended = True
        if block.at or self._hint:
            self._close_call(block, frames)

    def _close_call(self, block: _Block, frames: Frames, *, is_cut: bool = False) -> None:
        about, block.is_open = block.about or {}, False
        item = self._done_item([block], is_cut=is_cut)
        text = item.get("arguments", "")
        if text and not block.at:
            frames.append({"type": "response.function_call_arguments.delta", **about, "delta": text})
        frames.append({"type": "response.function_call_arguments.done", **about, "arguments": text})
        frames.append({"type": "response.output_item.done", "output_index": about["output_index"], "item": item})

    # What comes whole

    def _take_whole(self, event: BlockComplete, frames: Frames) -> None:
        if event.index in self._blocks:
            raise _DisorderError(f"block {event.index} begins a second time")
        block = event.block
        if cannot_say(block, Role.ASSISTANT) is not None:
            self._know(event.index, _Block(BlockComplete, None))
        elif is_part(block) and notes_of(getattr(block, "provider_raw", None), NAME).get("content") != "string":
            self._take_whole_part(event, frames)
        else:
            item = written_items([block], Role.ASSISTANT, None, nobody_minds)[0]
            self._take_whole_item(event, item, frames)

    def _take_whole_part(self, event: BlockComplete, frames: Frames) -> None:
        block = event.block
        empty = block.replace(text="") if isinstance(block, TextBlock) else block
        opened = self._open_part(event.index, empty, frames)
        opened.take(event)
        if isinstance(block, TextBlock) and block.text:
            frames.append(_words_delta(opened, block.text))

    def _take_whole_item(self, event: BlockComplete, wire: dict[str, Any], frames: Frames) -> None:
        empty: dict[str, Any] = {}
        if wire.get("type") == "function_call":
            empty = {"arguments": ""}
        elif wire.get("type") == "reasoning" and read_reasoning(wire) is not None:
            empty = {key: [] for key in ("summary", "content") if wire.get(key)}
        about = self._begin_item(wire, frames, **empty)
        block = self._know(event.index, _Block(BlockComplete, about))
        block.take(event)
        block.is_open = False
        item = self._done_item([block])
        frames.extend(_pieces_of(item, about))
        frames.append({"type": "response.output_item.done", "output_index": about["output_index"], "item": item})


def _name_of(item: dict[str, Any]) -> str:
    return str(item.get("id") or item.get("call_id") or "")


def _cut_off(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "status": "incomplete"} if "status" in item or item.get("type") == "function_call" else item


def _error_of(fault: Fault) -> dict[str, Any]:
    return {"code": provider_code(fault), "message": fault.message}


def _words_delta(block: _Block, text: str) -> dict[str, Any]:
    first = block.events[0]
    opened = first.block if isinstance(first, BlockComplete) else first
    if notes_of(getattr(opened, "provider_raw", None), NAME).get("form") == "refusal":
        return {"type": "response.refusal.delta", **(block.about or {}), "delta": text}
    return {"type": "response.output_text.delta", **(block.about or {}), "delta": text, "logprobs": []}


def _source(block: _Block) -> str:
    raw = getattr(block.events[0], "provider_raw", None)
    return "reasoning" if notes_of(raw, NAME).get("form") == "content" else "reasoning_summary"


def _thought(block: _Block) -> dict[str, Any]:
    key = "content_index" if _source(block) == "reasoning" else "summary_index"
    return {**(block.about or {}), key: block.part}


def _thought_added(block: _Block) -> Iterator[dict[str, Any]]:
    if _source(block) == "reasoning_summary":
        part = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **_thought(block), "part": part}


def _pieces_of(item: dict[str, Any], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The deltas of an item that came whole, as this API sends them."""
    match item:
        case {"type": "function_call", "arguments": str(text)}:
            yield {"type": "response.function_call_arguments.delta", **about, "delta": text}
            yield {"type": "response.function_call_arguments.done", **about, "arguments": text}
        case {"type": "reasoning"} if read_reasoning(item) is not None:
            for index, part in enumerate(item.get("summary") or []):
                where = {**about, "summary_index": index}
                yield {"type": "response.reasoning_summary_part.added", **where, "part": {**part, "text": ""}}
                yield {"type": "response.reasoning_summary_text.delta", **where, "delta": part["text"]}
                yield {"type": "response.reasoning_summary_text.done", **where, "text": part["text"]}
                yield {"type": "response.reasoning_summary_part.done", **where, "part": part}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
