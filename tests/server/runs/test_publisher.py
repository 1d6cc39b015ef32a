"""Tests of the publisher of a run: its end waits for all pending writes."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.event import TextDelta
from dragoman.server.runs import publisher as publisher_module
from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.server.runs.publisher import RunPublisher, SessionChange
from dragoman.store import open_store


async def test_end_of_run_waits_for_flush_started_by_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "FLUSH_S", 0.0)  # the next flush is due immediately
    async with open_store("memory:") as store:
        run = store.runs.new("s", "r", b"hash", owner="o")
        publisher = RunPublisher(
            store, run, AguiEncoder("s", "r"), change=SessionChange(), alive_s=8, on_start=lambda _: None
        )
        gates, commits = [asyncio.Event(), asyncio.Event()], list[str]()

        async def commit() -> None:
            publisher._pending.clear()
            gate = gates[len(commits)]
            commits.append("started")
            await gate.wait()

        monkeypatch.setattr(publisher, "_commit", commit)
        publisher._add(TextDelta(0, "first "))
        await asyncio.sleep(0)
        publisher._add(TextDelta(0, "second"))  # arrives while the first is stored
        end = asyncio.create_task(publisher._wait_for_flush())
        await asyncio.sleep(0)
        gates[0].set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert commits == ["started", "started"]
        assert not end.done()
        gates[1].set()
        await end
