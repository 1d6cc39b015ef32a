"""The stages of a turn, as ``metadata.stage`` of the messages that are made in them.

    summary          the oldest turns were summarised
    intent           the model decided what to do: an answer that calls tools
    tool_execution   the result of a tool
    delegation       the result of a worker
    input            what a person answered to a question of a tool
    late_result      what a tool gave after its call had been answered
    answer           an answer that calls nothing

A question begins a turn and is in no stage. ``stage_of`` names the stage of a message that was stored without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dragoman.message import ContentBlock, InvalidToolUseBlock, Message, Role, ToolUseBlock

SUMMARY: Final = "summary"
INTENT: Final = "intent"
TOOL_EXECUTION: Final = "tool_execution"
DELEGATION: Final = "delegation"
INPUT: Final = "input"
LATE_RESULT: Final = "late_result"
ANSWER: Final = "answer"


def stage_of_answer(content: Iterable[ContentBlock]) -> str:
    """The stage of an answer with this content."""
    return INTENT if any(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in content) else ANSWER


def stage_of(message: Message) -> str | None:
    """The stage in which a turn made a message; none if no turn of ours made it."""
    metadata = message.metadata
    if metadata.stage is not None:
        return metadata.stage
    if message.role is Role.TOOL and metadata.run_id is not None:
        return TOOL_EXECUTION
    is_answer = message.role is Role.ASSISTANT and metadata.model is not None
    return stage_of_answer(message.content) if is_answer else None
