"""Damaged streams of Ollama, with their outcomes."""

from __future__ import annotations

import json
from typing import Any

from tests.dialects.stream_damage.case import ANY, Case

HEAD = {"model": "llama3.2", "created_at": "2026-05-08T09:30:00Z"}


def line(fields: dict[str, Any], **rest: Any) -> bytes:
    message = {"role": "assistant", "content": "", **fields}
    return json.dumps({**HEAD, "message": message, "done": False, **rest}, ensure_ascii=False).encode() + b"\n"


def call(arguments: Any, name: str = "delete_records", **rest: Any) -> bytes:
    return line({"tool_calls": [{"function": {"name": name, "arguments": arguments}, **rest}]})


HE, LLO = line({"content": "Hé"}), line({"content": "llo."})
DONE = line({}, done=True, done_reason="stop", prompt_eval_count=8, eval_count=3)
LIMIT = line({}, done=True, done_reason="length", prompt_eval_count=8, eval_count=3)
HTML = b"<html>\n<body>Bad gateway, key sk-abcdef0123456789</body>\n</html>\n"
CASES: dict[str, Case] = {
    "whole": Case(HE + LLO + DONE, None, "Héllo."),
    "whole, without a reason": Case(HE + LLO + line({}, done=True), None, "Héllo."),
    "whole, the last newline missing": Case(HE + LLO + DONE.rstrip(), None, "Héllo."),
    "CRLF": Case((HE + LLO + DONE).replace(b"\n", b"\r\n"), None, "Héllo."),
    "empty lines in between": Case(HE + b"\n\n" + LLO + b"  \n" + DONE, None, "Héllo."),
    "a byte order mark": Case(b"\xef\xbb\xbf" + HE + LLO + DONE, None, "Héllo."),
    "an unknown line": Case(b'{"status":"loading model"}\n' + HE + b'{"ping":1}\n' + LLO + DONE, None, "Héllo."),
    "an unknown key": Case(line({"content": "Héllo.", "mood": "good"}, extra=1) + DONE, None, "Héllo."),
    "as server-sent events": Case(b"data: " + HE + b"\n: ping\n\ndata: " + DONE + b"\n", None, "Hé", framing="sse"),
    "[DONE] before it is done": Case(b"data: " + HE + b"\ndata: [DONE]\n\n", "stream_incomplete", "Hé", framing="sse"),
    "cut between two lines": Case(HE + LLO, "stream_incomplete", "Héllo."),
    "cut in a line": Case(HE + LLO[:-20], "stream_incomplete", "Hé", {"tail": LLO[:-20].decode()}),
    "cut in the first line": Case(HE[:-9], "stream_incomplete", "", {"tail": HE[:-9].decode()}),
    "cut in the first line after a byte order mark": Case(
        b"\xef\xbb\xbf" + HE[:-9], "stream_incomplete", raw={"tail": ANY}
    ),
    "cut in a character": Case(HE[: HE.index(b"\xa9")], "stream_incomplete", raw={"tail": ANY}),
    "cut in a character, later": Case(LLO + HE[: HE.index(b"\xa9")], "stream_incomplete", "llo.", raw={"tail": ANY}),
    "cut in a long line": Case(HE + b'{"message":"' + b"x" * 9000, "stream_incomplete", "Hé", raw={"tail": ANY}),
    "cut after the reasoning": Case(line({"thinking": "Hm."}), "stream_incomplete", "[Hm.]"),
    "a line that is no JSON": Case(HE + b"{]\n" + LLO + DONE, "bad_event", "Hé", {"tail": "{]"}),
    "a line that is no object": Case(HE + b'"Hi"\n' + LLO + DONE, "bad_event", "Hé", {"tail": '"Hi"'}),
    "a line that is no UTF-8": Case(
        HE + b'{"message":{"content":"\xff"}}\n' + DONE, "bad_event", "Hé", raw={"tail": ANY}
    ),
    "a line with half of a character": Case(
        HE + b'{"message":{"content":"\\ud83d"}}\n' + DONE, "bad_event", "Hé", raw={"tail": ANY}
    ),
    "the first line is no JSON": Case(b"{]\n" + DONE, "bad_event", raw={"tail": ANY}),
    "a page in the middle": Case(HE + HTML, "bad_event", "Hé", raw={"tail": ANY}),
    "nested without end": Case(HE + b"[" * 20_000 + b"\n" + DONE, "bad_event", "Hé", raw={"tail": ANY}),
    "NaN": Case(HE + line({"content": "x"}).replace(b'"x"', b"NaN") + DONE, "bad_event", "Hé", raw={"tail": ANY}),
    "an error": Case(HE + b'{"error":"llama runner process has terminated"}\n' + DONE, "server_error", "Hé"),
    "an error alone": Case(b'{"error":"model requires more memory"}\n', "server_error"),
    "an error as an object": Case(b'{"error":{"message":"no"}}', "server_error"),
    "an error about the length": Case(b'{"error":"input length exceeds the context length"}', "context_overflow"),
    "a page": Case(HTML, "bad_content_type", "", {"head": HTML.decode().replace("abcdef0123456789", "***")}),
    "a page on one line": Case(b"<html>no</html>", "bad_content_type", "", {"head": "<html>no</html>"}),
    "a long page": Case(HTML[:7] + b"x" * 5000, "bad_content_type", "", {"head": "<html>\n" + "x" * 1017}),
    "a page after a byte order mark": Case(b"\xef\xbb\xbf" + HTML, "bad_content_type", raw={"head": ANY}),
    "an object": Case(b'{"detail":"Not Found"}\n', "bad_content_type", "", {"head": '{"detail":"Not Found"}\n'}),
    "an object over several lines": Case(
        b'{\n  "detail": "no"\n}\n', "bad_content_type", "", {"head": '{\n  "detail": "no"\n}\n'}
    ),
    "nothing": Case(b"", "empty_response"),
    "nothing but whitespace": Case(b"\r\n \n", "empty_response"),
    "no content": Case(DONE, "empty_response"),
    "no content, without a reason": Case(line({"content": ""}) + line({}, done=True), "empty_response"),
    "no content before the limit": Case(LIMIT, None),
    "an invalid message": Case(HE + b'{"message":[],"done":false}\n' + DONE, "protocol_violation", "Hé"),
    "an invalid text": Case(HE + line({"content": 1}) + DONE, "protocol_violation", "Hé"),
    "invalid calls": Case(HE + line({"tool_calls": {}}) + DONE, "protocol_violation", "Hé"),
    "a call without a name": Case(HE + line({"tool_calls": [{"function": {}}]}) + DONE, "protocol_violation", "Hé"),
    "an invalid image": Case(HE + line({"images": [1]}) + DONE, "protocol_violation", "Hé"),
    "text after the end": Case(HE + DONE + LLO, None, "Hé", {"late": LLO.decode().strip()}),
    "an end after the end": Case(HE + DONE + DONE, None, "Hé", {"late": DONE.decode().strip()}),
    "damage after the end": Case(HE + DONE + b"{]\n", None, "Hé", {"late": "{]"}),
    "an error after the end": Case(HE + DONE + b'{"error":"x"}\n', None, "Hé", {"late": '{"error":"x"}'}),
    "cut after the end": Case(HE + DONE + LLO[:20], None, "Hé"),
    "an input that is no object": Case(HE + call([1]) + DONE, "tool_input_invalid", "Hé", invalid_inputs=("[1]",)),
    "an input that is a text and none": Case(
        HE + call('{"target":"all","dry_') + DONE, "tool_input_invalid", "Hé", invalid_inputs=('{"target":"all","dry_',)
    ),
    "an input as a text with NaN": Case(
        HE + call('{"n":NaN}') + DONE, "tool_input_invalid", "Hé", invalid_inputs=('{"n":NaN}',)
    ),
    "an input as a text with two equal keys": Case(
        HE + call('{"n":1,"n":2}') + DONE, "tool_input_invalid", "Hé", invalid_inputs=('{"n":1,"n":2}',)
    ),
    "an input with two equal keys": Case(
        HE + call({"n": "X"}).replace(b'"X"', b'1,"n":2') + DONE,
        "tool_input_invalid",
        "Hé",
        invalid_inputs=('{"n": 1,"n":2}',),
    ),
    "an input cut at the limit": Case(
        HE + call('{"target":"al') + LIMIT, "tool_input_truncated", "Hé", invalid_inputs=('{"target":"al',)
    ),
    "no input at the limit": Case(HE + call("") + LIMIT, "tool_input_truncated", "Hé", invalid_inputs=("",)),
    "an empty input at the limit": Case(HE + call({}) + LIMIT, None, "Hé", calls=({},)),
    "no input": Case(HE + call("") + DONE, None, "Hé", calls=({},)),
    "cut in a call": Case(HE + call({"target": "all"})[:-30], "stream_incomplete", "Hé", raw={"tail": ANY}),
    "cut after a call": Case(HE + call({"target": "all"}), "stream_incomplete", "Hé", calls=({"target": "all"},)),
}
# Cut at any byte, this stream has a fault.
CUT = HE + LLO + call({"target": "all", "dry_run": True})
