"""Streams of the Responses API: events in, bytes out, each event as soon as the wire allows it.

A text or a reasoning part is done when the next item starts, a call at its end. The last event repeats the whole
response, so all text is kept until then; it also has what became known about an item after it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    NAME,
    SUMMARY_SEPARATOR,
    as_generated_image,
    is_ignorable,
    is_part,
    part_text,
    read_reasoning,
    unsupported_in_answer,
    unsupported_reason,
    write_items,
    write_part,
)
from dragoman.dialects.openai_responses.error import provider_code
from dragoman.dialects.openai_responses.reply import (
    DETAILS,
    SEED,
    complete_item,
    complete_part,
    default_reply,
    rename_items,
    write_reply,
)
from dragoman.dialects.openai_responses.support import SUPPORT
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
    fold,
    mark_unusable,
)
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.jsontext import list_or_empty
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
from dragoman.wire.frames import sse_frame
from dragoman.wire.residue import apply_diff, diff, get_notes
from dragoman.wire.stream_writer import BaseStreamWriter

_CUT_CALL: Final = Fault(code="tool_input_truncated", message="a call was cut off", retryable=True)

Frames = list[dict[str, Any]]


class _Block:
    """A partial block: its events, and its address on the wire."""

    def __init__(self, kind: type[StreamEvent], address: dict[str, Any] | None) -> None:
        self.kind = kind
        self.address = address  # ``None`` if the API does not support the block
        self.events: list[StreamEvent] = []
        self.is_open = True
        self.has_ended = False  # the end of a call is written
        self.part = -1  # the open part of reasoning
        self.texts: list[str] = []  # the texts of the open part
        self.at = 0  # characters written of it
        self.cuts: list[int] = []
        self._block: ContentBlock | None = None

    def add(self, event: StreamEvent) -> None:
        self.events.append(event)
        self._block = None

    def mark_cut(self) -> None:
        """Mark a call without input as cut by the output limit."""
        if isinstance(self.block, ToolUseBlock):
            call, reason = self.block, "the output limit was reached before its input"
            self._block = InvalidToolUseBlock(call.id, call.name, "", reason, call.provider_raw)

    @property
    def block(self) -> ContentBlock:
        if self._block is None:
            self._block = _keep_input_text(fold(self.events).content[0], self.events)
        return self._block


def _keep_input_text(block: ContentBlock, events: list[StreamEvent]) -> ContentBlock:
    """Return a call with its input as it was received; a cut call with the notes of its start."""
    first = events[0]
    if not isinstance(first, ToolUseStart):
        return block
    raw = block.provider_raw if isinstance(block, ToolUseBlock | InvalidToolUseBlock) else None
    if isinstance(block, InvalidToolUseBlock) and raw is None:
        return block.replace(provider_raw=first.provider_raw)
    text = "".join(event.partial_json for event in events if isinstance(event, ToolUseInputDelta))
    if get_notes(raw, NAME) or not isinstance(block, ToolUseBlock) or not text.strip():
        return block
    default = write_items([block.replace(provider_raw=None)], Role.ASSISTANT, None, is_ignorable)[0]
    residue = diff(default, {**default, "arguments": text})
    return block.replace(provider_raw={"dialect": NAME, "residue": residue} if residue else None)


class StreamWriter(BaseStreamWriter):
    """Events in, bytes out."""

    support = SUPPORT
    details = DETAILS
    find_loss = staticmethod(unsupported_in_answer)

    open_call_stop_reasons = tuple(StopReason)
    starts_before_failure = False

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing)
        self._number = 0
        self._start: MessageStart | None = None
        self._hint: ProviderRaw = {}  # native notes of the start event
        self._wire_blocks: list[_Block] = []  # in order of their start
        self._blocks: dict[int, _Block] = {}  # by block index
        self._current: list[_Block] = []  # blocks of the open message or reasoning item
        self._places = 0

    def write_start(self, start: MessageStart) -> bytes:
        """Write ``response.created``."""
        return self._write(self._start_response, start)

    def write_text_delta(self, delta: TextDelta, text: str) -> bytes:
        """Write more text; citations and probabilities are written with the end of the part."""
        return self._write(self._add_text, delta.replace(text=text))

    def write_thinking_delta(self, delta: ThinkingDelta, text: str) -> bytes:
        """Write more reasoning of this dialect; other reasoning is never written."""
        return self._write(self._add_text, delta.replace(text=text))

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write the start of a call."""
        return self._write(self._start_call, start)

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write more arguments of a call."""
        return self._write(self._add_input, ToolUseInputDelta(index, text))

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return self._write(self._end_call, end)

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a whole block."""
        return self._write(self._add_whole_block, BlockComplete(index, block))

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:  # noqa: ARG002  it is in self.usage
        """Write the event that ends the response and repeats all of it."""
        return self._write(self._end_response, end)

    def write_failure(self, error: StreamError) -> bytes:
        """Write ``response.failed``; ``error`` if the response has not started."""
        return self._write(self._fail_response, error)

    def _write(self, step: Callable[[Any, Frames], None], event: StreamEvent) -> bytes:
        frames: Frames = []
        step(event, frames)
        first, self._number = self._number, self._number + len(frames)
        numbered = enumerate(frames, first)
        return b"".join(sse_frame({**wire, "sequence_number": number}, wire["type"]) for number, wire in numbered)

    # The response

    def _start_response(self, start: MessageStart, frames: Frames) -> None:
        self._start, self._hint = start, get_notes(start.provider_raw, NAME)
        default = default_reply(Reply(stop_reason=StopReason.UNKNOWN, model=start.model))
        wire = {**apply_diff(default, self._hint.get("residue")), **self.identity}
        unknown = [
            key for key in ("usage", "error", "incomplete_details", "completed_at") if key in {**default, **wire}
        ]
        response = {**wire, **dict.fromkeys(unknown), "status": "in_progress", "output": []}
        frames.append({"type": "response.created", "response": response})
        frames.append({"type": "response.in_progress", "response": response})

    def _end_response(self, end: MessageComplete, frames: Frames) -> None:
        open_calls = [block for block in self._wire_blocks if block.is_open and block.kind is ToolUseStart]
        cut_calls = [block for block in open_calls if not block.has_ended or end.stop_reason is StopReason.MAX_TOKENS]
        for block in cut_calls:
            block.mark_cut()
        reply = self._make_reply(end.stop_reason, end.provider_raw)
        if cut_calls:
            reply = reply.replace(stop_reason=StopReason.ERROR, fault=_CUT_CALL)
        wire = self._name(write_reply(mark_unusable(reply)).wire)
        status = wire.get("status")
        self._close_current(frames, is_cut=status != "completed" and not self._hint)
        for block in open_calls:
            self._close_call(block, frames, is_cut=block in cut_calls)
        kind = status if status in ("incomplete", "failed") else "completed"
        frames.append({"type": f"response.{kind}", "response": wire})

    def _fail_response(self, error: StreamError, frames: Frames) -> None:
        fault = error.fault
        if self._start is None:
            fields = {"code": provider_code(fault), "message": fault.message, "param": None}
            frames.append({"type": "error", **fields})
            return
        reply = self._make_reply(StopReason.ERROR, error.provider_raw, fault)
        wire = self._name(write_reply(reply).wire)
        open_ids = {
            block.address["item_id"] for block in self._wire_blocks if block.is_open and block.address is not None
        }
        output = [_mark_incomplete(item) if _item_name(item) in open_ids else item for item in wire["output"]]
        wire = {**wire, "status": "failed", "error": _write_error(fault), "output": output}
        frames.append({"type": "response.failed", "response": wire})

    @property
    def _seed(self) -> str:
        """The id of the response, which makes the ids of its items unique."""
        return str(self.identity.get("id", "")).partition("_")[2] or SEED

    def _name(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Return a response with its own ids."""
        return {**wire, **self.identity, "output": rename_items(wire["output"], self._seed)}

    def _make_reply(self, stop_reason: StopReason, raw: ProviderRaw | None, fault: Fault | None = None) -> Reply:
        content = tuple(block.block for block in self._wire_blocks)
        notes: ProviderRaw | None = None
        if self._hint:  # the end of a failed reply may have fewer fields than its start
            notes = {**(self._hint if fault is not None else {}), **get_notes(raw, NAME)} or self._hint
        model = self._start.model if self._start is not None else None
        return Reply(
            content=content, stop_reason=stop_reason, usage=self._usage, model=model, fault=fault, provider_raw=notes
        )

    # Items

    def _start_item(self, wire: dict[str, Any], frames: Frames, **empty: Any) -> dict[str, Any]:
        """Start an item and return its address."""
        self._close_current(frames)
        place = self._places
        self._places += 1
        item = wire if self._hint else complete_item(place, wire, seed=self._seed)
        start = {**item, **empty}
        if "status" in start:
            start["status"] = "in_progress"
        frames.append({"type": "response.output_item.added", "output_index": place, "item": start})
        return {"item_id": _item_name(item), "output_index": place}

    def _finish_item(self, blocks: list[_Block], *, is_cut: bool = False) -> dict[str, Any]:
        item = write_items([block.block for block in blocks], Role.ASSISTANT, None, is_ignorable)[0]
        address = blocks[0].address or {}
        item = item if self._hint else complete_item(address["output_index"], item, is_cut=is_cut, seed=self._seed)
        return _mark_incomplete(item) if is_cut else item

    def _close_current(self, frames: Frames, *, is_cut: bool = False) -> None:
        """Finish the open item."""
        blocks, self._current = self._current, []
        if blocks:
            self._close_part(blocks[-1], frames)
            item = self._finish_item(blocks, is_cut=is_cut)
            place = (blocks[0].address or {})["output_index"]
            frames.append({"type": "response.output_item.done", "output_index": place, "item": item})

    def _close_part(self, block: _Block, frames: Frames) -> None:
        if block.is_open:
            block.is_open = False
            frames.extend(self._end_thinking_part(block) if block.kind is ThinkingDelta else self._end_part(block))

    # Text

    def _add_text(self, event: TextDelta | ThinkingDelta, frames: Frames) -> None:
        block = self._blocks.get(event.index)
        if block is None or (event.text and not block.is_open and block.address is not None):
            block = self._open_block(event, block, frames)
        if block.address is None:
            return
        block.add(event)
        if block.kind is ThinkingDelta:
            self._write_thinking(block, event.text, event.provider_raw, frames)
        elif event.text:
            frames.append(_text_delta(block, event.text))

    def _open_block(self, event: TextDelta | ThinkingDelta, previous: _Block | None, frames: Frames) -> _Block:
        """Start a block. Text for a block that is done starts an item of its own."""
        raw = event.provider_raw
        if previous is not None and raw is None and self._hint:
            raw = {"dialect": NAME}
        opening: ContentBlock = (
            TextBlock("", raw) if isinstance(event, TextDelta) else ThinkingBlock("", event.signature, raw)
        )
        if unsupported_reason(opening, Role.ASSISTANT) is not None:
            return self._add_block(event.index, _Block(type(event), None))
        if isinstance(opening, TextBlock):
            return self._open_part(event.index, opening, frames)
        return self._open_thinking(event.index, opening, frames)

    def _add_block(self, index: int, block: _Block) -> _Block:
        self._blocks[index] = block
        if block.address is not None:
            self._wire_blocks.append(block)
        return block

    def _open_part(self, index: int, opening: ContentBlock, frames: Frames) -> _Block:
        """Start a part of the open message item, or of a new one."""
        notes = get_notes(getattr(opening, "provider_raw", None), NAME)
        is_continued = bool(self._current) and self._current[-1].kind is TextDelta and notes.get("item") is None
        if is_continued:
            self._close_part(self._current[-1], frames)
            address = {**(self._current[0].address or {}), "content_index": len(self._current)}
        else:
            envelope = apply_diff({"role": "assistant"}, notes.get("item"))
            address = {**self._start_item({**envelope, "content": []}, frames), "content_index": 0}
        block = self._add_block(index, _Block(TextDelta, address))
        self._current.append(block)
        part = self._write_part(opening)
        empty: dict[str, Any] = {key: [] for key in ("annotations", "logprobs") if key in part}
        frames.append({"type": "response.content_part.added", **address, "part": {**part, **empty}})
        return block

    def _write_part(self, block: ContentBlock) -> dict[str, Any]:
        part = write_part(block, Role.ASSISTANT)
        return part if self._hint else complete_part(part)

    def _end_part(self, block: _Block) -> Iterator[dict[str, Any]]:
        address, part = block.address or {}, self._write_part(block.block)
        text = part_text(part)
        for index, annotation in enumerate(list_or_empty(part.get("annotations"))):
            kind = "response.output_text.annotation.added"
            yield {"type": kind, **address, "annotation_index": index, "annotation": annotation}
        if part.get("type") == "refusal":
            yield {"type": "response.refusal.done", **address, "refusal": text}
        elif text is not None:
            logprobs = list_or_empty(part.get("logprobs"))
            yield {"type": "response.output_text.done", **address, "text": text, "logprobs": logprobs}
        yield {"type": "response.content_part.done", **address, "part": part}

    # Reasoning

    def _open_thinking(self, index: int, opening: ContentBlock, frames: Frames) -> _Block:
        wire = write_items([opening], Role.ASSISTANT, None, is_ignorable)[0]
        empty: dict[str, Any] = {key: [] for key in ("summary", "content") if key in wire}
        block = self._add_block(index, _Block(ThinkingDelta, self._start_item(wire, frames, **empty)))
        self._current.append(block)
        return block

    def _write_thinking(self, block: _Block, text: str, raw: ProviderRaw | None, frames: Frames) -> None:
        """Write more reasoning. Where summaries were joined, one part ends and the next starts."""
        block.cuts = get_notes(raw, NAME).get("cuts") or block.cuts
        while 0 <= block.part < len(block.cuts) - 1 or (block.part < 0 < len(block.cuts) - 1 and text):
            room = block.cuts[max(block.part, 0)] - block.at
            if room < 0 or text[room : room + len(SUMMARY_SEPARATOR)] != SUMMARY_SEPARATOR:
                break
            self._write_thinking_text(block, text[:room], frames)
            frames.extend(self._end_thinking_part(block))
            block.part, block.at, block.texts = block.part + 1, 0, []
            frames.extend(_start_thinking_part(block))
            text = text[room + len(SUMMARY_SEPARATOR) :]
        if text:
            self._write_thinking_text(block, text, frames)

    def _write_thinking_text(self, block: _Block, text: str, frames: Frames) -> None:
        if block.part < 0:
            block.part = 0
            frames.extend(_start_thinking_part(block))
        block.at += len(text)
        block.texts.append(text)
        if text:
            frames.append(
                {"type": f"response.{_thinking_source(block)}_text.delta", **_thinking_address(block), "delta": text}
            )

    def _end_thinking_part(self, block: _Block) -> Iterator[dict[str, Any]]:
        if block.part < 0:
            return
        text = "".join(block.texts)
        yield {"type": f"response.{_thinking_source(block)}_text.done", **_thinking_address(block), "text": text}
        if _thinking_source(block) == "reasoning_summary":
            part = {"type": "summary_text", "text": text}
            yield {"type": "response.reasoning_summary_part.done", **_thinking_address(block), "part": part}

    # Calls

    def _start_call(self, event: ToolUseStart, frames: Frames) -> None:
        opening = ToolUseBlock(event.id, event.name, {}, event.provider_raw)
        wire = write_items([opening], Role.ASSISTANT, None, is_ignorable)[0]
        address = self._start_item(wire, frames, arguments="")
        self._add_block(event.index, _Block(ToolUseStart, address)).add(event)

    def _add_input(self, event: ToolUseInputDelta, frames: Frames) -> None:
        block, text = self._blocks[event.index], event.partial_json
        block.add(event)
        if text:
            block.at += len(text.strip())
            frames.append({"type": "response.function_call_arguments.delta", **(block.address or {}), "delta": text})

    def _end_call(self, event: ToolUseEnd, frames: Frames) -> None:
        """End a call; a call without input waits for the stop reason, which shows whether it was cut."""
        block = self._blocks[event.index]
        block.add(event)
        block.has_ended = True
        if block.at or self._hint:
            self._close_call(block, frames)

    def _close_call(self, block: _Block, frames: Frames, *, is_cut: bool = False) -> None:
        address, block.is_open = block.address or {}, False
        item = self._finish_item([block], is_cut=is_cut)
        text = item.get("arguments", "")
        if text and not block.at:
            frames.append({"type": "response.function_call_arguments.delta", **address, "delta": text})
        frames.append({"type": "response.function_call_arguments.done", **address, "arguments": text})
        frames.append({"type": "response.output_item.done", "output_index": address["output_index"], "item": item})

    # Complete blocks

    def _add_whole_block(self, event: BlockComplete, frames: Frames) -> None:
        block = as_generated_image(event.block)
        event = event if block is event.block else BlockComplete(event.index, block)
        if unsupported_reason(block, Role.ASSISTANT) is not None:
            self._add_block(event.index, _Block(BlockComplete, None))
        elif is_part(block) and get_notes(getattr(block, "provider_raw", None), NAME).get("content") != "string":
            self._write_whole_part(event, frames)
        else:
            item = write_items([block], Role.ASSISTANT, None, is_ignorable)[0]
            self._write_whole_item(event, item, frames)

    def _write_whole_part(self, event: BlockComplete, frames: Frames) -> None:
        block = event.block
        empty = block.replace(text="") if isinstance(block, TextBlock) else block
        wire_block = self._open_part(event.index, empty, frames)
        wire_block.add(event)
        if isinstance(block, TextBlock) and block.text:
            frames.append(_text_delta(wire_block, block.text))

    def _write_whole_item(self, event: BlockComplete, wire: dict[str, Any], frames: Frames) -> None:
        empty: dict[str, Any] = {}
        if wire.get("type") == "function_call":
            empty = {"arguments": ""}
        elif wire.get("type") == "custom_tool_call":
            empty = {"input": ""}
        elif wire.get("type") == "reasoning" and read_reasoning(wire) is not None:
            empty = {key: [] for key in ("summary", "content") if wire.get(key)}
        address = self._start_item(wire, frames, **empty)
        block = self._add_block(event.index, _Block(BlockComplete, address))
        block.add(event)
        block.is_open = False
        item = self._finish_item([block])
        frames.extend(_item_deltas(item, address))
        frames.append({"type": "response.output_item.done", "output_index": address["output_index"], "item": item})


def _item_name(item: dict[str, Any]) -> str:
    return str(item.get("id") or item.get("call_id") or "")


def _mark_incomplete(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "status": "incomplete"} if "status" in item or item.get("type") == "function_call" else item


def _write_error(fault: Fault) -> dict[str, Any]:
    return {"code": provider_code(fault), "message": fault.message}


def _text_delta(block: _Block, text: str) -> dict[str, Any]:
    first = block.events[0]
    content = first.block if isinstance(first, BlockComplete) else first
    if get_notes(getattr(content, "provider_raw", None), NAME).get("form") == "refusal":
        return {"type": "response.refusal.delta", **(block.address or {}), "delta": text}
    return {"type": "response.output_text.delta", **(block.address or {}), "delta": text, "logprobs": []}


def _thinking_source(block: _Block) -> str:
    raw = getattr(block.events[0], "provider_raw", None)
    return "reasoning" if get_notes(raw, NAME).get("form") == "content" else "reasoning_summary"


def _thinking_address(block: _Block) -> dict[str, Any]:
    key = "content_index" if _thinking_source(block) == "reasoning" else "summary_index"
    return {**(block.address or {}), key: block.part}


def _start_thinking_part(block: _Block) -> Iterator[dict[str, Any]]:
    if _thinking_source(block) == "reasoning_summary":
        part = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **_thinking_address(block), "part": part}


def _item_deltas(item: dict[str, Any], address: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas of an item that arrived whole, as this API sends them."""
    match item:
        case {"type": "function_call", "arguments": str(text)}:
            yield {"type": "response.function_call_arguments.delta", **address, "delta": text}
            yield {"type": "response.function_call_arguments.done", **address, "arguments": text}
        case {"type": "custom_tool_call", "input": str(text)}:
            yield {"type": "response.custom_tool_call_input.delta", **address, "delta": text}
            yield {"type": "response.custom_tool_call_input.done", **address, "input": text}
        case {"type": "reasoning"} if read_reasoning(item) is not None:
            for index, part in enumerate(item.get("summary") or []):
                where = {**address, "summary_index": index}
                yield {"type": "response.reasoning_summary_part.added", **where, "part": {**part, "text": ""}}
                yield {"type": "response.reasoning_summary_text.delta", **where, "delta": part["text"]}
                yield {"type": "response.reasoning_summary_text.done", **where, "text": part["text"]}
                yield {"type": "response.reasoning_summary_part.done", **where, "part": part}


stream_writer = StreamWriter
