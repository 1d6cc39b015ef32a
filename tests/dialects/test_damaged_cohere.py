"""Damaged streams of Cohere: one outcome for all chunk boundaries, and never a complete message."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import MessageComplete, fold
from dragoman.exchange import StopReason
from tests.dialects.damage import Case, calls_of, events_of, outcome, text_of, unusable_in

COHERE = dialects.load("cohere")


def event(kind: str, index: int | None = None, **message: Any) -> bytes:
    wire: dict[str, Any] = {"type": kind}
    if index is not None:
        wire["index"] = index
    if message:
        wire["delta"] = {"message": message}
    return frame(wire)


def frame(wire: Any, name: str | None = None) -> bytes:
    data = json.dumps(wire, ensure_ascii=False).encode()
    return f"event: {name or wire['type']}\ndata: ".encode() + data + b"\n\n"


def end(reason: str | None = "COMPLETE", **rest: Any) -> bytes:
    usage = {"billed_units": {"input_tokens": 4, "output_tokens": 3}, "tokens": {"input_tokens": 8, "output_tokens": 3}}
    return frame({"type": "message-end", "delta": {"finish_reason": reason, "usage": usage, **rest}})


def call_frames(*pieces: str, index: int = 0, is_ended: bool = True) -> bytes:
    call = {"id": f"call_{index}", "type": "function", "function": {"name": "delete_records", "arguments": ""}}
    deltas = [event("tool-call-delta", index, tool_calls={"function": {"arguments": piece}}) for piece in pieces]
    last = event("tool-call-end", index) if is_ended else b""
    return event("tool-call-start", index, tool_calls=call) + b"".join(deltas) + last


MESSAGE = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
START = frame({"id": "ad61ac19", "type": "message-start", "delta": {"message": MESSAGE}})
OPEN = START + event("content-start", 0, content={"type": "text", "text": ""})
HE, LLO = (event("content-delta", 0, content={"text": text}) for text in ("Hé", "llo."))
CLOSE = event("content-end", 0)
SAID = OPEN + HE + LLO + CLOSE
DONE = b"data: [DONE]\n\n"
WHOLE = SAID + end() + DONE
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
LATE = json.dumps({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "llo."}}}})
CASES = [
    Case("whole", WHOLE, None, "Héllo."),
    Case("whole, without [DONE]", SAID + end(), None, "Héllo."),
    Case("whole, [DONE] as a text", SAID + end() + b'data: "[DONE]"\n\n', None, "Héllo."),
    Case("CRLF", WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    Case("CR", WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    Case("comments", b": hi\n\n" + OPEN + HE + b": ping\n\n" + LLO + CLOSE + end() + b":\n\n" + DONE, None, "Héllo."),
    Case("a byte order mark", b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    Case("unknown events", event("ping") + OPEN + HE + event("debug", 3) + LLO + CLOSE + end(), None, "Héllo."),
    Case("data on several lines", WHOLE.replace(b'{"id": "ad61ac19", ', b'{"id": "ad61ac19",\ndata: '), None, "Héllo."),
    Case("events without names", WHOLE.replace(b"event: content-delta\n", b""), None, "Héllo."),
    Case("cut between two events", OPEN + HE + LLO, "stream_incomplete", "Héllo."),
    Case("cut before the end", SAID, "stream_incomplete", "Héllo."),
    Case("cut in an event", OPEN + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[21:-20].decode()}),
    Case("cut before the empty line", OPEN + HE + LLO[:-2], "stream_incomplete", "Hé"),
    Case("cut in the first event", START[:-30], "stream_incomplete"),
    Case("cut in a character", OPEN + HE[: HE.index(b"\xa9")], "stream_incomplete"),
    Case("cut in a long event", OPEN + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé"),
    Case("[DONE] without an end", SAID + DONE, "stream_incomplete", "Héllo."),
    Case("an end without a reason", SAID + end(None) + DONE, "stream_incomplete", "Héllo."),
    Case(
        "an event that is no JSON", OPEN + HE + b"data: {]\n\n" + LLO + CLOSE + end(), "bad_event", "Hé", {"tail": "{]"}
    ),
    Case(
        "an event that is no object", OPEN + HE + b"data: 1\n\n" + LLO + CLOSE + end(), "bad_event", "Hé", {"tail": "1"}
    ),
    Case("an event that is no UTF-8", OPEN + HE + LLO.replace(b"llo", b"\xff") + CLOSE + end(), "bad_event", "Hé"),
    Case("half of a character", OPEN + HE + LLO.replace(b"llo.", b"\\ud83d") + CLOSE + end(), "bad_event", "Hé"),
    Case("nested without end", OPEN + HE + b"data: " + b"[" * 20_000 + b"\n\n" + end(), "bad_event", "Hé"),
    Case("a page in the data", b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    Case("an error", OPEN + HE + frame({"type": "error", "message": "out of order", "id": "r1"}), "server_error", "Hé"),
    Case("an error by its name", OPEN + HE + frame({"message": "out of order"}, "error"), "server_error", "Hé"),
    Case("an error without a type", OPEN + HE + b'data: {"message":"too many tokens"}\n\n', "context_overflow", "Hé"),
    Case("an end in an error", OPEN + HE + CLOSE + end("ERROR", error="broken") + DONE, "server_error", "Hé"),
    Case("an end in a timeout", OPEN + HE + CLOSE + end("TIMEOUT") + DONE, "timeout", "Hé"),
    Case("an end at its limit", OPEN + HE + CLOSE + end("ERROR_LIMIT") + DONE, "context_overflow", "Hé"),
    Case("a page", HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a page after a byte order mark", b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a long page", b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    Case(
        "an object",
        b'{"message":"invalid api token"}',
        "bad_content_type",
        "",
        {"head": '{"message":"invalid api token"}'},
    ),
    Case("nothing", b"", "empty_response"),
    Case("nothing but whitespace", b"\r\n\n", "empty_response"),
    Case("nothing said", START + end() + DONE, "empty_response"),
    Case("an empty text", OPEN + CLOSE + end() + DONE, "empty_response"),
    Case("nothing said before the limit", START + end("MAX_TOKENS") + DONE, None),
    Case("a second start", OPEN + HE + START + LLO + CLOSE + end(), "protocol_violation", "Hé"),
    Case("a delta before the start", HE + WHOLE, "protocol_violation"),
    Case("a delta for a part that has not begun", START + HE + WHOLE, "protocol_violation"),
    Case("a delta for a part that has ended", OPEN + HE + CLOSE + LLO + end(), "protocol_violation", "Hé"),
    Case("a part that begins twice", OPEN + HE + OPEN[len(START) :] + CLOSE + end(), "protocol_violation", "Hé"),
    Case("a part that ends twice", OPEN + HE + CLOSE + CLOSE + end(), "protocol_violation", "Hé"),
    Case("an end while a part is open", OPEN + HE + end() + DONE, "protocol_violation", "Hé"),
    Case(
        "parts out of order",
        OPEN.replace(b'"index": 0', b'"index": 1') + event("content-start", 0, content={"type": "text", "text": ""}),
        "protocol_violation",
    ),
    Case(
        "an index that is none",
        OPEN + HE + LLO.replace(b'"index": 0', b'"index": "0"') + CLOSE + end(),
        "protocol_violation",
        "Hé",
    ),
    Case(
        "a delta that is none",
        OPEN + HE + frame({"type": "content-delta", "index": 0, "delta": 1}),
        "protocol_violation",
        "Hé",
    ),
    Case(
        "input for a call that has not begun",
        SAID + event("tool-call-delta", 0, tool_calls={"function": {"arguments": "{}"}}),
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "input for a call that has ended",
        SAID + call_frames("{}") + event("tool-call-delta", 0, tool_calls={"function": {"arguments": "{}"}}),
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "a call without a name",
        SAID + event("tool-call-start", 0, tool_calls={"id": "c", "function": {}}),
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "a call without an id",
        SAID + event("tool-call-start", 0, tool_calls={"function": {"name": "f"}}),
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "a message that does not begin empty",
        frame({"type": "message-start", "delta": {"message": {"content": [1]}}}),
        "protocol_violation",
    ),
    Case("text after the end", OPEN + HE + CLOSE + end() + LLO + DONE, None, "Hé", {"late": LATE}),
    Case("damage after the end", OPEN + HE + CLOSE + end() + b"data: {]\n\n", None, "Hé", {"late": "{]"}),
    Case("after [DONE]", OPEN + HE + CLOSE + end() + DONE + LLO, None, "Hé"),
    Case(
        "an input that is no object",
        SAID + call_frames("[1]") + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
    ),
    Case(
        "an input that was cut",
        SAID + call_frames('{"target":"all"', ',"dry_') + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
    ),
    Case(
        "an input with NaN", SAID + call_frames('{"n":NaN}') + end("TOOL_CALL") + DONE, "tool_input_invalid", "Héllo."
    ),
    Case(
        "an input with two equal keys",
        SAID + call_frames('{"n":1,', '"n":2}') + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
    ),
    Case(
        "an input cut at the limit",
        SAID + call_frames('{"target":"al') + end("MAX_TOKENS") + DONE,
        "tool_input_truncated",
        "Héllo.",
    ),
    Case(
        "an open input at the limit",
        SAID + call_frames('{"target":"al', is_ended=False) + end("MAX_TOKENS") + DONE,
        "tool_input_truncated",
        "Héllo.",
    ),
    Case("no input at the limit", SAID + call_frames() + end("MAX_TOKENS") + DONE, "tool_input_truncated", "Héllo."),
    Case(
        "a call that never ends",
        SAID + call_frames("{}", is_ended=False) + end("TOOL_CALL") + DONE,
        "tool_input_truncated",
        "Héllo.",
    ),
    Case("an empty input at the limit", SAID + call_frames("{}") + end("MAX_TOKENS") + DONE, None, "Héllo."),
    Case("no input", SAID + call_frames() + end("TOOL_CALL") + DONE, None, "Héllo."),
    Case("cut in an input", SAID + call_frames('{"target":"all"', is_ended=False), "stream_incomplete", "Héllo."),
    Case("cut after a call", SAID + call_frames('{"target":"all"}'), "stream_incomplete", "Héllo."),
]
UNUSABLE = {
    "an input that is no object": "[1]",
    "an input that was cut": '{"target":"all","dry_',
    "an input with NaN": '{"n":NaN}',
    "an input with two equal keys": '{"n":1,"n":2}',
    "an input cut at the limit": '{"target":"al',
    "an open input at the limit": '{"target":"al',
    "no input at the limit": "",
    "a call that never ends": "{}",
    "cut in an input": '{"target":"all"',
}
CALLS = {
    "an empty input at the limit": [("delete_records", {})],
    "no input": [("delete_records", {})],
    "input for a call that has ended": [("delete_records", {})],
    "cut after a call": [("delete_records", {"target": "all"})],
}


def get_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_stream_has_one_outcome_for_all_chunk_boundaries(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reply = outcome(COHERE, case)
    assert (reply.fault.code if reply.fault else None) == case.code
    assert (reply.stop_reason is StopReason.ERROR) == (case.code is not None)
    assert text_of(reply) == case.text
    assert calls_of(reply) == CALLS.get(case.name, [])
    assert unusable_in(reply) == [("delete_records", text) for text in [UNUSABLE.get(case.name)] if text is not None]
    raw = reply.provider_raw or {}
    assert {key: raw[key] for key in ("tail", "head", "late") if key in case.kept} == case.kept
    assert all(len(raw.get(key, "")) <= 4096 for key in ("tail", "late"))
    assert "\ufffd" not in str(reply)
    assert "abcdef0123456789" not in str(reply)
    assert len([record for record in caplog.records if "end of a" in record.message]) == 5 * ("late" in raw)


def test_a_stream_cut_at_any_byte_keeps_earlier_events_and_invents_no_call() -> None:
    data = SAID + call_frames('{"target":"all",', '"dry_run":true}')
    for at in range(len(data)):
        reply = fold(events_of(COHERE, [data[:at]]))
        assert reply.fault is not None
        assert reply.fault.retryable
        assert "Héllo.".startswith(text_of(reply))
        assert calls_of(reply) in ([], [("delete_records", {"target": "all", "dry_run": True})])


def test_an_error_event_has_the_request_id_and_retryability() -> None:
    fault = outcome(COHERE, get_case("an error")).fault
    assert fault is not None
    assert (fault.message, fault.request_id, fault.retryable) == ("out of order", "r1", True)
    too_long = outcome(COHERE, get_case("an error without a type")).fault
    assert too_long is not None
    assert not too_long.retryable
    ended = outcome(COHERE, get_case("an end in an error")).fault
    assert ended is not None
    assert (ended.message, ended.provider_code, ended.retryable) == ("broken", "ERROR", True)


CUT = {"cut in an input", "an open input at the limit", "a call that never ends"}  # a whole reply has no such end


@pytest.mark.parametrize("name", [*sorted(UNUSABLE.keys() - CUT), "nothing said", "an empty text"])
def test_an_unusable_reply_has_a_fault_and_round_trips(name: str) -> None:
    events = events_of(COHERE, [get_case(name).data])
    streamed = fold(events)
    wire = COHERE.write_reply(streamed).wire
    last = events[-1]
    assert isinstance(last, MessageComplete)
    assert "error" not in wire
    assert wire["usage"]["billed_units"] == {"input_tokens": 4, "output_tokens": 3}
    reply = COHERE.read_reply(wire)
    assert reply.fault == streamed.fault
    assert unusable_in(reply) == unusable_in(streamed)
    assert COHERE.write_reply(reply).wire == wire
    reasons = {StopReason.MAX_TOKENS: "MAX_TOKENS", StopReason.TOOL_USE: "TOOL_CALL", StopReason.END_TURN: "COMPLETE"}
    assert wire["finish_reason"] == reasons[last.stop_reason]


def test_a_foreign_reply_with_an_unusable_call_is_written_as_an_error() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{]"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    reply = dialects.load("openai_chat").read_reply(body)
    assert unusable_in(reply) == [("f", "{]")]
    wire = COHERE.write_reply(reply).wire
    assert wire["finish_reason"] == "ERROR"
    assert COHERE.read_reply(wire).fault is not None
