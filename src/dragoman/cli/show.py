"""``dragoman show``: print a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import dragoman
from dragoman import message as msg
from dragoman.cli.options import (
    JsonOption,
    NonNegative,
    Positive,
    SessionArgument,
    StoreOption,
    find_session,
    flag,
    open_store_at,
)
from dragoman.cli.terminal import (
    console,
    escape_controls,
    escape_line,
    format_cost,
    format_count,
    format_time,
    format_usd,
    print_json,
)
from dragoman.errors import InputError
from dragoman.renderers.metadata import placeholder
from dragoman.store import Row, Session, Store

_COLOURS: Final = {
    msg.Role.USER: "green",
    msg.Role.ASSISTANT: "blue",
    msg.Role.SYSTEM: "yellow",
    msg.Role.TOOL: "magenta",
}
_RESULT_LINES: Final = 8
_THINKING_LINES: Final = 6
_INPUT_CHARACTERS: Final = 300
_PAGE: Final = 200


async def show(
    session: SessionArgument,
    /,
    *,
    tail: NonNegative | None = None,
    after: NonNegative = 0,
    limit: Positive | None = None,
    full: Annotated[bool, flag("--full")] = False,
    store_url: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print a conversation.

    Parameters
    ----------
    tail
        Only this many messages at the end.
    after
        Only messages after the message with this number.
    limit
        The maximum number of messages.
    full
        Do not fold long results, inputs and thinking.
    """
    if tail is not None and after:
        raise InputError("--tail and --after cannot be combined", remedy="Use one of them")
    async with open_store_at(store_url) as store:
        current = await find_session(store, session)
        rows = _read_rows(store, current, tail, after, limit)
        if json:
            messages = [{"seq": row.seq, "message": msgspec.Raw(dragoman.encode(row.message))} async for row in rows]
            print_json({"session": current, "messages": messages})
            return
        page = _Page(console(), is_full=full)
        page.print_header(current, await _cost_text(store, current))
        async for row in rows:
            page.print_message(row)
        page.print_footer(current)


async def _read_rows(
    store: Store, session: Session, tail: int | None, after: int, limit: int | None
) -> AsyncIterator[Row]:
    """Yield the selected messages, page by page."""
    after = max(0, session.last_seq - tail) if tail is not None else after
    remaining = session.last_seq if limit is None else limit
    while remaining > 0 and (rows := await store.read(session.id, after, min(_PAGE, remaining))):
        for row in rows:
            yield row
        after, remaining = rows[-1].seq, remaining - len(rows)


async def _cost_text(store: Store, session: Session) -> str:
    totals = await store.costs.totals("session", session=session.id)
    return format_cost(totals[0].cost_usd, totals[0].unpriced, totals[0].messages) if totals else ""


class _Page:
    """Prints a conversation to a console."""

    def __init__(self, out: Console, *, is_full: bool) -> None:
        self._out = out
        self._is_full = is_full
        self._names: dict[str, str] = {}  # tool names by call id
        self._last, self._day = 0, ""

    def print_header(self, session: Session, cost: str) -> None:
        self._print(Text(escape_line(session.title or session.id), "bold"))
        about = [
            session.id if session.title else "",
            format_count(session.last_seq, "message"),
            session.active_model or "",
        ]
        about += [format_time(session.updated_at), cost, f"user {session.user_id}" if session.user_id else ""]
        self._print(Text(" · ".join(escape_line(part) for part in about if part), "dim"))
        if session.parent_session_id is not None:
            self._print(Text(f"⑂ forked from {session.parent_session_id} at message {session.parent_seq}", "cyan"))

    def print_message(self, row: Row) -> None:
        """Print a heading with role and cost, then the content."""
        if self._last == 0 and row.seq > 1:
            self._print(Text(f"\n… {format_count(row.seq - 1, 'earlier message')}", "dim"))
        self._last = row.seq
        message, day = row.message, format_time(row.message.created_at)[:10]
        self._print(Text("\n").append_text(_heading(row, is_another_day=day != self._day)))
        self._day = day
        for line in self._blocks(message.content):
            self._print(line)
        for attachment in message.metadata.attachments:
            self._print(_note(f"attached: {attachment.path} ({attachment.mime_type})"))

    def print_footer(self, session: Session) -> None:
        if 0 < self._last < session.last_seq:
            self._print(Text(f"\n… {format_count(session.last_seq - self._last, 'later message')}", "dim"))

    def _print(self, text: Text | Padding) -> None:
        self._out.print(text, soft_wrap=not self._out.is_terminal)  # no wrapping in files

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, content: Sequence[msg.ContentBlock]) -> Iterator[Text | Padding]:
        for block in content:
            match block:
                case msg.TextBlock():
                    yield Text(escape_controls(block.text).strip("\n"))
                case msg.ThinkingBlock():
                    yield self._fold(block.text, _THINKING_LINES, "dim italic") if block.text else _note("thinking")
                case msg.ToolUseBlock():
                    self._names[block.id] = block.name
                    yield (
                        Text("→ ", "bold magenta")
                        .append(escape_line(block.name), "bold")
                        .append(self._input_text(block))
                    )
                case msg.InvalidToolUseBlock():
                    self._names[block.id] = block.name
                    yield Text(f"→ {escape_line(block.name)} was not called: {escape_line(block.reason)}", "red")
                    yield self._fold(block.input_text, _RESULT_LINES, "dim")
                case msg.ToolResultBlock():
                    yield from self._result_lines(block)
                case _:
                    yield _note(placeholder(block))

    def _input_text(self, block: msg.ToolUseBlock) -> str:
        text = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in block.input.items())
        if len(text) > _INPUT_CHARACTERS and not self._is_full:
            text = f"{text[:_INPUT_CHARACTERS]}… {format_count(len(text) - _INPUT_CHARACTERS, 'more character')}"
        return escape_controls(f"({text})")

    def _result_lines(self, block: msg.ToolResultBlock) -> Iterator[Text | Padding]:
        name, sign = self._names.get(block.tool_use_id, block.tool_use_id), "✗" if block.is_error else "←"
        yield Text(f"{sign} ", "bold red" if block.is_error else "bold magenta").append(escape_line(name), "bold")
        for inner in block.content:
            if isinstance(inner, msg.TextBlock):
                yield self._fold(inner.text, _RESULT_LINES, "red" if block.is_error else "dim")
            else:
                yield from self._blocks([inner])

    def _fold(self, text: str, max_lines: int, style: str) -> Text | Padding:
        """Return the first lines of a text, indented, and the number of omitted lines."""
        lines = escape_controls(text).strip("\n").split("\n")
        widest = max(40, self._out.width - 2) * 2
        cut = [line if len(line) <= widest or self._is_full else f"{line[:widest]}…" for line in lines]
        visible = cut if self._is_full or len(cut) <= max_lines + 1 else cut[:max_lines]
        margin = "" if self._out.is_terminal else "  "  # a terminal indents wrapped lines itself
        content = Text("\n".join(margin + line for line in visible), style)
        if len(visible) < len(lines):
            content.append(f"\n{margin}… {format_count(len(lines) - len(visible), 'more line')}", "dim")
        return content if margin else Padding(content, (0, 0, 0, 2))


def _heading(row: Row, *, is_another_day: bool) -> Text:
    message, metadata, usage = row.message, row.message.metadata, row.message.metadata.usage
    colour = _COLOURS.get(message.role, "white")
    heading = Text("▌ ", colour).append(escape_line(message.role.value), f"bold {colour}")
    when = format_time(message.created_at)
    about = [str(row.seq), metadata.model or "", when if is_another_day else when[11:]]
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        about += [f"{prompt:,}→{usage.output_tokens:,} tokens", format_usd(usage.amount_usd)]
    heading.append("".join(f" · {escape_line(part)}" for part in about if part), "dim")
    if metadata.status is not msg.MessageStatus.COMPLETE:
        heading.append(f" · {metadata.status.value}", "bold red")
    return heading


def _note(text: str) -> Text:
    return Text(f"[{escape_line(text)}]", "dim italic")
