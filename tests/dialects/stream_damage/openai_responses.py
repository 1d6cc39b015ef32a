"""Damaged streams of the Responses API, with their outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.dialects.stream_damage.case import Case

Wire = dict[str, Any]


# --- events as the API sends them ------------------------------------------------------------------------------------


def response(*output: Wire, status: str = "completed", **rest: Any) -> Wire:
    return {"id": "resp_1", "object": "response", "model": "gpt-5", "status": status, "output": list(output), **rest}


def message(text: str, status: str = "completed", **part: Any) -> Wire:
    content = [{"type": "output_text", "text": text, "annotations": [], **part}] if status != "in_progress" else []
    return {"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": content}


def call(arguments: str, status: str = "completed", number: int = 1) -> Wire:
    ids = {"id": f"fc_{number}", "type": "function_call", "status": status, "call_id": f"call_{number}"}
    return {**ids, "name": "delete_records", "arguments": arguments}


def add_item(item: Wire, place: int = 0) -> Wire:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def finish_item(item: Wire, place: int = 0) -> Wire:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def item_event(kind: str, place: int = 0, **rest: Any) -> Wire:
    return {"type": f"response.{kind}", "item_id": "msg_1", "output_index": place, "content_index": 0, **rest}


def end_event(*output: Wire, status: str = "completed", **rest: Any) -> Wire:
    return {"type": f"response.{status}", "response": response(*output, status=status, **rest)}


def sse(*events: Wire, first: int | None = 0, end: str = "\n") -> bytes:
    """Return events as server-sent events, numbered from ``first`` unless it is ``None``."""
    numbers: Iterable[Any] = range(first, first + len(events)) if first is not None else [None] * len(events)
    lines = []
    for number, event in zip(numbers, events, strict=True):
        wire = event if number is None else {"sequence_number": number, **event}
        lines.append(f"event: {wire.get('type')}{end}data: {json.dumps(wire, ensure_ascii=False)}{end}{end}")
    return "".join(lines).encode()


CREATED: Wire = {"type": "response.created", "response": response(status="in_progress")}
OPEN = add_item(message("", "in_progress"))
PART = item_event("content_part.added", part={"type": "output_text", "text": "", "annotations": []})
HE, LLO = item_event("output_text.delta", delta="Hé"), item_event("output_text.delta", delta="llo.")
TEXT_DONE = item_event("output_text.done", text="Héllo.")
PART_DONE = item_event("content_part.done", part={"type": "output_text", "text": "Héllo.", "annotations": []})
DONE = finish_item(message("Héllo."))
COMPLETED = end_event(message("Héllo."), usage={"input_tokens": 8, "output_tokens": 3})
WHOLE = (CREATED, OPEN, PART, HE, LLO, TEXT_DONE, PART_DONE, DONE, COMPLETED)
FIRST_EVENTS = (CREATED, OPEN, PART, HE)  # with the text "Hé"
N = len(FIRST_EVENTS)


def call_stream(
    arguments: str, *, end: str = "completed", status: str = "completed", streamed_arguments: str | None = None
) -> bytes:
    """Return a stream with one call."""
    pieces = [arguments[:4], arguments[4:]] if streamed_arguments is None else [streamed_arguments]
    details = {"incomplete_details": {"reason": "max_output_tokens"}} if end == "incomplete" else {}
    deltas = [item_event("function_call_arguments.delta", delta=piece) for piece in pieces if piece]
    whole = call(arguments, status)
    finished = item_event("function_call_arguments.done", arguments=arguments)
    return sse(
        CREATED,
        add_item(call("", "in_progress")),
        *deltas,
        finished,
        finish_item(whole),
        end_event(whole, status=end, **details),
    )


def number_events(*events: tuple[int, Wire]) -> bytes:
    return b"".join(sse(event, first=number) for number, event in events)


OVERLOADED = {"type": "error", "code": "server_is_overloaded", "message": "busy", "param": None}
SERVER = {
    "type": "error",
    "error": {"type": "server_error", "code": "server_error", "message": "Sorry. Include the request ID req_7f in it."},
}
REFUSED = {"type": "error", "code": "invalid_prompt", "message": "no", "request_id": "req_8a"}
FAILED = end_event(status="failed", error={"code": "rate_limit_exceeded", "message": "slow down"})
PAGE = b"<!doctype html><html><body>Bad gateway, api_key=sk-very-secret-indeed</body></html>"
REASONING: Wire = {"id": "rs_1", "type": "reasoning", "summary": []}
THOUGHT: Wire = {**REASONING, "summary": [{"type": "summary_text", "text": "Hm."}]}
THINK = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "Hm."}
THINK_ON = {**THINK, "summary_index": 1, "delta": "So."}
THOUGHTS: Wire = {**REASONING, "summary": [*THOUGHT["summary"], {"type": "summary_text", "text": "So."}]}
REDACTED: Wire = {**REASONING, "encrypted_content": "gAAA"}
SEARCH: Wire = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}

CASES: dict[str, Case] = {
    # --- complete, whatever the bytes look like
    "as it should be": Case(sse(*WHOLE), None, "Héllo."),
    "CRLF": Case(sse(*WHOLE, end="\r\n"), None, "Héllo."),
    "CR": Case(sse(*WHOLE, end="\r"), None, "Héllo."),
    "a byte order mark": Case(b"\xef\xbb\xbf" + sse(*WHOLE), None, "Héllo."),
    "comments, pings and unknown events": Case(
        b": hi\n\nevent: ping\ndata: {}\n\n"
        + sse(*FIRST_EVENTS)
        + b'id: 7\nretry: 9\nevent: x\n\n: bye\n\ndata: {"type":"response.steer"}\n\ndata: {"a":1}\n\n'
        + sse(*WHOLE[N:], first=N),
        None,
        "Héllo.",
    ),
    "several data lines": Case(
        b"".join(b"data: " + json.dumps(e, indent=1).encode().replace(b"\n", b"\ndata: ") + b"\n\n" for e in WHOLE),
        None,
        "Héllo.",
    ),
    "[DONE] after the end": Case(sse(*WHOLE) + b"data: [DONE]\n\n", None, "Héllo."),
    "[DONE] twice": Case(sse(*WHOLE) + b"data: [DONE]\n\ndata: [DONE]\n\n", None, "Héllo."),
    "without numbers": Case(sse(*WHOLE, first=None), None, "Héllo."),
    "numbered from 5": Case(sse(*WHOLE, first=5), None, "Héllo."),
    "every event under the same number": Case(
        sse(*({**event, "sequence_number": 0} for event in WHOLE), first=None), None, "Héllo."
    ),
    "a number left out": Case(sse(*FIRST_EVENTS) + sse(*WHOLE[N:], first=N + 1), None, "Héllo."),
    "a delta twice, under the same number": Case(
        sse(*FIRST_EVENTS) + sse(HE, first=N - 1) + sse(*WHOLE[N:], first=N), None, "Héllo."
    ),
    "another delta under a number that came before": Case(
        sse(*FIRST_EVENTS) + sse(LLO, first=N - 1) + sse(*WHOLE[N:], first=N), None, "Héllo."
    ),
    "the first events once more": Case(
        sse(*FIRST_EVENTS) + sse(*FIRST_EVENTS) + sse(*WHOLE[N:], first=N), None, "Héllo."
    ),
    "everything twice": Case(sse(*WHOLE) + sse(*WHOLE), None, "Héllo."),
    "each event twice": Case(b"".join(sse(e, first=n) * 2 for n, e in enumerate(WHOLE)), None, "Héllo."),
    "a delta that was lost": Case(sse(*FIRST_EVENTS, TEXT_DONE, PART_DONE, DONE, COMPLETED), None, "Héllo."),
    "only whole items": Case(sse(CREATED, add_item(message("Héllo.")), DONE, COMPLETED), None, "Héllo."),
    "only the end": Case(sse(CREATED, COMPLETED), None, "Héllo."),
    "an end that repeats nothing": Case(sse(*WHOLE[:-1], end_event()), None, "Héllo."),
    "at the limit": Case(
        sse(
            *FIRST_EVENTS,
            end_event(
                message("Hé", "incomplete"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}
            ),
        ),
        None,
        "Hé",
    ),
    "a call without input": Case(call_stream(""), None, calls=({},)),
    "a call": Case(call_stream('{"table": "all"}'), None, calls=({"table": "all"},)),
    "reasoning": Case(
        sse(CREATED, add_item(REASONING), THINK, finish_item(THOUGHT), end_event(THOUGHT, message("Hi."))),
        None,
        "[Hm.]Hi.",
    ),
    "reasoning in two parts": Case(
        sse(CREATED, add_item(REASONING), THINK, THINK_ON, finish_item(THOUGHTS), end_event(THOUGHTS, message("Hi."))),
        None,
        "[Hm.\n\nSo.]Hi.",
    ),
    "a refusal": Case(
        sse(
            CREATED,
            OPEN,
            item_event("refusal.delta", delta="No"),
            item_event("refusal.done", refusal="No."),
            finish_item({**message("x"), "content": [{"type": "refusal", "refusal": "No."}]}),
            end_event({**message("x"), "content": [{"type": "refusal", "refusal": "No."}]}),
        ),
        None,
        "No.",
    ),
    "what the provider ran itself, and words": Case(
        sse(
            CREATED,
            add_item(SEARCH),
            finish_item(SEARCH),
            add_item(message("", "in_progress"), 1),
            finish_item(message("Hi."), 1),
            end_event(SEARCH, message("Hi.")),
        ),
        None,
        "Hi.",
    ),
    # --- cut
    "nothing": Case(b"", "empty_response"),
    "white space alone": Case(b"\r\n \n", "empty_response"),
    "a byte order mark alone": Case(b"\xef\xbb\xbf", "empty_response"),
    "comments alone": Case(b": ping\n\n", "stream_incomplete"),
    "[DONE] alone": Case(b"data: [DONE]\n\n", "stream_incomplete"),
    "no end": Case(sse(*FIRST_EVENTS), "stream_incomplete", "Hé", fault={"retryable": True, "error_class": "network"}),
    "no end, then [DONE]": Case(sse(*FIRST_EVENTS) + b"data: [DONE]\n\n", "stream_incomplete", "Hé"),
    "everything but the end": Case(sse(*WHOLE[:-1]), "stream_incomplete", "Héllo."),
    "an end that is cut before its last bracket": Case(
        sse(*WHOLE[:-1], first=None) + b'data: {"type":"response.completed"\n',
        "stream_incomplete",
        "Héllo.",
        {"tail": '{"type":"response.completed"\n'},
    ),
    "inside an event": Case(
        sse(*FIRST_EVENTS) + b'data: {"type":"resp', "stream_incomplete", "Hé", {"tail": 'data: {"type":"resp'}
    ),
    "inside the second line of an event": Case(
        sse(*FIRST_EVENTS) + b'data: {"type":\ndata: "resp',
        "stream_incomplete",
        "Hé",
        {"tail": '{"type":\ndata: "resp'},
    ),
    "inside a long event": Case(
        sse(*FIRST_EVENTS) + b'data: {"x":"' + b"y" * 9000,
        "stream_incomplete",
        "Hé",
        {"tail": 'data: {"x":"' + "y" * 4084},
    ),
    "inside a character": Case(
        sse(*FIRST_EVENTS) + b'data: {"delta":"h\xc3', "stream_incomplete", "Hé", {"tail": 'data: {"delta":"h\\xc3'}
    ),
    "inside a call": Case(
        sse(CREATED, add_item(call("", "in_progress")), item_event("function_call_arguments.delta", delta='{"table":')),
        "stream_incomplete",
        invalid_inputs=('{"table":',),
    ),
    "inside a call that could be read": Case(
        sse(CREATED, add_item(call("", "in_progress")), item_event("function_call_arguments.delta", delta="{}")),
        "stream_incomplete",
        invalid_inputs=("{}",),
    ),
    "inside reasoning": Case(sse(CREATED, add_item(REASONING), THINK), "stream_incomplete", "[Hm.]"),
    "between the halves of a character": Case(
        sse(CREATED, OPEN, PART)
        + b'data: {"type":"response.output_text.delta","output_index":0,"delta":"H\\ud83d"}\n\n',
        "stream_incomplete",
        "H",
    ),
    # --- no events
    "no JSON": Case(sse(*FIRST_EVENTS) + b"data: {]\n\n" + sse(*WHOLE[N:]), "bad_event", "Hé", {"tail": "{]"}),
    "no object": Case(sse(*FIRST_EVENTS) + b'data: ["x"]\n\n' + sse(*WHOLE[N:]), "bad_event", "Hé", {"tail": '["x"]'}),
    "no UTF-8": Case(
        sse(*FIRST_EVENTS) + b'data: {"delta":"\xff"}\n\n', "bad_event", "Hé", {"tail": '{"delta":"\\xff"}'}
    ),
    "NaN": Case(sse(*FIRST_EVENTS) + b'data: {"logprob":NaN}\n\n', "bad_event", "Hé", {"tail": '{"logprob":NaN}'}),
    "NaN beside half of a character": Case(
        sse(*FIRST_EVENTS) + b'data: {"p":NaN,"delta":"\\ud83d"}\n\n',
        "bad_event",
        "Hé",
        {"tail": '{"p":NaN,"delta":"\\ud83d"}'},
    ),
    "nested without end": Case(
        sse(*FIRST_EVENTS) + b"data: " + b"[" * 100_000 + b"\n\n", "bad_event", "Hé", {"tail": "[" * 4096}
    ),
    "half of a character": Case(
        sse(CREATED, OPEN, PART)
        + b'data: {"type":"response.output_text.delta","output_index":0,"delta":"H\\ud83d"}\n\n'
        + b'data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","role":"assistant",'
        + b'"content":[{"type":"output_text","text":"H\\ud83d"}]}}\n\n'
        + sse(end_event(), first=3),
        "bad_event",
        "H",
    ),
    # --- errors that the provider names
    "overloaded": Case(
        sse(*FIRST_EVENTS, OVERLOADED) + sse(*WHOLE[N:]),
        "overloaded",
        "Hé",
        fault={
            "retryable": True,
            "provider_code": "server_is_overloaded",
            "message": "busy",
            "error_class": "rate_limit",
        },
    ),
    "a server error with the name of the request": Case(
        sse(*FIRST_EVENTS, SERVER),
        "server_error",
        "Hé",
        fault={"retryable": True, "request_id": "req_7f", "provider_code": "server_error"},
    ),
    "an error before anything else": Case(
        sse(REFUSED),
        "invalid_request",
        fault={"retryable": False, "request_id": "req_8a", "provider_code": "invalid_prompt"},
    ),
    "an error without a type": Case(
        b'data: {"error":{"message":"gone","code":"model_not_found"}}\n\n', "not_found", fault={"retryable": False}
    ),
    "a response that failed": Case(
        sse(*FIRST_EVENTS, FAILED),
        "rate_limited",
        "Hé",
        fault={"retryable": True, "provider_code": "rate_limit_exceeded"},
    ),
    "a response that failed and does not say why": Case(
        sse(*FIRST_EVENTS, end_event(status="failed")), "unexplained_error", "Hé", fault={"retryable": True}
    ),
    # --- something else than a stream
    "a page": Case(
        PAGE, "bad_content_type", raw={"head": "<!doctype html><html><body>Bad gateway, api_key=***</body></html>"}
    ),
    "an error as JSON": Case(
        b'{\n  "error": {"message": "no", "code": "server_error"}\n}\n',
        "bad_content_type",
        raw={"head": '{\n  "error": {"message": "no", "code": "server_error"}\n}\n'},
    ),
    "a whole response": Case(
        json.dumps(response(message("Hi."))).encode(),
        "bad_content_type",
        raw={"head": json.dumps(response(message("Hi.")))},
    ),
    "a long page": Case(b"<p>" + b"x" * 5000, "bad_content_type", raw={"head": "<p>" + "x" * 1021}),
    # --- out of order
    "an item before the beginning": Case(sse(OPEN, *WHOLE), "protocol_violation"),
    "an end before the beginning": Case(sse(COMPLETED), "protocol_violation"),
    "a second beginning": Case(sse(*FIRST_EVENTS, CREATED, *WHOLE[N:]), "protocol_violation", "Hé"),
    "words for an item that did not begin": Case(sse(CREATED, HE, *WHOLE[1:]), "protocol_violation"),
    "words for an item that is done": Case(sse(*WHOLE[:-1], HE, COMPLETED), "protocol_violation", "Héllo."),
    "words for a part that is done": Case(sse(*WHOLE[:7], LLO, *WHOLE[7:]), "protocol_violation", "Héllo."),
    "a part that begins a second time": Case(sse(*FIRST_EVENTS, PART, *WHOLE[N:]), "protocol_violation", "Hé"),
    "an item that begins a second time": Case(sse(*FIRST_EVENTS, OPEN, *WHOLE[N:]), "protocol_violation", "Hé"),
    "an item that ends a second time": Case(sse(*WHOLE[:-1], DONE, COMPLETED), "protocol_violation", "Héllo."),
    "places that go back": Case(
        sse(CREATED, add_item(message("", "in_progress"), 1), OPEN, *WHOLE[2:]), "protocol_violation"
    ),
    "a part in the place of another": Case(
        sse(
            *FIRST_EVENTS,
            finish_item(message("Héllo.")),
            add_item(call("", "in_progress"), 1),
            {**HE, "output_index": 1},
        ),
        "protocol_violation",
        "Héllo.",
        invalid_inputs=("",),
    ),
    "input for a message": Case(
        sse(*FIRST_EVENTS, item_event("function_call_arguments.delta", delta="{")), "protocol_violation", "Hé"
    ),
    "words that are no text": Case(
        sse(*FIRST_EVENTS, item_event("output_text.delta", delta=7)), "protocol_violation", "Hé"
    ),
    "an invalid item": Case(sse(CREATED, {**OPEN, "item": "x"}), "protocol_violation"),
    "an item that ends as another": Case(sse(*FIRST_EVENTS, finish_item(call("{}"))), "protocol_violation", "Hé"),
    "an end while an item is open": Case(sse(*FIRST_EVENTS, end_event()), "protocol_violation", "Hé"),
    "pieces that do not add up": Case(
        sse(*FIRST_EVENTS, item_event("output_text.done", text="Bye."), *WHOLE[6:]), "protocol_violation", "Hé"
    ),
    "an event that comes late": Case(
        number_events((0, CREATED), (1, OPEN), (2, PART), (4, LLO), (3, HE)), "protocol_violation", "llo."
    ),
    "input that does not add up": Case(
        call_stream('{"table":"all"}', streamed_arguments='{"table":"none"}'),
        "protocol_violation",
        invalid_inputs=('{"table":"none"}',),
    ),
    "an end that repeats other input": Case(
        sse(CREATED, add_item(call("", "in_progress")), finish_item(call("{}")), end_event(call('{"table":"all"}'))),
        "protocol_violation",
        calls=({},),
    ),
    # --- calls that cannot be made
    "input that is no object": Case(
        call_stream('["all"]'), "tool_input_invalid", invalid_inputs=('["all"]',), fault={"retryable": True}
    ),
    "input that is no JSON": Case(call_stream("{table: all}"), "tool_input_invalid", invalid_inputs=("{table: all}",)),
    "input that is cut": Case(call_stream('{"table":"al'), "tool_input_invalid", invalid_inputs=('{"table":"al',)),
    "input with a key twice": Case(
        call_stream('{"table":"a","table":"b"}'), "tool_input_invalid", invalid_inputs=('{"table":"a","table":"b"}',)
    ),
    "input that is no number": Case(
        call_stream('{"limit":NaN}'), "tool_input_invalid", invalid_inputs=('{"limit":NaN}',)
    ),
    "input and something after it": Case(
        call_stream('{} {"x":1}'), "tool_input_invalid", invalid_inputs=('{} {"x":1}',)
    ),
    "the limit inside of input": Case(
        call_stream('{"table":"al', end="incomplete", status="incomplete"),
        "tool_input_truncated",
        invalid_inputs=('{"table":"al',),
    ),
    "the limit before any input": Case(
        call_stream("", end="incomplete", status="incomplete"), "tool_input_truncated", invalid_inputs=("",)
    ),
    "the limit inside of input that could be read": Case(
        call_stream("{}", end="incomplete", status="incomplete"), "tool_input_truncated", invalid_inputs=("{}",)
    ),
    # --- nothing streamed_arguments
    "a proper end without a word": Case(sse(CREATED, end_event()), "empty_response"),
    "a proper end of an empty text": Case(
        sse(CREATED, OPEN, PART, finish_item(message("")), end_event(message(""))), "empty_response"
    ),
}
# Cut at any byte, this stream has a fault.
CUT = sse(*WHOLE[:-1])
# Valid streams whose values the tests change.
STREAMS = [
    WHOLE,
    (
        CREATED,
        add_item(call("", "in_progress")),
        item_event("function_call_arguments.delta", delta="{}"),
        finish_item(call("{}")),
        end_event(call("{}")),
    ),
    (CREATED, add_item(REASONING), THINK, THINK_ON, finish_item(THOUGHTS), end_event(THOUGHTS)),
    (CREATED, add_item(SEARCH), finish_item(SEARCH), end_event({**SEARCH, "action": {"type": "open"}})),
    (CREATED, add_item(REDACTED), finish_item(REDACTED), end_event({**REDACTED, "encrypted_content": "gBBB"})),
    (CREATED, OVERLOADED),
    (*FIRST_EVENTS, FAILED),
]
