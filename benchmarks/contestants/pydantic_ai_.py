"""pydantic-ai: from its own message objects, which it has no reader of chat requests for, to what Anthropic takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
from anthropic._models import construct_type
from anthropic.types.beta import BetaMessage
from pydantic_ai import messages as parts
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from benchmarks import bodies
from benchmarks.contestants.memory_http import LOOP, clients, httpx_of
from benchmarks.worker import Operation


def operations() -> dict[str, Operation]:
    _, client = clients(httpx_of("anthropic"))
    sdk = anthropic.AsyncAnthropic(api_key="none", base_url="http://memory", http_client=client)
    model = AnthropicModel(bodies.CLAUDE, provider=AnthropicProvider(anthropic_client=sdk))
    _, client = clients(httpx_of("openai"))
    chat_sdk = openai.AsyncOpenAI(api_key="none", base_url="http://memory/v1", http_client=client)
    chat = OpenAIChatModel(bodies.GPT, provider=OpenAIProvider(openai_client=chat_sdk))
    operations_by_name: dict[str, Operation] = {
        f"request {size}": (
            lambda body=bodies.chat_request(size): body,
            lambda body: _translate(model, body),
            lambda wire, size=size: bodies.find_loss(wire, size),
        )
        for size in bodies.SIZES
    }
    operations_by_name["interrupted request"] = (
        bodies.request_without_result,
        lambda body: _translate(model, body),
        bodies.find_unanswered_call,
    )
    operations_by_name["reply"] = (lambda: bodies.REPLY, lambda data: _read(model, data), _complaint_about_reply)
    operations_by_name["stream anthropic"] = (lambda: None, _events(model), _complaint_about_stream)
    operations_by_name["stream openai"] = (lambda: None, _events(chat), _complaint_about_stream)
    return operations_by_name


def _translate(model: Any, body: dict[str, Any]) -> dict[str, Any]:
    functions = [tool["function"] for tool in body["tools"]]
    tools = [
        ToolDefinition(name=f["name"], description=f["description"], parameters_json_schema=f["parameters"])
        for f in functions
    ]
    mapping = model._map_message(_messages(body), ModelRequestParameters(function_tools=tools), {})
    try:
        mapping.send(None)
    except StopIteration as done:  # it never really waits
        return {"system": done.value[0], "messages": done.value[1]}
    raise RuntimeError("the mapping waits for something")


def _messages(body: dict[str, Any]) -> list[Any]:
    messages_out: list[Any] = []
    names: dict[str, str] = {}
    for message in body["messages"]:
        match message["role"]:
            case "system":
                messages_out.append(parts.ModelRequest(parts=[parts.SystemPromptPart(content=message["content"])]))
            case "user":
                messages_out.append(parts.ModelRequest(parts=[parts.UserPromptPart(content=message["content"])]))
            case "tool":
                call_id = message["tool_call_id"]
                result = parts.ToolReturnPart(names[call_id], message["content"], tool_call_id=call_id)
                messages_out.append(parts.ModelRequest(parts=[result]))
            case _:
                response_parts: list[Any] = [parts.TextPart(content=message["content"])]
                for call in message.get("tool_calls", ()):
                    function = call["function"]
                    names[call["id"]] = function["name"]
                    response_parts.append(
                        parts.ToolCallPart(function["name"], function["arguments"], tool_call_id=call["id"])
                    )
                messages_out.append(parts.ModelResponse(parts=response_parts))
    return messages_out


def _read(model: Any, data: bytes) -> Any:
    message = construct_type(value=json.loads(data), type_=BetaMessage)
    return model._process_response(message, ModelRequestParameters(), {})


def _events(model: Any) -> Callable[[Any], list[Any]]:
    hello = [parts.ModelRequest(parts=[parts.UserPromptPart(content="Hello.")])]

    async def stream() -> list[Any]:
        async with model.request_stream(hello, {"max_tokens": 256}, ModelRequestParameters()) as events:
            return [event async for event in events]

    return lambda _: LOOP.run_until_complete(stream())


def _complaint_about_reply(reply: Any) -> str | None:
    texts = [getattr(part, "content", "") for part in reply.parts]
    return None if bodies.REPLY_TEXT in texts else "the text is missing"


def _complaint_about_stream(events: list[Any]) -> str | None:
    text = ""
    for event in events:
        if type(event).__name__ == "PartStartEvent":
            text += getattr(event.part, "content", "")
        else:
            text += getattr(getattr(event, "delta", None), "content_delta", "") or ""
    return None if text == bodies.STREAM_TEXT else "the text is not what was streamed"
