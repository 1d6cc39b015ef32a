"""Tests of the documentation: its examples run, its tables are complete, and its links resolve.

Python blocks of a page share one namespace and run in an empty folder. A block of data with a title, as in
``yaml title="prices.yaml"``, is written there as a file of that name before the next example runs. In a console block,
a line that begins with ``$ dragoman`` is run and its output is compared. ``$ echo $?`` compares its exit code. Other
commands are not run. In the output, a line ``…`` matches any number of lines, and ``…`` within a line matches any text.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from cyclopts import App
from sybil import Document, Example, Region
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from dragoman import catalog, entries, errors, event, exchange, pricing, routing, toolschema
from dragoman.cli.parser import app
from dragoman.exchange import FAULT_CODES
from dragoman.local import LocalModel
from tests import cli_runner
from tests.conftest import IS_FULL, ROOT
from tests.servers.processes import run_embedded_model

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "dragoman"
PAGES = sorted(page for page in (ROOT / "README.md", *DOCS.rglob("*.md")) if page.is_file())
NOT_RUN = {"text", "sh"}
RUN_ELSEWHERE = {"jsx", "js"}  # in a browser and in Node.js, see tests/server/front_ends
WITH_PROVIDERS = {"README.md", "mail-agents.md", "tutorial.md"}  # pages whose examples call providers

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start_embedded_model() -> Iterator[Callable[[object], str]]:
    """Return a function that starts one embedded model for all pages, when an example first requests it."""
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start() -> str:
            return stack.enter_context(run_embedded_model())

        def start_once(_: object) -> str:
            with lock:
                return start()

        yield start_once


@every_page
def test_every_example_on_a_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    start_embedded_model: Callable[[object], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if not IS_FULL:
        monkeypatch.setattr(LocalModel, "_start", start_embedded_model)
    if page.name in WITH_PROVIDERS:
        use_providers(request.getfixturevalue("llama_server"), tmp_path, monkeypatch)
    monkeypatch.setattr(logging.getLogger("dragoman.format"), "handlers", [])  # an example adds one
    for example in Document.parse(str(page), PythonCodeBlockParser(), parse_other_blocks):
        example.evaluate()


def use_providers(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure Anthropic and Mistral as llama.cpp on this machine, which serves the APIs of both."""
    key = 'api_key = "sk-0123456789"'
    tables = {"anthropic": address, "mistral": f"{address}/v1"}
    file = folder / "config.toml"
    file.write_text("".join(f'[providers.{name}]\nbase_url = "{url}"\n{key}\n' for name, url in tables.items()))
    file.chmod(0o600)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))
    (folder / "README.md").write_text("# Foo\n")


@every_page
def test_every_block_on_a_page_has_a_known_language(page: Path) -> None:
    for language, title, region in blocks_of(Document(page.read_text("utf-8"), str(page))):
        assert language in {"python", *EVALUATORS, *NOT_RUN, *RUN_ELSEWHERE}
        assert not region.lexemes["rest"], f"{language}: only a title may follow"
        assert title is None or language not in ("python", "console"), f"{language}: a block that is run has no title"


def blocks_of(document: Document) -> Iterator[tuple[str, str | None, Region]]:
    """Yield the language, the file name of the title and the region of every fenced block."""
    info = re.compile(r'(?P<language>[^\s]*)(?:[ \t]+title="(?P<title>[^"]+)")?[ \t]*(?P<rest>[^\n]*)\n')
    for region in RawFencedCodeBlockLexer(info)(document):
        yield region.lexemes["language"], region.lexemes["title"], region


def parse_other_blocks(document: Document) -> Iterable[Region]:
    """Parse the blocks that are not Python."""
    for language, title, region in blocks_of(document):
        if language in EVALUATORS:
            region.parsed = (title, str(region.lexemes["source"]))
            region.evaluator = EVALUATORS[language]
            yield region


def run_console(example: Example) -> str | None:
    _, text = example.parsed
    exit_code = 0
    for command, expected in commands_of(text):
        if command == "echo $?":
            printed = f"{exit_code}\n"
        elif command.split()[0] == "dragoman":
            printed, exit_code = output_of(command)
        else:
            continue
        if not matches(expected, printed):
            return f"$ {command}\n--- shown\n{expected}\n--- printed\n{printed}"
    return None


def commands_of(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with its expected output."""
    assert text.startswith("$ "), "a console block begins with a command"
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command.strip(), expected) for command, _, expected in (part.partition("\n") for part in parts)]


def output_of(command: str) -> tuple[str, int]:
    """Return the output of a command in a terminal of 80 columns without colours, and its exit code."""
    terminal = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    arguments = shlex.split(command)[1:]
    done = cli_runner.run_text(*arguments, environment={**os.environ, **terminal}, merge_stderr=True)
    return done.stdout, done.returncode


def matches(expected: str, printed: str) -> bool:
    lines = [re.escape(line.rstrip()).replace("…", ".*") + "\n" for line in expected.strip("\n").splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line == ".*\n" else line for line in lines)
    text = "".join(line.rstrip() + "\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None


def test_console_output_is_matched_with_ellipses() -> None:
    assert matches("a\n…\nd\n", "a\nb\nc\nd\n")
    assert matches("a\n…\nb\n", "a\nb\n")
    assert matches("version …\n", "\nversion 0.1  \n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a.c\n", "abc\n")
    assert not matches("x … z\n", "x y\nz\n")


def store_as_file(parse: Callable[[str], object]) -> Callable[[Example], None]:
    """Return an evaluator for data: the data must parse, and a title makes it a file."""

    def evaluate(example: Example) -> None:
        title, text = example.parsed
        for part in text.splitlines() if title and title.endswith(".jsonl") else [text]:
            parse(part)
        if title:
            assert Path(title).name == title, "a title is a file name without a folder"
            Path(title).write_text(text, "utf-8")

    return evaluate


EVALUATORS: dict[str, Callable[[Example], str | None]] = {
    "console": run_console,
    "json": store_as_file(json.loads),
    "toml": store_as_file(tomllib.loads),
    "yaml": store_as_file(yaml.safe_load),
}


# --- pages and links -------------------------------------------------------------------------------------------------


def read_menu_pages() -> list[Path]:
    def walk(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else typing.cast("list[object]", entry):
                yield from walk(inner)

    menu = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    return [DOCS / name for name in walk(menu)]


def test_every_page_is_in_the_menu_once() -> None:
    menu = read_menu_pages()
    assert [page for page in PAGES if page.is_relative_to(DOCS) and page not in menu] == []
    assert len(menu) == len(set(menu))


def test_every_page_in_the_menu_exists() -> None:
    assert [page.name for page in read_menu_pages() if not page.is_file()] == []


def test_index_lists_every_page() -> None:
    """Decisions have their own index."""
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "index.md").read_text("utf-8")))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    assert {page for page in pages if not page.startswith("decisions/")} - {"index.md"} - linked == set()


def text_outside_blocks(page: Path) -> str:
    return re.sub(r"^(```|~~~).*?^\1", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+?) *#*$", text_outside_blocks(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@every_page
def test_every_link_between_pages_resolves(page: Path) -> None:
    menu = read_menu_pages()  # another test reports missing pages of the menu
    dead = []
    for link in re.findall(r"\]\(<?([^)>\s]+)", text_outside_blocks(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        missing = not target.exists() and target not in menu
        if missing or (anchor and target.is_file() and anchor not in anchors_of(target)):
            dead.append(link)
    assert dead == []


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    builder = shutil.which("zensical", path=Path(sys.executable).parent)
    if builder is None:
        pytest.skip("the builder of the site is not installed")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = subprocess.run(
        [builder, "build", "--clean", "--strict"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "site" / "index.html").is_file()


# --- tables ----------------------------------------------------------------------------------------------------------


def read_rows(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the tables under a heading, up to the next heading."""
    text = text_outside_blocks(DOCS / page)
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading!r}"
    return re.findall(r"^\| `([^`]+)`", found[1], flags=re.MULTILINE)


def fields(struct: type) -> tuple[str, ...]:
    names: tuple[str, ...] = struct.__struct_fields__  # type: ignore[attr-defined]
    return tuple(name for name in names if name != "unknown_fields")


def tags(union: object) -> list[str]:
    return [member.__struct_config__.tag for member in typing.get_args(union)]


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("streams.md", "The events", tags(event.StreamEvent)),
        ("streams.md", "Why a model stopped", [reason.value for reason in exchange.StopReason]),
        ("tools.md", "Allowed keywords", list(toolschema.ALLOWED)),
        ("tools.md", "Rejected keywords", list(toolschema.REFUSED)),
        ("tools.md", "Formats", list(toolschema.FORMATS)),
        ("tools.md", "Side effects", [effect.value for effect in exchange.SideEffects]),
        ("catalog.md", "A provider's row", [name for name in fields(catalog.Provider) if name != "key"]),
        ("catalog.md", "Capabilities", list(fields(catalog.AdapterCapabilities))),
        ("catalog.md", "Quirks", list(catalog.QUIRKS)),
        ("pricing.md", "A price file", list(fields(pricing._Row))),
        ("entries.md", "The types", list(entries.TYPES)),
        ("routing.md", "The slots", list(routing.SLOTS)),
        ("routing.md", "Gates", list(routing.FAILURES)),
        ("routing.md", "Predicates", list(routing.PREDICATES)),
        ("errors.md", "Fields of a fault", list(fields(exchange.Fault))),
        ("errors.md", "Kinds of faults", [kind.value for kind in exchange.ErrorClass]),
    ],
)
def test_table_lists_every_name(page: str, heading: str, names: list[str]) -> None:
    assert sorted(read_rows(page, heading)) == sorted(names)


def commands(group: App = app, prefix: str = "") -> list[str]:
    """Return every command; a command of a group has the name of the group before it."""
    found = []
    for name in (name for name in group if not name.startswith("-")):
        inner = [inner for inner in group[name] if not inner.startswith("-")]
        found += commands(group[name], f"{prefix}{name} ") if inner else [prefix + name]
    return found


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented_with_its_options(command: str) -> None:
    documented = read_rows("cli.md", f"dragoman {command}")
    app_of_command = app
    for name in command.split():
        app_of_command = app_of_command[name]
    options = [argument.names[0] for argument in app_of_command.assemble_argument_collection() if not argument.children]
    documented_names = {name.partition(" ")[0] for name in documented}
    for option in options:
        assert option in documented_names or option.removeprefix("--").upper() in documented_names, option
    assert len(documented_names) == len(options)


def test_every_documented_command_exists() -> None:
    headings = re.findall(r"^## dragoman (.+)$", (DOCS / "cli.md").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(headings) == sorted(commands())


def codes_of_classes() -> set[str]:
    def tree(cls: type[errors.DragomanError]) -> Iterator[type[errors.DragomanError]]:
        yield cls
        for child in cls.__subclasses__():
            yield from tree(child)

    return {cls.code for cls in tree(errors.DragomanError) if cls.__module__ == errors.__name__}


def codes_in_source() -> dict[str, set[str]]:
    """Return the values of ``code=`` in calls, separately for faults and errors."""
    found: dict[str, set[str]] = {"fault": set(), "error": set()}
    gc.collect()  # a collection during parsing confuses the parser of Python 3.11
    for file in SOURCE.rglob("*.py"):
        text = file.read_text("utf-8")
        if "code=" not in text:
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg == "code":
                    kind = "fault" if ast.unparse(call.func) in ("Fault", "fault.replace") else "error"
                    constants = (node for node in ast.walk(keyword.value) if isinstance(node, ast.Constant))
                    found[kind].update(node.value for node in constants if isinstance(node.value, str))
    return found


def test_every_error_code_is_documented_and_every_documented_code_exists() -> None:
    in_source = codes_in_source()
    assert sorted(read_rows("errors.md", "Codes of errors")) == sorted(codes_of_classes() | in_source["error"])
    assert sorted(read_rows("errors.md", "Codes of faults")) == sorted(FAULT_CODES)


def test_tree_of_errors_is_complete_and_equal_to_the_source() -> None:
    def tree(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if re.match(r" *(?:DragomanError  |[├│└])", line)]

    drawn = tree((DOCS / "errors.md").read_text("utf-8"))
    assert drawn == tree(errors.__doc__ or "")
    assert {re.findall(r"\w+Error", line)[0] for line in drawn} == {
        name for name in vars(errors) if name[-5:] == "Error"
    }


# --- promises --------------------------------------------------------------------------------------------------------


def test_every_promise_names_a_test_that_exists() -> None:
    page = (DOCS / "promises.md").read_text("utf-8")
    read_rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| promise", "|---"))
    ]
    assert read_rows
    for row in read_rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert tests, f"no test is named: {row}"
        for file, function in tests:
            text = (ROOT / file).read_text("utf-8")
            assert re.search(rf"^(async )?def {function or 'test_'}", text, flags=re.MULTILINE), f"{file}::{function}"
