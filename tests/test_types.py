"""Tests of types: the examples and the documentation pass mypy and pyright in strict mode.

A check is one run over all files, because a checker takes seconds to start. In the default run, pyright omits two files.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import dialects
from tests.conftest import IS_FULL, ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = ["README.md", "docs/tutorial.md"]
# Files with imports that pyright parses for seconds. In the default run, only mypy checks them.
ONLY_MYPY = ["dialects_are_dialects.py", "example_fastapi_backend.py"]
DIALECTS = "\n".join(
    ["from dragoman import dialects", "from dragoman.dialects import Dialect", ""]
    + [f"from dragoman.dialects import {name}" for name in dialects.names()]
    + ["", f"every: list[Dialect] = [{', '.join(dialects.names())}]", "", 'assert dialects.load("anthropic").NAME']
)
PROGRAM = """
from dataclasses import dataclass
from typing import assert_type

import dragoman
from dragoman import Agent, Answer, tool


@dataclass
class City:
    name: str


@tool
def weather(city: str, days: int = 1) -> str:
    return city * days


def plain(city: str) -> str:
    return city


assert_type(weather("Bern", days=2), str)
assert_type(dragoman.ask("A city?", output=City), Answer[City])
assert_type(dragoman.ask("A city?").parsed, None)
with Agent(model="local", tools=[weather, plain]) as agent:
    assert_type(agent.ask("A city?", output=City).parsed, City)
    assert_type(agent.ask("A city?", output=list[City]).parsed, list[City])
    for text in agent.stream("A city?"):
        assert_type(text, str)


async def main() -> None:
    assert_type(await dragoman.ask_async("A city?", output=City), Answer[City])
    async with Agent(model="local") as agent:
        answer = await agent.ask("A city?", session="s", model="local")
        assert_type(answer.text, str)
        await agent.run("s", "Hello", user_id="u")
"""
INVALID_PROGRAM = """
import dragoman

dragoman.ask("A city?", modle="local")
dragoman.Agent().begin("s", "Hello", user=1)
dragoman.ask("A city?").parsed.name
"""


def read_python(page: str) -> str:
    """Return the Python blocks of a page as one program."""
    path = ROOT / page
    text = path.read_text("utf-8") if path.is_file() else ""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for file in EXAMPLES:
        (folder / f"example_{file.name}").write_text(file.read_text("utf-8"), "utf-8")
    for page in PAGES:
        (folder / f"page_{Path(page).stem.lower()}.py").write_text(read_python(page), "utf-8")
    (folder / "dialects_are_dialects.py").write_text(DIALECTS, "utf-8")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    (folder / "wrong.py").write_text(INVALID_PROGRAM, "utf-8")
    return folder


def run_mypy(folder: Path) -> list[tuple[str, int, str]]:
    """Return the errors of mypy: file, line and message. It uses the options and the cache of ``make check``."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-color-output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    matches = re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, flags=re.MULTILINE)
    assert len(matches) == done.stdout.count(": error:"), done.stdout
    return [(Path(name).name, int(line), message) for name, line, message in matches]


def run_pyright(folder: Path) -> list[tuple[str, int, str]]:
    """Return the errors of basedpyright: file, line and message."""
    pytest.importorskip("basedpyright")
    excluded = [] if IS_FULL else ONLY_MYPY
    config = {"typeCheckingMode": "strict", "include": ["."], "exclude": excluded}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["message"])
        for item in diagnostics
        if item["severity"] == "error"
    ]


@pytest.mark.parametrize("check", [run_mypy, run_pyright], ids=["mypy", "pyright"])
def test_examples_and_pages_pass_in_strict_mode_and_an_invalid_program_fails(
    check: Callable[[Path], list[tuple[str, int, str]]], folder: Path
) -> None:
    problems = check(folder)
    assert [problem for problem in problems if problem[0] != "wrong.py"] == []
    assert {line for _, line, _ in problems} >= {4, 5, 6}
