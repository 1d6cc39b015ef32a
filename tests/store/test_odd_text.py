"""Tests of unusual text on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.message import Role, TextBlock, ToolUseBlock
from dragoman.store import Store
from tests.store.messages import create_usage, message, result_message, text_message


async def test_every_naughty_string_round_trips(store: Store, suites: Path) -> None:
    strings: list[str] = json.loads((suites / "blns.json").read_text("utf-8"))
    session = await store.create_session()
    blocks = [ToolUseBlock(f"tu_{number}", text, {text: text}) for number, text in enumerate(strings)]
    rows = await store.append(
        session.id, [*(text_message(text, extra={"k": text}) for text in strings), message(Role.ASSISTANT, blocks)]
    )
    assert await store.read(session.id, limit=1000) == rows
    assert [call.name for call in await store.tool_calls(session.id)] == strings
    for text in strings:
        changed = await store.change_session(session.id, title=text, metadata={text: [text]}, user_id=text)
        assert await store.get_session(session.id) == changed
        assert (changed.title, changed.metadata) == (text, {text: [text]})
        assert await store.list_sessions(user_id=text) == [changed]


@pytest.mark.parametrize(
    "text",
    ["a\0b", "\0", "\U0010ffff", "\U0001d4b3🎉", "\ufeffx", "\u2028", "a\r\nb", "\\u0000", "\x7f\x01"],
    ids=ascii,
)
async def test_unusual_characters_round_trip(store: Store, text: str) -> None:
    session = await store.create_session()
    usage = create_usage(1, 1, "1")
    new = message(
        Role.ASSISTANT,
        [TextBlock(text), ToolUseBlock("tu_1" + text, text, {text: [text]})],
        model=text,
        provider=text,
        user_id=text,
        team_id=text,
        extra={text: text},
        usage=usage,
    )
    rows = await store.append(session.id, new)
    assert await store.read(session.id) == rows
    assert rows[0].message.content == new.content
    (call,) = await store.tool_calls(session.id)
    assert call.name == text.replace("\0", "\u2400")  # outside a message, NUL is stored as U+2400
    await store.append(session.id, result_message("tu_1" + text))
    assert (await store.tool_calls(session.id))[0].status == "succeeded"
    assert [total.group for total in await store.costs.totals("model")] == [text.replace("\0", "\u2400")]
