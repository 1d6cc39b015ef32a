"""LiteLLM: the transformation of its Anthropic provider, and its completion call for streams."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR", LITELLM_TELEMETRY="False")

import litellm
from litellm.llms.anthropic.chat.transformation import AnthropicConfig
from litellm.llms.custom_httpx import http_handler

from benchmarks import bodies
from benchmarks.contestants.memory_http import clients, httpx_of
from benchmarks.worker import Operation

_HI = [{"role": "user", "content": "Hello."}]


def operations() -> dict[str, Operation]:
    litellm.suppress_debug_info = litellm.drop_params = True
    config, httpx = AnthropicConfig(), http_handler.httpx
    operations_by_name: dict[str, Operation] = {
        f"request {size}": (
            lambda data=json.dumps(bodies.chat_request(size)): json.loads(data),  # it edits what it is given
            lambda body: _translate(config, body),
            lambda wire, size=size: bodies.find_loss(wire, size),
        )
        for size in bodies.SIZES
    }
    operations_by_name["interrupted request"] = (
        bodies.request_without_result,
        lambda body: _translate(config, body),
        bodies.find_unanswered_call,
    )
    operations_by_name["reply"] = (
        lambda: _response(httpx),
        lambda response: _read(config, response),
        _complaint_about_reply,
    )
    handler = http_handler.HTTPHandler()
    handler.client, _ = clients(httpx)
    operations_by_name["stream anthropic"] = (
        lambda: _completion("anthropic/" + bodies.CLAUDE, client=handler, api_base="http://memory"),
        list,
        _complaint_about_stream,
    )
    operations_by_name["stream openai"] = (
        lambda: _completion("openai/" + bodies.GPT, client=_openai()),
        list,
        _complaint_about_stream,
    )
    return operations_by_name


def _translate(config: Any, body: dict[str, Any]) -> Any:
    options = {key: body[key] for key in ("max_tokens", "temperature", "tools")}
    parameters = config.map_openai_params(options, {}, bodies.CLAUDE, True)
    arguments = {"optional_params": parameters, "litellm_params": {}, "headers": {}}
    return config.transform_request(model=bodies.CLAUDE, messages=body["messages"], **arguments)


def _response(httpx: Any) -> Any:
    request = httpx.Request("POST", "http://memory/v1/messages")
    return httpx.Response(200, headers={"content-type": "application/json"}, content=bodies.REPLY, request=request)


class _Log:
    model_call_details: dict[str, Any] = {}
    optional_params: dict[str, Any] = {}

    def post_call(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _name: str) -> None:
        return None


def _read(config: Any, response: Any) -> Any:
    return config.transform_response(
        model=bodies.CLAUDE,
        raw_response=response,
        model_response=litellm.ModelResponse(),
        logging_obj=_Log(),
        request_data={},
        messages=_HI,
        optional_params={},
        litellm_params={},
        encoding=None,
    )


def _completion(model: str, **arguments: Any) -> Any:
    return litellm.completion(model=model, messages=_HI, api_key="none", stream=True, **arguments)


def _openai() -> Any:
    import openai

    client, _ = clients(httpx_of("openai"))
    return openai.OpenAI(api_key="none", base_url="http://memory/v1", http_client=client)


def _complaint_about_reply(reply: Any) -> str | None:
    return None if bodies.REPLY_TEXT in reply.choices[0].message.content else "the text is missing"


def _complaint_about_stream(chunks: list[Any]) -> str | None:
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return None if text == bodies.STREAM_TEXT else "the text is not what was streamed"
