"""Damaged streams of Chat Completions: each has one outcome, however its bytes are cut, and none looks complete."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from dragoman.dialects import openai_chat
from dragoman.event import fold
from dragoman.exchange import StopReason
from tests.dialects.damage import Case, calls_of, events_of, outcome, text_of, unusable_in

BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1760000000, "model": "gpt"}


def framed(wire: Any) -> bytes:
    return b"data: " + json.dumps(wire, ensure_ascii=False).encode() + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    return framed({**BASE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def call(index: int, **call: Any) -> bytes:
    return chunk(tool_calls=[{"index": index, **call}])


def called(*pieces: str, index: int = 0) -> bytes:
    begin = {"id": f"call_{index}", "type": "function", "function": {"name": "delete_records", "arguments": ""}}
    return call(index, **begin) + b"".join(call(index, function={"arguments": piece}) for piece in pieces)


START = chunk(role="assistant", content="")
HE, LLO = chunk(content="Hé"), chunk(content="llo.")
SAID = START + HE + LLO
USED = framed({**BASE, "choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}})
DONE = b"data: [DONE]\n\n"
WHOLE = SAID + chunk("stop") + USED + DONE
CUT, CALLED = chunk("length") + DONE, chunk("tool_calls") + DONE
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
OVERLOADED = {"message": "busy", "type": "server_error", "code": "engine_overloaded", "request_id": "req_1"}
REFUSED = {"message": "no such tool", "type": "invalid_request_error", "code": None}
CASES = [
    Case("whole", WHOLE, None, "Héllo."),
    Case("whole, without [DONE]", SAID + chunk("stop"), None, "Héllo."),
    Case("whole, [DONE] without a line end", SAID + chunk("stop") + DONE.strip(), None, "Héllo."),
    Case("CRLF", WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    Case("CR", WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    Case("comments", b": OPENROUTER PROCESSING\n\n" + START + HE + b": ping\n\n" + LLO + chunk("stop"), None, "Héllo."),
    Case("a byte order mark", b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    Case("unknown fields", START + HE + framed({"x": 1}) + framed({}) + LLO + chunk("stop"), None, "Héllo."),
    Case("no space behind the colon", WHOLE.replace(b"data: ", b"data:"), None, "Héllo."),
    Case("data on several lines", WHOLE.replace(b'"choices": ', b'\ndata: "choices": '), None, "Héllo."),
    Case("empty choices", START + HE + framed({**BASE, "choices": []}) + LLO + chunk("stop") + DONE, None, "Héllo."),
    Case("choices that are null", START + HE + framed({**BASE, "choices": None}) + LLO + chunk("stop"), None, "Héllo."),
    Case("another id in every chunk", WHOLE.replace(b"chatcmpl-1", b"chatcmpl-2", 1), None, "Héllo."),
    Case(
        "a character whose halves came apart",
        START + LLO.replace(b"llo.", b"a\\ud83d") + LLO.replace(b"llo.", b"\\ude00b") + chunk("stop") + DONE,
        None,
        "a😀b",
    ),
    Case("cut between two events", SAID, "stream_incomplete", "Héllo."),
    Case("cut in an event", START + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[:-20].decode()}),
    Case("cut before the empty line", START + HE + LLO[:-1], "stream_incomplete", "Hé", {"tail": LLO[6:-1].decode()}),
    Case("cut in the first event", START[:-30], "stream_incomplete", "", {"tail": START[:-30].decode()}),
    Case("cut in a character", START + HE[: HE.index(b"\xa9")], "stream_incomplete"),
    Case("cut in a long event", START + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé"),
    Case("cut between two halves", START + LLO.replace(b"llo.", b"a\\ud83d"), "stream_incomplete", "a"),
    Case("[DONE] without a reason", SAID + DONE, "stream_incomplete", "Héllo."),
    Case("an empty reason", SAID + chunk("") + DONE, "stream_incomplete", "Héllo."),
    Case("an event that is no JSON", START + HE + b"data: {]\n\n" + LLO + CUT, "bad_event", "Hé", {"tail": "{]"}),
    Case("an event that is no object", START + HE + b"data: 1\n\n" + LLO + CUT, "bad_event", "Hé", {"tail": "1"}),
    Case("an event that is no UTF-8", START + HE + LLO.replace(b"llo", b"\xff") + CUT, "bad_event", "Hé"),
    Case("half of a character", START + HE + LLO.replace(b"llo.", b"\\ud83d") + chunk("stop"), "bad_event", "Hé"),
    Case(
        "the wrong half of a character",
        START + HE + LLO.replace(b"llo.", b"\\ude00") + chunk("stop"),
        "bad_event",
        "Hé",
    ),
    Case("nested without end", START + HE + b"data: " + b"[" * 20_000 + b"\n\n" + CUT, "bad_event", "Hé"),
    Case("a page in the data", b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    Case("overloaded", START + HE + framed({"error": OVERLOADED}) + LLO + CUT, "overloaded", "Hé"),
    Case("refused", START + HE + framed({"error": REFUSED}) + LLO + CUT, "invalid_request", "Hé"),
    Case("an error in words", START + HE + framed({"error": "too many tokens"}), "server_error", "Hé"),
    Case("an error first", framed({"error": OVERLOADED}), "overloaded"),
    Case("an end in an error", START + HE + chunk("error") + DONE, "server_error", "Hé"),
    Case("an end for want of resources", START + HE + chunk("insufficient_system_resource") + DONE, "overloaded", "Hé"),
    Case("a page", HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a page after a byte order mark", b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    Case("a long page", b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    Case("an object", b'{"error":"x"}', "bad_content_type", "", {"head": '{"error":"x"}'}),
    Case("nothing", b"", "empty_response"),
    Case("nothing but whitespace", b"\r\n\n", "empty_response"),
    Case("nothing but [DONE]", DONE, "empty_response"),
    Case("nothing but usage", USED + DONE, "empty_response"),
    Case("nothing said", START + chunk("stop") + DONE, "empty_response"),
    Case("nothing said before the limit", START + CUT, None),
    Case("a choice that is none", START + HE + framed({**BASE, "choices": [1]}) + CUT, "protocol_violation", "Hé"),
    Case("choices that are none", START + HE + framed({**BASE, "choices": "x"}) + CUT, "protocol_violation", "Hé"),
    Case("a reasoning that is no text", START + HE + chunk(reasoning=1) + CUT, "protocol_violation", "Hé"),
    Case("parts that are none", START + HE + chunk(content=[1]) + CUT, "protocol_violation", "Hé"),
    Case("calls that are none", START + HE + chunk(tool_calls=[1]) + CUT, "protocol_violation", "Hé"),
    Case("a function that is none", START + HE + call(0, id="c", function=1) + CUT, "protocol_violation", "Hé"),
    Case(
        "arguments that are no text",
        START + HE + call(0, id="c", function={"name": "f", "arguments": 1}),
        "protocol_violation",
        "Hé",
    ),
    Case(
        "a fragment of a call that has not begun",
        START + HE + call(0, function={"arguments": "{}"}) + CALLED,
        "protocol_violation",
        "Hé",
    ),
    Case(
        "a fragment of another call",
        SAID + called("{}") + call(1, function={"arguments": "{}"}) + CALLED,
        "protocol_violation",
        "Héllo.",
    ),
    Case(
        "a call that was never named",
        SAID + call(0, id="c", function={"arguments": "{}"}) + CALLED,
        "protocol_violation",
        "Héllo.",
    ),
    Case("text after the reason", SAID + chunk("stop") + LLO + DONE, None, "Héllo.", {"late": "llo."}),
    Case("a call after the reason", SAID + chunk("stop") + called("{}") + DONE, None, "Héllo."),
    Case("text after the end", WHOLE + LLO, None, "Héllo."),
    Case("damage after the end", WHOLE + b"data: {]\n\n", None, "Héllo."),
    Case("another message after the end", WHOLE + WHOLE, None, "Héllo."),
    Case("an input that is no object", SAID + called("[1]") + CALLED, "tool_input_invalid", "Héllo."),
    Case("an input that was cut", SAID + called('{"target":"all"', ',"dry_') + CALLED, "tool_input_invalid", "Héllo."),
    Case("an input with NaN", SAID + called('{"n":NaN}') + CALLED, "tool_input_invalid", "Héllo."),
    Case("an input with two equal keys", SAID + called('{"n":1,', '"n":2}') + CALLED, "tool_input_invalid", "Héllo."),
    Case(
        "an input that was cut, with an end",
        SAID + called('{"target":"all"') + chunk("stop"),
        "tool_input_invalid",
        "Héllo.",
    ),
    Case("an input cut at the limit", SAID + called('{"target":"al') + CUT, "tool_input_truncated", "Héllo."),
    Case("no input at the limit", SAID + called() + CUT, "tool_input_truncated", "Héllo."),
    Case("an empty input at the limit", SAID + called("{}") + CUT, None, "Héllo."),
    Case("no input", SAID + called() + CALLED, None, "Héllo."),
    Case("an input whose character came apart", SAID + called('{"n":"\\ud83d', '\\ude00"}') + CALLED, None, "Héllo."),
    Case("cut in an input", SAID + called('{"target":"all"'), "stream_incomplete", "Héllo."),
    Case("cut after a call", SAID + called('{"target":"all"}'), "stream_incomplete", "Héllo."),
]
UNUSABLE = {
    "an input that is no object": "[1]",
    "an input that was cut": '{"target":"all","dry_',
    "an input with NaN": '{"n":NaN}',
    "an input with two equal keys": '{"n":1,"n":2}',
    "an input that was cut, with an end": '{"target":"all"',
    "an input cut at the limit": '{"target":"al',
    "no input at the limit": "",
    "cut in an input": '{"target":"all"',
    "cut after a call": '{"target":"all"}',  # the wire has no end of a call
    "a fragment of another call": "{}",
}
CALLS = {
    "an empty input at the limit": {},
    "no input": {},
    "an input whose character came apart": {"n": "😀"},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_stream_has_one_outcome_however_it_is_cut(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reply = outcome(openai_chat, case)
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


def test_a_cut_at_any_byte_keeps_what_came_before_and_makes_no_call() -> None:
    data = SAID + called('{"target":"all",', '"dry_run":true}')
    for at in range(len(data)):
        reply = fold(events_of(openai_chat, [data[:at]]))
        assert reply.fault is not None
        assert reply.fault.retryable
        assert "Héllo.".startswith(text_of(reply))
        assert calls_of(reply) == []


def test_who_ends_without_a_reason_is_believed_only_if_he_is_known_for_it() -> None:
    reader = openai_chat.stream_reader(None, ("terminal_reason_optional",))
    reply = fold([*reader.feed(SAID + DONE), *reader.close()])
    assert (reply.fault, reply.stop_reason, text_of(reply)) == (None, StopReason.UNKNOWN, "Héllo.")
    cut = openai_chat.stream_reader(None, ("terminal_reason_optional",))
    reply = fold([*cut.feed(SAID), *cut.close()])
    assert reply.fault is not None
    assert reply.fault.code == "stream_incomplete"


def test_an_error_in_the_stream_names_the_request_and_whether_to_try_again() -> None:
    faults = {case.name: outcome(openai_chat, case).fault for case in CASES if case.name in ("overloaded", "refused")}
    assert faults["overloaded"] is not None
    assert faults["refused"] is not None
    assert (faults["overloaded"].message, faults["overloaded"].request_id) == ("busy", "req_1")
    assert faults["overloaded"].provider_code == "engine_overloaded"
    assert faults["overloaded"].retryable
    assert not faults["refused"].retryable


def test_what_was_consumed_before_an_error_is_known() -> None:
    reply = fold(events_of(openai_chat, [SAID + framed({"error": OVERLOADED, "usage": {"prompt_tokens": 8}})]))
    assert reply.usage is not None
    assert reply.usage.input_tokens == 8
