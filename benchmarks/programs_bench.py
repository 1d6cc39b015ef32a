"""Twelve programs of a typical user, with Dragoman, Pydantic AI and LiteLLM: statements counted, and each one run.

    python -m benchmarks.programs_bench            run every program against fake providers, and print the table
    python -m benchmarks.programs_bench --write    also write the table into docs/programs.md
    python -m benchmarks.programs_bench --ours     without the peers
    python -m benchmarks.programs_bench ask mcp    only these programs

The programs are in ``benchmarks/programs/TASK/SIDE.py``, in the shortest form that the documentation of each library
shows. A statement is a node of the syntax tree, without docstrings, so that the layout does not count. Peers run in
environments of their own. A program that fails, or prints something else, is reported.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.arena import ROOT, ensure_python
from tests.fake_providers import StrictProvider, call_part, strict_provider

PROGRAMS = ROOT / "benchmarks" / "programs"
PAGE = ROOT / "docs" / "programs.md"
SIDES = {"dragoman": None, "pydantic_ai": "pydantic-ai", "litellm": "litellm"}  # and the environment of each
TITLES = {"dragoman": "Dragoman", "pydantic_ai": "Pydantic AI", "litellm": "LiteLLM"}
CITY = {"name": "Bern", "population": 146000}
REQUEST = {"model": "gpt-4o", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
CLOCK = """
from mcp.server import MCPServer

server = MCPServer("clock")


@server.tool()
def now() -> str:
    return "noon"


server.run()
"""
# What each task has to print, as a pattern.
TASKS = {
    "convert": r"'Hello'",
    "stream": r"Hello there\.",
    "ask": r"Hello there\.",
    "agent_with_two_tools": r"Yes\.",
    "swap": r"Too long\.",
    "store_and_search": r"^sess_[0-9A-Z]{26}$",
    "sync_use": r"Ada\.",
    "fastapi": r"",
    "structured_output": r"City\(name='Bern', population=146000\)",
    "price": r"^0\.0\d+$",
    "letters": r"It is done\.",
    "mcp": r"Noon\.",
}


Start = Callable[[str, Path, dict[str, str]], subprocess.CompletedProcess[str]]


class Outcome(msgspec.Struct, frozen=True):
    """A program that was run."""

    statements: int
    problem: str | None


def count_statements(file: Path) -> int:
    """Return the number of statements of a program, without docstrings."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.stmt)]
    texts = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return len(nodes) - len(texts)


def script_answers(task: str, side: str, anthropic: StrictProvider, openai: StrictProvider) -> None:
    """Prepare what the fake providers answer."""
    text = {"sync_use": "Ada.", "store_and_search": "A historian."}.get(task, "Hello there.")
    match task:
        case "agent_with_two_tools":
            anthropic.answer_with(call_part("weather", {"city": "Bern"}))
            anthropic.reply("Yes.")
        case "mcp":
            anthropic.answer_with(call_part("clock__now" if side == "dragoman" else "now"))
            anthropic.reply("Noon.")
        case "structured_output" if side == "pydantic_ai":
            anthropic.answer_with(call_part("final_result", CITY))
        case "structured_output":
            anthropic.reply(msgspec.json.encode(CITY).decode())
        case _:
            anthropic.reply(text)
            anthropic.reply(text)
            openai.reply("Too long.")


def start_process(python: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the program of a folder to its end."""
    return subprocess.run(
        [python, "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


async def run_program(task: str, side: str, python: str, start: Start = start_process) -> str | None:
    """Run a program against fake providers. Returns what is wrong, or none."""
    openai_dialect = "openai_responses" if side == "dragoman" else "openai_chat"
    async with strict_provider("anthropic") as anthropic, strict_provider(openai_dialect) as openai:
        script_answers(task, side, anthropic, openai)
        with tempfile.TemporaryDirectory(prefix="dragoman-programs-") as folder:
            prepare_folder(Path(folder), task, side)
            environment = {
                "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
                "HOME": folder,
                "PYTHONUTF8": "1",
                "ANTHROPIC_API_KEY": "sk-fake",
                "ANTHROPIC_BASE_URL": anthropic.base_url,
                "OPENAI_API_KEY": "sk-fake",
                "OPENAI_BASE_URL": openai.base_url,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            }
            done = await asyncio.to_thread(start, python, Path(folder), environment)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    if not re.search(TASKS[task], done.stdout.strip()):
        return f"it printed {done.stdout[:200]!r}"
    return None


def prepare_folder(folder: Path, task: str, side: str) -> None:
    """Copy a program and what it reads into an empty folder."""
    shutil.copy(PROGRAMS / task / f"{side}_side.py", folder / "program.py")
    (folder / "request.json").write_bytes(msgspec.json.encode(REQUEST))
    (folder / "clock.py").write_text(CLOCK, "utf-8")


async def run_all(sides: list[str], tasks: list[str], console: Console) -> dict[str, dict[str, Outcome]]:
    """Run the programs of these sides."""
    pythons = {side: ensure_python(SIDES[side], console) for side in sides}
    outcomes: dict[str, dict[str, Outcome]] = {task: {} for task in tasks}
    for task in tasks:
        for side in sides:
            file = PROGRAMS / task / f"{side}_side.py"
            if file.is_file():
                problem = await run_program(task, side, pythons[side])
                outcomes[task][side] = Outcome(count_statements(file), problem)
                if problem:
                    console.print(f"{task}, {side}: {problem}")
    return outcomes


def make_table(sides: list[str]) -> str:
    """The statements of each program as a Markdown table."""
    rows = [f"| program | {' | '.join(TITLES[side] for side in sides)} |", f"|---{'|---:' * len(sides)}|"]
    for task in TASKS:
        files = [PROGRAMS / task / f"{side}_side.py" for side in sides]
        cells = [str(count_statements(file)) if file.is_file() else "–" for file in files]
        rows.append(f"| {task.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def write_page(table: str) -> None:
    """Replace the table of the page."""
    text = PAGE.read_text("utf-8")
    PAGE.write_text(re.sub(r"(?<=<!-- table -->\n\n).*?(?=\n\n<!-- end -->)", table, text, flags=re.DOTALL), "utf-8")


def main() -> int:
    """Run the programs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", help="the programs; default: all")
    parser.add_argument("--ours", action="store_true", help="run only the programs with Dragoman")
    parser.add_argument("--write", action="store_true", help="write the table into docs/programs.md")
    arguments = parser.parse_args()
    console = Console()
    sides = ["dragoman"] if arguments.ours else list(SIDES)
    outcomes = asyncio.run(run_all(sides, arguments.tasks or list(TASKS), console))
    console.print(make_table(list(SIDES)))
    if arguments.write:
        write_page(make_table(list(SIDES)))
    return 1 if any(outcome.problem for row in outcomes.values() for outcome in row.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
