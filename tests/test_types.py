"""Types as programs see them: the examples and the documentation pass mypy and pyright in strict mode.

A check is one run over all files, because a checker takes seconds to start.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import dialects
from tests.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = ["README.md", "docs/tutorial.md"]
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
WRONG = """
import dragoman

dragoman.ask("A city?", modle="local")
dragoman.Agent().begin("s", "Hello", user=1)
dragoman.ask("A city?").parsed.name
"""


def python_of(page: str) -> str:
    """The Python blocks of a page as one program."""
    path = ROOT / page
    text = path.read_text("utf-8") if path.is_file() else ""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for file in EXAMPLES:
        (folder / f"example_{file.name}").write_text(file.read_text("utf-8"), "utf-8")
    for page in PAGES:
        (folder / f"page_{Path(page).stem.lower()}.py").write_text(python_of(page), "utf-8")
    (folder / "dialects_are_dialects.py").write_text(DIALECTS, "utf-8")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    return folder


def mypy(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-color-output"]
    options = ["--cache-dir", str(ROOT / ".mypy_cache"), "--python-executable", sys.executable, "--config-file", ""]
    done = subprocess.run(
        [*command, *options, "."], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def pyright(folder: Path) -> list[str]:
    pytest.importorskip("basedpyright")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "include": ["."]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        f"{Path(item['file']).name}:{item['range']['start']['line'] + 1}: {item['message']}"
        for item in found
        if item["severity"] == "error"
    ]


@pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])
def test_examples_and_pages_pass_in_strict_mode(check: object, folder: Path) -> None:
    assert check(folder) == []  # type: ignore[operator]


@pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_wrong_program_is_noticed(check: object, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    lines = {int(re.findall(r":(\d+):", line)[0]) for line in check(tmp_path)}  # type: ignore[operator]
    assert lines >= {4, 5, 6}
