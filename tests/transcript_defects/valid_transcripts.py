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
SPEAKERS: Final = dialects.callable_names()
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
PICTURE: Final = ImageBlock(ImageSource("base64", PNG), "image/png")
ISSUED: Final = {name: IssuedSignatures(name) for name in SPEAKERS}  # what each fake gave away while these were made


def adapter(dialect: str, ids: ToolIds | None = None) -> Adapter:
    """Return the adapter of a real model of the dialect."""
    rows = catalog.builtin()
    model = rows.model(fakes()[dialect].MODEL)
    return Adapter(rows.provider(model.provider), model, ids)


class Numbers:
    """Ids and times of one session, growing."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[str, datetime]:
        self.count += 1
        return f"01KE{self.count:022d}", NOON + timedelta(seconds=self.count)


def said(numbers: Numbers, role: Role, *blocks: ContentBlock, **metadata: object) -> Message:
    """One more message."""
    name, when = numbers.next()
    return Message(name, SESSION, role, blocks, MessageMetadata(**metadata), when)  # type: ignore[arg-type]


def answered(numbers: Numbers, block: ToolUseBlock, text: str, *more: ContentBlock) -> Message:
    """A tool's answer."""
    result = ToolResultBlock(block.id, (TextBlock(text), *more))
    return said(numbers, Role.TOOL, result, parent_tool_use_id=block.id)


def spoken(numbers: Numbers, speaker: str, *parts: Part) -> Message:
    """An answer of the speaker's fake, as the adapter reads it."""
    speaking = adapter(speaker)
    name, when = numbers.next()
    context = RequestContext(
        session_id=SESSION,
        message_id=name,
        created_at=when,
        routing=RoutingDecisionRecord(RoutingMode.MANUAL, speaking.model.id, "it was asked for"),
        usage=Usage(input_tokens=11, output_tokens=7, cost_usd=Decimal(0), pricing_version="v", latency_ms=1),
    )
    ISSUED[
        speaker
    ].reply_count = numbers.count  # its ids depend on the place in the session, not on what was made before
    answer = fakes()[speaker].write_reply(list(parts), speaking.model.name, ISSUED[speaker])
    return speaking.from_wire_response(answer, context)


def scene(numbers: Numbers, speaker: str) -> list[Message]:
    """A question with a picture, reasoning, words and two calls, their results, and a summary."""
    about = f"{speaker} {numbers.count}"
    question = said(numbers, Role.USER, TextBlock(f"What is {about}?"), PICTURE)
    calling = spoken(
        numbers,
        speaker,
        thinking_part(f"I have to look for {about}."),
        text_part(f"I look for {about}."),
        call_part("read_file", {"path": about}),
        call_part("list_files", {"deep": True}),
    )
    first, second = calls_in(calling)
    return [
        question,
        calling,
        answered(numbers, first, f"text of {about}"),
        answered(numbers, second, f"files of {about}", PICTURE),
        spoken(numbers, speaker, text_part(f"It is {about}.")),
    ]


def calls_in(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def system(numbers: Numbers) -> Message:
    return said(numbers, Role.SYSTEM, TextBlock("Be brief."))
