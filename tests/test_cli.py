"""Tests of the command line, run as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

import dragoman
from dragoman import formats
from dragoman.cli.parser import app
from dragoman.cli.tour import example_conversation
from tests import cli_runner

COMMAND = Path(sys.executable).with_name("dragoman")


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command without the cost of its imports."""
    return cli_runner.run_text(*arguments, environment=_environment(), cwd=cwd)


def run_program(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed program."""
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env=_environment(), timeout=60
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "140", "NO_COLOR": "1"}


def write_messages(file: Path, messages: tuple[dragoman.Message, ...]) -> Path:
    file.write_bytes(b"".join(dragoman.encode(message) + b"\n" for message in messages))
    return file


def test_help_lists_commands_and_version() -> None:
    done = run_program("--help")
    assert done.returncode == 0
    for command in ("tour", "check", "price"):
        assert command in done.stdout
        assert run(command, "--help").returncode == 0
    assert run_program("--version").stdout.strip() == dragoman.__version__


def test_convert_help_names_every_format() -> None:
    text = run("convert", "--help").stdout
    assert [name for name in formats.writable() if not re.search(rf"\b{name}\b", text)] == []


def commands(group: App = app, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return every command; a command of a group has the name of the group before it."""
    paths = []
    for name in (name for name in group if not name.startswith("-")):
        path = (*prefix, name)
        paths += commands(group[name], path) or [path]
    return paths


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_names_every_argument_and_omits_empty_defaults(command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert re.search(r"\[ARGS|\[default: (\(\)|False|None)\]", text) is None
    assert (
        re.search(r"^│ \*? *[A-Z]+ --", text, flags=re.MULTILINE) is None
    )  # an argument is not listed as an option too


def test_tour_prints_every_step() -> None:
    done = run_program("tour")
    assert done.returncode == 0
    assert done.stderr == ""
    for sign in (
        "tool_use",
        '"schema_version": 1',
        "hologram",
        "unchanged  True",
        "call-is-answered",
        "violations left: 0",
    ):
        assert sign in done.stdout
    assert "stream_incomplete" in done.stdout
    assert "verified  5 messages of 2 sessions, 0 damaged" in done.stdout
    assert "0.000654" in done.stdout


def test_example_conversation_breaks_no_rule() -> None:
    assert dragoman.check(example_conversation()) == ()


def test_check_accepts_a_valid_file(tmp_path: Path) -> None:
    done = run("check", write_messages(tmp_path / "good.jsonl", example_conversation()))
    assert done.returncode == 0
    assert "4 messages, 0 violations" in done.stdout


def test_check_reports_an_invalid_file_and_repairs_into_another(tmp_path: Path) -> None:
    messages = example_conversation()
    broken = write_messages(tmp_path / "broken.jsonl", (*messages[:2], messages[3]))
    before = broken.read_bytes()
    done = run("check", broken, "--repair-to", tmp_path / "mended.jsonl")
    assert done.returncode == 1
    assert "call-is-answered" in done.stdout
    assert "A call has its result before the next user or assistant message." in done.stdout
    assert broken.read_bytes() == before
    assert run("check", tmp_path / "mended.jsonl").returncode == 0
    assert run("check", broken, "--repair-to", broken).returncode == 2
    assert broken.read_bytes() == before


def test_check_reads_a_json_array_and_preserves_unknown_parts(tmp_path: Path) -> None:
    first, *rest = [dragoman.encode(message) for message in example_conversation()]
    newer = first.replace(b'"content":[', b'"content":[{"type":"hologram", "x":1e2},')
    file = tmp_path / "array.json"
    file.write_bytes(b" [\n" + b",\n".join([newer, *rest[:1], *rest[2:]]) + b"]")
    assert run("check", file, "--repair-to", tmp_path / "out.jsonl").returncode == 1
    assert (tmp_path / "out.jsonl").read_bytes().startswith(newer)


def test_unreadable_file_is_one_error_line_with_exit_code_2(tmp_path: Path) -> None:
    good = dragoman.encode(example_conversation()[0])
    for content, expected in [
        (good + b"\n" + good[:-9], "line 2"),
        (good.replace(b'"text":"Summarize README.md"', b'"text":7'), "$.content[0].text"),
        (b"[1]", "item 0"),
        (b'[{"a":1,"a":2}]', "bad.jsonl: the key 'a' occurs twice"),
    ]:
        (tmp_path / "bad.jsonl").write_bytes(content)
        done = run("check", tmp_path / "bad.jsonl")
        assert done.returncode == 2
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    assert run("check", tmp_path / "absent.jsonl").returncode == 2
    (tmp_path / "good.jsonl").write_bytes(good)
    done = run("check", tmp_path / "good.jsonl", "--repair-to", tmp_path / "no" / "such" / "folder")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert run("check", tmp_path).returncode == 2


def test_price_prints_a_receipt_for_ids_and_aliases() -> None:
    done = run(
        "price", "anthropic:claude-sonnet-4-6", "--input-tokens", "8", "--output-tokens", "42", "--at", "2026-05-08"
    )
    assert done.returncode == 0
    assert "0.000654" in done.stdout
    assert run("price", "sonnet", "--input-tokens", "1").returncode == 0
    assert "total" in run("price", "local", "--output-tokens", "9").stdout


def test_own_prices_replace_built_in_prices(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        'pricing_version: "mine"\nmodels:\n  openai:gpt-5: {input_per_mtok_usd: 7, output_per_mtok_usd: 9}\n'
    )
    done = run("price", "openai:gpt-5", "--input-tokens", "1000000", "--prices", file)
    assert "+mine" in done.stdout
    assert "7 / million" in done.stdout
    for content, expected in [
        ("[1]", "price file"),
        ("a: [", "YAML"),
        ("pricing_version: x\nmodels: {a:b: {}}", "price file"),
    ]:
        file.write_text(content)
        bad = run("price", "openai:gpt-5", "--prices", file)
        assert (bad.returncode, expected in bad.stderr, bad.stderr.count("\n")) == (2, True, 1), bad.stderr
    file.write_bytes(b"\xff\xfe\xfd")
    assert run("price", "openai:gpt-5", "--prices", file).returncode == 2
    own = tmp_path / "prices.json"
    own.write_text(
        '{\t"pricing_version": "mine", "models": {"me:mine": {"input_per_mtok_usd": 7, "output_per_mtok_usd": 9}}}'
    )
    assert "7 / million" in run("price", "me:mine", "--input-tokens", "5", "--prices", own).stdout


def test_unknown_model_is_an_error_with_a_hint() -> None:
    done = run("price", "nope")
    assert done.returncode == 2
    assert "provider:model" in done.stderr
    done = run("price", "nobody:knows", "--input-tokens", "1")
    assert done.returncode == 2
    assert "price file" in done.stderr


@pytest.mark.parametrize(
    ("variables", "encoding"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "ascii"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "utf-8"),
    ],
)
def test_output_without_utf_8_is_supported(variables: dict[str, str], encoding: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "tour"], capture_output=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding)


def test_help_imports_no_modules_of_single_commands() -> None:
    libraries = (
        "textual",
        "aiohttp",
        "apsw",
        "psycopg",
        "xllamacpp",
        "mcp",
        "keyring",
        "opentelemetry",
        "genai_prices",
    )
    packages = ("dragoman.store", "dragoman.turn", "dragoman.tui", "dragoman.client", "dragoman.dialects")
    code = (
        "import sys; sys.argv = ['dragoman', '--help']\n"
        "from dragoman.cli import main\n"
        "try: main()\n"
        f"finally: print(sorted(name for name in {(*libraries, *packages, 'rich.markdown', 'asyncio')} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
