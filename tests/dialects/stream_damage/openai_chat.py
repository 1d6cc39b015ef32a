"""Damaged streams of Chat Completions, with their outcomes."""

from __future__ import annotations

import json
from typing import Any

from tests.dialects.stream_damage.case import ANY, Case

BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1760000000, "model": "gpt"}


def frame(wire: Any) -> bytes:
    return b"data: " + json.dumps(wire, ensure_ascii=False).encode() + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    return frame({**BASE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def call(index: int, **call: Any) -> bytes:
    return chunk(tool_calls=[{"index": index, **call}])


def call_chunks(*pieces: str, index: int = 0) -> bytes:
    start = {"id": f"call_{index}", "type": "function", "function": {"name": "delete_records", "arguments": ""}}
    return call(index, **start) + b"".join(call(index, function={"arguments": piece}) for piece in pieces)


START = chunk(role="assistant", content="")
HE, LLO = chunk(content="Hé"), chunk(content="llo.")
HELLO = START + HE + LLO
USED = frame({**BASE, "choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}})
DONE = b"data: [DONE]\n\n"
WHOLE = HELLO + chunk("stop") + USED + DONE
LIMIT, CALLED = chunk("length") + DONE, chunk("tool_calls") + DONE
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
OVERLOADED = {"message": "busy", "type": "server_error", "code": "engine_overloaded", "request_id": "req_1"}
REFUSED = {"message": "no such tool", "type": "invalid_request_error", "code": None}
CASES: dict[str, Case] = {
    "whole": Case(WHOLE, None, "Héllo."),
    "whole, without [DONE]": Case(HELLO + chunk("stop"), None, "Héllo."),
    "whole, [DONE] without a line end": Case(HELLO + chunk("stop") + DONE.strip(), None, "Héllo."),
    "CRLF": Case(WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    "CR": Case(WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    "comments": Case(b": OPENROUTER PROCESSING\n\n" + START + HE + b": ping\n\n" + LLO + chunk("stop"), None, "Héllo."),
    "a byte order mark": Case(b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    "unknown fields": Case(START + HE + frame({"x": 1}) + frame({}) + LLO + chunk("stop"), None, "Héllo."),
    "no space behind the colon": Case(WHOLE.replace(b"data: ", b"data:"), None, "Héllo."),
    "data on several lines": Case(WHOLE.replace(b'"choices": ', b'\ndata: "choices": '), None, "Héllo."),
    "empty choices": Case(START + HE + frame({**BASE, "choices": []}) + LLO + chunk("stop") + DONE, None, "Héllo."),
    "choices that are null": Case(START + HE + frame({**BASE, "choices": None}) + LLO + chunk("stop"), None, "Héllo."),
    "another id in every chunk": Case(WHOLE.replace(b"chatcmpl-1", b"chatcmpl-2", 1), None, "Héllo."),
    "a character whose halves came apart": Case(
        START + LLO.replace(b"llo.", b"a\\ud83d") + LLO.replace(b"llo.", b"\\ude00b") + chunk("stop") + DONE,
        None,
        "a😀b",
    ),
    "cut between two events": Case(HELLO, "stream_incomplete", "Héllo."),
    "cut in an event": Case(START + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[:-20].decode()}),
    "cut before the empty line": Case(START + HE + LLO[:-1], "stream_incomplete", "Héllo."),
    "cut in the first event": Case(START[:-30], "stream_incomplete", "", {"tail": START[:-30].decode()}),
    "cut in a character": Case(START + HE[: HE.index(b"\xa9")], "stream_incomplete", raw={"tail": ANY}),
    "cut in a long event": Case(START + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé", raw={"tail": ANY}),
    "cut between two halves": Case(START + LLO.replace(b"llo.", b"a\\ud83d"), "stream_incomplete", "a"),
    "[DONE] without a reason": Case(HELLO + DONE, "stream_incomplete", "Héllo."),
    "an empty reason": Case(HELLO + chunk("") + DONE, "stream_incomplete", "Héllo."),
    "an event that is no JSON": Case(START + HE + b"data: {]\n\n" + LLO + LIMIT, "bad_event", "Hé", {"tail": "{]"}),
    "an event that is no object": Case(START + HE + b"data: 1\n\n" + LLO + LIMIT, "bad_event", "Hé", {"tail": "1"}),
    "an event that is no UTF-8": Case(
        START + HE + LLO.replace(b"llo", b"\xff") + LIMIT, "bad_event", "Hé", raw={"tail": ANY}
    ),
    "half of a character": Case(START + HE + LLO.replace(b"llo.", b"\\ud83d") + chunk("stop"), "bad_event", "Hé"),
    "the wrong half of a character": Case(
        START + HE + LLO.replace(b"llo.", b"\\ude00") + chunk("stop"), "bad_event", "Hé"
    ),
    "nested without end": Case(
        START + HE + b"data: " + b"[" * 20_000 + b"\n\n" + LIMIT, "bad_event", "Hé", raw={"tail": ANY}
    ),
    "a page in the data": Case(b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    "overloaded": Case(
        START + HE + frame({"error": OVERLOADED}) + LLO + LIMIT,
        "overloaded",
        "Hé",
        fault={"message": "busy", "request_id": "req_1", "provider_code": "engine_overloaded", "retryable": True},
    ),
    "refused": Case(
        START + HE + frame({"error": REFUSED}) + LLO + LIMIT, "invalid_request", "Hé", fault={"retryable": False}
    ),
    "an error in words": Case(START + HE + frame({"error": "too many tokens"}), "server_error", "Hé"),
    "an error first": Case(frame({"error": OVERLOADED}), "overloaded"),
    "an end in an error": Case(START + HE + chunk("error") + DONE, "server_error", "Hé"),
    "an end for want of resources": Case(START + HE + chunk("insufficient_system_resource") + DONE, "overloaded", "Hé"),
    "a page": Case(HTML, "bad_content_type", "", {"head": PAGE}),
    "a page after a byte order mark": Case(b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    "a long page": Case(b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    "an object": Case(b'{"error":"x"}', "bad_content_type", "", {"head": '{"error":"x"}'}),
    "nothing": Case(b"", "empty_response"),
    "nothing but whitespace": Case(b"\r\n\n", "empty_response"),
    "nothing but [DONE]": Case(DONE, "empty_response"),
    "nothing but usage": Case(USED + DONE, "empty_response"),
    "no content": Case(START + chunk("stop") + DONE, "empty_response"),
    "no content before the limit": Case(START + LIMIT, None),
    "an invalid choice": Case(START + HE + frame({**BASE, "choices": [1]}) + LIMIT, "protocol_violation", "Hé"),
    "invalid choices": Case(START + HE + frame({**BASE, "choices": "x"}) + LIMIT, "protocol_violation", "Hé"),
    "a reasoning that is no text": Case(START + HE + chunk(reasoning=1) + LIMIT, "protocol_violation", "Hé"),
    "invalid parts": Case(START + HE + chunk(content=[1]) + LIMIT, "protocol_violation", "Hé"),
    "invalid calls": Case(START + HE + chunk(tool_calls=[1]) + LIMIT, "protocol_violation", "Hé"),
    "an invalid function": Case(START + HE + call(0, id="c", function=1) + LIMIT, "protocol_violation", "Hé"),
    "arguments that are no text": Case(
        START + HE + call(0, id="c", function={"name": "f", "arguments": 1}), "protocol_violation", "Hé"
    ),
    "a fragment of a call that has not begun": Case(
        START + HE + call(0, function={"arguments": "{}"}) + CALLED, "protocol_violation", "Hé"
    ),
    "a fragment of another call": Case(
        HELLO + call_chunks("{}") + call(1, function={"arguments": "{}"}) + CALLED,
        "protocol_violation",
        "Héllo.",
        invalid_inputs=("{}",),
    ),
    "a call that was never named": Case(
        HELLO + call(0, id="c", function={"arguments": "{}"}) + CALLED, "protocol_violation", "Héllo."
    ),
    "text after the reason": Case(HELLO + chunk("stop") + LLO + DONE, None, "Héllo.", {"late": "llo."}),
    "a call after the reason": Case(
        HELLO + chunk("stop") + call_chunks("{}") + DONE, None, "Héllo.", raw={"late": ANY}
    ),
    "text after the end": Case(WHOLE + LLO, None, "Héllo.", warnings=1),
    "damage after the end": Case(WHOLE + b"data: {]\n\n", None, "Héllo."),
    "another message after the end": Case(WHOLE + WHOLE, None, "Héllo.", warnings=1),
    "an input that is no object": Case(
        HELLO + call_chunks("[1]") + CALLED, "tool_input_invalid", "Héllo.", invalid_inputs=("[1]",)
    ),
    "an input that was cut": Case(
        HELLO + call_chunks('{"target":"all"', ',"dry_') + CALLED,
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"target":"all","dry_',),
    ),
    "an input with NaN": Case(
        HELLO + call_chunks('{"n":NaN}') + CALLED, "tool_input_invalid", "Héllo.", invalid_inputs=('{"n":NaN}',)
    ),
    "an input with two equal keys": Case(
        HELLO + call_chunks('{"n":1,', '"n":2}') + CALLED,
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"n":1,"n":2}',),
    ),
    "an input that was cut, with an end": Case(
        HELLO + call_chunks('{"target":"all"') + chunk("stop"),
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"target":"all"',),
    ),
    "an input cut at the limit": Case(
        HELLO + call_chunks('{"target":"al') + LIMIT,
        "tool_input_truncated",
        "Héllo.",
        invalid_inputs=('{"target":"al',),
    ),
    "no input at the limit": Case(
        HELLO + call_chunks() + LIMIT, "tool_input_truncated", "Héllo.", invalid_inputs=("",)
    ),
    "an empty input at the limit": Case(HELLO + call_chunks("{}") + LIMIT, None, "Héllo.", calls=({},)),
    "no input": Case(HELLO + call_chunks() + CALLED, None, "Héllo.", calls=({},)),
    "an input whose character came apart": Case(
        HELLO + call_chunks('{"n":"\\ud83d', '\\ude00"}') + CALLED, None, "Héllo.", calls=({"n": "😀"},)
    ),
    "cut in an input": Case(
        HELLO + call_chunks('{"target":"all"'), "stream_incomplete", "Héllo.", invalid_inputs=('{"target":"all"',)
    ),
    "cut after a call": Case(
        HELLO + call_chunks('{"target":"all"}'), "stream_incomplete", "Héllo.", invalid_inputs=('{"target":"all"}',)
    ),
}
# Cut at any byte, this stream has a fault.
CUT = HELLO + call_chunks('{"target":"all",', '"dry_run":true}')
