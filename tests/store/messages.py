"""Messages without a session, as a dialect returns them, and queries of stored messages."""

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


def text_message(text: str, role: Role = Role.USER, **metadata: Any) -> Message:
    return message(role, [TextBlock(text)], **metadata)


def answer_message(text: str, **metadata: Any) -> Message:
    return text_message(text, Role.ASSISTANT, **metadata)


def call_message(*ids: str, **metadata: Any) -> Message:
    return message(Role.ASSISTANT, [ToolUseBlock(call_id, "look", {"at": call_id}) for call_id in ids], **metadata)


def result_message(call_id: str, *, is_error: bool = False) -> Message:
    return message(Role.TOOL, [ToolResultBlock(call_id, (TextBlock("seen"),), is_error)], parent_tool_use_id=call_id)


def create_usage(input: int = 0, output: int = 0, cost: str = "0") -> Usage:  # noqa: A002
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


def list_texts(rows: Sequence[Row]) -> list[str]:
    return [block.text for row in rows for block in row.message.content if isinstance(block, TextBlock)]


async def read_call_states(store: Store, session_id: str) -> dict[str, str]:
    return {call.id: call.status for call in await store.tool_calls(session_id)}
