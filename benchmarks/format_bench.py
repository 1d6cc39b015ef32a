"""Cost of the format: decode, check and encode one message, and import the package.

The limit is msgspec on plain structs with the same fields, which checks no rule, drops unknown content, and does not
detect duplicate keys. The other libraries do the same job with common tools.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
from rich.console import Console

import dragoman
from benchmarks.side_by_side import measure_cpu_us, print_figures
from dragoman.message import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)

_WORDS = "It keeps conversations in a durable store, routes, prices and records every turn. "
_MODEL = "anthropic:claude-sonnet-4-6"
HEAVY = (
    "aiohttp",
    "apsw",
    "asyncpg",
    "genai_prices",
    "httpx2",
    "jsonschema_rs",
    "pydantic",
    "rich",
    "starlette",
    "yaml",
)


def example_message() -> Message:
    """Return an assistant message of six blocks and about two kilobytes."""
    return Message(
        "01KR3ER9E00000000000000QQG",
        "sess_01KR3ER9E00000000000000QQD",
        Role.ASSISTANT,
        (
            ThinkingBlock(_WORDS * 4, signature="EqQBCgIYAhIM" * 6),
            TextBlock(_WORDS * 5),
            ToolUseBlock("tu_01KR3ER9E00000000000000QQE", "read_file", {"path": "README.md", "limit": 200}),
            TextBlock(_WORDS * 4),
            ToolUseBlock(
                "tu_01KR3ER9E00000000000000QQF",
                "search_files",
                {"pattern": "durable", "options": {"ignore_case": True, "context": 2}, "paths": ["docs", "src"]},
            ),
            TextBlock(_WORDS * 2),
        ),
        MessageMetadata(
            model=_MODEL,
            provider="anthropic",
            routing=RoutingDecisionRecord(RoutingMode.DEFAULT, _MODEL, "workspace default"),
            usage=Usage(
                input_tokens=8,
                output_tokens=42,
                cost_usd=Decimal("0.000654"),
                pricing_version="2026-05-08",
                latency_ms=820,
            ),
        ),
        datetime(2026, 5, 8, 9, 30, 1, 250_000, tzinfo=UTC),
    )


# --- the limit: msgspec on plain structs -----------------------------------------------------------------------------


class _Bare(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class _Text(_Bare, frozen=True, tag_field="type", tag="text"):
    text: str


class _ToolUse(_Bare, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(_Bare, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: tuple[_Text, ...]
    is_error: bool = False


class _Source(_Bare, frozen=True):
    kind: Literal["base64", "url", "file_ref"]
    data: str


class _Image(_Bare, frozen=True, tag_field="type", tag="image"):
    source: _Source
    media_type: str


class _Thinking(_Bare, frozen=True, tag_field="type", tag="thinking"):
    text: str
    signature: str | None = None


class _Redacted(_Bare, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class _Routing(_Bare, frozen=True):
    mode: RoutingMode
    chosen_model: str
    reason: str
    rule_name: str | None = None
    confidence: float | None = None
    alternatives_considered: tuple[str, ...] = ()


class _Usage(_Bare, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cost_usd: Decimal
    pricing_version: str
    latency_ms: int


class _Status(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"
    CANCELLED = "cancelled"
    ERROR = "error"


class _Metadata(_Bare, frozen=True, kw_only=True):
    model: str | None = None
    provider: str | None = None
    routing: _Routing | None = None
    usage: _Usage | None = None
    parent_tool_use_id: str | None = None
    status: _Status = _Status.COMPLETE
    provider_raw: dict[str, Any] | None = None
    user_id: str | None = None
    team_id: str | None = None


class _Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class _Message(_Bare, frozen=True):
    id: str
    session_id: str
    role: _Role
    content: tuple[_Text | _ToolUse | _ToolResult | _Image | _Thinking | _Redacted, ...]
    metadata: _Metadata
    created_at: datetime
    schema_version: int


# --- pydantic --------------------------------------------------------------------------------------------------------


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)


class _PText(_Model):
    type: Literal["text"] = "text"
    text: str


class _PToolUse(_Model):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class _PThinking(_Model):
    type: Literal["thinking"] = "thinking"
    text: str
    signature: str | None = None


class _PRouting(_Model):
    mode: RoutingMode
    chosen_model: str
    reason: str
    rule_name: str | None = None


class _PUsage(_Model):
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    cost_usd: Decimal
    pricing_version: str
    latency_ms: int


class _PMetadata(_Model):
    model: str | None = None
    provider: str | None = None
    routing: _PRouting | None = None
    usage: _PUsage | None = None
    status: _Status = _Status.COMPLETE


class _PMessage(_Model):
    id: str
    session_id: str
    role: _Role
    content: tuple[Annotated[_PText | _PToolUse | _PThinking, pydantic.Field(discriminator="type")], ...]
    metadata: _PMetadata
    created_at: datetime
    schema_version: int


# --- measurement------------------------------------------------------------------------------------------------------


def message_figures(seconds: float = 6) -> dict[str, float]:
    """Return microseconds for decode, check and encode of the same bytes."""
    data = dragoman.encode(example_message())
    decoder, encoder = msgspec.json.Decoder(_Message), msgspec.json.Encoder()
    assert encoder.encode(decoder.decode(data)) == data
    newer = data.replace(b'"content":[', b'"content":[{"type":"hologram"},')
    text = data.decode()

    def ours() -> bytes:
        message = dragoman.decode(data)
        if dragoman.check(message):
            raise AssertionError
        return dragoman.encode(message)

    def ours_with_unknown() -> bytes:
        message = dragoman.decode(newer)
        dragoman.check(message)
        return dragoman.encode(message)

    assert ours() == data
    assert ours_with_unknown() == newer
    return measure_cpu_us(
        {
            "msgspec alone": lambda: encoder.encode(decoder.decode(data)),
            "dragoman": ours,
            "json (no types)": lambda: json.dumps(json.loads(text)),
            "pydantic": lambda: _PMessage.model_validate_json(data).model_dump_json(exclude_defaults=True),
            "dragoman, unknown block": ours_with_unknown,
        },
        seconds=seconds,
    )


def import_figures(runs: int = 15) -> tuple[float, float, list[str]]:
    """Return milliseconds to import msgspec and this package in a new process, and the heavy libraries that are
    loaded."""
    script = (
        "import sys, time; began = time.perf_counter(); import {module};"
        "print((time.perf_counter() - began) * 1000, *[name for name in {heavy} if name in sys.modules])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def run(module: str) -> list[str]:
        code = script.format(module=module, heavy=HEAVY)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return done.stdout.split()

    run("dragoman")  # the first import may compile
    pairs = [(run("msgspec"), run("dragoman")) for _ in range(runs)]
    return (
        statistics.median(float(baseline[0]) for baseline, _ in pairs),
        statistics.median(float(ours[0]) for _, ours in pairs),
        sorted({name for _, ours in pairs for name in ours[1:]}),
    )


def main() -> None:
    """Print the figures."""
    import logging

    logging.getLogger("dragoman").setLevel(logging.ERROR)  # the unknown block would be logged in every round
    console = Console()
    size = len(dragoman.encode(example_message()))
    title = f"Decode, check and encode one message of {size} bytes and 6 blocks"
    print_figures(console, title, message_figures(), limit="msgspec alone")
    alone, package, heavy = import_figures()
    print_figures(
        console,
        "Import in a fresh process",
        {"import msgspec": alone, "import dragoman": package},
        limit="import msgspec",
        unit="ms",
    )
    console.print(
        f"Server, database, provider and price libraries that import dragoman loads: {', '.join(heavy) or 'none'}"
    )


if __name__ == "__main__":
    main()
