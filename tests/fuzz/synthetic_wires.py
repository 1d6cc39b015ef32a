"""Synthetic seeds for the dialects without cassettes and without samples in the fidelity table.

wires(dialect, part)     as in ``seeds``; empty for other dialects
"""

from __future__ import annotations

from typing import Any, Final

from tests.dialects.test_dialect_variants import ANSWERS, CLAUDE, NOVA, PROMPTS, STEPS, WEATHER
from tests.dialects.test_every_dialect import PIXEL

_HELLO: Final = {"type": "text", "text": "Hello."}
_CALL: Final = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Łódź"}}
_CLAUDE_REPLY: Final = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [_HELLO, _CALL],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 5},
}
_NOVA_REPLY: Final = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8},
}
_METRICS: Final = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 3, "outputTokenCount": 5}}
_CLAUDE_EVENTS: Final[list[dict[str, Any]]] = [
    {"type": "message_start", "message": {**_CLAUDE_REPLY, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {**_CALL, "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop", **_METRICS},
]
_NOVA_EVENTS: Final[list[dict[str, Any]]] = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockDelta": {"delta": {"text": "Hello."}, "contentBlockIndex": 0}},
    {"contentBlockStop": {"contentBlockIndex": 0}},
    {"messageStop": {"stopReason": "end_turn"}},
    {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8}}, **_METRICS},
]
_TEXT_EVENTS: Final[list[list[dict[str, Any]]]] = [
    [
        {"generation": "Hel", "prompt_token_count": 3, "generation_token_count": 1, "stop_reason": None},
        {"generation": "lo.", "prompt_token_count": None, "generation_token_count": 5, "stop_reason": "stop"},
    ],
    [
        {"index": 0, "inputTextTokenCount": 3, "outputText": "Hel", "completionReason": None},
        {"index": 0, "totalOutputTextTokenCount": 5, "outputText": "lo.", "completionReason": "FINISH", **_METRICS},
    ],
    [{"outputs": [{"text": "Hel", "stop_reason": None}]}, {"outputs": [{"text": "lo.", "stop_reason": "stop"}]}],
    [
        {"completion": "Hel", "stop_reason": None, "stop": None},
        {"completion": "lo.", "stop_reason": "stop_sequence", "stop": "\n\nHuman:"},
    ],
]

_COHERE_REQUEST: Final[dict[str, Any]] = {
    "model": "command-r",
    "preamble": "Be brief.",
    "chat_history": [
        {"role": "USER", "message": "How is the weather?"},
        {"role": "CHATBOT", "message": "I'll look.", "tool_calls": [WEATHER]},
        {"role": "TOOL", "tool_results": [{"call": WEATHER, "outputs": [{"degrees": 3}]}]},
    ],
    "message": "And now?",
    "tool_results": [{"call": WEATHER, "outputs": [{"text": "It snows."}]}],
    "tools": [
        {
            "name": "weather",
            "description": "Weather.",
            "parameter_definitions": {
                "city": {"description": "A city.", "type": "str", "required": True},
                "days": {"type": "List[int]"},
            },
        }
    ],
    "documents": [{"id": "d1", "title": "Snow", "text": "It snows in Łódź."}],
    "connectors": [{"id": "web-search"}],
    "temperature": 0.3,
    "max_tokens": 100,
    "stop_sequences": ["END"],
    "k": 3,
}
_COHERE_REPLY: Final[dict[str, Any]] = {
    "response_id": "r",
    "generation_id": "g",
    "text": "I'll look.",
    "tool_calls": [WEATHER],
    "citations": [{"start": 0, "end": 4, "text": "I'll", "document_ids": ["d1"]}],
    "documents": [{"id": "d1", "title": "Snow", "text": "It snows in Łódź."}],
    "finish_reason": "COMPLETE",
    "meta": {"tokens": {"input_tokens": 3, "output_tokens": 5}},
}
_COHERE_EVENTS: Final[list[dict[str, Any]]] = [
    {"is_finished": False, "event_type": "stream-start", "generation_id": "g"},
    {"is_finished": False, "event_type": "text-generation", "text": "I'll look."},
    {"is_finished": False, "event_type": "citation-generation", "citations": _COHERE_REPLY["citations"]},
    {"is_finished": False, "event_type": "tool-calls-chunk", "tool_call_delta": {"index": 0, "name": "weather"}},
    {"is_finished": False, "event_type": "tool-calls-generation", "tool_calls": [WEATHER]},
    {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "response": _COHERE_REPLY},
]

_STATISTICS: Final = {"total_duration": 9, "prompt_eval_count": 3, "eval_count": 5, "context": [1, 2]}
_GENERATE_START: Final = {"model": "llava", "created_at": "2026-01-01T12:00:00Z"}
_GENERATE_REPLY: Final = {
    **_GENERATE_START,
    "response": "Hello.",
    "thinking": "Hm.",
    "done": True,
    "done_reason": "stop",
    **_STATISTICS,
}

_INTERACTION: Final = {
    "id": "v1",
    "object": "interaction",
    "model": "gemini-3.5-flash",
    "status": "requires_action",
    "steps": STEPS,
    "usage": {"total_input_tokens": 3, "total_output_tokens": 5, "total_tokens": 8},
}
_RESULT: Final = {"type": "function_result", "call_id": "c1", "name": "weather", "result": {"degrees": 3}}
_REQUEST: Final = {"model": "gemini-3.5-flash", "store": False}
_INTERACTION_EVENTS: Final[list[dict[str, Any]]] = [
    {"event_type": "interaction.start", "interaction": {"id": "v1", "model": "m", "status": "in_progress"}},
    {"event_type": "content.start", "index": 0, "content": {"type": "thought"}},
    {"event_type": "content.delta", "index": 0, "delta": {"type": "thought_signature", "signature": "sig"}},
    {"event_type": "content.stop", "index": 0},
    {"event_type": "content.start", "index": 1, "content": {"type": "text", "text": ""}},
    {"event_type": "content.delta", "index": 1, "delta": {"type": "text", "text": "Hello."}},
    {"event_type": "content.stop", "index": 1},
    {"event_type": "interaction.complete", "interaction": {"id": "v1", "model": "m", "status": "completed"}},
]
_STEP_EVENTS: Final[list[dict[str, Any]]] = [
    {"event_type": "interaction.created", "interaction": {"id": "v1", "model": "m", "status": "in_progress"}},
    {"event_type": "step.start", "index": 0, "step": {"type": "thought"}},
    {
        "event_type": "step.delta",
        "index": 0,
        "delta": {"type": "thought_summary", "content": {"type": "text", "text": "Hm."}},
    },
    {"event_type": "step.delta", "index": 0, "delta": {"type": "thought_signature", "signature": "sig"}},
    {"event_type": "step.stop", "index": 0},
    {"event_type": "step.start", "index": 1, "step": {"type": "model_output"}},
    {"event_type": "step.delta", "index": 1, "delta": {"type": "text", "text": "Hello."}},
    {"event_type": "step.stop", "index": 1},
    {"event_type": "step.start", "index": 2, "step": {"type": "function_call", "id": "c1", "name": "weather"}},
    {"event_type": "step.delta", "index": 2, "delta": {"type": "arguments_delta", "arguments": "{}"}},
    {"event_type": "step.stop", "index": 2},
    {"event_type": "interaction.completed", "interaction": {"id": "v1", "model": "m", "status": "requires_action"}},
]
_GOOGLE_ERROR: Final = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slow down", "details": []}}


def _frames(events: list[dict[str, Any]], key: str | None = None, name: str | None = None) -> list[Any]:
    """Return a stream as a list of [event name, object]. The name is the value of ``key``, or ``name``."""
    return [[event[key] if key is not None else name, event] for event in events]


_WIRES: Final[dict[str, dict[str, list[Any]]]] = {
    "bedrock_invoke": {
        "request": [CLAUDE, NOVA, *PROMPTS.values()],
        "reply": [_CLAUDE_REPLY, _NOVA_REPLY, *ANSWERS.values()],
        "error": [{"message": "slow down", "__type": "ThrottlingException"}, {"message": "no such model"}],
        "stream": [_frames(events, name="chunk") for events in (_CLAUDE_EVENTS, _NOVA_EVENTS, *_TEXT_EVENTS)],
    },
    "cohere_v1": {
        "request": [_COHERE_REQUEST, {"message": "Hi."}],
        "reply": [_COHERE_REPLY, {"text": "Hello.", "finish_reason": "MAX_TOKENS"}],
        "error": [{"message": "invalid api token"}],
        "stream": [_frames(_COHERE_EVENTS)],
    },
    "gemini_interactions": {
        "request": [
            {**_REQUEST, "input": "Hi.", "system_instruction": "Be brief.", "generation_config": {"temperature": 0.5}},
            {**_REQUEST, "input": [_HELLO, {"type": "image", "data": PIXEL, "mime_type": "image/png"}]},
            {**_REQUEST, "input": [{"role": "user", "content": "Hi."}, {"role": "model", "content": [_HELLO]}]},
            {**_REQUEST, "input": [{"type": "user_input", "content": [_HELLO]}, *STEPS, _RESULT]},
            {
                **_REQUEST,
                "input": [*STEPS, {"type": "user_input", "content": [_RESULT]}],
                "previous_interaction_id": "v1",
                "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
            },
        ],
        "reply": [
            _INTERACTION,
            {"id": "v1", "object": "interaction", "agent": "deep-research", "status": "in_progress"},
            {"id": "v1", "object": "interaction", "status": "failed", "error": {"code": 503, "status": "UNAVAILABLE"}},
        ],
        "error": [_GOOGLE_ERROR],
        "stream": [_frames(_INTERACTION_EVENTS, "event_type"), _frames(_STEP_EVENTS, "event_type")],
    },
    "ollama_generate": {
        "request": [
            {
                "model": "llava",
                "prompt": "What is this?",
                "suffix": "",
                "system": "Be brief.",
                "images": [PIXEL],
                "template": "{{ .Prompt }}",
                "format": {"type": "object"},
                "options": {"num_predict": 100, "temperature": 0.5, "stop": ["END"]},
                "context": [1, 2],
                "think": True,
                "stream": False,
            },
            {"model": "llama3", "prompt": "Hi.", "raw": True},
        ],
        "reply": [_GENERATE_REPLY, {**_GENERATE_START, "response": "", "done": True, "done_reason": "load"}],
        "error": [{"error": "model 'llava' not found"}],
        "stream": [
            _frames(
                [
                    {**_GENERATE_START, "response": "", "thinking": "Hm.", "done": False},
                    {**_GENERATE_START, "response": "Hello.", "done": False},
                    {**_GENERATE_START, "response": "", "done": True, "done_reason": "stop", **_STATISTICS},
                ]
            )
        ],
    },
}


def wires(dialect: str, part: str) -> list[Any]:
    """Return the synthetic seeds of one part of a dialect."""
    return _WIRES.get(dialect, {}).get(part, [])
