"""``dragoman tour``: demonstrate the format with an example conversation."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.syntax import Syntax

import dragoman
from dragoman import catalog, pricing
from dragoman.cli.price import price_table, receipt_table
from dragoman.event import StreamEvent, ToolUseInputDelta, ToolUseStart
from dragoman.ids import ToolIds, UlidSource
from dragoman.message import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)

_MODEL = "anthropic:claude-sonnet-4-6"
_MOMENT = datetime(2026, 5, 8, 9, 30, tzinfo=UTC)


def tour() -> None:
    """Show the format at work on an example conversation.

    Seven short stops: a conversation, one message as it is stored, a block from the future, a broken history and its
    repair, a stream that was cut in the middle of a tool call, the receipt, and the store. Needs no key and no network.
    """
    console = Console()
    messages = example_conversation()
    _show_conversation(console, messages)
    _show_encoding(console, messages[1])
    _show_future(console, messages[0])
    _show_repair(console, messages)
    _show_cut_stream(console)
    _show_receipt(console, messages[1])
    with tempfile.TemporaryDirectory(prefix="dragoman-tour-") as folder:
        asyncio.run(_show_store(console, messages, Path(folder)))


def example_conversation() -> tuple[Message, ...]:
    """Return a question, a tool call, its result and the answer: the example of the specification."""
    moments = iter(range(10))
    ids = UlidSource(
        clock_ms=lambda: int(_MOMENT.timestamp() * 1000),
        randomness=lambda: 0x5EED,  # fixed, for reproducible output
    )
    session_id = f"sess_{ids.next()}"
    call_id = ids.next_tool_id()
    usage = pricing.price_usage(
        price_table(), _MODEL, TokenUsage(input_tokens=8, output_tokens=42), _MOMENT, latency_ms=820
    )
    answer_metadata = MessageMetadata(
        model=_MODEL,
        provider="anthropic",
        routing=RoutingDecisionRecord(RoutingMode.DEFAULT, _MODEL, "workspace default"),
        usage=usage,
    )

    def message(role: Role, *blocks: dragoman.ContentBlock, metadata: MessageMetadata | None = None) -> Message:
        when = _MOMENT + timedelta(seconds=next(moments))
        return Message(ids.next(), session_id, role, blocks, metadata or MessageMetadata(), when)

    return (
        message(Role.USER, TextBlock("Summarize README.md")),
        message(
            Role.ASSISTANT,
            ThinkingBlock("The user wants a summary, so I need the file.", signature="EqQBCgIYAhIM…"),
            TextBlock("I'll read the file."),
            ToolUseBlock(call_id, "read_file", {"path": "README.md"}),
            metadata=answer_metadata,
        ),
        message(
            Role.TOOL,
            ToolResultBlock(call_id, (TextBlock("# Project Foo\n\nA tool for…"),)),
            metadata=MessageMetadata(parent_tool_use_id=call_id),
        ),
        message(Role.ASSISTANT, TextBlock("The README describes Project Foo, a tool for…"), metadata=answer_metadata),
    )


def _print_stop(console: Console, title: str, text: str) -> None:
    console.print()
    console.rule(f"[bold]{title}[/bold]", align="left")
    console.print(escape(text), highlight=False)


def _show_conversation(console: Console, messages: tuple[Message, ...]) -> None:
    _print_stop(
        console,
        "1. A conversation",
        "A message is a role and an ordered list of typed blocks. Tool results are messages too.",
    )
    for message in messages:
        blocks = "\n".join(f"[dim]{block.type:>12}[/dim]  {escape(_block_text(block))}" for block in message.content)
        console.print(Panel(blocks, title=message.role.value, title_align="left", expand=False))


def _block_text(block: dragoman.ContentBlock) -> str:
    match block:
        case TextBlock() | ThinkingBlock():
            return block.text
        case ToolUseBlock():
            return f"{block.name}({', '.join(f'{key}={value!r}' for key, value in block.input.items())})"
        case ToolResultBlock(content=content):
            return " ".join(_block_text(inner) for inner in content).replace("\n", "↵")
        case _:
            return ""


def _show_encoding(console: Console, message: Message) -> None:
    data = dragoman.encode(message)
    _print_stop(
        console,
        "2. Stored encoding",
        "The same bytes on every machine, so messages can be hashed, deduplicated and compared.",
    )
    console.print(Syntax(msgspec.json.format(data, indent=2).decode(), "json", word_wrap=True))
    console.print(f"{len(data)} bytes; content hash {dragoman.content_hash(message)[:16]}…", highlight=False)


def _show_future(console: Console, message: Message) -> None:
    _print_stop(
        console,
        "3. A block of a newer version",
        "A newer version added a block type. This version preserves it byte for byte.",
    )
    hologram = b'{"type":"hologram","frames": [1e2]}'
    newer = dragoman.encode(message).replace(b'"content":[', b'"content":[' + hologram + b",")
    logging.getLogger("dragoman").setLevel(logging.ERROR)  # suppress the warning in the output
    read = dragoman.decode(newer)
    console.print(f"read as    {escape(repr(read.content[0]))}", highlight=False)
    console.print(f"unchanged  {dragoman.encode(read) == newer}")


def _show_repair(console: Console, messages: tuple[Message, ...]) -> None:
    _print_stop(
        console,
        "4. An invalid history",
        "The result of a tool call is missing: every provider would reject this session. Stored messages do not\n"
        "change; the history that a model receives is repaired.",
    )
    broken = (*messages[:2], messages[3])
    for breach in dragoman.check(broken):
        console.print(f"[red]{breach.rule}[/red]  {escape(breach.where)}  {escape(breach.what)}", highlight=False)
    result = dragoman.repair(broken)
    for action in result.actions:
        console.print(f"[green]repaired[/green]  {escape(action.what)}", highlight=False)
    console.print(f"violations left: {len(dragoman.check(result.messages))}")


def _show_cut_stream(console: Console) -> None:
    _print_stop(
        console,
        "5. An incomplete stream",
        'The connection ended after {"target":"all","dry_. The tool call is not executed.',
    )
    events: tuple[StreamEvent, ...] = (
        ToolUseStart(0, "tu_01KR3V1C00000000000000000A", "delete_records"),
        ToolUseInputDelta(0, '{"target":"all","dry_'),
    )
    reply = dragoman.fold(events)
    console.print(f"stop reason  {reply.stop_reason.value}, fault {reply.fault.code if reply.fault else None}")
    console.print(f"block        {escape(repr(reply.content[0]))}", highlight=False)


def _show_receipt(console: Console, message: Message) -> None:
    rows = catalog.builtin()
    call = next(block for block in message.content if isinstance(block, ToolUseBlock))
    _print_stop(
        console,
        "6. The receipt, and a swap",
        "Exact prices from a dated table. Each provider receives the call id in its own format.",
    )
    usage = TokenUsage(input_tokens=8, output_tokens=42)
    result = pricing.receipt(price_table(), _MODEL, usage, _MOMENT)
    console.print(receipt_table(result))
    ids = ToolIds()
    for key in ("anthropic", "openai", "mistral"):
        console.print(f"{key:>10}  {ids.to_provider_id(key, call.id, rows.provider(key).tool_ids)}", highlight=False)


async def _show_store(console: Console, messages: tuple[Message, ...], folder: Path) -> None:
    _print_stop(
        console,
        "7. The store",
        "A file that survives a kill at any time. A fork copies nothing; every row has a hash.",
    )

    def print_step(label: str, text: str) -> None:
        console.print(f"[green]{label:<9}[/green] {escape(text)}", highlight=False)

    async with dragoman.open_store(f"sqlite:///{folder / 'tour.db'}") as store:
        session = await store.create_session(messages[0].session_id, title="What the README says")
        rows = await store.append(session.id, messages, idempotency_key="once")
        again = await store.append(session.id, messages, idempotency_key="once")
        print_step("stored", f"{len(rows)} messages, {store.durability}; after a second append, still {again[-1].seq}")
        fork = await store.fork(session.id, at=1)
        await store.append(fork.id, messages[0].replace(id=f"{messages[0].id}2", session_id=fork.id))
        print_step(
            "forked", f"at message 1; it has {len(await store.read(fork.id))} now, and the other one {len(rows)}"
        )
        hit = (await store.search("project foo", role="assistant"))[0]
        print_step("searched", f"'project foo' → message {hit.seq}: {hit.snippet}")
        verification = await store.verify()
        print_step(
            "verified",
            f"{verification.messages} messages of {verification.sessions} sessions, {len(verification.damage)} damaged",
        )
