"""Damaged streams of Anthropic, with their outcomes."""

from __future__ import annotations

import json
from typing import Any

from tests.dialects.stream_damage.case import ANY, Case


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def start_block(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stop_block(index: int) -> bytes:
    return event("content_block_stop", index=index)


def end(reason: str | None = "end_turn", *, is_stopped: bool = True) -> bytes:
    delta_fields = {"stop_reason": reason, "stop_sequence": None}
    message_delta = event("message_delta", delta=delta_fields, usage={"output_tokens": 3})
    return message_delta + event("message_stop") if is_stopped else message_delta


def call_events(*pieces: str, is_ended: bool = True, **block: Any) -> bytes:
    call = {"type": "tool_use", "id": "toolu_1", "name": "delete_records", "input": {}, **block}
    deltas = [delta(1, "input_json_delta", partial_json=piece) for piece in pieces]
    return start_block(1, **call) + b"".join(deltas) + (stop_block(1) if is_ended else b"")


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
USAGE = {"input_tokens": 8, "output_tokens": 1}
START = event("message_start", message={**MESSAGE, "stop_reason": None, "stop_sequence": None, "usage": USAGE})
OPEN = START + start_block(0, type="text", text="")
HE, LLO = (delta(0, "text_delta", text=text) for text in ("Hé", "llo."))
HELLO = OPEN + HE + LLO + stop_block(0)
WHOLE = HELLO + end()
PING = event("ping")
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
PAGE = HTML.decode().replace("abcdef0123456789", "***")
OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
REFUSED = {"type": "invalid_request_error", "message": "no such tool"}
CASES: dict[str, Case] = {
    "whole": Case(WHOLE, None, "Héllo."),
    "whole, without message_stop": Case(HELLO + end(is_stopped=False), None, "Héllo."),
    "whole, with [DONE]": Case(WHOLE + b"data: [DONE]\n\n", None, "Héllo."),
    "CRLF": Case(WHOLE.replace(b"\n", b"\r\n"), None, "Héllo."),
    "CR": Case(WHOLE.replace(b"\n", b"\r"), None, "Héllo."),
    "comments and pings": Case(
        b": hi\n\n" + OPEN + HE + PING + b": ping\n\n" + LLO + stop_block(0) + end(), None, "Héllo."
    ),
    "a byte order mark": Case(b"\xef\xbb\xbf" + WHOLE, None, "Héllo."),
    "unknown events": Case(
        event("news") + OPEN + HE + event("news", index=0) + LLO + stop_block(0) + end(), None, "Héllo."
    ),
    "unknown deltas": Case(OPEN + HE + delta(0, "news", text="x") + LLO + stop_block(0) + end(), None, "Héllo."),
    "events without names": Case(WHOLE.replace(b"event: content_block_delta\n", b""), None, "Héllo."),
    "padded events": Case(WHOLE.replace(b"}}\n\n", b"}     }\n\n"), None, "Héllo."),
    "data on several lines": Case(WHOLE.replace(b'"index": 0, ', b'"index": 0,\ndata: '), None, "Héllo."),
    "cut between two events": Case(OPEN + HE + LLO, "stream_incomplete", "Héllo."),
    "cut before the end": Case(HELLO, "stream_incomplete", "Héllo."),
    "cut in an event": Case(OPEN + HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[27:-20].decode()}),
    "cut before the empty line": Case(OPEN + HE + LLO[:-1], "stream_incomplete", "Héllo."),
    "cut in the first event": Case(START[:-30], "stream_incomplete", "", {"tail": START[21:-30].decode()}),
    "cut in a character": Case(OPEN + HE[: HE.index(b"\xa9")], "stream_incomplete", raw={"tail": ANY}),
    "cut in a long event": Case(OPEN + HE + b"data: " + b"x" * 9000, "stream_incomplete", "Hé", raw={"tail": ANY}),
    "an end without a reason": Case(HELLO + end(None), "stream_incomplete", "Héllo."),
    "an end that never began": Case(event("message_stop"), "protocol_violation"),
    "an event that is no JSON": Case(OPEN + HE + b"data: {]\n\n" + LLO + end(), "bad_event", "Hé", {"tail": "{]"}),
    "an event that is no UTF-8": Case(
        OPEN + HE + LLO.replace(b"llo", b"\xff") + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "half of a character": Case(
        OPEN + HE + LLO.replace(b"llo.", b"\\ud83d") + stop_block(0) + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "nested without end": Case(
        OPEN + HE + b"data: " + b"[" * 20_000 + b"\n\n" + end(), "bad_event", "Hé", raw={"tail": ANY}
    ),
    "a page in the data": Case(b"data: <html>\n\n", "bad_event", "", {"tail": "<html>"}),
    "overloaded": Case(
        OPEN + HE + event("error", error=OVERLOADED, request_id="req_1") + LLO,
        "overloaded",
        "Hé",
        fault={"message": "Overloaded", "request_id": "req_1", "provider_code": "overloaded_error", "retryable": True},
    ),
    "refused": Case(
        OPEN + HE + event("error", error=REFUSED) + LLO + stop_block(0) + end(),
        "invalid_request",
        "Hé",
        fault={"retryable": False},
    ),
    "an error first": Case(event("error", error=OVERLOADED), "overloaded"),
    "an error that says nothing": Case(OPEN + HE + event("error"), "server_error", "Hé"),
    "a page": Case(HTML, "bad_content_type", "", {"head": PAGE}),
    "a page after a byte order mark": Case(b"\xef\xbb\xbf" + HTML, "bad_content_type", "", {"head": PAGE}),
    "a long page": Case(b"<html>" + b"x" * 5000, "bad_content_type", "", {"head": "<html>" + "x" * 1018}),
    "an object": Case(b'{"type":"error"}', "bad_content_type", "", {"head": '{"type":"error"}'}),
    "nothing": Case(b"", "empty_response"),
    "nothing but whitespace": Case(b"\r\n\n", "empty_response"),
    "nothing but pings": Case(PING + PING, "stream_incomplete"),
    "no content": Case(START + end(), "empty_response"),
    "an empty text": Case(OPEN + stop_block(0) + end(), "empty_response"),
    "an empty text at a stop sequence": Case(OPEN + stop_block(0) + end("stop_sequence"), "empty_response"),
    "no content before the limit": Case(START + end("max_tokens"), None),
    "a second start": Case(OPEN + HE + START + LLO + end(), "protocol_violation", "Hé"),
    "an invalid start": Case(event("message_start", message=1), "protocol_violation"),
    "a delta before the start": Case(HE + WHOLE, "protocol_violation"),
    "an end before the start": Case(end() + WHOLE, "protocol_violation"),
    "a delta for a block that has not begun": Case(START + HE + WHOLE, "protocol_violation"),
    "a delta for a block that has ended": Case(HELLO + LLO + end(), "protocol_violation", "Héllo."),
    "a block that begins twice": Case(
        OPEN + HE + start_block(0, type="text", text="") + end(), "protocol_violation", "Hé"
    ),
    "a block that ends twice": Case(HELLO + stop_block(0) + end(), "protocol_violation", "Héllo."),
    "a block that was passed over": Case(START + start_block(1, type="text", text="") + end(), "protocol_violation"),
    "an end while a block is open": Case(OPEN + HE + end(), "protocol_violation", "Hé"),
    "the last end while a block is open": Case(OPEN + HE + end(is_stopped=False), "protocol_violation", "Hé"),
    "an invalid index": Case(OPEN + HE + LLO.replace(b'"index": 0', b'"index": "0"'), "protocol_violation", "Hé"),
    "an invalid delta": Case(OPEN + HE + event("content_block_delta", index=0, delta=1), "protocol_violation", "Hé"),
    "an invalid block": Case(START + event("content_block_start", index=0, content_block=1), "protocol_violation"),
    "an invalid text": Case(START + start_block(0, type="text", text=1) + stop_block(0) + end(), "protocol_violation"),
    "thinking in a text": Case(
        OPEN + HE + delta(0, "thinking_delta", thinking="x") + end(), "protocol_violation", "Hé"
    ),
    "input in a text": Case(OPEN + HE + delta(0, "input_json_delta", partial_json="{}"), "protocol_violation", "Hé"),
    "a call without an id": Case(HELLO + call_events("{}", id=None) + end("tool_use"), "protocol_violation", "Héllo."),
    "a call without a name": Case(
        HELLO + call_events("{}", name=None) + end("tool_use"), "protocol_violation", "Héllo."
    ),
    "the input of a search that is no JSON": Case(
        HELLO + call_events("{]", type="server_tool_use") + end(), "protocol_violation", "Héllo."
    ),
    "text after the reason": Case(
        HELLO + end(is_stopped=False) + LLO + event("message_stop"), None, "Héllo.", {"late": "llo."}
    ),
    "a block after the reason": Case(
        HELLO + end(is_stopped=False) + call_events('{"target":"all"}') + event("message_stop"),
        None,
        "Héllo.",
        {"late": '{"target":"all"}'},
    ),
    "text after the end": Case(WHOLE + LLO, None, "Héllo.", warnings=1),
    "damage after the end": Case(WHOLE + b"data: {]\n\n", None, "Héllo."),
    "another message after the end": Case(WHOLE + WHOLE, None, "Héllo.", warnings=1),
    "an input that is no object": Case(
        HELLO + call_events("[1]") + end("tool_use"), "tool_input_invalid", "Héllo.", invalid_inputs=("[1]",)
    ),
    "an input that was cut": Case(
        HELLO + call_events('{"target":"all"', ',"dry_') + end("tool_use"),
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"target":"all","dry_',),
    ),
    "an input with NaN": Case(
        HELLO + call_events('{"n":NaN}') + end("tool_use"),
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"n":NaN}',),
    ),
    "an input with two equal keys": Case(
        HELLO + call_events('{"n":1,', '"n":2}') + end("tool_use"),
        "tool_input_invalid",
        "Héllo.",
        invalid_inputs=('{"n":1,"n":2}',),
    ),
    "an input cut at the limit": Case(
        HELLO + call_events('{"target":"al') + end("max_tokens"),
        "tool_input_truncated",
        "Héllo.",
        invalid_inputs=('{"target":"al',),
    ),
    "no input at the limit": Case(
        HELLO + call_events() + end("max_tokens"), "tool_input_truncated", "Héllo.", invalid_inputs=("",)
    ),
    "an open call at the limit": Case(
        HELLO + call_events('{"target":"al', is_ended=False) + end("max_tokens"),
        "protocol_violation",
        "Héllo.",
        invalid_inputs=('{"target":"al',),
    ),
    "an empty input at the limit": Case(HELLO + call_events("{}") + end("max_tokens"), None, "Héllo.", calls=({},)),
    "no input": Case(HELLO + call_events() + end("tool_use"), None, "Héllo.", calls=({},)),
    "an input at the beginning": Case(
        HELLO + call_events(input={"n": 1}) + end("tool_use"), None, "Héllo.", calls=({"n": 1},)
    ),
    "cut in an input": Case(
        HELLO + call_events('{"target":"all"', is_ended=False),
        "stream_incomplete",
        "Héllo.",
        invalid_inputs=('{"target":"all"',),
    ),
    "cut after a call": Case(
        HELLO + call_events('{"target":"all"}'), "stream_incomplete", "Héllo.", calls=({"target": "all"},)
    ),
}
# Cut at any byte, this stream has a fault.
CUT = HELLO + call_events('{"target":"all",', '"dry_run":true}')
