"""Damaged streams of Ollama: one outcome for all chunk boundaries, and never a complete message."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import fold
from dragoman.exchange import StopReason
from tests.dialects.damage import Case, calls_of, events_of, outcome, text_of, unusable_in

OLLAMA = dialects.load("ollama")
HEAD = {"model": "llama3.2", "created_at": "2026-05-08T09:30:00Z"}


def line(said: dict[str, Any], **rest: Any) -> bytes:
    message = {"role": "assistant", "content": "", **said}
    return json.dumps({**HEAD, "message": message, "done": False, **rest}, ensure_ascii=False).encode() + b"\n"


def call(arguments: Any, name: str = "delete_records", **rest: Any) -> bytes:
    return line({"tool_calls": [{"function": {"name": name, "arguments": arguments}, **rest}]})


HE, LLO = line({"content": "Hé"}), line({"content": "llo."})
DONE = line({}, done=True, done_reason="stop", prompt_eval_count=8, eval_count=3)
LIMIT = line({}, done=True, done_reason="length", prompt_eval_count=8, eval_count=3)
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
CASES = [
    Case("whole", HE + LLO + DONE, None, "Héllo."),
    Case("whole, without a reason", HE + LLO + line({}, done=True), None, "Héllo."),
    Case("whole, the last newline missing", HE + LLO + DONE.rstrip(), None, "Héllo."),
    Case("CRLF", (HE + LLO + DONE).replace(b"\n", b"\r\n"), None, "Héllo."),
    Case("empty lines in between", HE + b"\n\n" + LLO + b"  \n" + DONE, None, "Héllo."),
    Case("a byte order mark", b"\xef\xbb\xbf" + HE + LLO + DONE, None, "Héllo."),
    Case("an unknown line", b'{"status":"loading model"}\n' + HE + b'{"ping":1}\n' + LLO + DONE, None, "Héllo."),
    Case("an unknown key", line({"content": "Héllo.", "mood": "good"}, extra=1) + DONE, None, "Héllo."),
    Case("as server-sent events", b"data: " + HE + b"\n: ping\n\ndata: " + DONE + b"\n", None, "Hé", framing="sse"),
    Case("[DONE] before it is done", b"data: " + HE + b"\ndata: [DONE]\n\n", "stream_incomplete", "Hé", framing="sse"),
    Case("cut between two lines", HE + LLO, "stream_incomplete", "Héllo."),
    Case("cut in a line", HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[:-20].decode()}),
    Case("cut in the first line", HE[:-9], "stream_incomplete", "", {"tail": HE[:-9].decode()}),
    Case("cut in the first line after a byte order mark", b"\xef\xbb\xbf" + HE[:-9], "stream_incomplete"),
    Case("cut in a character", HE[: HE.index(b"\xa9")], "stream_incomplete"),
    Case("cut in a character, later", LLO + HE[: HE.index(b"\xa9")], "stream_incomplete", "llo."),
    Case("cut in a long line", HE + b'{"message":"' + b"x" * 9000, "stream_incomplete", "Hé"),
    Case("cut after the reasoning", line({"thinking": "Hm."}), "stream_incomplete", "[Hm.]"),
    Case("a line that is no JSON", HE + b"{]\n" + LLO + DONE, "bad_event", "Hé", {"tail": "{]"}),
    Case("a line that is no object", HE + b'"Hi"\n' + LLO + DONE, "bad_event", "Hé", {"tail": '"Hi"'}),
    Case("a line that is no UTF-8", HE + b'{"message":{"content":"\xff"}}\n' + DONE, "bad_event", "Hé"),
    Case("a line with half of a character", HE + b'{"message":{"content":"\\ud83d"}}\n' + DONE, "bad_event", "Hé"),
    Case("the first line is no JSON", b"{]\n" + DONE, "bad_event"),
    Case("a page in the middle", HE + HTML, "bad_event", "Hé"),
    Case("nested without end", HE + b"[" * 20_000 + b"\n" + DONE, "bad_event", "Hé"),
    Case("NaN", HE + line({"content": "x"}).replace(b'"x"', b"NaN") + DONE, "bad_event", "Hé"),
    Case("an error", HE + b'{"error":"llama runner process has terminated"}\n' + DONE, "server_error", "Hé"),
    Case("an error alone", b'{"error":"model requires more memory"}\n', "server_error"),
    Case("an error as an object", b'{"error":{"message":"no"}}', "server_error"),
    Case("an error about the length", b'{"error":"input length exceeds the context length"}', "context_overflow"),
    Case("a page", HTML, "bad_content_type", "", {"head": HTML.decode().replace("abcdef0123456789", "***")}),
    Case("a page on one line", b"<html>no</html>", "bad_content_type", "", {"head": "<html>no</html>"}),
    Case("a long page", HTML[:7] + b"x" * 5000, "bad_content_type", "", {"head": "<html>\n" + "x" * 1017}),
    Case("a page after a byte order mark", b"\xef\xbb\xbf" + HTML, "bad_content_type"),
    Case("an object", b'{"detail":"Not Found"}\n', "bad_content_type", "", {"head": '{"detail":"Not Found"}\n'}),
    Case(
        "an object over several lines",
        b'{\n  "detail": "no"\n}\n',
        "bad_content_type",
        "",
        {"head": '{\n  "detail": "no"\n}\n'},
    ),
    Case("nothing", b"", "empty_response"),
    Case("nothing but whitespace", b"\r\n \n", "empty_response"),
    Case("nothing said", DONE, "empty_response"),
    Case("nothing said, without a reason", line({"content": ""}) + line({}, done=True), "empty_response"),
    Case("nothing said before the limit", LIMIT, None),
    Case("a message that is none", HE + b'{"message":[],"done":false}\n' + DONE, "protocol_violation", "Hé"),
    Case("a text that is none", HE + line({"content": 1}) + DONE, "protocol_violation", "Hé"),
    Case("calls that are none", HE + line({"tool_calls": {}}) + DONE, "protocol_violation", "Hé"),
    Case("a call without a name", HE + line({"tool_calls": [{"function": {}}]}) + DONE, "protocol_violation", "Hé"),
    Case("a picture that is none", HE + line({"images": [1]}) + DONE, "protocol_violation", "Hé"),
    Case("text after the end", HE + DONE + LLO, None, "Hé", {"late": LLO.decode().strip()}),
    Case("an end after the end", HE + DONE + DONE, None, "Hé", {"late": DONE.decode().strip()}),
    Case("damage after the end", HE + DONE + b"{]\n", None, "Hé", {"late": "{]"}),
    Case("an error after the end", HE + DONE + b'{"error":"x"}\n', None, "Hé", {"late": '{"error":"x"}'}),
    Case("cut after the end", HE + DONE + LLO[:20], None, "Hé"),
    Case("an input that is no object", HE + call([1]) + DONE, "tool_input_invalid", "Hé"),
    Case("an input that is a text and none", HE + call('{"target":"all","dry_') + DONE, "tool_input_invalid", "Hé"),
    Case("an input as a text with NaN", HE + call('{"n":NaN}') + DONE, "tool_input_invalid", "Hé"),
    Case("an input as a text with two equal keys", HE + call('{"n":1,"n":2}') + DONE, "tool_input_invalid", "Hé"),
    Case(
        "an input with two equal keys",
        HE + call({"n": "X"}).replace(b'"X"', b'1,"n":2') + DONE,
        "tool_input_invalid",
        "Hé",
    ),
    Case("an input cut at the limit", HE + call('{"target":"al') + LIMIT, "tool_input_truncated", "Hé"),
    Case("no input at the limit", HE + call("") + LIMIT, "tool_input_truncated", "Hé"),
    Case("an empty input at the limit", HE + call({}) + LIMIT, None, "Hé"),
    Case("no input", HE + call("") + DONE, None, "Hé"),
    Case("cut in a call", HE + call({"target": "all"})[:-30], "stream_incomplete", "Hé"),
    Case("cut after a call", HE + call({"target": "all"}), "stream_incomplete", "Hé"),
]
UNUSABLE = {
    "an input that is no object": "[1]",
    "an input that is a text and none": '{"target":"all","dry_',
    "an input as a text with NaN": '{"n":NaN}',
    "an input as a text with two equal keys": '{"n":1,"n":2}',
    "an input with two equal keys": '{"n": 1,"n":2}',
    "an input cut at the limit": '{"target":"al',
    "no input at the limit": "",
}
CALLS = {
    "an empty input at the limit": [("delete_records", {})],
    "no input": [("delete_records", {})],
    "cut after a call": [("delete_records", {"target": "all"})],
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_stream_has_one_outcome_for_all_chunk_boundaries(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reply = outcome(OLLAMA, case)
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
    data = HE + LLO + call({"target": "all", "dry_run": True}) + DONE
    for at in range(len(data) - len(DONE)):
        reply = fold(events_of(OLLAMA, [data[:at]]))
        assert reply.fault is not None
        assert reply.fault.retryable
        assert "Héllo.".startswith(text_of(reply))
        assert calls_of(reply) in ([], [("delete_records", {"target": "all", "dry_run": True})])


READ_TWICE = "an input with two equal keys"  # of a whole reply, which has been read, no equal keys are left


@pytest.mark.parametrize(
    "name", [*sorted(UNUSABLE.keys() - {READ_TWICE}), "nothing said", "nothing said, without a reason"]
)
def test_an_unusable_reply_has_a_fault_and_round_trips(name: str) -> None:
    *pieces, last = [json.loads(part) for part in next(case for case in CASES if case.name == name).data.splitlines()]
    said: dict[str, Any] = {}
    for piece in pieces:
        said.update({key: value for key, value in piece["message"].items() if value})
    wire = {**last, "message": {**last["message"], **said}}
    reply = OLLAMA.read_reply(wire)
    streamed = outcome(OLLAMA, next(case for case in CASES if case.name == name))
    assert reply.fault == streamed.fault
    assert unusable_in(reply) == unusable_in(streamed)
    assert OLLAMA.write_reply(reply).wire == wire
    assert OLLAMA.write_reply(streamed).wire == wire


def test_a_foreign_unusable_call_is_never_written_as_a_valid_call() -> None:
    source = dialects.load("openai_chat")
    chunk = {
        "index": 0,
        "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{]"}}]},
    }
    ends = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    data = b"".join(b"data: " + json.dumps({"choices": [one]}).encode() + b"\n\n" for one in (chunk, ends))
    events = events_of(source, [data + b"data: [DONE]\n\n"])
    assert unusable_in(fold(events)) == [("f", "{]")]
    writer = OLLAMA.stream_writer()
    sent = b"".join([*(writer.feed(event) for event in events), writer.close()])
    assert b"tool_calls" not in sent
    assert fold(events_of(OLLAMA, [sent])).fault is not None
    whole = OLLAMA.write_reply(fold(events)).wire
    assert OLLAMA.read_reply(whole).fault is not None
