"""Damaged streams of Gemini, with their outcomes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tests.dialects.stream_damage.case import Case


def chunk(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    """Return a chunk as the API sends it."""
    return {
        "candidates": [{"content": {"parts": list(parts), "role": "model"}, "index": 0, **candidate}],
        "modelVersion": "gemini-3-flash",
        "responseId": "r1",
    }


def sse(*chunks: Any, end: str = "\r\n") -> bytes:
    return "".join(f"data: {json.dumps(item, ensure_ascii=False)}{end}{end}" for item in chunks).encode()


def call_stream(arguments: str) -> bytes:
    """Return a stream with a call that has these arguments."""
    part = '{"functionCall":{"name":"read_file","args":' + arguments + "}}"
    return f'data: {{"candidates":[{{"content":{{"parts":[{part}]}},"finishReason":"STOP"}}]}}\n\n'.encode()


def partial_call(**call: Any) -> dict[str, Any]:
    return chunk({"functionCall": call})


HEL, LO = chunk({"text": "Hél"}), chunk({"text": "lo."}, finishReason="STOP")
HELLO = sse(HEL, LO)
STOP = chunk({"text": ""}, finishReason="STOP")
PROBLEM = {"code": 503, "message": "busy", "status": "UNAVAILABLE"}
REFUSED = {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}
NAMED = {"details": [{"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": "req-7"}]}
PAGE = b"<!doctype html><html><body>Bad gateway, api_key=sk-very-secret-indeed</body></html>"
LATE = chunk({"text": "more"})
CODE = chunk({"executableCode": {"code": "print(1)", "language": "PYTHON"}}, finishReason="STOP")
RAN = chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}})


CASES: dict[str, Case] = {
    # --- complete, whatever the bytes look like
    "as it should be": Case(HELLO, None, "Héllo."),
    "LF": Case(sse(HEL, LO, end="\n"), None, "Héllo."),
    "CR": Case(sse(HEL, LO, end="\r"), None, "Héllo."),
    "a byte order mark": Case(b"\xef\xbb\xbf" + HELLO, None, "Héllo."),
    "comments, pings and unknown events": Case(
        b": hi\n\nevent: ping\ndata: {}\n\n"
        + sse(HEL, {"ping": 1})
        + b"id: 7\nretry: 9\nevent: x\n\n: bye\n\n"
        + sse(LO),
        None,
        "Héllo.",
    ),
    "white space first": Case(b" \r\n\n" + HELLO, None, "Héllo."),
    "no candidates beside the usage": Case(
        sse(HEL, LO, {"candidates": [], "usageMetadata": {"promptTokenCount": 3}}), None, "Héllo."
    ),
    "a last chunk without its empty line": Case(HELLO[:-2], None, "Héllo."),
    "[DONE] of a relay": Case(HELLO + b"data: [DONE]\n\n", None, "Héllo."),
    "[DONE] twice": Case(HELLO + b"data: [DONE]\n\ndata: [DONE]\n\n", None, "Héllo."),
    "an array": Case(json.dumps([HEL, LO], indent=1).encode(), None, "Héllo."),
    "an array, as it was asked for": Case(
        b"\xef\xbb\xbf" + json.dumps([HEL, LO], indent=1).encode(), None, "Héllo.", framing="json-array"
    ),
    "an array without its last bracket": Case(json.dumps([HEL, LO]).encode()[:-1], None, "Héllo."),
    "a whole response": Case(json.dumps(chunk({"text": "Hi."}, finishReason="STOP"), indent=2).encode(), None, "Hi."),
    "a refusal of the prompt": Case(sse({"promptFeedback": {"blockReason": "SAFETY"}}), None),
    "at the limit": Case(sse(HEL, chunk({"text": "l"}, finishReason="MAX_TOKENS")), None, "Hél" + "l"),
    "after code that was run": Case(sse(CODE, RAN, LO), None, "lo."),
    "a signature after the reason": Case(sse(HEL, LO, chunk({"text": "", "thoughtSignature": "cw=="})), None, "Héllo."),
    "no reason, where that is known of the provider": Case(
        sse(HEL) + b"data: [DONE]\n\n", None, "Hél", quirks=("terminal_reason_optional",)
    ),
    # --- cut
    "nothing": Case(b"", "empty_response"),
    "white space alone": Case(b"\r\n \n", "empty_response"),
    "a byte order mark alone": Case(b"\xef\xbb\xbf", "empty_response"),
    "[DONE] alone": Case(b"data: [DONE]\n\n", "empty_response"),
    "an array of nothing": Case(b"[\n]\n", "empty_response"),
    "comments alone": Case(b": ping\n\n", "stream_incomplete"),
    "no reason": Case(sse(HEL), "stream_incomplete", "Hél", fault={"retryable": True, "error_class": "network"}),
    "no reason, then [DONE]": Case(sse(HEL) + b"data: [DONE]\n\n", "stream_incomplete", "Hél"),
    "no reason, and no [DONE], where it is optional": Case(
        sse(HEL), "stream_incomplete", "Hél", quirks=("terminal_reason_optional",)
    ),
    "no reason in a whole array": Case(json.dumps([HEL]).encode(), "stream_incomplete", "Hél"),
    "inside an event": Case(
        sse(HEL) + b'data: {"candidates":[{"con', "stream_incomplete", "Hél", {"tail": 'data: {"candidates":[{"con'}
    ),
    "inside the second line of an event": Case(
        sse(HEL) + b'data: {"candidates":\ndata: [{"con',
        "stream_incomplete",
        "Hél",
        {"tail": '{"candidates":\ndata: [{"con'},
    ),
    "inside a long event": Case(
        sse(HEL) + b'data: {"x":"' + b"y" * 9000, "stream_incomplete", "Hél", {"tail": 'data: {"x":"' + "y" * 4084}
    ),
    "inside a character": Case(
        sse(HEL) + b'data: {"text":"h\xc3', "stream_incomplete", "Hél", {"tail": 'data: {"text":"h\\xc3'}
    ),
    "inside an item of an array": Case(
        json.dumps([HEL]).encode()[:-1] + b',{"cand', "stream_incomplete", "Hél", {"tail": '{"cand'}
    ),
    "inside a character of an array": Case(
        b'[{"candidates":[{"content":{"parts":[{"text":"h' + b"\xc3",
        "stream_incomplete",
        "",
        {"tail": '{"candidates":[{"content":{"parts":[{"text":"h\\xc3'},
    ),
    "inside a whole response": Case(b'{"candidates":[{"co', "stream_incomplete", "", {"tail": '{"candidates":[{"co'}),
    "after the reason, inside one more event": Case(
        HELLO + b'data: {"usageMeta', "stream_incomplete", "Héllo.", {"tail": 'data: {"usageMeta'}
    ),
    "while code runs": Case(sse(CODE, RAN), "stream_incomplete"),
    # --- not what it should be
    "no JSON": Case(sse(HEL) + b"data: {oops}\n\n" + sse(LO), "bad_event", "Hél", fault={"retryable": True}),
    "no object": Case(sse(HEL) + b"data: 7\n\n" + sse(LO), "bad_event", "Hél"),
    "an invalid number": Case(sse(HEL) + b'data: {"usageMetadata":{"n":NaN}}\n\n' + sse(LO), "bad_event", "Hél"),
    "bytes that are no text": Case(sse(HEL) + b'data: {"modelVersion":"\xff"}\n\n' + sse(LO), "bad_event", "Hél"),
    "half of a character": Case(sse(HEL) + b'data: {"modelVersion":"\\ud83d"}\n\n' + sse(LO), "bad_event", "Hél"),
    "nested too deep": Case(
        sse(HEL) + b'data: {"usageMetadata":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n" + sse(LO), "bad_event", "Hél"
    ),
    "something between the items of an array": Case(
        json.dumps([HEL]).encode()[:-1] + b" oops, " + json.dumps(LO).encode() + b"]", "bad_event", "Hél"
    ),
    "no comma between the items of an array": Case(
        json.dumps([HEL]).encode()[:-1] + json.dumps(LO).encode() + b"]", "bad_event", "Hél"
    ),
    "events where an array was asked for": Case(HELLO, "bad_event", framing="json-array"),
    "a page": Case(
        PAGE, "bad_content_type", "", {"head": "<!doctype html><html><body>Bad gateway, api_key=***</body></html>"}
    ),
    "a page where an array was asked for": Case(
        b"\n <p>no</p>", "bad_content_type", "", {"head": "\n <p>no</p>"}, framing="json-array"
    ),
    "a long page": Case(b"<p>" + b"x" * 5000, "bad_content_type", "", {"head": "<p>" + "x" * 1021}),
    "another JSON object": Case(
        b'{"detail": "Not Found"}', "bad_content_type", "", {"head": '{"detail": "Not Found"}'}
    ),
    "another JSON array": Case(b'[{"detail": 1}]', "bad_content_type", "", {"head": '[{"detail": 1}]'}),
    # --- errors that the provider names
    "an error": Case(
        sse(HEL, {"error": PROBLEM}, LO),
        "overloaded",
        "Hél",
        fault={"provider_code": "UNAVAILABLE", "retryable": True, "request_id": "r1", "message": "busy"},
    ),
    "an error that is final": Case(
        sse(HEL, {"error": {**REFUSED, **NAMED}}),
        "invalid_request",
        "Hél",
        fault={"provider_code": "INVALID_ARGUMENT", "retryable": False, "request_id": "req-7"},
    ),
    "an error in place of the stream": Case(
        json.dumps({"error": PROBLEM}, indent=2).encode(), "overloaded", fault={"provider_code": "UNAVAILABLE"}
    ),
    "an error in an array": Case(json.dumps([HEL, {"error": PROBLEM}]).encode(), "overloaded", "Hél"),
    "an error as a text": Case(b'{"error": "no such route"}', "server_error", fault={"message": "no such route"}),
    "a call that the provider could not read": Case(
        sse(HEL, chunk(finishReason="MALFORMED_FUNCTION_CALL", finishMessage="bad call")),
        "tool_input_invalid",
        "Hél",
        fault={"provider_code": "MALFORMED_FUNCTION_CALL", "message": "bad call"},
    ),
    # --- out of order
    "candidates that are no list": Case(sse(HEL, {"candidates": {"a": 1}}, LO), "protocol_violation", "Hél"),
    "a candidate that is no object": Case(sse(HEL, {"candidates": [1]}, LO), "protocol_violation", "Hél"),
    "a part that is no object": Case(sse(HEL, chunk("x"), LO), "protocol_violation", "Hél"),  # type: ignore[arg-type]
    "a piece of a call that has not begun": Case(
        sse(HEL, partial_call(partialArgs=[{"jsonPath": "$.a", "numberValue": 1}]), LO), "protocol_violation", "Hél"
    ),
    "a piece that fits nowhere": Case(
        sse(HEL, partial_call(name="f", partialArgs=[{"jsonPath": "$[0]", "numberValue": 1}], willContinue=True)),
        "protocol_violation",
        "Hél",
        invalid_inputs=("",),
    ),
    "a second call inside the first": Case(
        sse(HEL, partial_call(name="f", willContinue=True), partial_call(name="g", willContinue=True), LO),
        "protocol_violation",
        "Hél",
        invalid_inputs=("",),
    ),
    # --- calls
    "arguments that are a list": Case(call_stream("[1]"), "tool_input_invalid", invalid_inputs=("[1]",)),
    "arguments that are a text": Case(call_stream('"{}"'), "tool_input_invalid", invalid_inputs=('"{}"',)),
    "arguments that are an empty text": Case(call_stream('""'), "tool_input_invalid", invalid_inputs=('""',)),
    "arguments with a key twice": Case(
        call_stream('{"a":1,"a":2}'), "tool_input_invalid", invalid_inputs=('{"a":1,"a":2}',)
    ),
    "arguments with NaN": Case(call_stream('{"a":NaN}'), "bad_event"),  # here the event is not valid JSON
    "arguments that were cut by the end of the stream": Case(
        sse(HEL, partial_call(name="f", willContinue=True)), "stream_incomplete", "Hél", invalid_inputs=("",)
    ),
    "arguments that were cut by the limit": Case(
        sse(
            HEL,
            partial_call(name="f", partialArgs=[{"jsonPath": "$.a", "stringValue": "x"}], willContinue=True),
            chunk({"text": ""}, finishReason="MAX_TOKENS"),
        ),
        "tool_input_truncated",
        "Hél",
        invalid_inputs=("",),
    ),
    # --- no content
    "an end without a word": Case(sse(STOP), "empty_response"),
    "an end without a word, and not why": Case(sse(chunk(finishReason="OTHER")), "empty_response"),
    # --- after the end
    "words after the reason": Case(
        HELLO + sse(LATE), None, "Héllo.", {"late": msgspec.json.encode(LATE["candidates"][0]).decode()}
    ),
    "a call after the reason": Case(
        HELLO + sse(partial_call(name="f", args={})),
        None,
        "Héllo.",
        {"late": msgspec.json.encode(partial_call(name="f", args={})["candidates"][0]).decode()},
    ),
    "words after [DONE]": Case(
        HELLO + b"data: [DONE]\n\n" + sse(LATE), None, "Héllo.", {"late": json.dumps(LATE, ensure_ascii=False)}
    ),
    "something after an array": Case(
        json.dumps([HEL, LO]).encode() + b"\n oops \xc3", None, "Héllo.", {"late": "oops \\xc3"}
    ),
    "a long text after [DONE]": Case(
        HELLO + b"data: [DONE]\n\ndata: " + b"x" * 9000 + b"\n\n", None, "Héllo.", {"late": "x" * 4096}
    ),
}
# Cut at any byte, this stream has a fault.
CUT = sse(HEL, chunk({"functionCall": {"name": "read_file", "args": {"path": "é"}}}))
