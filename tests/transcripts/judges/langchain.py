"""The messages of LangChain: they validate lists and generate lists."""

import itertools

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
    messages_from_dict,
    messages_to_dict,
)


def validate(wire):
    """Return the messages as LangChain writes them."""
    return messages_to_dict(messages_from_dict(wire))


def read_blocks(wire):
    """Return the standard content that LangChain reads in each message, and check that they convert to OpenAI messages."""
    messages = messages_from_dict(wire)
    convert_to_openai_messages(messages)
    return [message.content_blocks for message in messages]


def generate(_):
    """Return conversations of many shapes by name, each in both forms."""
    conversations = {}
    for name, messages in _conversations():
        conversations[name] = messages_to_dict(messages)
        conversations[f"{name}, flat"] = [message.model_dump(mode="json") for message in messages]
    return conversations


def _call(number, **more):
    return {
        "name": "weather",
        "args": {"city": "Berlin", "days": 2},
        "id": f"call_{number}",
        "type": "tool_call",
        **more,
    }


INVALID_CALL = {
    "name": "weather",
    "args": '{"city": ',
    "id": "call_8",
    "error": "Unterminated",
    "type": "invalid_tool_call",
}
USAGE = {
    "input_tokens": 30,
    "output_tokens": 9,
    "total_tokens": 39,
    "input_token_details": {"audio": 3, "cache_creation": 5, "cache_read": 10},
    "output_token_details": {"audio": 1, "reasoning": 4},
}
MEDIA = [
    *(
        {"type": kind, **place, **kind_of, **more}
        for kind, place, kind_of, more in itertools.product(
            ("image", "audio", "video", "file"),
            ({"base64": "AAAA"}, {"url": "https://example.com/a"}, {"file_id": "file-1"}),
            ({"mime_type": "image/png"}, {}),
            ({}, {"extras": {"filename": "a.bin", "detail": "high"}}, {"id": "lc_1", "index": 0}),
        )
    ),
    {"type": "image_url", "image_url": {"url": "https://example.com/b.png", "detail": "low"}},
    {"type": "image_url", "image_url": "https://example.com/b.png"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image", "source_type": "base64", "data": "AAAA", "mime_type": "image/png"},
    {"type": "image", "source_type": "url", "url": "https://example.com/c.png"},
    {"type": "file", "source_type": "base64", "data": "AAAA", "mime_type": "application/pdf", "filename": "a.pdf"},
    {"type": "file", "source_type": "id", "id": "file-2"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "text-plain", "text": "A letter.", "mime_type": "text/plain", "title": "Letter"},
    {"type": "non_standard", "value": {"anything": [1]}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
]


def _conversations():
    yield (
        "texts",
        [
            SystemMessage("Be brief."),
            HumanMessage("Hi."),
            AIMessage("Hello."),
            HumanMessage("", name="ann", id="h2"),
            AIMessage("", id="run--1"),
            SystemMessage(["Two ", {"type": "text", "text": "texts"}]),
        ],
    )
    yield (
        "a call and its answer",
        [
            HumanMessage("Weather?", id="h"),
            AIMessage("", tool_calls=[_call(1)]),
            ToolMessage("Rain.", tool_call_id="call_1", name="weather"),
            AIMessage("It rains."),
        ],
    )
    yield (
        "several calls",
        [
            AIMessage("I look.", tool_calls=[_call(1), _call(2, args={})], invalid_tool_calls=[INVALID_CALL]),
            ToolMessage("2", tool_call_id="call_2", status="error", artifact={"rows": [1, 2]}),
            ToolMessage(["1", {"type": "text", "text": "more"}], tool_call_id="call_1"),
            ToolMessage([], tool_call_id="call_8"),
            AIMessage([], tool_calls=[_call(3, id=None), _call(4, id=None)]),
        ],
    )
    yield (
        "only invalid calls",
        [AIMessage("", invalid_tool_calls=[INVALID_CALL, {"name": None, "args": None, "id": None, "error": None}])],
    )
    yield (
        "calls within the content",
        [
            AIMessage(
                [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Berlin", "days": 2}},
                    {"type": "text", "text": "And there."},
                    {"type": "tool_use", "id": "call_2", "name": "weather", "input": {}, "partial_json": "{}"},
                    {"type": "tool_use", "id": "call_7", "name": "weather", "input": {}},
                ],
                tool_calls=[_call(1), _call(2, args={}), _call(3)],
            ),
            AIMessage(
                content_blocks=[
                    {"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "c2ln"}},
                    {
                        "type": "text",
                        "text": "I look.",
                        "annotations": [{"type": "citation", "url": "https://example.com"}],
                    },
                    {"type": "tool_call", "id": "call_1", "name": "weather", "args": {"city": "Berlin"}},
                    {"type": "text", "text": "And there."},
                    {"type": "server_tool_call", "id": "srv_1", "name": "web_search", "args": {"query": "x"}},
                    {"type": "server_tool_result", "tool_call_id": "srv_1", "status": "success", "output": [1]},
                ],
            ),
        ],
    )
    yield (
        "thinking",
        [
            AIMessage([{"type": "redacted_thinking", "data": "c2VhbGVk"}, {"type": "text", "text": "Yes."}]),
            AIMessage([{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zz"}]),
            AIMessage([{"type": "reasoning", "reasoning": "Alone."}]),
            AIMessage("Yes.", additional_kwargs={"reasoning_content": "Aside."}),
            AIMessage("", additional_kwargs={"reasoning_content": "Aside."}, tool_calls=[_call(1)]),
            AIMessage("", additional_kwargs={"reasoning_content": ""}),
        ],
    )
    yield (
        "usage",
        [
            AIMessage("a", usage_metadata=USAGE, response_metadata={"model_name": "gpt-x", "model_provider": "openai"}),
            AIMessage("b", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
            AIMessage(
                "c", response_metadata={"model": "claude-x", "stop_reason": "end_turn", "usage": {"input_tokens": 1}}
            ),
            AIMessage("d", usage_metadata={**USAGE, "input_tokens": 2, "total_tokens": 99}),
        ],
    )
    yield "images and files", [HumanMessage(MEDIA), ToolMessage(MEDIA, tool_call_id="call_1"), AIMessage(MEDIA)]
    yield (
        "lists of one text",
        [
            HumanMessage([{"type": "text", "text": "Hi."}]),
            HumanMessage(["Hi."]),
            AIMessage([{"type": "text", "text": ""}], tool_calls=[_call(1)]),
            AIMessage([{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}, "index": 0}]),
            ToolMessage([{"type": "text", "text": "1"}], tool_call_id="call_1"),
            HumanMessage([]),
        ],
    )
    yield (
        "foreign fields",
        [
            HumanMessage(
                "Hi.", additional_kwargs={"lc_source": "x", "lc_data": {"n": 1.5}}, response_metadata={"k": None}
            ),
            HumanMessage("Hi.", response_metadata={"dragoman": "not ours"}, example=True),
            AIMessage("Ho.", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}, name="bob"),
        ],
    )
    yield (
        "other messages",
        [
            ChatMessage("Hear.", role="boss"),
            FunctionMessage(content="3", name="add"),
            RemoveMessage(id="m1"),
            AIMessageChunk("Hel", tool_call_chunks=[{"name": "weather", "args": '{"ci', "id": "call_1", "index": 0}]),
        ],
    )
