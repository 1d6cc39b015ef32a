"""Tests of fidelity between all dialects: every part is kept, changed or reported as a loss."""

from __future__ import annotations

import functools
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from rich.console import Console

from dragoman import dialects, fidelity
from dragoman.cli import fidelity as report
from dragoman.cli.prove import Proof, prove, prove_records
from dragoman.exchange import Loss, Request, SideEffects, ToolDefinition, Written
from dragoman.fidelity import (
    CASES,
    Case,
    Cell,
    Finding,
    Tally,
    make_cells,
    make_sample,
    measure_conversion,
    native_samples,
    transcript_dialects,
)
from dragoman.fidelity.comparison import JOINED, MOVED, NOT_ALLOWED, request_kinds
from dragoman.fidelity.reply_comparison import reply_kinds
from dragoman.fidelity.table import cells_to_markdown, column_of, to_plain
from dragoman.message import ContentBlock, DocumentBlock, TextBlock, ToolResultBlock, ToolUseBlock, UnknownBlock
from scripts import reference
from tests.conftest import IS_FULL, ROOT
from tests.corpus import records

# Kinds that survive every pair, and the other forms that they may have afterwards.
NEVER_LOST = {
    *("text", "system", "tool_use", "invalid_tool_use", "tool_result", "tool_result.text", "tool"),
    *("answer.text", "answer.tool_use", "answer.usage.input_tokens", "answer.usage.output_tokens"),
}
FORMS = {
    "answer.text": {JOINED, MOVED, f"{JOINED}; {MOVED}"},
    "answer.usage.input_tokens": {"one count for the whole prompt"},
    "text": {
        JOINED,
        MOVED,
        f"{JOINED}; {MOVED}",
        "an empty text is left out",
        "white space at the end is left out: the API rejects it",
    },
    "tool": {NOT_ALLOWED, "takes an object: the API requires a type"},
    "system": {JOINED, MOVED, f"{JOINED}; {MOVED}"},
    "tool_result": {
        "the result becomes a text: its call is missing",
        "the result becomes a text: its call has a result already",
        MOVED,
    },
    "tool_result.text": {JOINED},
    "invalid_tool_use": {
        "the call becomes a text: nothing of its input can be read",
        "the call has the part of its input that can be read",
    },
}


ALLOWED_CHANGES = {
    "vercel": {MOVED}
}  # Vercel stores a result with its call, and in a few recorded histories the result does not follow its call
PROMPTS = {name for name in dialects.names() if getattr(dialects.load(name), "TAKES_PROMPT", False)}  # no tools
CONVERSATIONS = {each.NAME: each for each in transcript_dialects()}
ALL_NAMES = (*dialects.callable_names(), *CONVERSATIONS)


@functools.cache
def measure_all() -> tuple[Cell, ...]:
    return make_cells((*(dialects.load(name) for name in dialects.callable_names()), *CONVERSATIONS.values()))


@pytest.fixture
def reuse_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure all dialects once for all tests of this module; the full run measures them in each test."""

    def reuse(modules: Iterable[Any]) -> tuple[Cell, ...]:
        assert [each.NAME for each in modules] == list(ALL_NAMES)
        return measure_all()

    if not IS_FULL:
        for module in (fidelity, report):
            monkeypatch.setattr(module, "make_cells", reuse)


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# --- constructed cases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL_NAMES)
def test_nothing_is_lost_silently(source: str) -> None:
    row = [cell for cell in measure_all() if cell.source == source]
    assert [cell for cell in row if cell.is_defect] == []
    assert {cell.target for cell in row} == set(ALL_NAMES)


@pytest.mark.parametrize("source", ALL_NAMES)
def test_texts_calls_results_and_tools_survive_every_pair(source: str) -> None:
    kinds = {case.name: case.kind for case in CASES}
    lost = [
        cell
        for cell in measure_all()
        if cell.source == source
        and cell.verdict == "loss"
        and kinds[cell.case] in NEVER_LOST
        and cell.target not in PROMPTS
    ]
    assert lost == []


def test_every_type_of_block_is_a_case() -> None:
    kinds = {case.kind for case in CASES}
    assert {cls.type for cls in get_args(ContentBlock) if cls is not UnknownBlock} <= kinds


@pytest.mark.parametrize("name", ALL_NAMES)
def test_native_samples_contain_the_subject_of_their_case(name: str) -> None:
    dialect: Any = CONVERSATIONS.get(name) or dialects.load(name)
    for case_name, wire in native_samples(name).items():
        tested_case = case(case_name)
        is_request = tested_case.answer is None
        found_kinds = request_kinds(dialect.read_request(wire)) if is_request else reply_kinds(dialect.read_reply(wire))
        assert tested_case.kind in found_kinds, case_name


def test_every_case_is_supported_by_some_dialect() -> None:
    unsupported = [
        each.name
        for each in CASES
        if all(make_sample(dialects.load(name), each) is None for name in dialects.callable_names())
    ]
    assert unsupported == []


# --- recorded traffic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", dialects.callable_names())
def test_recorded_traffic_has_no_silent_loss_in_any_dialect(source: str) -> None:
    by_name = {name: dialects.load(name) for name in dialects.callable_names()}
    tally = Tally()
    for _, record in records(source, sample=25):
        report.tally_record(record, source, by_name, tally)
    assert tally.requests[source] > 0
    assert tally.answers[source] > 0
    assert tally.shortfalls == []
    assert [key for key in tally.counts if key[2] in NEVER_LOST and key[3] == "loss" and key[1] not in PROMPTS] == []
    others = {
        (kind, note)
        for _, _, kind, outcome, note in tally.notes
        if kind in NEVER_LOST and outcome == "changed" and note not in FORMS.get(kind, set())
    }
    assert others == set()


@pytest.mark.parametrize("source", dialects.callable_names())
def test_recorded_traffic_has_no_silent_loss_in_any_transcript_format(source: str) -> None:
    by_name = {source: dialects.load(source), **CONVERSATIONS}
    tally = Tally()
    for _, record in records(source, sample=25):
        report.tally_record({**record, "response": None}, source, by_name, tally)
    assert tally.requests[source] > 0
    assert tally.shortfalls == []
    checked_kinds = NEVER_LOST - {"tool"}
    others = {
        (target, note)
        for _, target, kind, outcome, note in tally.notes
        if kind in checked_kinds and outcome in ("loss", "changed") and note not in ALLOWED_CHANGES.get(target, set())
    }
    assert others == set()


# --- detection of defects --------------------------------------------------------------------------------------------

Change = Callable[[Request], Request]


def lossy_dialect(change: Change, losses: tuple[Loss, ...] = ()) -> SimpleNamespace:
    """Return Chat Completions with a change of each request before it is written."""
    real = dialects.load("openai_chat")

    def write_request(request: Request) -> Written:
        return Written(real.write_request(change(request), fit=False).wire, losses)

    return SimpleNamespace(NAME="forgetful", read_request=real.read_request, write_request=write_request)


def change_blocks(change: Callable[[ContentBlock], ContentBlock | None]) -> Change:
    def change_request(request: Request) -> Request:
        messages = []
        for message in request.messages:
            blocks = [new for block in message.content if (new := change(block)) is not None]
            messages.append(message.replace(content=blocks))
        return request.replace(messages=tuple(messages))

    return change_request


def outcome(change: Change, name: str, losses: tuple[Loss, ...] = ()) -> list[Finding]:
    """Return the findings about a case of Anthropic's wire after a change by the target."""
    anthropic = dialects.load("anthropic")
    request = anthropic.read_request(make_sample(anthropic, case(name)))
    findings = measure_conversion(request, lossy_dialect(change, losses))
    return [finding for finding in findings if finding.kind == case(name).kind]


def remove_results(block: ContentBlock) -> ContentBlock | None:
    return None if isinstance(block, ToolResultBlock) else block


def remove_texts(block: ContentBlock) -> ContentBlock | None:
    return None if isinstance(block, TextBlock) else block


def change_text(block: ContentBlock) -> ContentBlock:
    return block.replace(text=block.text.upper()) if isinstance(block, TextBlock) else block


def trim_text(block: ContentBlock) -> ContentBlock:
    return block.replace(text=block.text.rstrip()) if isinstance(block, TextBlock) else block


def change_input(block: ContentBlock) -> ContentBlock:
    return block.replace(input={**block.input, "limit": 2}) if isinstance(block, ToolUseBlock) else block


def change_tool(block: ContentBlock) -> ContentBlock:
    return block.replace(name="write_file") if isinstance(block, ToolUseBlock) else block


def change_definition(**fields: Any) -> Change:
    return lambda request: request.replace(tools=tuple(tool.replace(**fields) for tool in request.tools))


def remove_name(block: ContentBlock) -> ContentBlock:
    return block.replace(name=None) if isinstance(block, DocumentBlock) else block


DEFECTS: dict[str, tuple[Change, str]] = {
    "a text dropped": (change_blocks(remove_texts), "text"),
    "a text altered": (change_blocks(change_text), "text"),
    "a system prompt altered": (change_blocks(change_text), "system prompt"),
    "an input altered": (change_blocks(change_input), "tool_use"),
    "a tool renamed": (change_blocks(change_tool), "tool_use"),
    "a result dropped": (change_blocks(remove_results), "tool_result"),
    "a schema altered": (change_definition(input_schema={"type": "object"}), "tool"),
    "a description altered": (change_definition(description="Something else."), "tool"),
    "a tool dropped": (lambda request: request.replace(tools=()), "tool"),
    "an option dropped": (
        lambda request: request.replace(options=request.options.replace(temperature=None)),
        "temperature",
    ),
    "an option altered": (
        lambda request: request.replace(options=request.options.replace(temperature=0.99)),
        "temperature",
    ),
    "the model altered": (lambda request: request.replace(model="another-model"), "model"),
    "the model dropped": (lambda request: request.replace(model=None), "model"),
    "an aside not named": (lambda request: request, "in its own words"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_silent_drops_and_changes_are_detected(defect: str) -> None:
    findings = outcome(*DEFECTS[defect])
    assert findings
    assert {finding.outcome for finding in findings} == {"silent"}


def test_reported_loss_excuses_one_missing_block() -> None:
    loss = Loss("", "0" * 26, "text", "forgetful", "no words today")
    (finding,) = outcome(change_blocks(remove_texts), "text", (loss,))
    assert (finding.outcome, finding.note) == ("loss", "no words today")
    both = outcome(change_blocks(remove_texts), "two texts in one message", (loss,))
    assert [finding.outcome for finding in both] == ["loss", "silent"]


def test_reported_adjustment_explains_a_changed_option() -> None:
    adjustment = Loss("", "", "temperature", "forgetful", "hotter", "adjusted")
    change = DEFECTS["an option altered"][0]
    (finding,) = outcome(change, "temperature", (adjustment,))
    assert finding.outcome == "changed"
    assert "becomes 0.99" in finding.note


def test_reported_adjustment_of_a_text_explains_missing_white_space_alone() -> None:
    adjustment = Loss("", "0" * 26, "text", "forgetful", "without white space", "adjusted")
    wire = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello. "}]}
    request = dialects.load("anthropic").read_request(wire)
    for change, expected in ((trim_text, "changed"), (change_text, "silent"), (remove_texts, "silent")):
        findings = measure_conversion(request, lossy_dialect(change_blocks(change), (adjustment,)))
        assert {finding.outcome for finding in findings if finding.kind == "text"} == {expected}


@pytest.mark.parametrize(("named", "expected"), [("read_file", "changed"), ("read_file_2", "silent")])
def test_reported_adjustment_of_a_tool_explains_the_tool_that_it_names(named: str, expected: str) -> None:
    adjustment = Loss("", "", "tool.input_schema", "forgetful", f"{named} takes an object", "adjusted")
    (finding,) = outcome(change_definition(input_schema={"type": "object"}), "tool", (adjustment,))
    assert finding.outcome == expected


def test_schema_of_a_tool_that_takes_any_text_is_not_compared() -> None:
    tool = ToolDefinition("run", "Runs it.", {"type": "object", "title": "x"}, SideEffects.EXECUTE, free_form=True)
    request = Request(model="m", messages=(), tools=(tool,))
    (finding,) = [each for each in measure_conversion(request, dialects.load("openai_chat")) if each.kind == "tool"]
    assert finding.outcome == "kept"


def test_loss_of_another_message_excuses_nothing() -> None:
    other = Loss("", "1".rjust(26, "0"), "text", "forgetful", "no words today")
    (finding,) = outcome(change_blocks(remove_texts), "text", (other,))
    assert finding.outcome == "silent"


def test_changed_name_is_a_change_and_a_missing_name_is_a_defect() -> None:
    (kept,) = outcome(lambda request: request, "name of a document")
    assert kept.outcome == "kept"
    (change_request,) = outcome(change_blocks(remove_name), "name of a document")  # this dialect writes a default name
    assert (change_request.outcome, change_request.note) == ("changed", "'report' becomes 'document.pdf'")


def test_dialect_that_does_not_round_trip_is_a_defect() -> None:
    real = dialects.load("openai_chat")
    lossy = SimpleNamespace(
        NAME="openai_chat",
        read_request=real.read_request,
        write_request=lambda request: Written({**real.write_request(request).wire, "temperature": 1}),
    )
    (cell,) = make_cells([lossy], [case("in its own words")])
    assert cell.is_defect


# --- table -----------------------------------------------------------------------------------------------------------


def test_table_has_a_row_per_case_and_a_column_per_target() -> None:
    lines = list(cells_to_markdown(measure_all()))
    for name in ALL_NAMES:
        assert f"### From {name}" in lines
    assert any(
        line.startswith("Not supported by this source: ") and "image, url" in line for line in lines
    )  # Ollama accepts only bytes
    rows = [line for line in lines if line.startswith("| image, base64 |")]
    assert len(rows) == len(ALL_NAMES)
    assert all(row.count("|") == len(ALL_NAMES) + 2 for row in rows)


def test_every_kind_has_a_column() -> None:
    assert [case.kind for case in CASES if column_of(case.kind) == "other"] == []


RECORD: dict[str, Any] = {
    "id": "example-1",
    "dialect": "anthropic",
    "provider": "anthropic",
    "kind": "recorded",
    "status": 200,
    "request": {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}], "container": "c"},
    "response": None,
    "stream": None,
}


@pytest.mark.usefixtures("reuse_cells")
def test_page_is_current() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text("utf-8")
    assert reference.fill(text) == text, "run: python scripts/reference.py"


@pytest.mark.usefixtures("reuse_cells")
def test_prove_with_a_folder_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "traffic.jsonl").write_text(json.dumps(RECORD) + "\n", "utf-8")
    assert prove(tmp_path / "traffic.jsonl", table_to=tmp_path / "made" / "here") == 0
    assert "Translations to every other dialect" in capsys.readouterr().out
    page = (tmp_path / "made" / "here" / "fidelity.md").read_text("utf-8")
    assert "### 1 requests and 0 answers of anthropic" in page
    assert "### From ollama" in page
    table = json.loads((tmp_path / "made" / "here" / "fidelity.json").read_bytes())
    assert table["requests"] == {"anthropic": 1}
    assert len(table["cells"]) == len(measure_all())
    assert table["shortfalls"] == []
    lost = {row["target"] for row in table["counts"] if row["kind"] == "aside" and row["outcome"] == "loss"}
    assert lost >= set(dialects.callable_names()) - {"anthropic"}


def test_silent_losses_are_printed_and_fail_the_command() -> None:
    tally = Tally()
    tally.add("example-1", "anthropic", "ollama", [Finding("text", "silent", "left out", "messages[0].content[0]")])
    out = io.StringIO()
    assert not report.print_result(Console(file=out, width=120), (), tally, limit=20)
    assert "example-1 anthropic → ollama messages[0].content[0]  text: left out" in out.getvalue()
    assert [entry.record for entry in to_plain((), tally)["shortfalls"]] == ["example-1"]


def test_failed_conversion_is_reported_and_the_next_one_runs() -> None:
    def raise_error(_request: Request) -> Written:
        raise ZeroDivisionError("on purpose")

    by_name = {name: dialects.load(name) for name in ("anthropic", "ollama")}
    failing = SimpleNamespace(NAME="broken", read_request=raise_error, write_request=raise_error)
    tally = Tally()
    report.tally_record(RECORD, "anthropic", {"broken": failing, **by_name}, tally)
    (shortfall,) = tally.shortfalls
    assert (shortfall.target, shortfall.note) == ("broken", "ZeroDivisionError: on purpose")
    assert ("anthropic", "ollama", "text", "kept") in tally.counts


def test_prove_gives_the_same_result_with_and_without_the_table() -> None:
    with_table = prove_records([RECORD], Proof(Counter(), [], []), tally=Tally())
    assert with_table.equal == prove_records([RECORD], Proof(Counter(), [], [])).equal
