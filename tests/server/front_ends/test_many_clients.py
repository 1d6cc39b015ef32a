"""Tests of 200 clients of all kinds that converse with a tool while workers are killed."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.message import MessageStatus, Role
from dragoman.repair import repair
from dragoman.rules import check
from dragoman.store import Store, open_store
from tests.server.front_ends.conftest import (
    ANSWER,
    JUDGES,
    KINDS,
    ask,
    needs_front_ends,
    open_page,
    run_weather_server,
)
from tests.server.runs.conftest import install_client, install_packages, run_node
from tests.server.runs.test_worker_death import worker_pid
from tests.server.ui_messages.conftest import JUDGES as CHAT_JUDGES

if TYPE_CHECKING:
    from playwright.async_api import Page

QUESTIONS = 2
KILLS = 2
IN_BROWSER = dict.fromkeys(KINDS, 10)
AGENTS = {"ag-ui-client": 60, "ag-ui-client-before-1": 60}
CHATS = {"ai-5": 10, "ai-6": 10, "ai": 20}
TIME_S = 900


def thread_names(counts: dict[str, int]) -> list[str]:
    return [f"{kind}-{number}" for kind, count in counts.items() for number in range(1, count + 1)]


ALL_THREADS = thread_names({**IN_BROWSER, **AGENTS, **CHATS})


async def run_clients(folder: Path, script: Path, *arguments: str) -> list[str]:
    """Run a client script and return the problems after which clients repeated a question."""
    status, output = await run_node(folder, script, *arguments, timeout_s=TIME_S)
    assert status == 0, output
    problems: list[str] = json.loads(output.splitlines()[-1])["again"]
    return problems


async def run_agents(address: str) -> list[str]:
    runs = [
        run_clients(
            install_client(kind), JUDGES / "agents.mjs", f"{address}/api/v1/agent", kind, str(count), str(QUESTIONS)
        )
        for kind, count in AGENTS.items()
    ]
    return [problem for problems in await asyncio.gather(*runs) for problem in problems]


async def run_chats(address: str) -> list[str]:
    folder = install_packages("ai-sdk", CHAT_JUDGES / "ai-sdk")
    shutil.copy(CHAT_JUDGES / "chat.mjs", folder)
    api = f"{address}/api/v1/agent/chat"
    runs = [
        run_clients(folder, JUDGES / "chats.mjs", kind, api, kind, str(count), str(QUESTIONS))
        for kind, count in CHATS.items()
    ]
    return [problem for problems in await asyncio.gather(*runs) for problem in problems]


async def ask_with_retries(page: Page, name: str, keyboard: asyncio.Lock) -> list[str]:
    """Send each question until it is answered, and return the problems."""
    problems: list[str] = []
    for _ in range(QUESTIONS):
        while True:
            try:
                await ask(page, name, keyboard, timeout_s=60)
                break
            except TimeoutError:
                problems.append("the page showed no answer")
                assert len(problems) < 10, f"{name} got no answer"
    return problems


async def kill_workers(store: Store) -> int:
    """Kill the worker of an active run several times, and return the number of active runs."""
    active = 0
    for number in range(KILLS):
        while True:
            runs = [run for name in ALL_THREADS if (run := await store.runs.latest(name)) is not None]
            running = [run for run in runs if run.is_running and not run.is_expired]
            if len(runs) > (number + 1) * len(ALL_THREADS) // (KILLS + 2) and running:
                break
            await asyncio.sleep(0.05)
        active += len(running)
        os.kill(worker_pid(running[0].owner), signal.SIGKILL)
    return active


@needs_front_ends
@pytest.mark.slow
@pytest.mark.timeout(TIME_S + 300)
async def test_200_clients_lose_nothing_while_workers_are_killed(
    program: Callable[[str, str], str], tmp_path: Path, count: Callable[[str], None]
) -> None:
    chromium = program("chromium", "chromium")
    query = "&".join(f"{kind}={number}" for kind, number in IN_BROWSER.items())
    options = ("--port", "0", "--workers", "2", "--max-pending-runs", "1000")
    async with (
        run_weather_server(tmp_path, *options) as address,
        open_page(chromium, address, query) as page,
        open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store,
        asyncio.timeout(TIME_S),
    ):
        keyboard = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            killer = group.create_task(kill_workers(store))
            conversations = [run_agents(address), run_chats(address)]
            conversations += [ask_with_retries(page, name, keyboard) for name in thread_names(IN_BROWSER)]
            tasks = [group.create_task(conversation) for conversation in conversations]
        active, ends = killer.result(), await check_threads(store)
    problems = [problem for task in tasks for problem in task.result()]
    kinds = dict(collections.Counter(problem[:40] for problem in problems).most_common(8))
    count(
        f"{len(ALL_THREADS)} clients, {KILLS} workers killed with {active} runs active, {ends['error']} answers interrupted,"
        f" {ends['complete']} complete, {len(problems)} questions repeated, lost 0, doubled 0; {kinds}"
    )


async def check_threads(store: Store) -> collections.Counter[str]:
    """Check that every thread is valid and has all complete answers, and count the answers by status."""
    ends: collections.Counter[str] = collections.Counter()
    for chat_id in ALL_THREADS:
        session = await store.get_session(chat_id)
        assert session is not None, chat_id
        # A browser may repeat a request after a failed connection. useChat then continues in a fork, as after an edit.
        name = str(session.metadata.get("ui_branch", chat_id))
        while (
            run := await store.runs.latest(name)
        ) is not None and run.is_running:  # a page shows the answer before the run ends
            await asyncio.sleep(0.05)
        messages = [row.message async for row in store.history(name)]
        assert not check(repair(messages).messages), name  # abandoned calls have no results
        ids = [message.metadata.message_id or message.id for message in messages]
        assert len(set(ids)) == len(ids), f"{name} has a message twice"
        answers = [message for message in messages if message.role is Role.ASSISTANT]
        ends.update(
            "complete" if answer.metadata.status in (None, MessageStatus.COMPLETE) else "error" for answer in answers
        )
        complete = [answer for answer in answers if ANSWER in answer.text]
        assert len(complete) >= QUESTIONS, f"{name}: {len(complete)} whole answers of {len(answers)}"
    return ends
