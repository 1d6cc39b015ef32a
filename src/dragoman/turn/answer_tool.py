"""Structured output for models without it: the answer is the input of a tool that the model must call.

The turn receives the text that a model with structured output would write. ``AnswerTool`` adds the tool to a request
and converts its call in the events of the answer. Text beside the call is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dragoman.catalog import Model
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from dragoman.exchange import Options, ResponseFormat, SideEffects, StopReason, ToolChoice, ToolDefinition
from dragoman.message import InvalidToolUseBlock, TextBlock, ToolUseBlock

NAME: Final = "final_answer"
_DESCRIPTION: Final = "Give the final answer. Call it exactly once, when no other tool is needed."


class AnswerTool:
    """The tool of one call of a model."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition
        self._conversion = _Conversion(definition.name)

    @classmethod
    def for_call(
        cls, model: Model, response_format: ResponseFormat | None, tools: tuple[ToolDefinition, ...]
    ) -> AnswerTool | None:
        """The tool, if the answer has a schema and the model has no structured output."""
        if response_format is None or response_format.json_schema is None:
            return None
        if model.capabilities.supports_structured_output or not model.capabilities.supports_tools:
            return None
        names = {tool.name for tool in tools}
        name = next(name for name in (NAME, *(f"{NAME}_{number}" for number in range(len(names)))) if name not in names)
        schema = response_format.json_schema
        return cls(ToolDefinition(name, _DESCRIPTION, schema, SideEffects.NONE, requires_workspace=False))

    def add_to(self, tools: tuple[ToolDefinition, ...], options: Options) -> tuple[tuple[ToolDefinition, ...], Options]:
        """The tools and options of the request: the model must call this tool, or another one first."""
        choice = ToolChoice("required") if tools else ToolChoice("tool", self.definition.name)
        return (*tools, self.definition), options.replace(response_format=None, tool_choice=choice)

    def convert(self, events: Iterable[StreamEvent]) -> list[StreamEvent]:
        """The next events of the answer, with the call of this tool as text."""
        return [converted for event in events for converted in self._conversion.feed(event)]


class _Conversion:
    """The state of one conversion. Text is held back until a call shows whether it is part of the answer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: list[StreamEvent] = []
        self._dropped: set[int] = set()  # indexes of text beside the answer: later blocks move up
        self._answers: set[int] = set()  # indexes of calls of the tool
        self._has_other_calls = False

    def feed(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """The events for the turn that follow from one event of the model."""
        match event:
            case TextDelta(index=index) if self._answers:
                self._dropped.add(index)
            case TextDelta() if not self._has_other_calls:
                self._held.append(event)
            case ToolUseStart(index=index, name=name) if name == self._name:
                self._start_answer(index)
            case ToolUseInputDelta(index=index, partial_json=text) if index in self._answers:
                yield TextDelta(self._shift(index), text)
            case ToolUseEnd(index=index) if index in self._answers:
                pass
            case BlockComplete(index=index, block=ToolUseBlock(name=name, input=value)) if name == self._name:
                self._start_answer(index)
                yield BlockComplete(self._shift(index), TextBlock(msgspec.json.encode(value).decode()))
            case MessageComplete(stop_reason=reason):
                yield from self._release_text()
                is_answer = self._answers and not self._has_other_calls and reason is StopReason.TOOL_USE
                yield event.replace(stop_reason=StopReason.END_TURN) if is_answer else event
            case ToolUseStart() | BlockComplete(block=ToolUseBlock() | InvalidToolUseBlock()):
                self._has_other_calls = True
                yield from self._release_text()
                yield event.replace(index=self._shift(event.index))
            case (
                ThinkingDelta(index=index)
                | ToolUseInputDelta(index=index)
                | ToolUseEnd(index=index)
                | BlockComplete(index=index)
            ):
                yield event.replace(index=self._shift(index))
            case _:
                yield event

    def _start_answer(self, index: int) -> None:
        self._answers.add(index)
        self._dropped.update(event.index for event in self._held if isinstance(event, TextDelta))
        self._held.clear()

    def _release_text(self) -> Iterator[StreamEvent]:
        yield from self._held
        self._held.clear()

    def _shift(self, index: int) -> int:
        return index - sum(dropped < index for dropped in self._dropped)
