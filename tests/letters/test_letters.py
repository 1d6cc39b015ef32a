"""Tests of letters: validation, canonical JSON and ids."""

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


def to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def with_field(name: str, path: str, value: Any) -> dict[str, Any]:
    """Return a copy of an example with one field changed or removed."""
    letter = copy.deepcopy(EXAMPLES[name])
    container: Any = letter
    *before, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in before:
        container = container.setdefault(step, {}) if isinstance(container, dict) else container[step]
    if value is ABSENT:
        container.pop(last, None)
    else:
        container[last] = value
    return letter


def to_json_path(path: str) -> str:
    return "$" + "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("."))


# --- every example and every field -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_round_trips_byte_for_byte(name: str) -> None:
    data = to_json(EXAMPLES[name])
    assert write_letter(read_letter(data)) == data


@pytest.mark.parametrize("name", PAYLOADS)
def test_payload_keeps_field_order(name: str) -> None:
    kind, printed = PAYLOADS[name]
    letter = read_letter(to_json({**EXAMPLES["complete"], "type": kind, "payload": json.loads(printed)}))
    rewritten = json.loads(write_letter(letter))["payload"]
    assert json.dumps(rewritten) == json.dumps(json.loads(printed))


def test_indented_complete_example_is_read() -> None:
    letter = read_letter(COMPLETE)
    assert json.dumps(json.loads(write_letter(letter)), indent=2) == COMPLETE.strip()
    assert isinstance(letter, TaskResultLetter)
    assert letter.payload.result.artifacts
    assert letter.payload.result.artifacts[0].path == "/deployments/deploy-20250521/output.log"
    assert letter.context == {"deployment_id": "dep-12345", "environment": "staging"}


# example, field, valid values, invalid values, expected value as the error states it
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
VALID_VALUES = [(name, path, value) for name, path, valid, _, _ in FIELDS for value in valid]
INVALID_VALUES = [(name, path, value, expected) for name, path, _, invalid, expected in FIELDS for value in invalid]


def value_id(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)[:30]


@pytest.mark.parametrize(("name", "path", "value"), VALID_VALUES, ids=value_id)
def test_field_accepts_documented_values(name: str, path: str, value: Any) -> None:
    data = to_json(with_field(name, path, value))
    rewritten = json.loads(write_letter(read_letter(data)))
    assert rewritten == json.loads(data)
    assert read_letter(write_letter(read_letter(data))) == read_letter(data)


@pytest.mark.parametrize(("name", "path", "value", "expected"), INVALID_VALUES, ids=value_id)
def test_invalid_field_error_states_path_and_expected_value(name: str, path: str, value: Any, expected: str) -> None:
    with pytest.raises(LetterError) as caught:
        read_letter(to_json(with_field(name, path, value)))
    problems = [problem for problem in caught.value.problems if problem.startswith(to_json_path(path))]
    assert len(problems) == 1
    assert "expected" in problems[0]
    assert expected in problems[0]


def test_field_table_covers_every_declared_field() -> None:
    tested = {path.rpartition(".")[2] for _, path, _, _, _ in FIELDS}
    declared = {
        field
        for kind in vars(letters).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == "dragoman.letters.types"
        for field in kind.__struct_fields__
    }
    assert declared - {"unknown_fields"} <= tested


def test_error_lists_all_problems() -> None:
    letter = with_field("evaluated", "payload.metrics", {"duration_ms": "x"})
    letter["payload"]["result"] = {"artifacts": [{"type": "file"}, 7]}
    del letter["task_id"]
    with pytest.raises(LetterError) as caught:
        letter_from(letter)
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == [
        "$.payload.metrics.duration_ms",
        "$.payload.result.artifacts[0].path",
        "$.payload.result.artifacts[1]",
        "$.payload.result.output",
        "$.task_id",
    ]
    assert caught.value.code == "invalid_letter"


def test_errors_do_not_quote_letter_text() -> None:
    secret = "hunter2hunter2"
    for path in ("sender_id", "timestamp", "payload.status", "context", "payload.metrics", "type", "payload.score"):
        with pytest.raises(LetterError) as caught:
            read_letter(to_json(with_field("evaluated", path, secret)))
        assert secret not in str(caught.value)


# --- versions and consistency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9", "2.0", "9.0", "10.3", "01.3"])
def test_other_major_version_is_rejected_first(version: str) -> None:
    with pytest.raises(LetterError) as caught:
        letter_from({"type": "error", "protocol_version": version, "unheard": "of"})
    assert caught.value.code == "unsupported_protocol_version"
    assert caught.value.problems == (f"$.protocol_version: expected 1.x, got {version}",)


def test_unknown_type_has_its_own_error_code() -> None:
    with pytest.raises(LetterError) as caught:
        letter_from(with_field("complete", "type", "done"))
    assert caught.value.code == "unknown_letter_type"


@pytest.mark.parametrize(
    ("status", "success"),
    [("success", True), ("partial_success", False), ("failed", False), ("success", ABSENT), ("failed", ABSENT)],
)
def test_consistent_result_is_accepted(status: str, success: Any) -> None:
    letter = with_field("evaluated", "payload.success", success)
    letter["payload"]["status"] = status
    assert write_letter(letter_from(letter)) == to_json(letter)


@pytest.mark.parametrize(("status", "success"), [("success", False), ("partial_success", True), ("failed", True)])
def test_success_must_match_status(status: str, success: bool) -> None:
    letter = with_field("evaluated", "payload.success", success)
    letter["payload"]["status"] = status
    with pytest.raises(LetterError) as caught:
        letter_from(letter)
    assert caught.value.code == "inconsistent_result"
    assert caught.value.problems[0].startswith("$.payload.success: expected ")


@pytest.mark.parametrize("score", [1.01, -0.1, float("nan"), float("inf"), 2])
def test_score_out_of_range_is_inconsistent_result(score: float) -> None:
    letter = with_field("evaluated", "payload.score", score)
    for make in (lambda: read_letter(json.dumps(letter)), lambda: letter_from(letter)):
        with pytest.raises(LetterError) as caught:
            make()
        assert caught.value.code == "inconsistent_result"
        assert caught.value.problems[0].startswith("$.payload.score: expected a number from 0 to 1")


@pytest.mark.parametrize("milliseconds", [99999, 12340 * 1.02, 12.34, 0])
def test_contradictory_durations_are_inconsistent_result(milliseconds: float) -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", milliseconds)
    for make in (lambda: read_letter(json.dumps(letter)), lambda: letter_from(letter)):
        with pytest.raises(LetterError) as caught:
            make()
        assert caught.value.code == "inconsistent_result"
        assert caught.value.problems == (
            f"$.payload.duration_sec: expected the {milliseconds} ms of $.payload.metrics.duration_ms, got 12.34 s",
        )


@pytest.mark.parametrize(("seconds", "milliseconds"), [(12.34, 12340.4), (12.34, 12330), (12.34, 12400), (0, 9)])
def test_durations_may_differ_by_rounding(seconds: float, milliseconds: float) -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", milliseconds)
    letter["payload"]["duration_sec"] = seconds
    assert find_warnings(letter_from(letter)) == []


def test_stored_letter_with_contradictory_durations_is_read() -> None:
    letter = with_field("evaluated", "payload.metrics.duration_ms", 99999)
    stored = letters.read_stored_letter(json.dumps(letter))
    assert json.loads(write_letter(stored)) == letter


def test_duplicate_input_id_is_rejected() -> None:
    with pytest.raises(LetterError) as caught:
        letter_from(with_field("needs_input", "payload.requested_inputs.1.id", "api_key"))
    assert caught.value.problems[0].startswith("$.payload.requested_inputs[1].id: ")


# --- unknown fields and invalid input --------------------------------------------------------------------------------


def test_fields_of_later_minor_version_are_preserved_with_warnings() -> None:
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
def test_invalid_json_raises_json_error(data: bytes, code: str) -> None:
    with pytest.raises(JsonError) as caught:
        read_letter(data)
    assert caught.value.code == code


def test_duplicate_key_is_rejected() -> None:
    data = to_json(EXAMPLES["complete"])
    with pytest.raises(JsonError) as caught:
        read_letter(data.replace(b'"task_id"', b'"task_id":"OTHER","task_id"'))
    assert caught.value.code == "duplicate_key"


def test_hints_are_read_from_invalid_letter() -> None:
    hints = hints_from(to_json({"sender_id": "CA", "task_id": "bad id", "context": {"message_id": "m1"}, "type": "x"}))
    assert hints == letters.Hints(sender_id="CA", message_id="m1")
    assert hints_from(b"\xff\xfe") == hints_from(b"[1]") == letters.Hints()


@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_random_bytes_raise_input_error(data: bytes) -> None:
    with pytest.raises(InputError):
        read_letter(data)
    hints_from(data)


@given(
    name=st.sampled_from(sorted(EXAMPLES)),
    fraction=st.floats(0, 1),
    replacement=st.binary(max_size=3),
    removed_count=st.integers(0, 3),
)
def test_mutated_example_round_trips_or_raises_input_error(
    name: str, fraction: float, replacement: bytes, removed_count: int
) -> None:
    data = to_json(EXAMPLES[name])
    position = int(fraction * len(data))
    changed = data[:position] + replacement + data[position + removed_count :]
    try:
        letter = read_letter(changed)
    except InputError:
        hints_from(changed)
    else:
        assert read_letter(write_letter(letter)) == letter


# --- builders --------------------------------------------------------------------------------------------------------

ENVELOPE: dict[str, Any] = {"sender_id": "CA", "recipient_id": "ARCH", "task_id": "TASK-1", "timestamp": NOW}


def test_builders_create_letters_of_each_type() -> None:
    created: list[Letter] = [
        task_result_letter(**ENVELOPE, output="done", score=0.5, metrics={"duration_ms": 3}, depends_on=["TASK-0"]),
        error_letter(**ENVELOPE, code="BROKEN", message="it broke", retryable=True, retry_count=2),
        needs_input_letter(**ENVELOPE, requested_inputs=[{"id": "a", "type": "file", "description": "b"}], about="why"),
    ]
    for letter in created:
        assert read_letter(write_letter(letter)) == letter
        assert letter.protocol_version == "1.3"
        assert letter.timestamp == "2026-11-15T12:00:00.250000Z"
        assert letters.letter_time(letter) == NOW
    assert created[0].depends_on == ("TASK-0",)
    assert (created[1].retries, created[0].retries) == (2, 0)


def test_answer_returns_to_sender_and_does_not_complete_task() -> None:
    request = needs_input_letter(
        **ENVELOPE, requested_inputs=[{"id": "a", "type": "string", "description": "b"}], message_id="m1", trace_id="t"
    )
    answer = answer_letter(request, inputs={"a": "x"}, timestamp=NOW)
    assert (answer.sender_id, answer.recipient_id, answer.task_id) == ("ARCH", "CA", "TASK-1")
    assert (answer.in_reply_to, answer.trace_id) == ("m1", "t")
    assert answer.is_answer
    assert not answer.is_success
    assert task_result_letter(**ENVELOPE, output="done").is_success


def test_invalid_letter_is_not_written() -> None:
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


def test_message_id_is_letter_id() -> None:
    assert letter_id(task_result_letter(**ENVELOPE, output="x", message_id="01K4")) == "01K4"


def test_derived_id_ignores_retries_and_key_order() -> None:
    first = letter_from(EXAMPLES["complete"])
    retry = first.replace(retry_count=4, timestamp="2026-01-01T00:00:00Z", trace_id="other", context={"other": 1})
    assert letter_id(first) == letter_id(retry)
    assert len(letter_id(first)) == 64
    reordered = letter_from(
        {**EXAMPLES["complete"], "payload": dict(reversed(EXAMPLES["complete"]["payload"].items()))}
    )
    assert letter_id(reordered) == letter_id(first)


@pytest.mark.parametrize("path", ["sender_id", "recipient_id", "task_id", "payload.result.output"])
def test_derived_id_depends_on_sender_recipient_task_and_payload(path: str) -> None:
    changed = letter_from(with_field("complete", path, "OTHER"))
    assert letter_id(changed) != letter_id(letter_from(EXAMPLES["complete"]))


def test_derived_id_is_stable() -> None:
    assert letter_id(letter_from(EXAMPLES["complete"])) == (
        "6601cdb4a128da8a7a2a4ba13fc42ab5217d11cb9f5b949cb9740aa3cb495a0a"
    )


def test_needs_input_letter_exposes_input_flags() -> None:
    letter = letter_from(EXAMPLES["needs_input"])
    assert isinstance(letter, NeedsInputLetter)
    first, second = letter.payload.requested_inputs
    assert (first.is_sensitive, second.is_sensitive, first.is_required) == (True, False, True)
    assert second.options == ("option1", "option2")
