"""pydantic-ai: the body that it sends to a provider for its own messages, caught before it leaves the process."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from typing import Any

import anthropic
import openai
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from benchmarks.contestants.memory_http import httpx_of

VERSION = version("pydantic-ai-slim")
PAIRS = [("pydantic_ai", target) for target in ("anthropic", "openai_chat", "openai_responses")]
_SETTINGS = {  # its settings by the names of canonical options
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "parallel_tool_calls": "parallel_tool_calls",
    "stop_sequences": "stop_sequences",
    "service_tier": "service_tier",
}
_OF_OPENAI = {
    "user": "openai_user",
    "logprobs": "openai_logprobs",
    "top_logprobs": "openai_top_logprobs",
    "verbosity": "openai_text_verbosity",
    "store": "openai_store",
    "prompt_cache_key": "openai_prompt_cache_key",
}


class CaughtError(Exception):
    """The request was caught."""


class _Bodies:
    last: bytes | None = None


def _make_http_client(package: str) -> Any:
    httpx = httpx_of(package)

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            _Bodies.last = await request.aread()
            raise CaughtError

    return httpx.AsyncClient(transport=Transport())


def _make_model(target: str, model: str) -> Any:
    if target == "anthropic":
        sdk = anthropic.AsyncAnthropic(
            api_key="none", base_url="http://memory", max_retries=0, http_client=_make_http_client("anthropic")
        )
        return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=sdk))
    chat_sdk = openai.AsyncOpenAI(
        api_key="none", base_url="http://memory/v1", max_retries=0, http_client=_make_http_client("openai")
    )
    provider = OpenAIProvider(openai_client=chat_sdk)
    return (OpenAIChatModel if target == "openai_chat" else OpenAIResponsesModel)(model, provider=provider)


def convert(_source: str, target: str, model: str, wire: dict[str, Any]) -> Any:
    """Return the body for the target."""
    _Bodies.last = None
    messages = ModelMessagesTypeAdapter.validate_python(wire["messages"])
    try:
        asyncio.run(_make_model(target, model).request(messages, _settings(wire["options"], target), _parameters(wire)))
    except Exception:
        if _Bodies.last is None:
            raise
    assert _Bodies.last is not None
    return json.loads(_Bodies.last)


def _settings(options: dict[str, Any], target: str) -> Any:
    names = {**_SETTINGS, **(_OF_OPENAI if target != "anthropic" else {})}
    settings = {names[key]: value for key, value in options.items() if key in names}
    choice = options.get("tool_choice")
    if choice is not None:
        settings["tool_choice"] = choice.get("allowed") or ([choice["name"]] if "name" in choice else choice["mode"])
    reasoning = options.get("reasoning")
    if reasoning is not None:
        settings["thinking"] = reasoning.get("effort") or reasoning.get("enabled", True)
        if target == "anthropic" and "budget_tokens" in reasoning:
            settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": reasoning["budget_tokens"]}
    return settings


def _parameters(wire: dict[str, Any]) -> Any:
    tools = [
        ToolDefinition(
            name=tool["name"],
            description=tool["description"],
            parameters_json_schema=tool["input_schema"],
            strict=tool.get("strict"),
            defer_loading=bool(tool.get("defer_loading")),
        )
        for tool in wire["tools"]
    ]
    response_format = wire["options"].get("response_format")
    if response_format is None or "json_schema" not in response_format:
        return ModelRequestParameters(function_tools=tools)
    output = OutputObjectDefinition(
        json_schema=response_format["json_schema"],
        name=response_format.get("name"),
        description=response_format.get("description"),
        strict=response_format.get("strict"),
    )
    return ModelRequestParameters(
        function_tools=tools, output_mode="native", output_object=output, allow_text_output=False
    )
