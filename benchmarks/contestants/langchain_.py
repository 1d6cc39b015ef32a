"""LangChain: its message objects, and the payload that its Anthropic model would send."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.update(LANGCHAIN_TRACING_V2="false", LANGSMITH_TRACING="false")

import anthropic
from anthropic._models import construct_type
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import convert_to_messages
from langchain_openai import ChatOpenAI

from benchmarks import bodies
from benchmarks.contestants.memory_http import clients, httpx_of
from benchmarks.worker import Operation


def operations() -> dict[str, Operation]:
    base = {"api_key": "none", "stream_usage": True}
    model = ChatAnthropic(model=bodies.CLAUDE, max_tokens=1024, base_url="http://memory", **base)
    client, _ = clients(httpx_of("anthropic"))
    model.__dict__["_client"] = anthropic.Anthropic(api_key="none", base_url="http://memory", http_client=client)
    client, _ = clients(httpx_of("openai"))
    chat = ChatOpenAI(
        model=bodies.GPT, base_url="http://memory/v1", http_client=client, use_responses_api=False, **base
    )
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
    operations_by_name["stream anthropic"] = (lambda: model.stream([("user", "Hello.")]), list, _complaint_about_stream)
    operations_by_name["stream openai"] = (lambda: chat.stream([("user", "Hello.")]), list, _complaint_about_stream)
    return operations_by_name


def _translate(model: Any, body: dict[str, Any]) -> Any:
    bound = model.bind_tools(body["tools"])
    return model._get_request_payload(convert_to_messages(body["messages"]), **bound.kwargs)


def _read(model: Any, data: bytes) -> Any:
    message = construct_type(value=json.loads(data), type_=anthropic.types.Message)
    return model._format_output(message).generations[0].message


def _complaint_about_reply(message: Any) -> str | None:
    return None if bodies.REPLY_TEXT in str(message.content) else "the text is missing"


def _complaint_about_stream(chunks: list[Any]) -> str | None:
    text = "".join(_text(chunk.content) for chunk in chunks)
    return None if text == bodies.STREAM_TEXT else "the text is not what was streamed"


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
