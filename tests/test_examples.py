"""Tests of the programs in ``examples``, run as a reader runs them, against strict fakes of their providers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests import cli_runner
from tests.conftest import IS_FULL, ROOT
from tests.fake_providers import StrictProvider, call_part, strict_provider, text_part
from tests.store.test_blobs import free_ports

EXAMPLES = ROOT / "examples"
IN_NEW_PROCESSES = ("mcp_tools.py",)  # also in the default run, as is the server of fastapi_backend.py


class Stage:
    """Fakes of Anthropic and OpenAI, and an empty folder to run an example in."""

    def __init__(self, folder: Path, anthropic: StrictProvider, openai: StrictProvider) -> None:
        self.folder = folder
        self.anthropic = anthropic
        self.openai = openai

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONUTF8": "1",
            "ANTHROPIC_API_KEY": "sk-fake",
            "ANTHROPIC_BASE_URL": self.anthropic.base_url,
            "OPENAI_API_KEY": "sk-fake",
            "OPENAI_BASE_URL": self.openai.base_url,
        }

    async def run(self, name: str) -> str:
        """Run an example to its end, and return its output."""
        shutil.copy(EXAMPLES / name, self.folder)
        start = self._start_process if IS_FULL or name in IN_NEW_PROCESSES else self._fork
        done = await asyncio.to_thread(start, name)
        assert (done.returncode, done.stderr) == (0, "")
        assert self.anthropic.refusals + self.openai.refusals == []
        return done.stdout

    def _start_process(self, name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", name]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )

    def _fork(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run an example without the cost of its imports."""
        return cli_runner.run_program(name, environment=self.environment, cwd=self.folder, on_warning="error")


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[Stage]:
    async with strict_provider("anthropic") as anthropic, strict_provider("openai_responses") as openai:
        yield Stage(folder, anthropic, openai)


async def check_chat_with_tools(stage: Stage) -> None:
    stage.anthropic.answer_with(call_part("today"))
    stage.anthropic.answer_with(call_part("weather", {"city": "Bern", "day": "2026-05-09"}))
    stage.anthropic.reply("Yes: rain and 9 °C.")
    stage.anthropic.reply("Yes.")
    assert await stage.run("chat_with_tools.py") == "Yes: rain and 9 °C.\nYes.\n"
    results = str(stage.anthropic.bodies[2]["messages"][-1])
    assert "Bern, 09 May: rain, 9 °C" in results
    assert (stage.folder / "chats.db").is_file()


async def check_structured_output(stage: Stage) -> None:
    stage.openai.reply('{"title": "Empty invoice export", "kind": "bug", "urgency": 5, "product": null}')
    assert await stage.run("structured_output.py") == "bug, urgency 5: Empty invoice export\n"
    assert stage.openai.bodies[0]["text"]["format"]["strict"] is True


async def check_swap_models(stage: Stage) -> None:
    stage.anthropic.reply("Dragoman.")
    stage.openai.reply("Too long.")
    stage.anthropic.reply("It stays.")
    assert await stage.run("swap_models.py") == (
        "anthropic:claude-sonnet-5-5: Dragoman.\nopenai:gpt-5: Too long.\nanthropic:claude-sonnet-5-5: It stays.\n"
    )
    assert [len(body["messages"]) for body in stage.anthropic.bodies] == [1, 5]


async def check_fastapi_backend(stage: Stage) -> None:
    pytest.importorskip("fastapi")
    shutil.copy(EXAMPLES / "fastapi_backend.py", stage.folder)
    (port,) = free_ports(1)
    stage.anthropic.reply("Hello!")
    command = [sys.executable, "-m", "uvicorn", "fastapi_backend:api", "--port", str(port), "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(*command, cwd=stage.folder, env=stage.environment)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            await wait_for_server(client, process)
            async with client.post("/ask", json={"text": "Hi"}) as answer:
                reply = await answer.json()
            assert reply["text"] == "Hello!"
            async with client.get("/chat/api/v1/agent/threads") as answer:
                assert reply["session"] in str(await answer.json())
    finally:
        process.terminate()
        await process.wait()


async def wait_for_server(client: aiohttp.ClientSession, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                async with client.get("/chat/") as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
    pytest.fail("the server ended")


async def check_two_agents_with_mail(stage: Stage) -> None:
    stage.anthropic.reply("A dragoman spoke for both.")
    stage.anthropic.reply("Well said.")
    assert await stage.run("two_agents_with_mail.py") == "Well said.\n"
    assert "A dragoman spoke for both." in str(stage.anthropic.bodies[1]["messages"])


async def check_cost_report(stage: Stage) -> None:
    stage.anthropic.reply("An interpreter.")
    stage.openai.reply("An interpreter.")
    lines = (await stage.run("cost_report.py")).splitlines()
    assert re.fullmatch(r"anthropic:claude-sonnet-5-5: \d+ \+ \d+ tokens, \$0\.\d+", lines[0])
    assert re.fullmatch(r"openai:gpt-5: \d+ \+ \d+ tokens, \$0\.\d+", lines[1])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d: 2 answers, \$0\.\d+", lines[2])


async def check_repair_transcript(stage: Stage) -> None:
    out = await stage.run("repair_transcript.py")
    assert "call-is-answered: answered the call" in out
    assert out.endswith("user ['tool_result']\nuser ['text']\nuser ['text']\n")


async def check_mcp_tools(stage: Stage) -> None:
    stage.anthropic.answer_with(text_part("Let me see."), call_part("clock__time_in", {"city": "Bern"}))
    stage.anthropic.reply("It is noon.")
    assert await stage.run("mcp_tools.py") == "It is noon.\n"
    assert "12:00 in Bern" in str(stage.anthropic.bodies[1]["messages"][-1])


CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "chat_with_tools": check_chat_with_tools,
    "cost_report": check_cost_report,
    "fastapi_backend": check_fastapi_backend,
    "mcp_tools": check_mcp_tools,
    "repair_transcript": check_repair_transcript,
    "structured_output": check_structured_output,
    "swap_models": check_swap_models,
    "two_agents_with_mail": check_two_agents_with_mail,
}


def test_every_example_is_checked() -> None:
    assert sorted(CHECKS) == sorted(file.stem for file in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", CHECKS)
def test_example_prints_the_expected_output(name: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_stage(tmp_path) as stage:
            await CHECKS[name](stage)

    asyncio.run(check())
