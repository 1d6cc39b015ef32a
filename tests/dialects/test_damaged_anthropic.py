"""Damaged streams of Anthropic: each has one outcome, however its bytes are cut, and none looks complete."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from dragoman.dialects import anthropic
from dragoman.event import fold
from dragoman.exchange import StopReason
from tests.dialects.damage import Case, calls_of, events_of, outcome, text_of, unusable_in


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def started(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stopped(index: int) -> bytes:
    return event("content_block_stop", index=index)


def end(reason: str | None = "end_turn", *, is_stopped: bool = True) -> bytes:
    ending = {"stop_reason": reason, "stop_sequence": None}
    told = event("message_delta", delta=ending, usage={"output_tokens": 3})
    return told + event("message_stop") if is_stopped else told


def called(*pieces: str, is_ended: bool = True, **block: Any) -> bytes:
    call = {"type": "tool_use", "id": "toolu_1", "name": "delete_records", "input": {}, **block}
    deltas = [delta(1, "input_json_delta", partial_json=piece) for piece in pieces]
    return started(1, **call) + b"".join(deltas) + (stopped(1) if is_ended else b"")


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
USAGE = {"input_tokens": 8, "output_tokens": 1}
START = event("message_start", message={**MESSAGE, "stop_reason": None, "stop_sequence": None, "usage": USAGE})
OPEN = START + started(0, type="text", text="")
HE, LLO = (delta(0, "text_delta", text=text) for text in ("Hé", "llo."))
SAID = OPEN + HE + LLO + stopped(0)
WHOLE = SAID + end()
PING = event("ping")
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
REFUSED = {"type": "invalid_request_error", "message": "no such tool"}
CASES = [
    Case("whole", WHOLE, None, "Héllo."),
    Case("whole, without message_stop", SAID + end(is_stopped=False), None, "Héllo."),
    Case("whole, with [DONE]", WHOLE + b"data: [DONE]\n\n", None, "Héllo."),
    Case("CRLF", WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    Case("CR", WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    Case(
        "comments and pings", b": hi\n\n" + OPEN + HE + PING + b": ping\n\n" + LLO + stopped(0) + end(), None, "Héllo."
    ),
    Case("a byte order mark", b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    Case(
        "unknown events", event("news") + OPEN + HE + event("news", index=0) + LLO + stopped(0) + end(), None, "Héllo."
    ),
    Case("unknown deltas", OPEN + HE + delta(0, "news", text="x") + LLO + stopped(0) + end(), None, "Héllo."),
    Case("events without names", WHOLE.replace(b"event: content_block_delta\n", b""), None, "Héllo."),
    Case("padded events", WHOLE.replace(b"}}\n\n", b"}     }\n\n"), None, "Héllo."),
    Case("data on several lines", WHOLE.replace(b'"index": 0, ', b'"index": 0,\ndata: '), None, "Héllo."),
    Case("cut between two events", OPEN + HE + LLO, "stream_incomplete", "Héllo."),
    Case("cut before the end", SAID, "stream_incomplete", "Héllo."),
    Case("cut in an event", OPEN + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[27:-20].decode()}),
    Case("cut before the empty line", OPEN + HE + LLO[:-1], "stream_incomplete", "Hé", {"tail": LLO[33:-1].decode()}),
    Case("cut in the first event", START[:-30], "stream_incomplete", "", {"tail": START[21:-30].decode()}),
    Case("cut in a character", OPEN + HE[: HE.index(b"\xa9")], "stream_incomplete"),
    Case("cut in a long event", OPEN + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé"),
    Case("an end without a reason", SAID + end(None), "stream_incomplete", "Héllo."),
    Case("an end that never began", event("message_stop"), "protocol_violation"),
    Case("an event that is no JSON", OPEN + HE + b"data: {]\n\n" + LLO + end(), "bad_event", "Hé", {"tail": "{]"}),
    Case("an event that is no UTF-8", OPEN + HE + LLO.replace(b"llo", b"\xff") + end(), "bad_event", "Hé"),
    Case("half of a character", OPEN + HE + LLO.replace(b"llo.", b"\\ud83d") + stopped(0) + end(), "bad_event", "Hé"),
    Case("nested without end", OPEN + HE + b"data: " + b"[" * 20_000 + b"\n\n" + end(), "bad_event", "Hé"),
    Case("a page in the data", b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    Case("overloaded", OPEN + HE + event("error", error=OVERLOADED, request_id="req_1") + LLO, "overloaded", "Hé"),
    Case("refused", OPEN + HE + event("error", error=REFUSED) + LLO + stopped(0) + end(), "invalid_request", "Hé"),
    Case("an error first", event("error", error=OVERLOADED), "overloaded"),
    Case("an error that says nothing", OPEN + HE + event("error"), "server_error", "Hé"),
    Case("a page", HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a page after a byte order mark", b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a long page", b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    Case("an object", b'{"type":"error"}', "bad_content_type", "", {"head": '{"type":"error"}'}),
    Case("nothing", b"", "empty_response"),
    Case("nothing but whitespace", b"\r\n\n", "empty_response"),
    Case("nothing but pings", PING + PING, "stream_incomplete"),
    Case("nothing said", START + end(), "empty_response"),
    Case("an empty text", OPEN + stopped(0) + end(), "empty_response"),
    Case("an empty text at a stop sequence", OPEN + stopped(0) + end("stop_sequence"), "empty_response"),
    Case("nothing said before the limit", START + end("max_tokens"), None),
    Case("a second start", OPEN + HE + START + LLO + end(), "protocol_violation", "Hé"),
    Case("a start that is none", event("message_start", message=1), "protocol_violation"),
    Case("a delta before the start", HE + WHOLE, "protocol_violation"),
    Case("an end before the start", end() + WHOLE, "protocol_violation"),
    Case("a delta for a block that has not begun", START + HE + WHOLE, "protocol_violation"),
    Case("a delta for a block that has ended", SAID + LLO + end(), "protocol_violation", "Héllo."),
    Case("a block that begins twice", OPEN + HE + started(0, type="text", text="") + end(), "protocol_violation", "Hé"),
    Case("a block that ends twice", SAID + stopped(0) + end(), "protocol_violation", "Héllo."),
    Case("a block that was passed over", START + started(1, type="text", text="") + end(), "protocol_violation"),
    Case("an end while a block is open", OPEN + HE + end(), "protocol_violation", "Hé"),
    Case("the last end while a block is open", OPEN + HE + end(is_stopped=False), "protocol_violation", "Hé"),
    Case("an index that is none", OPEN + HE + LLO.replace(b'"index": 0', b'"index": "0"'), "protocol_violation", "Hé"),
    Case(
        "a delta that is none", OPEN + HE + event("content_block_delta", index=0, delta=1), "protocol_violation", "Hé"
    ),
    Case("a block that is none", START + event("content_block_start", index=0, content_block=1), "protocol_violation"),
    Case("a text that is none", START + started(0, type="text", text=1) + stopped(0) + end(), "protocol_violation"),
    Case(
        "thinking in a text", OPEN + HE + delta(0, "thinking_delta", thinking="x") + end(), "protocol_violation", "Hé"
    ),
    Case("input in a text", OPEN + HE + delta(0, "input_json_delta", partial_json="{}"), "protocol_violation", "Hé"),
    Case("a call without an id", SAID + called("{}", id=None) + end("tool_use"), "protocol_violation", "Héllo."),
    Case("a call without a name", SAID + called("{}", name=None) + end("tool_use"), "protocol_violation", "Héllo."),
    Case(
        "the input of a search that is no JSON",
        SAID + called("{]", type="server_tool_use") + end(),
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "text after the reason",
        SAID + end(is_stopped=False) + LLO + event("message_stop"),
        None,
        "Héllo.",
        {"late": "llo."},
    ),
    Case(
        "a block after the reason",
        SAID + end(is_stopped=False) + called('{"target":"all"}') + event("message_stop"),
        None,
        "Héllo.",
        {"late": '{"target":"all"}'},
    ),
    Case("text after the end", WHOLE + LLO, None, "Héllo."),
    Case("damage after the end", WHOLE + b"data: {]\n\n", None, "Héllo."),
    Case("another message after the end", WHOLE + WHOLE, None, "Héllo."),
    Case("an input that is no object", SAID + called("[1]") + end("tool_use"), "tool_input_invalid", "Héllo."),
    Case(
        "an input that was cut",
        SAID + called('{"target":"all"', ',"dry_') + end("tool_use"),
        "tool_input_invalid",
        "Héllo.",
    ),
    Case("an input with NaN", SAID + called('{"n":NaN}') + end("tool_use"), "tool_input_invalid", "Héllo."),
    Case(
        "an input with two equal keys",
        SAID + called('{"n":1,', '"n":2}') + end("tool_use"),
        "tool_input_invalid",
        "Héllo.",
    ),
    Case(
        "an input cut at the limit",
        SAID + called('{"target":"al') + end("max_tokens"),
        "tool_input_truncated",
        "Héllo.",
    ),
    Case("no input at the limit", SAID + called() + end("max_tokens"), "tool_input_truncated", "Héllo."),
    Case(
        "an open call at the limit",
        SAID + called('{"target":"al', is_ended=False) + end("max_tokens"),
        "protocol_violation",
        "Héllo.",
    ),
    Case("an empty input at the limit", SAID + called("{}") + end("max_tokens"), None, "Héllo."),
    Case("no input", SAID + called() + end("tool_use"), None, "Héllo."),
    Case("an input at the beginning", SAID + called(input={"n": 1}) + end("tool_use"), None, "Héllo."),
    Case("cut in an input", SAID + called('{"target":"all"', is_ended=False), "stream_incomplete", "Héllo."),
    Case("cut after a call", SAID + called('{"target":"all"}'), "stream_incomplete", "Héllo."),
]
UNUSABLE = {
    "an input that is no object": "[1]",
    "an input that was cut": '{"target":"all","dry_',
    "an input with NaN": '{"n":NaN}',
    "an input with two equal keys": '{"n":1,"n":2}',
    "an input cut at the limit": '{"target":"al',
    "an open call at the limit": '{"target":"al',
    "no input at the limit": "",
    "cut in an input": '{"target":"all"',
}
CALLS = {
    "an empty input at the limit": {},
    "no input": {},
    "an input at the beginning": {"n": 1},
    "cut after a call": {"target": "all"},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_stream_has_one_outcome_however_it_is_cut(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reply = outcome(anthropic, case)
    assert (reply.fault.code if reply.fault else None) == case.code
    assert (reply.stop_reason is StopReason.ERROR) == (case.code is not None)
    assert text_of(reply) == case.text
    assert calls_of(reply) == [("delete_records", value) for value in [CALLS.get(case.name)] if value is not None]
    assert unusable_in(reply) == [("delete_records", text) for text in [UNUSABLE.get(case.name)] if text is not None]
    raw = reply.provider_raw or {}
    assert {key: raw[key] for key in ("tail", "head", "late") if key in case.kept} == case.kept
    assert all(len(raw.get(key, "")) <= 4096 for key in ("tail", "late"))
    assert "\ufffd" not in str(reply)
    assert "abcdef0123456789" not in str(reply)
    late = [record for record in caplog.records if "after the end of an answer" in record.message]
    assert len(late) == 5 * (" after the " in case.name and "damage" not in case.name and "page" not in case.name)


def test_a_cut_at_any_byte_keeps_what_came_before_and_makes_no_other_call() -> None:
    data = SAID + called('{"target":"all",', '"dry_run":true}')
    for at in range(len(data)):
        reply = fold(events_of(anthropic, [data[:at]]))
        assert reply.fault is not None
        assert reply.fault.retryable
        assert "Héllo.".startswith(text_of(reply))
        assert calls_of(reply) in ([], [("delete_records", {"target": "all", "dry_run": True})])


def test_an_error_in_the_stream_names_the_request_and_whether_to_try_again() -> None:
    faults = {case.name: outcome(anthropic, case).fault for case in CASES if case.name in ("overloaded", "refused")}
    assert faults["overloaded"] is not None
    assert faults["refused"] is not None
    assert (faults["overloaded"].message, faults["overloaded"].request_id) == ("Overloaded", "req_1")
    assert faults["overloaded"].provider_code == "overloaded_error"
    assert faults["overloaded"].retryable
    assert not faults["refused"].retryable


def test_what_was_consumed_before_the_damage_is_known() -> None:
    reply = fold(events_of(anthropic, [OPEN + HE]))
    assert reply.usage is not None
    assert reply.usage.input_tokens == 8
