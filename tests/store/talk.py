"""Messages to store, as a dialect gives them: they belong to no session yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dragoman.message import (
    ContentBlock,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)

NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def message(role: Role, content: Sequence[ContentBlock], **metadata: Any) -> Message:
    return Message("", "", role, tuple(content), MessageMetadata(**metadata), NO_TIME)


def said(text: str, role: Role = Role.USER, **metadata: Any) -> Message:
    return message(role, [TextBlock(text)], **metadata)


def answered(text: str, **metadata: Any) -> Message:
    return said(text, Role.ASSISTANT, **metadata)


def called(*ids: str, **metadata: Any) -> Message:
    return message(Role.ASSISTANT, [ToolUseBlock(one, "look", {"at": one}) for one in ids], **metadata)


def result(call_id: str, *, is_error: bool = False) -> Message:
    return message(Role.TOOL, [ToolResultBlock(call_id, (TextBlock("seen"),), is_error)], parent_tool_use_id=call_id)
