"""Letters: validation, canonical JSON and ids."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import letters
from dragoman.errors import InputError, JsonError, LetterError
from dragoman.letters import (
    ErrorLetter,
    Letter,
    NeedsInputLetter,
    TaskResultLetter,
    answer_letter,
    error_letter,
    find_warnings,
    hints_from,
    letter_from,
    letter_id,
    needs_input_letter,
    read_letter,
    task_result_letter,
    write_letter,
)
from tests.letters.examples import COMPLETE, EXAMPLES, PAYLOADS

NOW = datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC)
ABSENT = object()
LONG = "x" * 129


def text_of(plain: Any) -> bytes:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()


def with_field(name: str, path: str, value: Any) -> dict[str, Any]:
    """An example with one field changed, or taken out."""
    letter = copy.deepcopy(EXAMPLES[name])
    place: Any = letter
    *before, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in before:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    if value is ABSENT:
        place.pop(last, None)
    else:
        place[last] = value
    return letter


def path_of(path: str) -> str:
    return "$" + "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("."))


# --- every example and every field -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_comes_back_as_it_is_printed(name: str) -> None:
    data = text_of(EXAMPLES[name])
    assert write_letter(read_letter(data)) == data


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_payload_of_an_example_keeps_the_order_of_its_fields(name: str) -> None:
    kind, printed = PAYLOADS[name]
    letter = read_letter(text_of({**EXAMPLES["complete"], "type": kind, "payload": json.loads(printed)}))
    again = json.loads(write_letter(letter))["payload"]
    assert json.dumps(again) == json.dumps(json.loads(printed))


def test_the_complete_example_is_read_as_it_is_printed_with_its_line_breaks() -> None:
    letter = read_letter(COMPLETE)
    assert json.dumps(json.loads(write_letter(letter)), indent=2) == COMPLETE.strip()
    assert isinstance(letter, TaskResultLetter)
    assert letter.payload.result.artifacts
    assert letter.payload.result.artifacts[0].path == "/deployments/deploy-20250521/output.log"
    assert letter.context == {"deployment_id": "dep-12345", "environment": "staging"}


# example, field, what is taken there, what is not, what the error says was expected
FIELDS: list[tuple[str, str, list[Any], list[Any], str]] = [
    ("complete", "type", ["task_result"], ["done", 1, None, ABSENT], "one of task_result, error, needs_input"),
    (
        "complete",
        "protocol_version",
        ["1.0", "1.3", "1.12"],
        ["1", "1.3.0", "v1.0", 1.0, "1.3\n", None, ABSENT],
        "a major and a minor number",
    ),
    (
        "complete",
        "sender_id",
        ["CA", "A-1_B"],
        ["ca", "C A", "", LONG.upper(), "CA\n", 7, None, ABSENT],
        "capital letters",
    ),
    ("complete", "recipient_id", ["ARCH"], ["arch", "ARCH\n", {}, None, ABSENT], "capital letters"),
    (
        "complete",
        "timestamp",
        ["2025-05-21T20:00:00Z", "2025-05-21T20:00:00.123456+02:00", "2024-02-29T23:59:59-05:30"],
        ["2025-05-21", "2026-02-30T00:00:00Z", "2025-05-21T20:00:00", "2025-05-21 20:00:00Z", "now", 17, None, ABSENT],
        "a time with its zone",
    ),
    ("complete", "task_id", ["TASK-070C"], ["task 1", "", None, ABSENT], "capital letters"),
    ("complete", "retry_count", [0, 4, ABSENT], [-1, 1.5, "1", True, None], "a whole number from 0"),
    ("complete", "trace_id", ["abc123", ABSENT], ["", 5, None], "a text that is not empty"),
    ("complete", "payload", [EXAMPLES["basic"]["payload"]], [[], "x", None, ABSENT], "an object"),
    ("complete", "context", [{}, {"any": [1, None]}, ABSENT], ["x", [], None], "an object"),
    ("complete", "context.message_id", ["01K4", "a:b.c"], ["", "a b", LONG, 1, None], "1 to 128 letters, digits"),
    ("complete", "context.in_reply_to", ["01K4"], ["a b", 1, None], "1 to 128 letters, digits"),
    ("complete", "context.depends_on", [[], ["A", "B"]], ["A", ["a"], [1], {}, None], "a list of texts"),
    ("complete", "context.session_id", ["sess_1"], ["", 1, None], "a text that is not empty"),
    ("complete", "context.turn_id", ["turn_1"], ["", 1, None], "a text that is not empty"),
    (
        "basic",
        "payload.status",
        ["success", "partial_success", "failed"],
        ["done", True, None, ABSENT],
        "one of success, partial_success, failed",
    ),
    ("basic", "payload.result", [{"output": ""}], ["x", None, ABSENT], "an object"),
    ("basic", "payload.result.output", ["", "done"], [1, None, ABSENT], "a text"),
    ("basic", "payload.result.artifacts", [[], ABSENT], ["x", {}, [1], None], ""),
    ("basic", "payload.result.artifacts.0.type", ["file"], [1, None, ABSENT], "a text"),
    ("basic", "payload.result.artifacts.0.path", ["/etc/passwd", "../x"], [1, None, ABSENT], "a text"),
    ("basic", "payload.result.artifacts.0.description", ["x", ABSENT], [1, None], "a text"),
    ("basic", "payload.result.inputs", [{"a": [1]}, {}, ABSENT], [[], "x", None], "an object"),
    ("evaluated", "payload.success", [True, ABSENT], [1, "true", None], "true or false"),
    ("evaluated", "payload.score", [0, 1, 0.5, 1.0, ABSENT], [1.01, -0.1, 2, "1", True, None], "a number from 0 to 1"),
    ("evaluated", "payload.duration_sec", [12.34, ABSENT], [-1, "1", None], "a number from 0"),
    ("evaluated", "payload.notes", ["", "x" * 1000, ABSENT], ["x" * 1001, 1, None], "at most 1000 characters"),
    ("evaluated", "payload.metrics", [{}, ABSENT], [[], 1, None], "an object"),
    ("evaluated", "payload.metrics.duration_ms", [12340, ABSENT], [-1, "1", None], "a number from 0"),
    ("evaluated", "payload.metrics.memory_usage_mb", [0, 342.5, ABSENT], [-0.5, [], None], "a number from 0"),
    ("evaluated", "payload.metrics.cpu_usage_percent", [0, 250.5], [-1, "5%", None], "a number from 0"),
    ("evaluated", "payload.metrics.network_io_mb", [0, 1.5], [-1, {}, None], "a number from 0"),
    ("evaluated", "payload.metrics.disk_usage_mb", [0, 1.5], [-1, True, None], "a number from 0"),
    ("error", "payload.code", ["VALIDATION_ERROR"], [1, None, ABSENT], "a text"),
    ("error", "payload.message", ["x"], [1, None, ABSENT], "a text"),
    ("error", "payload.details", [{}, {"a": None}, ABSENT], ["x", [], None], "an object"),
    ("error", "payload.retryable", [True, False, ABSENT], [1, "yes", None], "true or false"),
    ("error", "payload.suggested_actions", [[], ["retry"], ABSENT], ["retry", [1], None], "a list of texts"),
    ("needs_input", "payload.requested_inputs", [[]], [{}, "x", [1], None, ABSENT], ""),
    ("needs_input", "payload.requested_inputs.0.id", ["api_key"], ["", 1, None, ABSENT], "a text that is not empty"),
    (
        "needs_input",
        "payload.requested_inputs.0.type",
        ["string", "number", "boolean", "enum", "file"],
        ["date", 1, None, ABSENT],
        "one of string, number, boolean, enum, file",
    ),
    ("needs_input", "payload.requested_inputs.0.description", ["", "x"], [1, None, ABSENT], "a text"),
    ("needs_input", "payload.requested_inputs.0.sensitive", [True, False, ABSENT], [1, "yes", None], "true or false"),
    ("needs_input", "payload.requested_inputs.0.required", [True, False], [1, "yes", None], "true or false"),
    (
        "needs_input",
        "payload.requested_inputs.1.options",
        [[], ["a", 1, 1.5, True], ABSENT],
        ["a", [None], [{}]],
        "a list",
    ),
    ("needs_input", "payload.requested_inputs.1.default", ["x", 1, None, [], {"a": 1}], [], ""),
    ("needs_input", "payload.context", ["", "why", ABSENT], [{}, 1, None], "a text"),
]
TAKEN = [(name, path, value) for name, path, taken, _, _ in FIELDS for value in taken]
REFUSED = [(name, path, value, words) for name, path, _, refused, words in FIELDS for value in refused]


def said(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)[:30]


@pytest.mark.parametrize(("name", "path", "value"), TAKEN, ids=said)
def test_a_field_takes_what_it_is_documented_to_take(name: str, path: str, value: Any) -> None:
    data = text_of(with_field(name, path, value))
    again = json.loads(write_letter(read_letter(data)))
    assert again == json.loads(data)
    assert read_letter(write_letter(read_letter(data))) == read_letter(data)


@pytest.mark.parametrize(("name", "path", "value", "words"), REFUSED, ids=said)
def test_a_field_refuses_anything_else_and_says_where_and_what_was_expected(
    name: str, path: str, value: Any, words: str
) -> None:
    with pytest.raises(LetterError) as refused:
        read_letter(text_of(with_field(name, path, value)))
    told = [problem for problem in refused.value.problems if problem.startswith(path_of(path))]
    assert len(told) == 1
    assert "expected" in told[0]
    assert words in told[0]


def test_every_declared_field_is_in_the_table() -> None:
    tested = {path.rpartition(".")[2] for _, path, _, _, _ in FIELDS}
    declared = {
        field
        for kind in vars(letters).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == "dragoman.letters.types"
        for field in kind.__struct_fields__
    }
    assert declared - {"unknown_fields"} <= tested


def test_everything_that_is_wrong_is_said_at_once() -> None:
    letter = with_field("evaluated", "payload.metrics", {"duration_ms": "x"})
    letter["payload"]["result"] = {"artifacts": [{"type": "file"}, 7]}
    del letter["task_id"]
    with pytest.raises(LetterError) as refused:
        letter_from(letter)
    assert sorted(problem.partition(":")[0] for problem in refused.value.problems) == [
        "$.payload.metrics.duration_ms",
        "$.payload.result.artifacts[0].path",
        "$.payload.result.artifacts[1]",
        "$.payload.result.output",
        "$.task_id",
    ]
    assert refused.value.code == "invalid_letter"


def test_no_error_quotes_a_text_of_the_letter() -> None:
    planted = "hunter2hunter2"
    for path in ("sender_id", "timestamp", "payload.status", "context", "payload.metrics", "type", "payload.score"):
        with pytest.raises(LetterError) as refused:
            read_letter(text_of(with_field("evaluated", path, planted)))
        assert planted not in str(refused.value)


# --- versions and consistency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9", "2.0", "9.0", "10.3", "01.3"])
def test_another_major_version_is_refused_whatever_else_the_letter_says(version: str) -> None:
    with pytest.raises(LetterError) as refused:
        letter_from({"type": "error", "protocol_version": version, "unheard": "of"})
    assert refused.value.code == "unsupported_protocol_version"
    assert refused.value.problems == (f"$.protocol_version: expected 1.x, got {version}",)


def test_a_type_that_there_is_not_has_a_code_of_its_own() -> None:
    with pytest.raises(LetterError) as refused:
        letter_from(with_field("complete", "type", "done"))
    assert refused.value.code == "unknown_letter_type"


@pytest.mark.parametrize(
    ("status", "success"),
    [("success", True), ("partial_success", False), ("failed", False), ("success", ABSENT), ("failed", ABSENT)],
)
def test_a_result_that_fits_together_is_taken(status: str, success: Any) -> None:
    letter = with_field("evaluated", "payload.success", success)
    letter["payload"]["status"] = status
    assert write_letter(letter_from(letter)) == text_of(letter)


@pytest.mark.parametrize(("status", "success"), [("success", False), ("partial_success", True), ("failed", True)])
def test_success_has_to_agree_with_the_status(status: str, success: bool) -> None:
    letter = with_field("evaluated", "payload.success", success)
    letter["payload"]["status"] = status
    with pytest.raises(LetterError) as refused:
        letter_from(letter)
    assert refused.value.code == "inconsistent_result"
    assert refused.value.problems[0].startswith("$.payload.success: expected ")


@pytest.mark.parametrize("score", [1.01, -0.1, float("nan"), float("inf"), 2])
def test_a_score_beyond_its_range_is_an_inconsistent_result(score: float) -> None:
    letter = with_field("evaluated", "payload.score", score)
    for make in (lambda: read_letter(json.dumps(letter)), lambda: letter_from(letter)):
        with pytest.raises(LetterError) as refused:
            make()
        assert refused.value.code == "inconsistent_result"
        assert refused.value.problems[0].startswith("$.payload.score: expected a number from 0 to 1")


@pytest.mark.parametrize("milliseconds", [99999, 12340 * 1.02, 12.34, 0])
def test_durations_that_contradict_each_other_are_an_inconsistent_result(milliseconds: float) -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", milliseconds)
    for make in (lambda: read_letter(json.dumps(letter)), lambda: letter_from(letter)):
        with pytest.raises(LetterError) as refused:
            make()
        assert refused.value.code == "inconsistent_result"
        assert refused.value.problems == (
            f"$.payload.duration_sec: expected the {milliseconds} ms of $.payload.metrics.duration_ms, got 12.34 s",
        )


@pytest.mark.parametrize(("seconds", "milliseconds"), [(12.34, 12340.4), (12.34, 12330), (12.34, 12400), (0, 9)])
def test_durations_that_differ_by_rounding_agree(seconds: float, milliseconds: float) -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", milliseconds)
    letter["payload"]["duration_sec"] = seconds
    assert find_warnings(letter_from(letter)) == []


def test_a_letter_that_an_earlier_version_has_taken_is_still_read() -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", 99999)
    taken = letters.read_stored_letter(json.dumps(letter))
    assert json.loads(write_letter(taken)) == letter


def test_an_input_is_asked_for_once() -> None:
    with pytest.raises(LetterError) as refused:
        letter_from(with_field("needs_input", "payload.requested_inputs.1.id", "api_key"))
    assert refused.value.problems[0].startswith("$.payload.requested_inputs[1].id: ")


# --- what is not known -----------------------------------------------------------------------------------------------


def test_fields_of_a_later_minor_version_are_kept_with_their_bytes_and_named() -> None:
    data = (
        b'{"type":"error","protocol_version":"1.9","sender_id":"CA","recipient_id":"ARCH",'
        b'"timestamp":"2025-05-21T20:00:00Z","task_id":"T","payload":{"code":"X","message":"m",'
        b'"documentation":"\\u0064ocs","cost":1.50e2},"priority":{"of":[1.0,10000000000000000001]}}'
    )
    letter = read_letter(data)
    assert write_letter(letter) == data
    assert isinstance(letter, ErrorLetter)
    assert [warning.where for warning in find_warnings(letter)] == [
        "$.priority",
        "$.payload.documentation",
        "$.payload.cost",
    ]
    changed = letter.replace(payload=letter.payload.replace(message="other"))
    assert write_letter(changed) == data.replace(b'"m"', b'"other"')


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (b"{}{}", "invalid_json"),
        (b'{"type":"error","type":"error"}', "duplicate_key"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' + b"9" * 30 + b"}", "number_out_of_range"),
        (b'{"a":"\\ud800"}', "invalid_unicode"),
        (b'{"a":NaN}', "invalid_json"),
    ],
)
def test_what_is_not_json_is_refused_like_everywhere_else(data: bytes, code: str) -> None:
    with pytest.raises(JsonError) as refused:
        read_letter(data)
    assert refused.value.code == code


def test_a_doubled_key_is_not_read_as_the_last_one() -> None:
    data = text_of(EXAMPLES["complete"])
    with pytest.raises(JsonError) as refused:
        read_letter(data.replace(b'"task_id"', b'"task_id":"OTHER","task_id"'))
    assert refused.value.code == "duplicate_key"


def test_what_can_be_told_of_something_that_is_no_letter_is_told() -> None:
    hints = hints_from(text_of({"sender_id": "CA", "task_id": "bad id", "context": {"message_id": "m1"}, "type": "x"}))
    assert hints == letters.Hints(sender_id="CA", message_id="m1")
    assert hints_from(b"\xff\xfe") == hints_from(b"[1]") == letters.Hints()


@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_letter_or_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(InputError):
        read_letter(data)
    hints_from(data)


@given(name=st.sampled_from(sorted(EXAMPLES)), at=st.floats(0, 1), other=st.binary(max_size=3), cut=st.integers(0, 3))
def test_an_example_with_some_bytes_changed_is_a_letter_or_an_error_that_says_so(
    name: str, at: float, other: bytes, cut: int
) -> None:
    data = text_of(EXAMPLES[name])
    place = int(at * len(data))
    changed = data[:place] + other + data[place + cut :]
    try:
        letter = read_letter(changed)
    except InputError:
        hints_from(changed)
    else:
        assert read_letter(write_letter(letter)) == letter


# --- making ----------------------------------------------------------------------------------------------------------

ENDS: dict[str, Any] = {"sender_id": "CA", "recipient_id": "ARCH", "task_id": "TASK-1", "timestamp": NOW}


def test_builders_make_letters_of_each_kind() -> None:
    made: list[Letter] = [
        task_result_letter(**ENDS, output="done", score=0.5, metrics={"duration_ms": 3}, depends_on=["TASK-0"]),
        error_letter(**ENDS, code="BROKEN", message="it broke", retryable=True, retry_count=2),
        needs_input_letter(**ENDS, requested_inputs=[{"id": "a", "type": "file", "description": "b"}], about="why"),
    ]
    for letter in made:
        assert read_letter(write_letter(letter)) == letter
        assert letter.protocol_version == "1.3"
        assert letter.timestamp == "2026-11-15T12:00:00.250000Z"
        assert letters.letter_time(letter) == NOW
    assert made[0].depends_on == ("TASK-0",)
    assert (made[1].retries, made[0].retries) == (2, 0)


def test_an_answer_goes_back_to_whoever_asked_and_says_nothing_about_the_task() -> None:
    request = needs_input_letter(
        **ENDS, requested_inputs=[{"id": "a", "type": "string", "description": "b"}], message_id="m1", trace_id="t"
    )
    answer = answer_letter(request, inputs={"a": "x"}, timestamp=NOW)
    assert (answer.sender_id, answer.recipient_id, answer.task_id) == ("ARCH", "CA", "TASK-1")
    assert (answer.in_reply_to, answer.trace_id) == ("m1", "t")
    assert answer.is_answer
    assert not answer.is_success
    assert task_result_letter(**ENDS, output="done").is_success


def test_a_letter_that_is_made_wrong_is_not_written() -> None:
    letter = letter_from(EXAMPLES["evaluated"])
    assert isinstance(letter, TaskResultLetter)
    for wrong in (
        letter.replace(task_id="no such id"),
        letter.replace(payload=letter.payload.replace(score=float("nan"))),
        letter.replace(payload=letter.payload.replace(success=False)),
        letter.replace(context={"a": float("nan")}),
        letter.replace(context={"a": object()}),
        letter.replace(timestamp="yesterday"),
    ):
        with pytest.raises(LetterError):
            write_letter(wrong)
    with pytest.raises(JsonError):
        letter_from({**EXAMPLES["complete"], "context": {"a": object()}})


# --- ids -------------------------------------------------------------------------------------------------------------


def test_a_letter_has_the_id_that_its_sender_gave_it() -> None:
    assert letter_id(task_result_letter(**ENDS, output="x", message_id="01K4")) == "01K4"


def test_without_one_it_is_known_by_what_it_says_however_often_it_is_sent() -> None:
    first = letter_from(EXAMPLES["complete"])
    again = first.replace(retry_count=4, timestamp="2026-01-01T00:00:00Z", trace_id="other", context={"other": 1})
    assert letter_id(first) == letter_id(again)
    assert len(letter_id(first)) == 64
    turned = letter_from({**EXAMPLES["complete"], "payload": dict(reversed(EXAMPLES["complete"]["payload"].items()))})
    assert letter_id(turned) == letter_id(first)


@pytest.mark.parametrize("path", ["sender_id", "recipient_id", "task_id", "payload.result.output"])
def test_another_sender_recipient_task_or_payload_makes_another_letter(path: str) -> None:
    changed = letter_from(with_field("complete", path, "OTHER"))
    assert letter_id(changed) != letter_id(letter_from(EXAMPLES["complete"]))


def test_the_derived_id_stays_what_it_is() -> None:
    assert letter_id(letter_from(EXAMPLES["complete"])) == (
        "6601cdb4a128da8a7a2a4ba13fc42ab5217d11cb9f5b949cb9740aa3cb495a0a"
    )


def test_a_needs_input_letter_knows_its_inputs() -> None:
    letter = letter_from(EXAMPLES["needs_input"])
    assert isinstance(letter, NeedsInputLetter)
    first, second = letter.payload.requested_inputs
    assert (first.is_sensitive, second.is_sensitive, first.is_required) == (True, False, True)
    assert second.options == ("option1", "option2")
