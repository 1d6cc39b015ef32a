"""``dragoman show``: a conversation as a person wants to read it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import dragoman
from dragoman.cli.store_option import JsonOption, NotNegative, Positive, StoreOption, opened, session_named
from dragoman.cli.terminal import console, counted, dollars, moment, print_json, safe, safe_line, size, spent
from dragoman.errors import InputError
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from dragoman.store import Row, Session, Store

_COLOURS: Final = {Role.USER: "green", Role.ASSISTANT: "blue", Role.SYSTEM: "yellow", Role.TOOL: "magenta"}
_RESULT_LINES: Final = 8
_THINKING_LINES: Final = 6
_INPUT_CHARACTERS: Final = 300
_PAGE: Final = 200


async def show(
    session: str,
    /,
    *,
    tail: NotNegative | None = None,
    after: NotNegative = 0,
    limit: Positive | None = None,
    full: Annotated[bool, Parameter(name="--full", negative=(), show_default=False)] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print a conversation for reading.

    Parameters
    ----------
    session
        The session: its id, an unambiguous beginning or end of it, or last.
    tail
        Only the newest so many messages.
    after
        Only messages behind the one of this number.
    limit
        At most so many messages.
    full
        Leave nothing out of long results, inputs and thoughts.
    """
    if tail is not None and after:
        raise InputError("--tail and --after say different things", remedy="Use one of them")
    async with opened(store) as kept:
        found = await session_named(kept, session)
        rows = _rows(kept, found, tail, after, limit)
        if json:
            messages = [{"seq": row.seq, "message": msgspec.Raw(dragoman.encode(row.message))} async for row in rows]
            print_json({"session": found, "messages": messages})
            return
        page = _Page(console(), is_full=full)
        page.begin(found, await _cost(kept, found))
        async for row in rows:
            page.add(row)
        page.end(found)


async def _rows(store: Store, session: Session, tail: int | None, after: int, limit: int | None) -> AsyncIterator[Row]:
    """The messages that are wanted, a page at a time."""
    after = max(0, session.last_seq - tail) if tail is not None else after
    left = session.last_seq if limit is None else limit
    while left > 0 and (rows := await store.read(session.id, after, min(_PAGE, left))):
        for row in rows:
            yield row
        after, left = rows[-1].seq, left - len(rows)


async def _cost(store: Store, session: Session) -> str:
    totals = await store.totals("session", session=session.id)
    return spent(totals[0].cost_usd, totals[0].unpriced, totals[0].messages) if totals else ""


class _Page:
    """A conversation on its way to a console."""

    def __init__(self, out: Console, *, is_full: bool) -> None:
        self._out = out
        self._is_full = is_full
        self._names: dict[str, str] = {}  # of the tools that were called, by the call's id
        self._last, self._day = 0, ""

    def begin(self, session: Session, cost: str) -> None:
        self._print(Text(safe_line(session.title or session.id), "bold"))
        about = [session.id if session.title else "", counted(session.last_seq, "message"), session.active_model or ""]
        about += [moment(session.updated_at), cost, f"user {session.user_id}" if session.user_id else ""]
        self._print(Text(" · ".join(safe_line(one) for one in about if one), "dim"))
        if session.parent_session_id is not None:
            self._print(Text(f"⑂ forked from {session.parent_session_id} at message {session.parent_seq}", "cyan"))

    def add(self, row: Row) -> None:
        """One message: a line that says who and what it cost, then what was said."""
        if self._last == 0 and row.seq > 1:
            self._print(Text(f"\n… {counted(row.seq - 1, 'earlier message')}", "dim"))
        self._last = row.seq
        message, day = row.message, moment(row.message.created_at)[:10]
        self._print(Text("\n").append_text(_heading(row, is_another_day=day != self._day)))
        self._day = day
        for line in self._blocks(message.content):
            self._print(line)
        for attachment in message.metadata.attachments:
            self._print(_aside(f"attached: {attachment.path} ({attachment.mime_type})"))

    def end(self, session: Session) -> None:
        if 0 < self._last < session.last_seq:
            self._print(Text(f"\n… {counted(session.last_seq - self._last, 'later message')}", "dim"))

    def _print(self, text: Text | Padding) -> None:
        self._out.print(text, soft_wrap=not self._out.is_terminal)  # a file gets lines as they are

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, content: Sequence[ContentBlock]) -> Iterator[Text | Padding]:
        for block in content:
            match block:
                case TextBlock():
                    yield Text(safe(block.text).strip("\n"))
                case ThinkingBlock():
                    yield self._folded(block.text, _THINKING_LINES, "dim italic") if block.text else _aside("thinking")
                case RedactedThinkingBlock():
                    yield _aside("thinking, encrypted by the provider")
                case ToolUseBlock():
                    self._names[block.id] = block.name
                    yield Text("→ ", "bold magenta").append(safe_line(block.name), "bold").append(self._input(block))
                case InvalidToolUseBlock():
                    self._names[block.id] = block.name
                    yield Text(f"→ {safe_line(block.name)} was not called: {safe_line(block.reason)}", "red")
                    yield self._folded(block.input_text, _RESULT_LINES, "dim")
                case ToolResultBlock():
                    yield from self._result(block)
                case _:
                    yield _aside(_other(block))

    def _input(self, block: ToolUseBlock) -> str:
        given = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in block.input.items())
        if len(given) > _INPUT_CHARACTERS and not self._is_full:
            given = f"{given[:_INPUT_CHARACTERS]}… {counted(len(given) - _INPUT_CHARACTERS, 'more character')}"
        return safe(f"({given})")

    def _result(self, block: ToolResultBlock) -> Iterator[Text | Padding]:
        name, sign = self._names.get(block.tool_use_id, block.tool_use_id), "✗" if block.is_error else "←"
        yield Text(f"{sign} ", "bold red" if block.is_error else "bold magenta").append(safe_line(name), "bold")
        for inner in block.content:
            if isinstance(inner, TextBlock):
                yield self._folded(inner.text, _RESULT_LINES, "red" if block.is_error else "dim")
            else:
                yield from self._blocks([inner])

    def _folded(self, text: str, most: int, style: str) -> Text | Padding:
        """The first lines of a text, set in, and how many more there are."""
        lines = safe(text).strip("\n").split("\n")
        widest = max(40, self._out.width - 2) * 2
        cut = [line if len(line) <= widest or self._is_full else f"{line[:widest]}…" for line in lines]
        shown = cut if self._is_full or len(cut) <= most + 1 else cut[:most]
        margin = "" if self._out.is_terminal else "  "  # a terminal sets in what it wraps, too
        folded = Text("\n".join(margin + line for line in shown), style)
        if len(shown) < len(lines):
            folded.append(f"\n{margin}… {counted(len(lines) - len(shown), 'more line')}", "dim")
        return folded if margin else Padding(folded, (0, 0, 0, 2))


def _heading(row: Row, *, is_another_day: bool) -> Text:
    message, metadata, usage = row.message, row.message.metadata, row.message.metadata.usage
    colour = _COLOURS.get(message.role, "white")
    heading = Text("▌ ", colour).append(safe_line(message.role.value), f"bold {colour}")
    when = moment(message.created_at)
    about = [str(row.seq), metadata.model or "", when if is_another_day else when[11:]]
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        about += [f"{prompt:,}→{usage.output_tokens:,} tokens", dollars(usage.amount_usd)]
    heading.append("".join(f" · {safe_line(one)}" for one in about if one), "dim")
    if metadata.status is not MessageStatus.COMPLETE:
        heading.append(f" · {metadata.status.value}", "bold red")
    return heading


def _aside(text: str) -> Text:
    return Text(f"[{safe_line(text)}]", "dim italic")


def _other(block: ContentBlock) -> str:
    match block:
        case ImageBlock() | AudioBlock() | VideoBlock() | DocumentBlock():
            name = f"{block.name}, " if isinstance(block, DocumentBlock) and block.name else ""
            return f"{block.type}: {name}{block.media_type}, {_where(block.source)}"
        case OpaqueBlock():
            return f"{block.dialect}: {block.wire.get('type', 'a block of its own')}"
        case _:
            return f"{block.type}: written by a newer version"


def _where(source: Any) -> str:
    return size(len(source.data) * 3 // 4) if source.kind == "base64" else source.data
