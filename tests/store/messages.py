"""Messages to store, as a dialect gives them: they belong to no session yet; and what is asked of stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from dragoman.message import (
    ContentBlock,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.store import Row, Store

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


def used(input: int = 0, output: int = 0, cost: str = "0") -> Usage:  # noqa: A002
    return Usage(
        input_tokens=input,
        output_tokens=output,
        cached_input_tokens=input * 2,
        cache_creation_input_tokens=input * 3,
        reasoning_tokens=output // 2,
        cost_usd=Decimal(cost),
        pricing_version="v1",
        latency_ms=1,
    )


def texts(rows: Sequence[Row]) -> list[str]:
    return [block.text for row in rows for block in row.message.content if isinstance(block, TextBlock)]


async def states(store: Store, session_id: str) -> dict[str, str]:
    return {call.id: call.status for call in await store.tool_calls(session_id)}
