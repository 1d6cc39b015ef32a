"""Valid transcripts of independent scenes.

    scene(number, speaker)       a question, an answer with reasoning, text and two calls, their results, and a summary
    transcript(scenes)           a system prompt and the scenes, as one session

The assistant messages are read from answers of the strict fake of their dialect, through the adapter of a real model;
they have that provider's ids, signatures and notes. Invariant: equal numbers produce equal bytes.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from dragoman import catalog, dialects
from dragoman.adapter import Adapter, RequestContext
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.ids import ToolIds
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.toolschema import ToolSchemas
from tests.fake_providers import IssuedSignatures, Part, call_part, fakes, text_part, thinking_part

SESSION: Final = "sess_01KE0000000000000000000000"
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
DIALECTS: Final = dialects.callable_names()
TOOLS: Final = (
    ToolDefinition(
        "read_file",
        "Read a file.",
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        SideEffects.READ,
    ),
    ToolDefinition(
        "list_files",
        "List files.",
        {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}, "kinds": {"type": "array", "items": {"type": "string"}}},
        },
        SideEffects.READ,
    ),
)
PROBLEMS: Final = ToolSchemas(TOOLS).problems
PNG: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(32))).decode()
IMAGE: Final = ImageBlock(ImageSource("base64", PNG), "image/png")
ISSUED: Final = {
    name: IssuedSignatures(name) for name in DIALECTS
}  # the ids and signatures that each fake issued for these transcripts


def adapter(dialect: str, ids: ToolIds | None = None) -> Adapter:
    """Return the adapter of a real model of the dialect."""
    rows = catalog.builtin()
    model = rows.model(fakes()[dialect].MODEL)
    return Adapter(rows.provider(model.provider), model, ids)


class Numbers:
    """Increasing ids and times of one session."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[str, datetime]:
        self.count += 1
        return f"01KE{self.count:022d}", NOON + timedelta(seconds=self.count)


def make_message(numbers: Numbers, role: Role, *blocks: ContentBlock, **metadata: object) -> Message:
    """Return the next message."""
    name, when = numbers.next()
    return Message(name, SESSION, role, blocks, MessageMetadata(**metadata), when)  # type: ignore[arg-type]


def make_result(numbers: Numbers, block: ToolUseBlock, text: str, *more: ContentBlock) -> Message:
    """Return the result of a call."""
    result = ToolResultBlock(block.id, (TextBlock(text), *more))
    return make_message(numbers, Role.TOOL, result, parent_tool_use_id=block.id)


def make_answer(numbers: Numbers, dialect: str, *parts: Part) -> Message:
    """Return an answer of the fake of a dialect, as the adapter reads it."""
    source = adapter(dialect)
    name, when = numbers.next()
    context = RequestContext(
        session_id=SESSION,
        message_id=name,
        created_at=when,
        routing=RoutingDecisionRecord(RoutingMode.MANUAL, source.model.id, "it was asked for"),
        usage=Usage(input_tokens=11, output_tokens=7, cost_usd=Decimal(0), pricing_version="v", latency_ms=1),
    )
    ISSUED[
        dialect
    ].reply_count = numbers.count  # its ids depend on the place in the session, not on what was made before
    answer = fakes()[dialect].write_reply(list(parts), source.model.name, ISSUED[dialect])
    return source.from_wire_response(answer, context)


def scene(numbers: Numbers, dialect: str) -> list[Message]:
    """Return a question with an image, reasoning, text and two calls, their results, and a summary."""
    subject = f"{dialect} {numbers.count}"
    question = make_message(numbers, Role.USER, TextBlock(f"What is {subject}?"), IMAGE)
    call_message = make_answer(
        numbers,
        dialect,
        thinking_part(f"I have to look for {subject}."),
        text_part(f"I look for {subject}."),
        call_part("read_file", {"path": subject}),
        call_part("list_files", {"deep": True}),
    )
    first, second = calls_in(call_message)
    return [
        question,
        call_message,
        make_result(numbers, first, f"text of {subject}"),
        make_result(numbers, second, f"files of {subject}", IMAGE),
        make_answer(numbers, dialect, text_part(f"It is {subject}.")),
    ]


def calls_in(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def system(numbers: Numbers) -> Message:
    return make_message(numbers, Role.SYSTEM, TextBlock("Be brief."))
