"""Tests of properties of every recorded exchange."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import dialects
from dragoman.exchange import ErrorClass
from dragoman.message import ContentBlock, ToolUseBlock
from tests import recordings
from tests.conftest import scale
from tests.recordings import STREAMED, cassette, cassette_names, scene_of

EXCHANGES = [(dialect, name) for dialect in dialects.callable_names() for name in cassette_names(dialect)]
STREAMS = [(dialect, name) for dialect, name in EXCHANGES if name.endswith(STREAMED) and scene_of(name) != "error"]


@pytest.mark.parametrize("dialect", dialects.callable_names())
@settings(max_examples=scale(15, 60))
@given(data=st.data())
def test_events_do_not_depend_on_split_of_recorded_stream(dialect: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for owner, name in STREAMS if owner == dialect]))
    stream = cassette(dialect, name).response.stream
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=40)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert recordings.events_of(dialect, *pieces) == recordings.events_of(dialect, stream)


@pytest.mark.parametrize(("dialect", "name"), STREAMS)
def test_single_bytes_of_recorded_stream_have_same_events(dialect: str, name: str) -> None:
    stream = cassette(dialect, name).response.stream
    assert stream
    single = [stream[at : at + 1] for at in range(len(stream))]
    assert recordings.events_of(dialect, *single) == recordings.events_of(dialect, stream)


# The server adds a plan to a streamed call only.
DIFFERENT_CONTENT = {("cohere", "call-streamed")}


@pytest.mark.parametrize(("dialect", "name"), STREAMS)
def test_recorded_stream_has_content_of_reply(dialect: str, name: str) -> None:
    streamed, whole = (recordings.reply_of(dialect, exchange) for exchange in (name, scene_of(name)))
    assert streamed.fault is None
    assert whole.fault is None
    assert streamed.stop_reason == whole.stop_reason
    is_different = without_call_ids(streamed.content) != without_call_ids(whole.content)
    assert is_different is ((dialect, name) in DIFFERENT_CONTENT)


def without_call_ids(content: tuple[ContentBlock, ...]) -> list[ContentBlock]:
    """Return the blocks without the ids of calls, which are new in every reply."""
    return [block.replace(id="tu_1") if isinstance(block, ToolUseBlock) else block for block in content]


@pytest.mark.parametrize(("dialect", "name"), [exchange for exchange in EXCHANGES if scene_of(exchange[1]) == "error"])
def test_recorded_error_is_a_fault_with_class_and_message(dialect: str, name: str) -> None:
    response = cassette(dialect, name).response
    fault = dialects.load(dialect).read_error(response.status, response.headers, response.body)
    match response.status:
        case 400:
            assert fault.error_class is ErrorClass.CONTEXT_OVERFLOW
            assert not fault.retryable
            assert "1024 tokens" in fault.message
        case status:
            assert status == 429
            assert fault.error_class is ErrorClass.RATE_LIMIT
            assert fault.retryable
            assert fault.retry_after_s == 7
            assert "Too many requests" in fault.message


@pytest.mark.parametrize(("dialect", "name"), [exchange for exchange in EXCHANGES if scene_of(exchange[1]) == "result"])
def test_request_omits_reply_fields_outside_message(dialect: str, name: str) -> None:
    """Providers reject a message with fields that belong to a reply."""
    answer = recordings.read_answer(dialect, name.replace("result", "call"))
    bare = answer.replace(metadata=answer.metadata.replace(provider_raw=None))
    with_notes, without = (
        recordings.adapter(dialect).to_wire([recordings.TASK, message], (recordings.READ_FILE,)).wire
        for message in (answer, bare)
    )
    added = keys_of(with_notes) - keys_of(without)
    whole = cassette(dialect, "call").response.body
    assert added.isdisjoint(whole)


def keys_of(value: object) -> set[str]:
    """Return every key in a JSON value, at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in keys_of(item)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


@pytest.mark.parametrize(("dialect", "name"), EXCHANGES)
def test_cassette_has_no_host_and_no_real_time(dialect: str, name: str) -> None:
    text = (recordings.CASSETTES / dialect / f"{name}.json").read_text("utf-8")
    assert not re.search(r"https?://|localhost|\d+\.\d+\.\d+\.\d+|authorization|api-key", text, re.IGNORECASE)
    assert set(re.findall(r"\b1[78]\d{8}\b|\b20\d\d-\d\d-\d\dT[\d:.]+", text)) <= {
        "1767225600",
        "2026-01-01T00:00:00.000",
    }


@pytest.mark.parametrize(("dialect", "name"), [stream for stream in STREAMS if cassette(*stream).response.frames])
def test_cassette_payloads_match_frames(dialect: str, name: str) -> None:
    response = cassette(dialect, name).response
    assert len(response.frames) == len(response.payloads)
    for frame, payload in zip(response.frames, response.payloads, strict=True):
        assert base64.b64decode(frame)[:-4].endswith(b"event" + payload.encode())


def test_cassettes_and_golden_files_belong_to_dialects() -> None:
    assert sorted(path.name for path in recordings.CASSETTES.iterdir()) == sorted(dialects.callable_names())
    assert sorted(path.stem for path in recordings.GOLDEN.iterdir()) == sorted(dialects.callable_names())
