"""Read streams. An interaction is created, its steps start, grow and stop, and the interaction is completed.

Invariant: only ``interaction.completed`` ends a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.gemini_interactions.reply import make_reply, read_fault, read_model
from dragoman.dialects.gemini_interactions.steps import (
    NAME,
    NATIVE,
    Wire,
    call_from,
    read_call,
    read_item,
    read_step,
    read_thought,
)
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
from dragoman.jsontext import expect_list, expect_object
from dragoman.message import OpaqueBlock, ProviderRaw, TextBlock, ThinkingBlock
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.stream_reader import BaseStreamReader, EventOrderError
from dragoman.wire.tool_definitions import read_arguments

_NAMES: Final = {  # names of events in earlier versions
    "interaction.start": "interaction.created",
    "interaction.complete": "interaction.completed",
    "content.start": "step.start",
    "content.delta": "step.delta",
    "content.stop": "step.stop",
}
_ITEMS: Final = ("image", "audio", "video", "document")


class _OpenStep:
    """A step that is incomplete: its wire object, and the index of its last block."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.block_index: int | None = None
        self.call_id = ""
        self.arguments: list[str] = []
        self.is_open = True

    @property
    def kind(self) -> Any:
        """The type of the step."""
        return self.wire.get("type")


class StreamReader(BaseStreamReader):
    """Convert the bytes of a stream to events, and collect the whole interaction for the residue."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._interaction: Wire | None = None
        self._steps: dict[int, _OpenStep] = {}
        self._block_count = 0
        self._notes: dict[int, tuple[type, ProviderRaw | None]] = {}  # of texts and thoughts, by index
        self._builder = MessageBuilder()

    def read_event(self, wire: Wire, name: str | None, events: list[StreamEvent]) -> None:
        """Read one event."""
        kind = str(wire.get("event_type") or name)
        if kind == "error" or (name is None and "event_type" not in wire and "error" in wire):
            events.append(StreamError(read_fault(wire)))
            return
        handler = _HANDLERS.get(_NAMES.get(kind, kind))
        if handler is None:
            return  # an event of a newer version
        handler(self, wire, events)

    def _read_created(self, wire: Wire, events: list[StreamEvent]) -> None:
        if self._interaction is not None:
            raise EventOrderError("a second interaction.created")
        self._interaction = dict(expect_object(wire.get("interaction"), "interaction"))
        notes = {"dialect": NAME, "start": self._interaction}
        events.append(MessageStart(read_model(self._interaction), notes))

    def _read_step_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = wire.get("index")
        if self._interaction is None or type(index) is not int or index in self._steps:
            raise EventOrderError(f"step.start for {index}, which cannot start here")
        start = dict(expect_object(wire.get("step") or wire.get("content") or {}, "step"))
        step = self._steps[index] = _OpenStep(start)
        if step.kind == "text":
            start = step.wire = {"type": "model_output", "content": [start]}
        match step.kind:
            case "model_output":
                items = expect_list(start.get("content") or [], "step.content")
                start.update({"content": []} if items else {})
                for item in items:
                    self._add_item(step, dict(expect_object(item, "step.content")), events)
            case "thought":
                step.block_index = self._next_block_index()
                text = getattr(read_thought(start), "text", "")
                events.append(ThinkingDelta(step.block_index, text, None, dict(NATIVE)))
            case "function_call":
                self._start_call(step, events)

    def _start_call(self, step: _OpenStep, events: list[StreamEvent]) -> None:
        if not step.wire.get("id") and not step.wire.get("name"):
            return  # an earlier version sends the whole call as a delta
        block = read_call({**step.wire, "arguments": {}}, "step", self._builder)
        step.block_index, step.call_id = self._next_block_index(), block.id
        events.append(ToolUseStart(step.block_index, block.id, block.name, block.provider_raw))

    def _add_arguments(self, step: _OpenStep, text: str, events: list[StreamEvent]) -> None:
        if step.block_index is not None and text:
            step.arguments.append(text)
            events.append(ToolUseInputDelta(step.block_index, text))

    def _read_step_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        step = self._open_step(wire, "step.delta")
        delta = expect_object(wire.get("delta"), "delta")
        match delta:
            case {"type": "text", "text": str(text)} if step.kind == "model_output":
                self._add_text(step, delta, text, events)
            case {"type": "text_annotation_delta", "annotations": list(annotations)} if step.wire.get("content"):
                step.wire["content"][-1].setdefault("annotations", []).extend(annotations)
            case {"type": "thought_summary", "content": {"text": str(text)} as item}:
                self._add_summary(step, item, text, events)
            case {"type": "thought_signature", "signature": str(signature)}:
                step.wire["signature"] = signature
            case {"type": "arguments_delta"}:
                arguments = delta.get("arguments")
                self._add_arguments(step, arguments if isinstance(arguments, str) else "", events)
            case {"type": "function_call"} if step.block_index is None:
                step.wire.update(delta)
                self._start_call(step, events)
            case {"type": str(kind)} if kind in _ITEMS and step.kind == "model_output":
                self._add_item(step, dict(delta), events)
            case _:
                step.wire.update((key, value) for key, value in delta.items() if key != "type")

    def _add_text(self, step: _OpenStep, delta: Wire, text: str, events: list[StreamEvent]) -> None:
        items = step.wire.setdefault("content", [])
        if items and items[-1].get("type") == "text" and step.block_index is not None:
            items[-1]["text"] += text
            items[-1].update((key, value) for key, value in delta.items() if key not in ("type", "text"))
            events.append(TextDelta(step.block_index, text))
        else:
            self._add_item(step, dict(delta), events)

    def _add_item(self, step: _OpenStep, item: Wire, events: list[StreamEvent]) -> None:
        """Add an item to a step. A text may still grow."""
        self._end_text(step, events)
        step.wire.setdefault("content", []).append(item)
        step.block_index = self._next_block_index()
        block = read_item(item)
        if isinstance(block, TextBlock):
            events.append(TextDelta(step.block_index, block.text))
        else:
            events.append(BlockComplete(step.block_index, block))
            step.block_index = None

    def _end_text(self, step: _OpenStep, events: list[StreamEvent]) -> None:
        """Append the notes of the last text of a step, which is complete now."""
        items = step.wire.get("content")
        if step.kind == "model_output" and items and step.block_index is not None:
            block = read_item(items[-1])
            if isinstance(block, TextBlock):
                self._notes[step.block_index] = (TextBlock, block.provider_raw)
                if block.provider_raw is not None:
                    events.append(TextDelta(step.block_index, "", block.provider_raw))

    def _add_summary(self, step: _OpenStep, item: Wire, text: str, events: list[StreamEvent]) -> None:
        step.wire.setdefault("summary", []).append(item)
        if step.kind == "thought" and step.block_index is not None:
            events.append(ThinkingDelta(step.block_index, text, None, dict(NATIVE)))

    def _read_step_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        step = self._open_step(wire, "step.stop")
        step.is_open = False
        match step.kind:
            case "model_output":
                self._end_text(step, events)
            case "thought" if step.block_index is not None:
                block = read_thought(step.wire)
                if isinstance(block, ThinkingBlock):
                    self._notes[step.block_index] = (ThinkingBlock, block.provider_raw)
                    events.append(ThinkingDelta(step.block_index, "", block.signature, block.provider_raw))
            case "function_call" if step.block_index is not None:
                if step.wire.get("arguments") and not step.arguments:  # the call started with all of them
                    self._add_arguments(step, msgspec.json.encode(step.wire["arguments"]).decode(), events)
                call = call_from(self._join_call(step), "step", step.call_id)
                events.append(ToolUseEnd(step.block_index, call.provider_raw))
            case _:
                events.append(BlockComplete(self._next_block_index(), OpaqueBlock(NAME, step.wire)))

    def _join_call(self, step: _OpenStep) -> Wire:
        """Return the call with its arguments as an object, or as a text if they are not valid JSON."""
        text = "".join(step.arguments)
        if text:
            value, problem = read_arguments(text)
            step.wire["arguments"] = value if problem is None else text
        return step.wire

    def _read_status(self, wire: Wire, _events: list[StreamEvent]) -> None:
        if self._interaction is not None and isinstance(wire.get("status"), str):
            self._interaction["status"] = wire["status"]

    def _read_completed(self, wire: Wire, events: list[StreamEvent]) -> None:
        if self._interaction is None:
            raise EventOrderError("interaction.completed before interaction.created")
        if any(step.is_open and step.kind != "function_call" for step in self._steps.values()):
            raise EventOrderError("interaction.completed while a step is open")
        body = {**self._interaction, **expect_object(wire.get("interaction") or {}, "interaction")}
        for step in self._steps.values():
            if step.kind == "function_call":
                self._join_call(step)
        if "steps" not in body and "outputs" not in body:
            body["steps"] = [step.wire for _, step in sorted(self._steps.items())]
        elif "steps" in body:
            self._add_notes(body["steps"], events)
        reply = make_reply(body)
        if reply.usage is not None:
            events.append(UsageUpdate(reply.usage))
        if reply.fault is not None:
            events.append(StreamError(reply.fault, reply.provider_raw))
        else:
            events.append(MessageComplete(reply.stop_reason, None, reply.provider_raw))

    def _add_notes(self, steps: Any, events: list[StreamEvent]) -> None:
        """Append the notes of texts and thoughts that only the repeated steps have."""
        builder, wires = MessageBuilder(), expect_list(steps, "interaction.steps")
        blocks = [block for wire in wires for block in read_step(expect_object(wire, "step"), "step", builder)]
        if len(blocks) != self._block_count:
            return
        for index, block in enumerate(blocks):
            if isinstance(block, TextBlock) and self._is_noted(index, TextBlock, block.provider_raw):
                events.append(TextDelta(index, "", block.provider_raw))
            elif isinstance(block, ThinkingBlock) and self._is_noted(index, ThinkingBlock, block.provider_raw):
                events.append(ThinkingDelta(index, "", block.signature, block.provider_raw))

    def _is_noted(self, index: int, kind: type, raw: ProviderRaw | None) -> bool:
        """Return whether a text or a thought has notes, and others than the stream had so far."""
        streamed = self._notes.get(index, (None, None))
        return raw is not None and streamed[0] is kind and streamed[1] != raw

    def _open_step(self, wire: Wire, kind: str) -> _OpenStep:
        index = wire.get("index")
        step = self._steps.get(index) if type(index) is int else None
        if step is None or not step.is_open:
            raise EventOrderError(f"{kind} for {index}, which is not open")
        return step

    def _next_block_index(self) -> int:
        self._block_count += 1
        return self._block_count - 1


_HANDLERS: Final[dict[str, Callable[[StreamReader, Wire, list[StreamEvent]], None]]] = {
    "interaction.created": StreamReader._read_created,
    "interaction.status_update": StreamReader._read_status,
    "step.start": StreamReader._read_step_start,
    "step.delta": StreamReader._read_step_delta,
    "step.stop": StreamReader._read_step_stop,
    "interaction.completed": StreamReader._read_completed,
}


stream_reader = StreamReader
