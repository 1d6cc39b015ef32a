"""``check`` reports damaged transcripts, ``repair`` corrects them, and every strict provider then accepts them."""

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
    ISSUED,
    PROBLEMS,
    SPEAKERS,
    TOOLS,
    Numbers,
    adapter,
    said,
    scene,
    system,
)

# Rules that no transcript can break: promises of this package, and a rule about tools.
PROMISES = {"system-may-be-empty", "order-is-kept", "partial-is-exempt", "provider-raw-is-opaque", "tool-schema-subset"}
# A repair may mend two breaches in one go; then it names one of them.
TOGETHER = {
    "result-has-call": {"call-is-answered"},  # the result is moved behind its call
    "call-is-answered": {"tool-content", "user-content"},  # the result was there, and becomes one
    "one-result-per-call": {"call-id-once"},  # each call gets an id and a result of its own
    "tool-names-parent": {"tool-content"},  # each result gets a message of its own
}


class Transcript(msgspec.Struct, frozen=True):
    """A transcript that was broken in these ways, and what must be found."""

    ways: tuple[str, ...]
    messages: tuple[Message, ...]
    found: tuple[Found, ...]
    lost: frozenset[str]


def transcript(ways: tuple[str, ...], seed: int) -> Transcript:
    """A session with one scene for each way in which it is broken, and a good one; at its end somebody asks on."""
    chance = random.Random(f"{ways}{seed}")
    numbers = Numbers()
    messages, found, lost = [system(numbers)], [], frozenset[str]()
    speakers = chance.sample(SPEAKERS, k=min(len(ways) + 1, len(SPEAKERS)))
    good = chance.randrange(len(ways) + 1)
    for place, speaker in enumerate(speakers):
        if place == good:
            messages.extend(scene(numbers, speaker))
        if place < len(ways):
            broken = DEFECTS[ways[place]](scene(numbers, speaker), numbers)
            messages.extend(broken.scene)
            found.extend(broken.found)
            lost |= broken.lost
    messages.append(said(numbers, Role.USER, TextBlock("And now?")))
    return Transcript(ways, tuple(messages), tuple(found), lost)


def ways_to_break() -> list[tuple[tuple[str, ...], int]]:
    """Each way alone, with two speakers; two together, each with many others; and some of three and more."""
    chance = random.Random("ways")
    alone = [((name,), seed) for name in NAMES for seed in range(2)]
    pairs = [(pair, 0) for pair in chance.sample(list(itertools.combinations(NAMES, 2)), k=400)]
    more = [(tuple(chance.sample(NAMES, k=chance.choice((3, 4, 5)))), 0) for _ in range(60)]
    return [*alone, *pairs, *more]


def sample_marks(ways: tuple[str, ...], seed: int) -> list[pytest.MarkDecorator]:
    """The default run has each way alone, and a sample of further speakers and of several ways together."""
    if len(ways) == 1:
        return [pytest.mark.sampled(8)] if seed else []
    return [pytest.mark.sampled(20)]


CASES = ways_to_break()
CASE = pytest.mark.parametrize(
    ("ways", "seed"),
    [pytest.param(ways, seed, id=f"{'+'.join(ways)}-{seed}", marks=sample_marks(ways, seed)) for ways, seed in CASES],
)


def places(messages: tuple[Message, ...]) -> Counter[Found]:
    """Return the problems that a check finds: the rule, the message and the path in it."""
    found = check(messages, PROBLEMS)
    return Counter((breach.rule, breach.message_id, breach.where.partition("]")[2]) for breach in found)


def kept(messages: tuple[Message, ...]) -> dict[str, set[Any]]:
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


def test_there_are_enough_of_them_and_every_rule_is_broken() -> None:
    assert len(CASES) >= 500
    assert len({ways for ways, _ in CASES}) >= 500
    broken = {rule for name in NAMES for rule, _, _ in transcript((name,), 0).found}
    assert broken == set(RULES) - PROMISES
    assert transcript(NAMES[:2], 0) == transcript(NAMES[:2], 0)


@CASE
def test_check_names_exactly_what_was_broken(ways: tuple[str, ...], seed: int) -> None:
    broken = transcript(ways, seed)
    assert places(broken.messages) == Counter(broken.found)


@CASE
def test_repair_mends_it_and_loses_nothing_that_could_be_kept(ways: tuple[str, ...], seed: int) -> None:
    broken = transcript(ways, seed)
    repaired = repair(broken.messages, PROBLEMS)
    assert check(repaired.messages, PROBLEMS) == ()
    assert repair(repaired.messages, PROBLEMS) == RepairResult(repaired.messages, ())
    rules, named = {rule for rule, _, _ in broken.found}, {action.rule for action in repaired.actions}
    assert {rule for rule in rules if not named & {rule, *TOGETHER.get(rule, ())}} == set()
    before, after = kept(broken.messages), kept(repaired.messages)
    assert before["words"] - after["words"] <= broken.lost
    if not broken.found:
        assert repaired.messages == broken.messages


@CASE
def test_every_strict_provider_takes_the_repaired_one(ways: tuple[str, ...], seed: int) -> None:
    repaired = repair(transcript(ways, seed).messages, PROBLEMS).messages
    refused = {name: found for name in dialects.callable_names() if (found := refusals_of(name, repaired))}
    assert refused == {}


# Ways in which a transcript is broken so that nobody at all takes it.
NOBODY_TAKES = (
    "orphaned_call",
    "unanswered_parallel_calls",
    "orphaned_result",
    "duplicate_answer",
    "result_before_its_call",
    "input_cut_off_and_never_answered",
    "left_streaming_by_a_crash",
    "failed_with_open_calls",
)


@pytest.mark.parametrize("way", NOBODY_TAKES)
def test_without_the_repair_and_the_limits_every_strict_provider_refuses_it(way: str) -> None:
    broken = transcript((way,), 0).messages
    assert [name for name in dialects.callable_names() if not refusals_of(name, broken, fit=False)] == []


@pytest.mark.parametrize("way", NAMES)
def test_pictures_are_sent_readable_also_where_no_model_is_known_to_look_at_them(way: str) -> None:
    repaired = repair(transcript((way,), 0).messages, PROBLEMS).messages
    for name in dialects.callable_names():
        speaking = adapter(name, ToolIds())
        wire = speaking.to_wire(repaired, TOOLS).wire
        assert fakes()[name].refusals(wire, ISSUED[name], speaking.model.name) == [], name


@pytest.mark.parametrize("began", SPEAKERS)
@pytest.mark.parametrize("continues", SPEAKERS)
def test_calls_of_one_provider_can_be_answered_to_any_other(began: str, continues: str) -> None:
    """Swapped in the middle of a turn: the calls are of one model, and their results go to another."""
    messages = tuple(scene(Numbers(), began)[:4])
    assert refusals_of(continues, messages) == []


@pytest.mark.parametrize("began", SPEAKERS)
def test_reasoning_is_not_asked_for_where_it_would_be_refused(began: str) -> None:
    speaking = adapter("anthropic", ToolIds())
    options = Options(max_output_tokens=4096, reasoning=Reasoning(budget_tokens=1024))
    written = speaking.to_wire(scene(Numbers(), began)[:4], TOOLS, options)
    assert fakes()["anthropic"].refusals(written.wire, ISSUED["anthropic"]) == []
    assert ("thinking" in written.wire) == (began == "anthropic")
    assert ("reasoning" in {loss.block_type for loss in written.losses}) == (began != "anthropic")


def refusals_of(dialect: str, messages: tuple[Message, ...], *, fit: bool = True) -> list[str]:
    """Send a transcript as a turn would, and return the errors of the dialect's fake."""
    speaking = adapter(dialect, ToolIds())
    shown = plan_swap(messages, speaking, policy="placeholder", tools=TOOLS).messages
    found: list[str] = []
    for tools in (TOOLS, ()):
        request = speaking.make_request(shown, tools)
        wire = speaking.dialect.write_request(request, speaking.provider.quirks, speaking.model, fit=fit).wire
        found.extend(fakes()[dialect].refusals(wire, ISSUED[dialect], speaking.model.name))
    return found
