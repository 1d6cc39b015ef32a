"""Tests of damaged transcripts: ``check`` reports them, ``repair`` corrects them, and every strict provider accepts the result."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from dragoman import check, dialects
from dragoman.exchange import Options, Reasoning
from dragoman.handoff import plan_swap
from dragoman.ids import ToolIds
from dragoman.message import ImageBlock, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.repair import RepairResult, repair
from dragoman.rules import RULES
from tests.fake_providers import fakes
from tests.transcript_defects import defects
from tests.transcript_defects.defects import DEFECTS, NAMES, Found
from tests.transcript_defects.valid_transcripts import (
    DIALECTS,
    ISSUED,
    PROBLEMS,
    TOOLS,
    Numbers,
    adapter,
    make_message,
    scene,
    system,
)

# Rules that no transcript can break: invariants of this package, and a rule about tools.
PROMISES = {"system-may-be-empty", "order-is-kept", "partial-is-exempt", "provider-raw-is-opaque", "tool-schema-subset"}
# A repair may correct two violations at once; then it names one of them.
JOINT_REPAIRS = {
    "result-has-call": {"call-is-answered"},  # the result is moved behind its call
    "call-is-answered": {"tool-content", "user-content"},  # the result existed in another form
    "one-result-per-call": {"call-id-once"},  # each call gets its own id and result
    "tool-names-parent": {"tool-content"},  # each result gets its own message
}


class Transcript(msgspec.Struct, frozen=True):
    """A transcript with these defects, and its violations."""

    names: tuple[str, ...]
    messages: tuple[Message, ...]
    found: tuple[Found, ...]
    lost: frozenset[str]


def transcript(names: tuple[str, ...], seed: int) -> Transcript:
    """Return a session with one scene per defect and one valid scene, which ends with a question."""
    chance = random.Random(f"{names}{seed}")
    numbers = Numbers()
    messages, found, lost = [system(numbers)], [], frozenset[str]()
    selected = chance.sample(DIALECTS, k=min(len(names) + 1, len(DIALECTS)))
    valid_index = chance.randrange(len(names) + 1)
    for index, dialect in enumerate(selected):
        if index == valid_index:
            messages.extend(scene(numbers, dialect))
        if index < len(names):
            damaged = DEFECTS[names[index]](scene(numbers, dialect), numbers)
            messages.extend(damaged.scene)
            found.extend(damaged.found)
            lost |= damaged.lost
    messages.append(make_message(numbers, Role.USER, TextBlock("And now?")))
    return Transcript(names, tuple(messages), tuple(found), lost)


def make_cases() -> list[tuple[tuple[str, ...], int]]:
    """Return each defect alone, with two dialects; two together, each with many others; and some of three and more."""
    chance = random.Random("ways")
    alone = [((name,), seed) for name in NAMES for seed in range(2)]
    pairs = [(pair, 0) for pair in chance.sample(list(itertools.combinations(NAMES, 2)), k=400)]
    more = [(tuple(chance.sample(NAMES, k=chance.choice((3, 4, 5)))), 0) for _ in range(60)]
    return [*alone, *pairs, *more]


def sample_marks(names: tuple[str, ...], seed: int) -> list[pytest.MarkDecorator]:
    """Sample the cases of the default run: each defect alone, and a sample of further dialects and combinations."""
    if len(names) == 1:
        return [pytest.mark.sampled(8)] if seed else []
    return [pytest.mark.sampled(20)]


CASES = make_cases()
CASE = pytest.mark.parametrize(
    ("names", "seed"),
    [
        pytest.param(names, seed, id=f"{'+'.join(names)}-{seed}", marks=sample_marks(names, seed))
        for names, seed in CASES
    ],
)


def find_violations(messages: tuple[Message, ...]) -> Counter[Found]:
    """Return the problems that a check finds: the rule, the message and the path in it."""
    found = check(messages, PROBLEMS)
    return Counter((violation.rule, violation.message_id, violation.where.partition("]")[2]) for violation in found)


def read_content(messages: tuple[Message, ...]) -> dict[str, set[Any]]:
    """Return the content of a transcript: texts, calls and images."""
    blocks = [block for message in messages for block in message.content]
    blocks += [inner for block in blocks if isinstance(block, ToolResultBlock) for inner in block.content]
    return {
        "words": {text for message in messages for text in defects.texts(message) if text.strip()},
        "calls": {
            (block.name.replace("\0", ""), str(block.input)) for block in blocks if isinstance(block, ToolUseBlock)
        },
        "pictures": {block.source.data for block in blocks if isinstance(block, ImageBlock)},
    }


def test_cases_cover_every_rule() -> None:
    assert len(CASES) >= 500
    assert len({names for names, _ in CASES}) >= 500
    broken_rules = {rule for name in NAMES for rule, _, _ in transcript((name,), 0).found}
    assert broken_rules == set(RULES) - PROMISES
    assert transcript(NAMES[:2], 0) == transcript(NAMES[:2], 0)


@CASE
def test_check_reports_exactly_the_defects(names: tuple[str, ...], seed: int) -> None:
    damaged = transcript(names, seed)
    assert find_violations(damaged.messages) == Counter(damaged.found)


@CASE
def test_repair_corrects_every_defect_and_loses_only_expected_texts(names: tuple[str, ...], seed: int) -> None:
    damaged = transcript(names, seed)
    repaired = repair(damaged.messages, PROBLEMS)
    assert check(repaired.messages, PROBLEMS) == ()
    assert repair(repaired.messages, PROBLEMS) == RepairResult(repaired.messages, ())
    rules, repaired_rules = {rule for rule, _, _ in damaged.found}, {action.rule for action in repaired.actions}
    assert {rule for rule in rules if not repaired_rules & {rule, *JOINT_REPAIRS.get(rule, ())}} == set()
    before, after = read_content(damaged.messages), read_content(repaired.messages)
    assert before["words"] - after["words"] <= damaged.lost
    if not damaged.found:
        assert repaired.messages == damaged.messages


@CASE
def test_strict_providers_accept_repaired_transcripts(names: tuple[str, ...], seed: int) -> None:
    repaired = repair(transcript(names, seed).messages, PROBLEMS).messages
    rejected = {name: found for name in dialects.callable_names() if (found := find_errors(name, repaired))}
    assert rejected == {}


# Defects that make every provider reject a transcript.
REJECTED_DEFECTS = (
    "call_without_result",
    "parallel_calls_without_results",
    "result_without_call",
    "duplicate_result",
    "result_before_call",
    "invalid_input_without_result",
    "partial_answer_after_crash",
    "error_with_open_calls",
)


@pytest.mark.parametrize("defect", REJECTED_DEFECTS)
def test_strict_providers_reject_unrepaired_transcripts(defect: str) -> None:
    damaged = transcript((defect,), 0).messages
    assert [name for name in dialects.callable_names() if not find_errors(name, damaged, fit=False)] == []


@pytest.mark.parametrize("defect", NAMES)
def test_images_are_valid_for_models_without_known_vision(defect: str) -> None:
    repaired = repair(transcript((defect,), 0).messages, PROBLEMS).messages
    for name in dialects.callable_names():
        source = adapter(name, ToolIds())
        wire = source.to_wire(repaired, TOOLS).wire
        assert fakes()[name].refusals(wire, ISSUED[name], source.model.name) == [], name


@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("second", DIALECTS)
def test_results_of_calls_can_be_sent_to_any_other_provider(first: str, second: str) -> None:
    """A swap within a turn: the calls are of one model, and their results are sent to another."""
    messages = tuple(scene(Numbers(), first)[:4])
    assert find_errors(second, messages) == []


@pytest.mark.parametrize("first", DIALECTS)
def test_reasoning_is_requested_only_where_it_is_accepted(first: str) -> None:
    source = adapter("anthropic", ToolIds())
    options = Options(max_output_tokens=4096, reasoning=Reasoning(budget_tokens=1024))
    written = source.to_wire(scene(Numbers(), first)[:4], TOOLS, options)
    assert fakes()["anthropic"].refusals(written.wire, ISSUED["anthropic"]) == []
    assert ("thinking" in written.wire) == (first == "anthropic")
    assert ("reasoning" in {loss.block_type for loss in written.losses}) == (first != "anthropic")


def find_errors(dialect: str, messages: tuple[Message, ...], *, fit: bool = True) -> list[str]:
    """Send a transcript as a turn would, and return the errors of the dialect's fake."""
    source = adapter(dialect, ToolIds())
    planned = plan_swap(messages, source, policy="placeholder", tools=TOOLS).messages
    errors: list[str] = []
    for tools in (TOOLS, ()):
        request = source.make_request(planned, tools)
        wire = source.dialect.write_request(request, source.provider.quirks, source.model, fit=fit).wire
        errors.extend(fakes()[dialect].refusals(wire, ISSUED[dialect], source.model.name))
    return errors
