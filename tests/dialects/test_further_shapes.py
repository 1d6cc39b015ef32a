"""Uncommon shapes of providers are read and round-trip."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.cli.prove import differences
from dragoman.errors import FormatError
from dragoman.event import fold, unfold
from dragoman.exchange import Reply, StopReason
from dragoman.message import AudioBlock, Role, TextBlock, TokenUsage
from tests.dialects.test_every_dialect import CALLS, REQUEST, message

ANTHROPIC = dialects.load("anthropic")
CHAT = dialects.load("openai_chat")
RESPONSES = dialects.load("openai_responses")
GEMINI = dialects.load("gemini")


def check(dialect: ModuleType, part: str, wire: Any, provider: str = "any") -> None:
    """Assert that one part of an exchange round-trips."""
    record = {"provider": provider, "status": 200, part: wire, "stream_format": None}
    assert list(differences(record, dialect)) == [("reply" if part == "response" else part, None)]


def stream_of(events: list[dict[str, Any]], *, named: bool = False, done: bool = False) -> str:
    lines = [f"event: {event.get('type')}\n" * named + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines) + "data: [DONE]\n\n" * done


def read_stream(dialect: ModuleType, stream: str, quirks: tuple[str, ...] = ()) -> Reply:
    reader = dialect.stream_reader(None, quirks)
    return fold([*reader.feed(stream.encode()), *reader.close()])


# --- Anthropic -------------------------------------------------------------------------------------------------------

SEARCH = [
    {"type": "server_tool_use", "id": "srv_1", "name": "tool_search_tool_regex", "input": {"query": "weather"}},
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srv_1",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "weather"}],
        },
    },
]
CALL = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "weather",
    "input": {},
    "caller": {"type": "code_execution_20250825", "tool_id": "srv_1"},
}


def anthropic_answer(*content: dict[str, Any], stop_reason: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    top = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-8"}
    return {**top, "content": list(content), "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}


def anthropic_stream(*blocks: tuple[dict[str, Any], list[dict[str, Any]]], stop_reason: str = "end_turn") -> str:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**anthropic_answer(), "stop_reason": None}},
    ]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}, {"type": "message_stop"}]
    return stream_of(events, named=True)


def test_anthropic_tool_search_compaction_and_callers_round_trip() -> None:
    compaction = {"type": "compaction", "content": "We talked about the weather."}
    check(ANTHROPIC, "response", anthropic_answer(compaction, *SEARCH, CALL, stop_reason="tool_use"))
    stream = anthropic_stream(
        ({"type": "compaction", "content": None}, [{"type": "compaction_delta", "content": "We talked."}]),
        (SEARCH[0] | {"input": {}}, [{"type": "input_json_delta", "partial_json": '{"query":"weather"}'}]),
        (SEARCH[1], []),
        (CALL, [{"type": "input_json_delta", "partial_json": '{"city":"x"}'}]),
        ({"type": "a_newer_block", "x": 1}, [{"type": "a_newer_delta", "y": 2}]),
        stop_reason="tool_use",
    )
    check(ANTHROPIC, "stream", stream)
    reply = read_stream(ANTHROPIC, stream)
    assert [block.type for block in reply.content] == ["opaque", "opaque", "opaque", "tool_use", "opaque"]
    assert reply.content[0].wire == {"type": "compaction", "content": "We talked."}


@pytest.mark.parametrize(
    "content",
    [
        "From now on, be brief.",
        [{"type": "text", "text": "From now on, be brief.", "cache_control": {"type": "ephemeral"}}],
        [{"type": "tool_addition", "tool": {"name": "weather", "input_schema": {"type": "object"}}}],
    ],
)
def test_system_message_keeps_position_in_list(content: Any) -> None:
    messages = [{"role": "user", "content": "Hi."}, {"role": "system", "content": content}]
    wire = {"model": "claude-opus-4-8", "max_tokens": 1, "messages": [*messages, {"role": "user", "content": "Go."}]}
    check(ANTHROPIC, "request", wire)
    assert [entry.role for entry in ANTHROPIC.read_request(wire).messages] == [Role.USER, Role.SYSTEM, Role.USER]


def test_tool_reference_in_result_round_trips() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "tool_reference", "tool_name": "weather"}],
    }
    messages = [{"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]}]
    check(ANTHROPIC, "request", {"model": "claude-opus-4-8", "max_tokens": 1, "messages": messages})


# --- Responses -------------------------------------------------------------------------------------------------------


def message_item(text: str, phase: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    top = {"type": "message", "id": f"msg_{phase}", "role": "assistant", "status": "completed", "phase": phase}
    return {**top, "content": content}


ITEMS: list[dict[str, Any]] = [
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"type": "mcp_approval_request", "id": "mcpr_1", "name": "n", "arguments": "{}", "server_label": "s"},
    message_item("First I search.", "commentary"),
    {"type": "tool_search_call", "id": "ts_1", "call_id": None, "execution": "server", "arguments": {"query": "x"}},
    {"type": "tool_search_output", "id": "to_1", "call_id": None, "execution": "server", "tools": []},
    {"type": "mcp_call", "id": "mcp_1", "name": "n", "arguments": "{}", "output": "o", "server_label": "s"},
    {"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}, "status": "completed"},
    {"type": "apply_patch_call", "id": "ap_1", "call_id": "c2", "operation": {"type": "delete_file", "path": "x"}},
    {"type": "function_call", "id": "fc_1", "call_id": "c3", "name": "f", "namespace": "ns", "arguments": "{}"},
    message_item("Done.", "final_answer"),
    {"type": "a_newer_item", "id": "new_1", "x": 1},
]


def response(output: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    top = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed"}
    return {**top, "output": output, **fields}


def test_response_items_round_trip_in_order() -> None:
    check(RESPONSES, "response", response(ITEMS))
    reply = RESPONSES.read_reply(response(ITEMS))
    assert reply.stop_reason is StopReason.TOOL_USE
    texts = [block.text for block in reply.content if isinstance(block, TextBlock)]
    assert texts == ["First I search.", "Done."]
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "x", "stderr": ""}]},
        {"type": "apply_patch_call_output", "call_id": "c2", "status": "completed"},
        {"type": "function_call_output", "call_id": "c3", "output": "r"},
    ]
    tools = [
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
        *({"type": kind} for kind in ("shell", "apply_patch", "tool_search")),
        {"type": "function", "name": "g", "parameters": {}, "defer_loading": True},
    ]
    entered = [{"role": "user", "content": "Go."}, *ITEMS, *answers, {"role": "user", "content": "And now?"}]
    check(RESPONSES, "request", {"model": "gpt-5", "input": entered, "tools": tools})


def test_stream_of_all_items_folds_to_response() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    started, complete = response([], status="in_progress"), response(ITEMS, usage=usage)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
    for index, item in enumerate(ITEMS):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.a_newer_event", "output_index": index, "x": 1})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": complete})
    stream = stream_of([{**event, "sequence_number": at} for at, event in enumerate(events)], named=True)
    check(RESPONSES, "stream", stream)
    assert RESPONSES.write_reply(read_stream(RESPONSES, stream)).wire == complete


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_background_response_is_paused(status: str) -> None:
    wire = response([], status=status, background=True)
    reply = RESPONSES.read_reply(wire)
    assert (reply.stop_reason, reply.fault) == (StopReason.PAUSED, None)
    check(RESPONSES, "response", wire)


# --- Chat Completions ------------------------------------------------------------------------------------------------

AUDIO = {"id": "audio_1", "data": "UklGRg==", "expires_at": 1, "transcript": "Hi there."}


def completion(**fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop", "logprobs": None}
    return {"id": "c_1", "object": "chat.completion", "created": 1, "model": "gpt-audio", "choices": [choice]}


def chunks(*deltas: dict[str, Any], finish_reason: str | None = "stop") -> str:
    top = {"id": "c_1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-audio"}
    events = [{**top, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish_reason is not None:
        events.append({**top, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    return stream_of(events, done=True)


def test_audio_reply_has_transcript_and_data() -> None:
    wire = completion(content=None, refusal=None, audio=AUDIO)
    check(CHAT, "response", wire)
    stream = chunks(
        {"role": "assistant", "audio": {"id": "audio_1", "transcript": "Hi"}},
        {"audio": {"transcript": " there."}},
        {"audio": {"data": "UklG"}},
        {"audio": {"data": "Rg=="}},
        {"audio": {"expires_at": 1}},
    )
    check(CHAT, "stream", stream)
    for reply in (CHAT.read_reply(wire), read_stream(CHAT, stream)):
        assert (reply.fault, [block.type for block in reply.content]) == (None, ["text", "audio"])
        assert reply.content[0].text == "Hi there."
        assert isinstance(reply.content[1], AudioBlock)
        assert (reply.content[1].source.data, reply.content[1].media_type) == ("UklGRg==", "audio/wav")
        assert CHAT.write_reply(reply).wire["choices"][0]["message"]["audio"] == AUDIO


def test_audio_reply_is_written_as_text_in_requests() -> None:
    reply = CHAT.read_reply(completion(content=None, audio=AUDIO))
    answer = message(Role.ASSISTANT, *reply.content)
    written = CHAT.write_request(REQUEST.replace(messages=(message(Role.USER, TextBlock("Hi.")), answer)))
    assert written.wire["messages"][1] == {"role": "assistant", "content": "Hi there."}
    assert [loss.block_type for loss in written.losses] == ["audio"]
    wire = {"model": "m", "messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}
    check(CHAT, "request", wire)


def test_content_object_is_read_as_json_text() -> None:
    wire = completion(content={"city": "Łódź", "degrees": 1.0})
    check(CHAT, "response", wire)
    check(CHAT, "stream", chunks({"role": "assistant", "content": {"city": "Łódź"}}))
    assert CHAT.read_reply(wire).content == (TextBlock('{"city":"Łódź","degrees":1.0}'),)
    messages = [{"role": "user", "content": {"a": 1}}, {"role": "tool", "tool_call_id": "c", "content": {"a": 2}}]
    check(CHAT, "request", {"model": "m", "messages": messages})


def test_thinking_part_closed_later_round_trips() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    check(CHAT, "response", completion(content=[{**thought, "closed": True}, {"type": "text", "text": "Yes."}]))
    stream = chunks(
        {"role": "assistant", "content": [thought]},
        {"content": [{**thought, "closed": True}]},
        {"content": "Yes."},
    )
    check(CHAT, "stream", stream)
    content = CHAT.write_reply(read_stream(CHAT, stream)).wire["choices"][0]["message"]["content"]
    assert [part.get("closed") for part in content] == [True, None]


def test_openrouter_stream_may_omit_finish_reason() -> None:
    stream = chunks({"role": "assistant", "content": "Yes."}, finish_reason=None)
    check(CHAT, "stream", stream, provider="openrouter")
    assert read_stream(CHAT, stream, ("terminal_reason_optional",)).fault is None
    assert read_stream(CHAT, stream).fault.code == "stream_incomplete"


# --- Gemini ----------------------------------------------------------------------------------------------------------


def test_model_armor_block_is_a_refusal() -> None:
    candidate = {"content": {"role": "model", "parts": [{"text": "No."}]}, "finishReason": "MODEL_ARMOR", "index": 0}
    wire = {"candidates": [candidate], "modelVersion": "gemini-3-pro"}
    check(GEMINI, "response", wire)
    assert GEMINI.read_reply(wire).stop_reason is StopReason.REFUSAL
    blocked = {"promptFeedback": {"blockReason": "MODEL_ARMOR"}, "modelVersion": "gemini-3-pro"}
    assert GEMINI.read_reply(blocked).stop_reason is StopReason.REFUSAL


USER = {"role": "user", "parts": [{"text": "Hi."}]}


@pytest.mark.parametrize(
    "contents",
    ["Hi.", ["Hi."], [{"role": "user", "parts": "Hi."}], {"parts": "Hi."}, ["Hi.", USER], [USER, "Hi."]],
)
def test_gemini_contents_may_be_plain_text(contents: Any) -> None:
    wire = {"contents": contents, "systemInstruction": {"parts": "Be brief."}}
    check(GEMINI, "request", wire)
    system, *messages = GEMINI.read_request(wire).messages
    assert (system.role, system.text) == (Role.SYSTEM, "Be brief.")
    assert {(message.role, message.text) for message in messages} == {(Role.USER, "Hi.")}


@pytest.mark.parametrize("contents", ["", 1, [1], [{"parts": 1}], [{"parts": [1]}]])
def test_invalid_gemini_contents_are_rejected_with_path(contents: Any) -> None:
    with pytest.raises(FormatError, match=r"\$\.contents"):
        GEMINI.read_request({"contents": contents})


def test_code_assist_request_is_unwrapped() -> None:
    inner = {"contents": [USER], "generationConfig": {"temperature": 1}, "session_id": "s"}
    wire = {"model": "gemini-3-pro", "project": "p", "user_prompt_id": "u", "request": inner}
    check(GEMINI, "request", wire)
    check(GEMINI, "request", {"request": {"contents": "Hi."}})
    request = GEMINI.read_request(wire)
    assert (request.model, request.messages[0].text, request.options.temperature) == ("gemini-3-pro", "Hi.", 1)
    losses = ANTHROPIC.write_request(request).losses
    assert {loss.block_type for loss in losses} == {"project", "user_prompt_id", "session_id"}


def test_code_assist_replies_are_unwrapped() -> None:
    candidate = {"content": {"role": "model", "parts": [{"text": "Hi."}]}, "index": 0}
    chunk = {"candidates": [candidate], "modelVersion": "gemini-3-pro", "responseId": "r"}
    whole = {**chunk, "candidates": [{**candidate, "finishReason": "STOP"}]}
    check(GEMINI, "response", {"response": whole, "traceId": "t"})
    stream = stream_of([{"response": part, "traceId": "t"} for part in (chunk, whole)])
    check(GEMINI, "stream", stream)
    reader, writer = GEMINI.stream_reader(), GEMINI.stream_writer()
    events = [*reader.feed(stream.encode()), *reader.close()]
    assert fold(events).content == (TextBlock("Hi.Hi."),)
    frames = b"".join(writer.feed(event) for event in events).decode().split("\n\n")[:-1]
    assert {tuple(json.loads(frame.removeprefix("data: "))) for frame in frames} == {("response", "traceId")}


# --- further shapes of Chat Completions -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["critic", "ipython", "observation", "User"])
def test_chat_template_role_round_trips(role: str) -> None:
    messages = [{"role": "user", "content": "Hi."}, {"role": role, "content": "42"}, {"role": "user", "content": "Go."}]
    wire = {"model": "m", "messages": messages}
    check(CHAT, "request", wire)
    request = CHAT.read_request(wire)
    assert [message.role.value for message in request.messages] == ["user", role, "user"]
    for name in dialects.callable_names():
        written = dialects.load(name).write_request(request)
        assert "42" in json.dumps(written.wire)
        if name != "openai_chat":
            reasons = [note.reason for note in written.notes]
            assert f"a message of the role {role} becomes one of the user" in reasons, name


@pytest.mark.parametrize("role", [None, "", 5, ["user"]])
def test_invalid_role_is_rejected(role: Any) -> None:
    with pytest.raises(FormatError, match=r"\$\.messages\[0\]\.role"):
        CHAT.read_request({"model": "m", "messages": [{"role": role, "content": "Hi."}]})


@pytest.mark.parametrize(
    "details",
    [
        [{"type": "reasoning.text", "text": "Hm.", "index": 0, "format": "unknown"}],
        [{"type": "reasoning.summary", "summary": "Hm.", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "abc", "index": 0}],
        [],
    ],
)
def test_reasoning_details_are_read_beside_null_reasoning(details: list[dict[str, Any]]) -> None:
    envelope = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [
        ({"role": "assistant", "content": "", "reasoning": None, "reasoning_details": details}, None),
        ({"content": "Hi.", "reasoning": None, "reasoning_details": []}, None),
        ({"content": ""}, "stop"),
    ]
    chunks = [
        {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in deltas
    ]
    stream = stream_of(chunks, done=True)
    check(CHAT, "stream", stream)
    expected = {"text": "thinking", "summary": "thinking", "data": "redacted_thinking"}
    kinds = [expected[key] for detail in details for key in expected if key in detail]
    assert [block.type for block in read_stream(CHAT, stream).content] == [*kinds, "text"]


def test_cloudflare_native_reply_error_names_compatible_url() -> None:
    answer = {"result": {"response": "Hi."}, "success": True, "errors": [], "messages": []}
    with pytest.raises(FormatError, match="/ai/v1/chat/completions"):
        CHAT.read_reply(answer)
    reply = read_stream(CHAT, stream_of([{"response": "Hi.", "p": "abc"}], done=True))
    assert reply.fault is not None
    assert "/ai/v1/chat/completions" in reply.fault.message


def test_cloudflare_error_is_a_fault_with_message() -> None:
    body = {"result": None, "success": False, "errors": [{"code": 5007, "message": "No such model"}], "messages": []}
    check(CHAT, "response", body)
    for fault in (CHAT.read_reply(body).fault, CHAT.read_error(400, {}, body)):
        assert fault is not None
        assert (fault.message, fault.provider_code) == ("No such model", "5007")


# --- results and texts -----------------------------------------------------------------------------------------------


def test_second_result_of_call_is_reported() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    results = [{"role": "tool", "tool_call_id": "call_1", "content": text} for text in ("one", "two")]
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        *results,
        {"role": "user", "content": "Go."},
    ]
    written = dialects.load("cohere_v1").write_request(CHAT.read_request({"model": "m", "messages": messages}))
    assert [note.reason for note in written.notes] == ["the result becomes a text: its call has a result already"]
    assert written.wire["chat_history"][-1]["message"].splitlines()[1:] == ["two"]


# --- every dialect ---------------------------------------------------------------------------------------------------

UNKNOWN_EVENTS = (
    {"type": "a.newer.event", "event_type": "a.newer.event", "x": 1},
    {"aNewerEvent": {"x": 1}},
    {"x": [1]},
)


@pytest.mark.parametrize("name", dialects.names())
def test_unknown_events_and_fields_do_not_end_stream(name: str) -> None:
    dialect = dialects.load(name)
    framing = "ndjson" if name.startswith("bedrock") else None
    usage = TokenUsage(input_tokens=1, output_tokens=2)
    reply = Reply(content=(TextBlock("Hi."), CALLS[0]), stop_reason=StopReason.TOOL_USE, model="m", usage=usage)
    writer = dialect.stream_writer(framing)
    data = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
    is_sse = data.startswith((b"data: ", b"event: "))
    gap, label = (b"\n\n", b"data: ") if is_sse else (b"\n", b"")
    frames = data.split(gap)

    def read(changed: list[bytes]) -> Reply:
        reader = dialect.stream_reader(framing)
        return fold([*reader.feed(gap.join(changed)), *reader.close()])

    whole = read(frames)
    for place in range(1, len(frames)):
        for event in UNKNOWN_EVENTS:
            again = read([*frames[:place], label + json.dumps(event).encode(), *frames[place:]])
            assert (again.fault, again.content) == (whole.fault, whole.content)
    for place, frame in enumerate(frames):
        head, _, text = frame.rpartition(label) if is_sse else (b"", b"", frame)
        if text.startswith(b"{"):
            longer = json.dumps({**json.loads(text), "a_newer_field": {"x": [1, None]}}).encode()
            assert read([*frames[:place], head + label + longer, *frames[place + 1 :]]).content == whole.content
