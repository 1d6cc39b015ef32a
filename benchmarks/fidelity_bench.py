"""Compare the values that conversions between provider formats preserve, beside other libraries.

Every library converts the same constructed requests from one wire to another, in its own environment. Dragoman reads
the result, and compares it with the request by the rules of ``docs/fidelity.md``. A missing value is silent, unless the
library reports it: with an exception, a warning or a loss. Requests only; replies are not converted.

    make bench BENCH=fidelity                                  print the tables
    make bench BENCH=fidelity BENCH_ARGS="--table-to FILE"     write them as Markdown, too
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.markdown import Markdown

from benchmarks.arena import ROOT, ensure_python
from dragoman import dialects
from dragoman.errors import DragomanError
from dragoman.exchange import Request, Written
from dragoman.fidelity.cases import CASES, Case, make_sample
from dragoman.fidelity.comparison import compare_requests
from dragoman.fidelity.measure import findings_of, worst_verdict
from dragoman.message import Role, TextBlock
from dragoman.transcripts import get_format

Outcome = Literal["kept", "changed", "reported", "refused", "silent", "invalid"]
OUTCOMES: tuple[Outcome, ...] = ("kept", "changed", "reported", "refused", "silent", "invalid")
OURS = "Dragoman"
LIBRARIES = {  # title: module of contestants, environment
    "LiteLLM": ("convert_litellm", "litellm"),
    "llm-rosetta": ("convert_rosetta", "llm-rosetta"),
    "pydantic-ai": ("convert_pydantic_ai", "pydantic-ai"),
}
# Cases that only compatible providers have a field for, not the API of the source itself.
EXTENSIONS = {
    "openai_chat": {
        "document, url",
        "effort and budget",
        "reasoning budget",
        "reasoning off",
        "reasoning on",
        "top_k",
        "video, base64",
        "video, url",
    }
}
# Options that pydantic-ai has a setting for, and the shared fields that its messages and tools have.
PYDANTIC_AI_OPTIONS = {
    "frequency_penalty",
    "max_output_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning",
    "response_format",
    "seed",
    "service_tier",
    "stop_sequences",
    "temperature",
    "tool_choice",
    "top_k",
    "top_p",
}
PYDANTIC_AI_CASES = {"deferred tool", "parallel calls", "strict tool"}
SHOWN_PAIR = ("openai_chat", "anthropic")  # whose cases are listed one by one
# The models that requests are written for. Every library knows them.
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "bedrock_converse": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "cohere": "command-a-03-2025",
    "gemini": "gemini-2.5-pro",
    "ollama": "qwen3",
    "openai_chat": "gpt-5.1",
    "openai_responses": "gpt-5.1",
}


class Cell(msgspec.Struct, frozen=True):
    """The result of one case."""

    library: str
    source: str
    target: str
    case: str
    outcome: Outcome = "silent"
    note: str = ""


class Library:
    """A library in its own process, which converts requests."""

    def __init__(self, module: str, python: str) -> None:
        command = [python, str(ROOT / "benchmarks" / "conversion_worker.py"), module]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version, self.pairs = self._read("version", ""), [tuple(pair) for pair in self._last.get("pairs", ())]

    def convert(self, source: str, target: str, wire: Any) -> dict[str, Any]:
        """Return the wire of the target, or the error."""
        assert self._process.stdin is not None
        command = {"source": source, "target": target, "model": MODELS[target], "wire": wire}
        print(json.dumps(command), file=self._process.stdin, flush=True)
        self._read("wire", None)
        return self._last

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self, name: str, default: Any) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._last: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        return self._last.get(name, default)


def measure_library(title: str, library: Library) -> Iterator[Cell]:
    """Yield the result of each case for each pair of the library."""
    for source, target in library.pairs:
        for case in CASES:
            sample = _make_wire(source, case)
            if sample is None:
                continue
            wire, request = sample
            answer = library.convert(source, target, wire)
            yield _judge(Cell(title, source, target, case.name), case.kind, request, answer)


def _make_wire(source: str, case: Case) -> tuple[Any, Request] | None:
    """Return the wire of a case in a source, and the canonical request that it means."""
    if case.request is None or case.answer is not None or case.name in EXTENSIONS.get(source, ()):
        return None
    if source == "pydantic_ai":
        return _make_messages(case.request) if _has_pydantic_ai_setting(case, case.request) else None
    dialect = dialects.load(source)
    wire = make_sample(dialect, case)
    return None if wire is None else (wire, dialect.read_request(wire))


def _has_pydantic_ai_setting(case: Case, request: Request) -> bool:
    """Whether a program can ask pydantic-ai for the subject of a case."""
    if case.group == "Shared fields" and case.name not in PYDANTIC_AI_CASES:
        return False
    response_format = request.options.response_format
    if response_format is not None and response_format.kind == "json":
        return False
    return msgspec.to_builtins(request.options).keys() <= PYDANTIC_AI_OPTIONS


def _make_messages(request: Request) -> tuple[Any, Request] | None:
    """Return the messages in the format of pydantic-ai, and tools and options beside them."""
    written = get_format("pydantic_ai").write_messages(request.messages)
    if written.losses:
        return None
    wire = {
        "messages": written.wire,
        "tools": [msgspec.to_builtins(tool) for tool in request.tools],
        "options": msgspec.to_builtins(request.options),
    }
    return wire, request


def _judge(cell: Cell, kind: str, request: Request, answer: dict[str, Any]) -> Cell:
    """Return the cell with its outcome."""
    if "error" in answer:
        return msgspec.structs.replace(cell, outcome="refused", note=answer["error"])
    dialect = dialects.load(cell.target)
    try:
        after = dialect.read_request(answer["wire"])
    except DragomanError as error:
        return msgspec.structs.replace(cell, outcome="invalid", note=str(error))
    implicit = getattr(dialect, "IMPLIED_OPTIONS", {})
    request = request.replace(model=MODELS[cell.target])
    findings = compare_requests(request, Written(answer["wire"]), after, cell.target, implicit)
    verdict, notes = worst_verdict(findings_of(kind, findings))
    if verdict == "silent" and kind.startswith("options.reasoning") and after.options.reasoning is not None:
        verdict = "changed"  # a budget in place of an effort, or the reverse
    if verdict == "silent" and kind == "system" and _has_system_texts(request, answer["wire"]):
        verdict = "changed"  # in another role
    reports = answer.get("warnings", ())
    outcome = verdict if verdict in ("kept", "changed") else "reported" if reports else "silent"
    notes = (*notes, *reports)
    return msgspec.structs.replace(cell, outcome=outcome, note="; ".join(notes))


def _has_system_texts(request: Request, wire: Any) -> bool:
    content = json.dumps(wire)
    system = [message for message in request.messages if message.role is Role.SYSTEM]
    return all(block.text in content for message in system for block in message.content if isinstance(block, TextBlock))


def measure_ours(pairs: Iterable[tuple[str, str]]) -> Iterator[Cell]:
    """Yield our own results for the same pairs and cases."""
    for source, target in pairs:
        dialect = dialects.load(target)
        for case in CASES:
            sample = _make_wire(source, case)
            if sample is None:
                continue
            request = sample[1].replace(model=MODELS[target])
            written = dialect.write_request(request)
            implicit = getattr(dialect, "IMPLIED_OPTIONS", {})
            findings = compare_requests(request, written, dialect.read_request(written.wire), target, implicit)
            verdict, notes = worst_verdict(findings_of(case.kind, findings))
            outcome: Outcome = "reported" if verdict in ("hint", "loss") else verdict  # type: ignore[assignment]
            yield Cell(OURS, source, target, case.name, outcome, "; ".join(notes))


# --- report ----------------------------------------------------------------------------------------------------------


def to_markdown(cells: list[Cell], versions: dict[str, str]) -> Iterator[str]:
    """Yield the lines of two tables: counts for each pair, and the cases of one pair."""
    titles = [OURS, *versions]
    headings = [f"{title} {versions[title]}" if title in versions else title for title in titles]
    yield f"| from → to | {' | '.join(headings)} |"
    yield f"|---|{'---|' * len(titles)}"
    for source, target in dict.fromkeys((cell.source, cell.target) for cell in cells):
        row = [_count(cells, title, source, target) for title in titles]
        yield f"| `{source}` → `{target}` | {' | '.join(row)} |"
    yield ""
    source, target = SHOWN_PAIR
    shown = {(cell.library, cell.case): cell.outcome for cell in cells if (cell.source, cell.target) == SHOWN_PAIR}
    columns = [title for title in titles if any(library == title for library, _ in shown)]
    yield f"| `{source}` → `{target}` | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for case in dict.fromkeys(case for _, case in shown):
        yield f"| {case} | {' | '.join(shown.get((title, case), '–') for title in columns)} |"


def _count(cells: list[Cell], title: str, source: str, target: str) -> str:
    counts = Counter(
        cell.outcome for cell in cells if (cell.library, cell.source, cell.target) == (title, source, target)
    )
    if not counts:
        return "–"
    present = counts["kept"] + counts["changed"]
    named = counts["reported"] + counts["refused"]
    return f"{present} / {named} / {counts['silent'] + counts['invalid']}"


def main() -> None:
    """Convert, compare, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure only libraries whose names contain this")
    parser.add_argument("--table-to", type=Path, help="write the tables to this file, too")
    parser.add_argument("--json-to", type=Path, help="write every result to this file, too")
    options = parser.parse_args()
    console = Console()
    cells: list[Cell] = []
    versions: dict[str, str] = {}
    for title, (module, environment) in LIBRARIES.items():
        if options.only.lower() not in title.lower():
            continue
        library = Library(module, ensure_python(environment, console))
        versions[title] = library.version
        if not library.pairs:
            console.print(f"{title} is not measured", markup=False)
        cells.extend(measure_library(title, library))
        library.stop()
    cells.extend(measure_ours(dict.fromkeys((cell.source, cell.target) for cell in cells)))
    lines = list(to_markdown(cells, versions))
    console.print(Markdown("\n".join(lines)))
    if options.table_to:
        options.table_to.write_text("\n".join(lines) + "\n", "utf-8")
    if options.json_to:
        options.json_to.write_bytes(msgspec.json.format(msgspec.json.encode(cells)))


if __name__ == "__main__":
    main()
