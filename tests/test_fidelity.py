"""Fidelity between all dialects: everything is kept, changed or reported as a loss."""

from __future__ import annotations

import functools
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from rich.console import Console

from dragoman import dialects
from dragoman.cli import fidelity as report
from dragoman.cli.prove import Proof, prove, prove_records
from dragoman.exchange import Loss, Request, Written
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
from dragoman.fidelity.comparison import JOINED, MOVED, request_kinds
from dragoman.fidelity.reply_comparison import reply_kinds
from dragoman.fidelity.table import cells_to_markdown, column_of, to_plain
from dragoman.message import ContentBlock, DocumentBlock, TextBlock, ToolResultBlock, ToolUseBlock, UnknownBlock
from tests.corpus import records

# What has to survive every pair, and the other forms in which it may arrive.
NEVER_LOST = {
    *("text", "system", "tool_use", "invalid_tool_use", "tool_result", "tool_result.text", "tool"),
    *("answer.text", "answer.tool_use", "answer.usage.input_tokens", "answer.usage.output_tokens"),
}
FORMS = {
    "answer.text": {JOINED, MOVED, f"{JOINED}; {MOVED}"},
    "answer.usage.input_tokens": {"one count for the whole prompt"},
    "text": {JOINED, MOVED, f"{JOINED}; {MOVED}", "an empty text is left out"},
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


APART = {
    "vercel": {MOVED}
}  # a result stands with its call there, and in a few recorded histories it does not follow it
PROMPTS = {name for name in dialects.names() if getattr(dialects.load(name), "TAKES_PROMPT", False)}  # no tools
CONVERSATIONS = {each.NAME: each for each in transcript_dialects()}
EVERYTHING = (*dialects.callable_names(), *CONVERSATIONS)


@functools.cache
def measure_all() -> tuple[Cell, ...]:
    return make_cells((*(dialects.load(name) for name in dialects.callable_names()), *CONVERSATIONS.values()))


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# --- constructed cases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", EVERYTHING)
def test_nothing_is_lost_silently(source: str) -> None:
    row = [cell for cell in measure_all() if cell.source == source]
    assert [cell for cell in row if cell.is_defect] == []
    assert {cell.target for cell in row} == set(EVERYTHING)


@pytest.mark.parametrize("source", EVERYTHING)
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


@pytest.mark.parametrize("name", EVERYTHING)
def test_native_samples_contain_the_subject_of_their_case(name: str) -> None:
    dialect: Any = CONVERSATIONS.get(name) or dialects.load(name)
    for case_name, wire in native_samples(name).items():
        about = case(case_name)
        is_request = about.answer is None
        said = request_kinds(dialect.read_request(wire)) if is_request else reply_kinds(dialect.read_reply(wire))
        assert about.kind in said, case_name


def test_every_case_is_supported_by_some_dialect() -> None:
    unsaid = [
        each.name
        for each in CASES
        if all(make_sample(dialects.load(name), each) is None for name in dialects.callable_names())
    ]
    assert unsaid == []


# --- recorded traffic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", dialects.callable_names())
def test_recorded_traffic_has_no_silent_loss_in_any_dialect(source: str) -> None:
    spoken = {name: dialects.load(name) for name in dialects.callable_names()}
    tally = Tally()
    for _, record in records(source, sample=50):
        report.tally_record(record, source, spoken, tally)
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
    spoken = {source: dialects.load(source), **CONVERSATIONS}
    tally = Tally()
    for _, record in records(source, sample=50):
        report.tally_record({**record, "response": None}, source, spoken, tally)
    assert tally.requests[source] > 0
    assert tally.shortfalls == []
    said = NEVER_LOST - {"tool"}
    others = {
        (target, note)
        for _, target, kind, outcome, note in tally.notes
        if kind in said and outcome in ("loss", "changed") and note not in APART.get(target, set())
    }
    assert others == set()


# --- what the measuring notices --------------------------------------------------------------------------------------

Change = Callable[[Request], Request]


def lossy_dialect(change: Change, losses: tuple[Loss, ...] = ()) -> SimpleNamespace:
    """Return Chat Completions with a change of each request before it is written."""
    real = dialects.load("openai_chat")

    def write_request(request: Request) -> Written:
        return Written(real.write_request(change(request), fit=False).wire, losses)

    return SimpleNamespace(NAME="forgetful", read_request=real.read_request, write_request=write_request)


def change_blocks(change: Callable[[ContentBlock], ContentBlock | None]) -> Change:
    def changed(request: Request) -> Request:
        messages = []
        for message in request.messages:
            blocks = [made for block in message.content if (made := change(block)) is not None]
            messages.append(message.replace(content=blocks))
        return request.replace(messages=tuple(messages))

    return changed


def outcome(change: Change, name: str, losses: tuple[Loss, ...] = ()) -> list[Finding]:
    """Return the findings about a case of Anthropic's wire after a change by the target."""
    anthropic = dialects.load("anthropic")
    request = anthropic.read_request(make_sample(anthropic, case(name)))
    found = measure_conversion(request, lossy_dialect(change, losses))
    return [finding for finding in found if finding.kind == case(name).kind]


def without_results(block: ContentBlock) -> ContentBlock | None:
    return None if isinstance(block, ToolResultBlock) else block


def without_texts(block: ContentBlock) -> ContentBlock | None:
    return None if isinstance(block, TextBlock) else block


def with_another_word(block: ContentBlock) -> ContentBlock:
    return block.replace(text=block.text.upper()) if isinstance(block, TextBlock) else block


def with_another_input(block: ContentBlock) -> ContentBlock:
    return block.replace(input={**block.input, "limit": 2}) if isinstance(block, ToolUseBlock) else block


def with_another_tool(block: ContentBlock) -> ContentBlock:
    return block.replace(name="write_file") if isinstance(block, ToolUseBlock) else block


def without_a_name(block: ContentBlock) -> ContentBlock:
    return block.replace(name=None) if isinstance(block, DocumentBlock) else block


DEFECTS: dict[str, tuple[Change, str]] = {
    "a text dropped": (change_blocks(without_texts), "text"),
    "a text altered": (change_blocks(with_another_word), "text"),
    "a system prompt altered": (change_blocks(with_another_word), "system prompt"),
    "an input altered": (change_blocks(with_another_input), "tool_use"),
    "a tool renamed": (change_blocks(with_another_tool), "tool_use"),
    "a result dropped": (change_blocks(without_results), "tool_result"),
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
    found = outcome(*DEFECTS[defect])
    assert found
    assert {finding.outcome for finding in found} == {"silent"}


def test_a_reported_loss_excuses_one_missing_block() -> None:
    named = Loss("", "0" * 26, "text", "forgetful", "no words today")
    (found,) = outcome(change_blocks(without_texts), "text", (named,))
    assert (found.outcome, found.note) == ("loss", "no words today")
    both = outcome(change_blocks(without_texts), "two texts in one message", (named,))
    assert [finding.outcome for finding in both] == ["loss", "silent"]


def test_a_reported_adjustment_explains_a_changed_option() -> None:
    named = Loss("", "", "temperature", "forgetful", "hotter", "adjusted")
    change = DEFECTS["an option altered"][0]
    (found,) = outcome(change, "temperature", (named,))
    assert found.outcome == "changed"
    assert "becomes 0.99" in found.note


def test_a_loss_of_another_message_excuses_nothing() -> None:
    elsewhere = Loss("", "1".rjust(26, "0"), "text", "forgetful", "no words today")
    (found,) = outcome(change_blocks(without_texts), "text", (elsewhere,))
    assert found.outcome == "silent"


def test_a_changed_name_is_a_change_and_a_missing_name_a_defect() -> None:
    (kept,) = outcome(lambda request: request, "name of a document")
    assert kept.outcome == "kept"
    (changed,) = outcome(change_blocks(without_a_name), "name of a document")  # this wire puts a name of its own there
    assert (changed.outcome, changed.note) == ("changed", "'report' becomes 'document.pdf'")


def test_a_dialect_that_does_not_round_trip_is_a_defect() -> None:
    real = dialects.load("openai_chat")
    careless = SimpleNamespace(
        NAME="openai_chat",
        read_request=real.read_request,
        write_request=lambda request: Written({**real.write_request(request).wire, "temperature": 1}),
    )
    (cell,) = make_cells([careless], [case("in its own words")])
    assert cell.is_defect


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_per_case_and_a_column_per_target() -> None:
    lines = list(cells_to_markdown(measure_all()))
    for name in EVERYTHING:
        assert f"### From {name}" in lines
    assert any(
        line.startswith("Not supported by this source: ") and "image, url" in line for line in lines
    )  # Ollama takes bytes
    rows = [line for line in lines if line.startswith("| image, base64 |")]
    assert len(rows) == len(EVERYTHING)
    assert all(row.count("|") == len(EVERYTHING) + 2 for row in rows)


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


def test_prove_with_a_folder_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "traffic.jsonl").write_text(json.dumps(RECORD) + "\n", "utf-8")
    assert prove(tmp_path / "traffic.jsonl", table_to=tmp_path / "made" / "here") == 0
    assert "Translations to every other dialect" in capsys.readouterr().out
    page = (tmp_path / "made" / "here" / "fidelity.md").read_text("utf-8")
    assert "### 1 requests and 0 answers of anthropic" in page
    assert "### From ollama" in page
    told = json.loads((tmp_path / "made" / "here" / "fidelity.json").read_bytes())
    assert told["requests"] == {"anthropic": 1}
    assert len(told["cells"]) == len(measure_all())
    assert told["shortfalls"] == []
    lost = {row["target"] for row in told["counts"] if row["kind"] == "aside" and row["outcome"] == "loss"}
    assert lost >= set(dialects.callable_names()) - {"anthropic"}


def test_silent_losses_are_printed_and_fail_the_command() -> None:
    tally = Tally()
    tally.add("example-1", "anthropic", "ollama", [Finding("text", "silent", "left out", "messages[0].content[0]")])
    out = io.StringIO()
    assert not report.print_result(Console(file=out, width=120), (), tally, limit=20)
    assert "example-1 anthropic → ollama messages[0].content[0]  text: left out" in out.getvalue()
    assert [entry.record for entry in to_plain((), tally)["shortfalls"]] == ["example-1"]


def test_a_failed_conversion_is_reported_and_the_next_one_runs() -> None:
    def breaks(_request: Request) -> Written:
        raise ZeroDivisionError("on purpose")

    spoken = {name: dialects.load(name) for name in ("anthropic", "ollama")}
    broken = SimpleNamespace(NAME="broken", read_request=breaks, write_request=breaks)
    tally = Tally()
    report.tally_record(RECORD, "anthropic", {"broken": broken, **spoken}, tally)
    (shortfall,) = tally.shortfalls
    assert (shortfall.target, shortfall.note) == ("broken", "ZeroDivisionError: on purpose")
    assert ("anthropic", "ollama", "text", "kept") in tally.counts


def test_prove_gives_the_same_result_with_and_without_the_table() -> None:
    with_table = prove_records([RECORD], Proof(Counter(), [], []), tally=Tally())
    assert with_table.equal == prove_records([RECORD], Proof(Counter(), [], [])).equal
