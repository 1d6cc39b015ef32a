"""Damaged streams of Cohere, with their outcomes."""

from __future__ import annotations

import json
from typing import Any

from tests.dialects.stream_damage.case import ANY, Case


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
HELLO = OPEN + HE + LLO + CLOSE
DONE = b"data: [DONE]\n\n"
WHOLE = HELLO + end() + DONE
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
LATE = json.dumps({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "llo."}}}})
CASES: dict[str, Case] = {
    "whole": Case(WHOLE, None, "Héllo."),
    "whole, without [DONE]": Case(HELLO + end(), None, "Héllo."),
    "whole, [DONE] as a text": Case(HELLO + end() + b'data: "[DONE]"\n\n', None, "Héllo."),
    "CRLF": Case(WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    "CR": Case(WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    "comments": Case(b": hi\n\n" + OPEN + HE + b": ping\n\n" + LLO + CLOSE + end() + b":\n\n" + DONE, None, "Héllo."),
    "a byte order mark": Case(b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    "unknown events": Case(event("ping") + OPEN + HE + event("debug", 3) + LLO + CLOSE + end(), None, "Héllo."),
    "data on several lines": Case(WHOLE.replace(b'{"id": "ad61ac19", ', b'{"id": "ad61ac19",\ndata: '), None, "Héllo."),
    "events without names": Case(WHOLE.replace(b"event: content-delta\n", b""), None, "Héllo."),
    "cut between two events": Case(OPEN + HE + LLO, "stream_incomplete", "Héllo."),
    "cut before the end": Case(HELLO, "stream_incomplete", "Héllo."),
    "cut in an event": Case(OPEN + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[21:-20].decode()}),
    "cut before the empty line": Case(OPEN + HE + LLO[:-2], "stream_incomplete", "Héllo."),
    "cut in the first event": Case(START[:-30], "stream_incomplete", raw={"tail": ANY}),
    "cut in a character": Case(OPEN + HE[: HE.index(b"\xa9")], "stream_incomplete", raw={"tail": ANY}),
    "cut in a long event": Case(OPEN + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé", raw={"tail": ANY}),
    "[DONE] without an end": Case(HELLO + DONE, "stream_incomplete", "Héllo."),
    "an end without a reason": Case(HELLO + end(None) + DONE, "stream_incomplete", "Héllo."),
    "an event that is no JSON": Case(
        OPEN + HE + b"data: {]\n\n" + LLO + CLOSE + end(), "bad_event", "Hé", {"tail": "{]"}
    ),
    "an event that is no object": Case(
        OPEN + HE + b"data: 1\n\n" + LLO + CLOSE + end(), "bad_event", "Hé", {"tail": "1"}
    ),
    "an event that is no UTF-8": Case(
        OPEN + HE + LLO.replace(b"llo", b"\xff") + CLOSE + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "half of a character": Case(
        OPEN + HE + LLO.replace(b"llo.", b"\\ud83d") + CLOSE + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "nested without end": Case(
        OPEN + HE + b"data: " + b"[" * 20_000 + b"\n\n" + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "a page in the data": Case(b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    "an error": Case(
        OPEN + HE + frame({"type": "error", "message": "out of order", "id": "r1"}),
        "server_error",
        "Hé",
        fault={"message": "out of order", "request_id": "r1", "retryable": True},
    ),
    "an error by its name": Case(OPEN + HE + frame({"message": "out of order"}, "error"), "server_error", "Hé"),
    "an error without a type": Case(
        OPEN + HE + b'data: {"message":"too many tokens"}\n\n', "context_overflow", "Hé", fault={"retryable": False}
    ),
    "an end in an error": Case(
        OPEN + HE + CLOSE + end("ERROR", error="broken") + DONE,
        "server_error",
        "Hé",
        fault={"message": "broken", "provider_code": "ERROR", "retryable": True},
    ),
    "an end in a timeout": Case(OPEN + HE + CLOSE + end("TIMEOUT") + DONE, "timeout", "Hé"),
    "an end at its limit": Case(OPEN + HE + CLOSE + end("ERROR_LIMIT") + DONE, "context_overflow", "Hé"),
    "a page": Case(HTML, "bad_content_type", "", {"head": PAGE}),
    "a page after a byte order mark": Case(b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    "a long page": Case(b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    "an object": Case(
        b'{"message":"invalid api token"}', "bad_content_type", "", {"head": '{"message":"invalid api token"}'}
    ),
    "nothing": Case(b"", "empty_response"),
    "nothing but whitespace": Case(b"\r\n\n", "empty_response"),
    "no content": Case(START + end() + DONE, "empty_response"),
    "an empty text": Case(OPEN + CLOSE + end() + DONE, "empty_response"),
    "no content before the limit": Case(START + end("MAX_TOKENS") + DONE, None),
    "a second start": Case(OPEN + HE + START + LLO + CLOSE + end(), "protocol_violation", "Hé"),
    "a delta before the start": Case(HE + WHOLE, "protocol_violation"),
    "a delta for a part that has not begun": Case(START + HE + WHOLE, "protocol_violation"),
    "a delta for a part that has ended": Case(OPEN + HE + CLOSE + LLO + end(), "protocol_violation", "Hé"),
    "a part that begins twice": Case(OPEN + HE + OPEN[len(START) :] + CLOSE + end(), "protocol_violation", "Hé"),
    "a part that ends twice": Case(OPEN + HE + CLOSE + CLOSE + end(), "protocol_violation", "Hé"),
    "an end while a part is open": Case(OPEN + HE + end() + DONE, "protocol_violation", "Hé"),
    "parts out of order": Case(
        OPEN.replace(b'"index": 0', b'"index": 1') + event("content-start", 0, content={"type": "text", "text": ""}),
        "protocol_violation",
    ),
    "an invalid index": Case(
        OPEN + HE + LLO.replace(b'"index": 0', b'"index": "0"') + CLOSE + end(), "protocol_violation", "Hé"
    ),
    "an invalid delta": Case(
        OPEN + HE + frame({"type": "content-delta", "index": 0, "delta": 1}), "protocol_violation", "Hé"
    ),
    "input for a call that has not begun": Case(
        HELLO + event("tool-call-delta", 0, tool_calls={"function": {"arguments": "{}"}}),
        "protocol_violation",
        "Héllo.",
    ),
    "input for a call that has ended": Case(
        HELLO + call_frames("{}") + event("tool-call-delta", 0, tool_calls={"function": {"arguments": "{}"}}),
        "protocol_violation",
        "Héllo.",
        calls=({},),
    ),
    "a call without a name": Case(
        HELLO + event("tool-call-start", 0, tool_calls={"id": "c", "function": {}}), "protocol_violation", "Héllo."
    ),
    "a call without an id": Case(
        HELLO + event("tool-call-start", 0, tool_calls={"function": {"name": "f"}}), "protocol_violation", "Héllo."
    ),
    "a message that does not begin empty": Case(
        frame({"type": "message-start", "delta": {"message": {"content": [1]}}}), "protocol_violation"
    ),
    "text after the end": Case(OPEN + HE + CLOSE + end() + LLO + DONE, None, "Hé", {"late": LATE}),
    "damage after the end": Case(OPEN + HE + CLOSE + end() + b"data: {]\n\n", None, "Hé", {"late": "{]"}),
    "after [DONE]": Case(OPEN + HE + CLOSE + end() + DONE + LLO, None, "Hé"),
    "an input that is no object": Case(
        HELLO + call_frames("[1]") + end("TOOL_CALL") + DONE, "tool_input_invalid", "Héllo.", invalid_inputs=("[1]",)
    ),
    "an input that was cut": Case(
        HELLO + call_frames('{"target":"all"', ',"dry_') + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"target":"all","dry_',),
    ),
    "an input with NaN": Case(
        HELLO + call_frames('{"n":NaN}') + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"n":NaN}',),
    ),
    "an input with two equal keys": Case(
        HELLO + call_frames('{"n":1,', '"n":2}') + end("TOOL_CALL") + DONE,
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"n":1,"n":2}',),
    ),
    "an input cut at the limit": Case(
        HELLO + call_frames('{"target":"al') + end("MAX_TOKENS") + DONE,
        "tool_input_truncated",
        "Héllo.",
        invalid_inputs=('{"target":"al',),
    ),
    "an open input at the limit": Case(
        HELLO + call_frames('{"target":"al', is_ended=False) + end("MAX_TOKENS") + DONE,
        "tool_input_truncated",
        "Héllo.",
        invalid_inputs=('{"target":"al',),
    ),
    "no input at the limit": Case(
        HELLO + call_frames() + end("MAX_TOKENS") + DONE, "tool_input_truncated", "Héllo.", invalid_inputs=("",)
    ),
    "a call that never ends": Case(
        HELLO + call_frames("{}", is_ended=False) + end("TOOL_CALL") + DONE,
        "tool_input_truncated",
        "Héllo.",
        invalid_inputs=("{}",),
    ),
    "an empty input at the limit": Case(
        HELLO + call_frames("{}") + end("MAX_TOKENS") + DONE, None, "Héllo.", calls=({},)
    ),
    "no input": Case(HELLO + call_frames() + end("TOOL_CALL") + DONE, None, "Héllo.", calls=({},)),
    "cut in an input": Case(
        HELLO + call_frames('{"target":"all"', is_ended=False),
        "stream_incomplete",
        "Héllo.",
        invalid_inputs=('{"target":"all"',),
    ),
    "cut after a call": Case(
        HELLO + call_frames('{"target":"all"}'), "stream_incomplete", "Héllo.", calls=({"target": "all"},)
    ),
}
# Cut at any byte, this stream has a fault.
CUT = HELLO + call_frames('{"target":"all",', '"dry_run":true}')
