"""Calls of a gateway with the official SDK of each API: text and tool calls as the SDK accumulates them.

CLIENTS["anthropic"](base_url, model, "hi", tools=True, stream=True) -> Answer
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

KEY: Final = "sk-of-the-caller"
SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
NAME, DESCRIPTION = "read_file", "Read a file."


class Answer(msgspec.Struct, frozen=True):
    """A reply, as the SDK returns it."""

    text: str
    calls: list[tuple[str, dict[str, Any]]] = []
    ids: list[str] = []


_clients: dict[tuple[str, str], Any] = {}  # by dialect and server; construction is slow


def ask(dialect: str, base_url: str, model: str, prompt: str, **options: Any) -> Answer:
    """Send a prompt with the SDK of a dialect."""
    return CLIENTS[dialect](base_url, model, prompt, **options)


def close_clients() -> None:
    """Close every client."""
    while _clients:
        client = _clients.popitem()[1]
        getattr(client, "_client", client).close() if type(client).__module__.startswith("ollama") else client.close()


def _client(name: str, base_url: str, make: Callable[[], Any]) -> Any:
    if (name, base_url) not in _clients:
        _clients[name, base_url] = make()
    return _clients[name, base_url]


class SdkError(Exception):
    """An error that an SDK raised."""

    def __init__(self, error: Exception, status: int | None) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.status = status


def ask_openai_chat(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    import openai

    client = _client(
        "openai", base_url, lambda: openai.OpenAI(api_key=KEY, base_url=f"{base_url}/v1", max_retries=0, timeout=60)
    )
    arguments: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    if tools:
        function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
        arguments["tools"] = [{"type": "function", "function": function}]
    try:
        if stream:
            with client.chat.completions.stream(**arguments) as chunks:
                for _ in chunks:
                    pass
                message = chunks.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**arguments).choices[0].message
    except openai.APIError as error:
        raise SdkError(error, getattr(error, "status_code", None)) from error
    calls = message.tool_calls or []
    return Answer(
        message.content or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        [call.id for call in calls],
    )


def ask_openai_responses(
    base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False
) -> Answer:
    import openai

    client = _client(
        "openai", base_url, lambda: openai.OpenAI(api_key=KEY, base_url=f"{base_url}/v1", max_retries=0, timeout=60)
    )
    arguments: dict[str, Any] = {"model": model, "input": prompt}
    if tools:
        tool = {"type": "function", "name": NAME, "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}
        arguments["tools"] = [tool]
    try:
        if stream:
            with client.responses.stream(**arguments) as events:
                for event in events:
                    if event.type in ("error", "response.failed"):
                        raise SdkError(RuntimeError(str(event)), None)
                response = events.get_final_response()
        else:
            response = client.responses.create(**arguments)
    except openai.APIError as error:
        raise SdkError(error, getattr(error, "status_code", None)) from error
    calls = [item for item in response.output if item.type == "function_call"]
    return Answer(
        response.output_text,
        [(call.name, json.loads(call.arguments)) for call in calls],
        [call.call_id for call in calls],
    )


def ask_anthropic(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    import anthropic

    client = _client(
        "anthropic", base_url, lambda: anthropic.Anthropic(api_key=KEY, base_url=base_url, max_retries=0, timeout=60)
    )
    arguments: dict[str, Any] = {"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": prompt}]}
    if tools:
        arguments["tools"] = [{"name": NAME, "description": DESCRIPTION, "input_schema": SCHEMA}]
    try:
        if stream:
            with client.messages.stream(**arguments) as events:
                for _ in events:
                    pass
                message = events.get_final_message()
            if message.stop_reason is None:
                raise SdkError(RuntimeError("no stop reason"), None)
        else:
            message = client.messages.create(**arguments)
    except anthropic.APIError as error:
        raise SdkError(error, getattr(error, "status_code", None)) from error
    calls = [block for block in message.content if block.type == "tool_use"]
    text = "".join(block.text for block in message.content if block.type == "text")
    return Answer(text, [(call.name, dict(call.input)) for call in calls], [call.id for call in calls])


def ask_gemini(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    from google import genai
    from google.genai import errors, types

    client = _client(
        "gemini",
        base_url,
        lambda: genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=base_url, timeout=30_000)),
    )
    declaration = types.FunctionDeclaration(name=NAME, description=DESCRIPTION, parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declaration])] if tools else None,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    arguments: dict[str, Any] = {"model": model, "contents": prompt, "config": config}
    try:
        if stream:
            replies = list(client.models.generate_content_stream(**arguments))
            if not any(reply.candidates and reply.candidates[0].finish_reason for reply in replies):
                raise SdkError(RuntimeError("no finish reason"), None)
        else:
            replies = [client.models.generate_content(**arguments)]
    except errors.APIError as error:
        raise SdkError(error, error.code) from error
    candidates = [reply.candidates[0] for reply in replies if reply.candidates]
    parts = [
        part for candidate in candidates if candidate.content is not None for part in candidate.content.parts or ()
    ]
    calls = [part.function_call for part in parts if part.function_call is not None]
    return Answer(
        "".join(part.text for part in parts if part.text and not part.thought),
        [(call.name or "", dict(call.args or {})) for call in calls],
        [call.id or "" for call in calls],
    )


def ask_cohere(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    import cohere
    import httpx
    from cohere.core.api_error import ApiError

    http_client = _client("cohere", base_url, lambda: httpx.Client(timeout=60))
    client = cohere.ClientV2(api_key=KEY, base_url=base_url, httpx_client=http_client)
    arguments: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    arguments["request_options"] = {"max_retries": 0}
    if tools:
        function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
        arguments["tools"] = [{"type": "function", "function": function}]
    try:
        return (
            _read_cohere_stream(client.chat_stream(**arguments)) if stream else _read_cohere(client.chat(**arguments))
        )
    except ApiError as error:
        raise SdkError(error, error.status_code) from error


def _read_cohere(response: Any) -> Answer:
    message = response.message
    text = (message.tool_plan or "") + "".join(part.text for part in message.content or () if part.type == "text")
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return Answer(text, calls, [call.id for call in message.tool_calls or ()])


def _read_cohere_stream(events: Any) -> Answer:
    text, names, inputs, ids, end = "", [], [], [], None
    for event in events:
        delta = getattr(event, "delta", None)
        if event.type == "tool-plan-delta":
            text += delta.message.tool_plan
        elif event.type == "content-delta":
            text += delta.message.content.text or ""
        elif event.type == "tool-call-start":
            names.append(delta.message.tool_calls.function.name)
            ids.append(delta.message.tool_calls.id)
            inputs.append(delta.message.tool_calls.function.arguments or "")
        elif event.type == "tool-call-delta":
            inputs[-1] += delta.message.tool_calls.function.arguments
        elif event.type == "message-end":
            end = delta.finish_reason
    if end in (None, "ERROR"):
        raise SdkError(RuntimeError(f"ended with {end}"), None)
    return Answer(text, [(name, json.loads(data)) for name, data in zip(names, inputs, strict=True)], ids)


def _make_bedrock_client(base_url: str) -> Any:
    import botocore.config
    import botocore.session

    return botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=base_url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key=KEY,
        config=botocore.config.Config(retries={"max_attempts": 0}, read_timeout=60),
    )


def ask_bedrock(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    import botocore.exceptions

    client = _client("bedrock", base_url, lambda: _make_bedrock_client(base_url))
    arguments: dict[str, Any] = {"modelId": model, "messages": [{"role": "user", "content": [{"text": prompt}]}]}
    if tools:
        spec = {"name": NAME, "description": DESCRIPTION, "inputSchema": {"json": SCHEMA}}
        arguments["toolConfig"] = {"tools": [{"toolSpec": spec}]}
    try:
        if stream:
            with contextlib.closing(client.converse_stream(**arguments)["stream"]) as events:
                return _read_bedrock_stream(events)
        return _read_bedrock(client.converse(**arguments))
    except botocore.exceptions.ClientError as error:
        raise SdkError(error, error.response["ResponseMetadata"].get("HTTPStatusCode")) from error


def _read_bedrock(response: Any) -> Answer:
    content = response["output"]["message"]["content"]
    calls = [block["toolUse"] for block in content if "toolUse" in block]
    text = "".join(block["text"] for block in content if "text" in block)
    return Answer(text, [(call["name"], call["input"]) for call in calls], [call["toolUseId"] for call in calls])


def _read_bedrock_stream(events: Any) -> Answer:
    text, names, inputs, ids, has_ended = "", [], [], [], False
    for event in events:
        match event:
            case {"contentBlockStart": {"start": {"toolUse": start}}}:
                names.append(start["name"])
                ids.append(start["toolUseId"])
                inputs.append("")
            case {"contentBlockDelta": {"delta": {"text": delta}}}:
                text += delta
            case {"contentBlockDelta": {"delta": {"toolUse": {"input": delta}}}}:
                inputs[-1] += delta
            case {"messageStop": _}:
                has_ended = True
    if not has_ended:
        raise SdkError(RuntimeError("no messageStop"), None)
    return Answer(text, [(name, json.loads(data)) for name, data in zip(names, inputs, strict=True)], ids)


def ask_ollama(base_url: str, model: str, prompt: str, *, tools: bool = False, stream: bool = False) -> Answer:
    import ollama

    headers = {"Authorization": f"Bearer {KEY}"}
    client = _client("ollama", base_url, lambda: ollama.Client(host=base_url, timeout=30, headers=headers))
    arguments: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    if tools:
        function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
        arguments["tools"] = [{"type": "function", "function": function}]
    try:
        replies = list(client.chat(**arguments)) if stream else [client.chat(**arguments)]
    except ollama.ResponseError as error:
        raise SdkError(error, error.status_code) from error
    if not replies[-1].done:
        raise SdkError(RuntimeError("not done"), None)
    calls = [call for reply in replies for call in reply.message.tool_calls or ()]
    text = "".join(reply.message.content or "" for reply in replies)
    return Answer(text, [(call.function.name, dict(call.function.arguments)) for call in calls])


CLIENTS: Final[dict[str, Callable[..., Answer]]] = {
    "anthropic": ask_anthropic,
    "bedrock_converse": ask_bedrock,
    "cohere": ask_cohere,
    "gemini": ask_gemini,
    "ollama": ask_ollama,
    "openai_chat": ask_openai_chat,
    "openai_responses": ask_openai_responses,
}
