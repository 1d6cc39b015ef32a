"""Count the tokens of a request: by the provider's own counting endpoint, else by an estimate.

    response = await count_tokens(gateway, client_request)

Anthropic, Gemini, OpenAI Responses and Bedrock have such an endpoint; a request of another API is translated for it. If
the provider has no such endpoint for a model, it is not asked again for that model. The response has the shape of the
caller's API, and the header ``x-dragoman-count`` says whether the number is the provider's or an estimate.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects, tokens
from dragoman.client.call import NetworkError
from dragoman.exchange import Request, ToolDefinition
from dragoman.gateway import headers as header_rules
from dragoman.gateway.client_request import ClientRequest, decode_fields, with_fields
from dragoman.gateway.translation import translate_request
from dragoman.gateway.types import JSON_TYPE, GatewayResponse, invalid_request_error
from dragoman.gateway.upstream import Target, build_request, open_response
from dragoman.jsontext import DECODE_ERRORS
from dragoman.offload import run_off_loop

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

# By dialect: the path after the one of a call, and the field of the number.
_COUNTERS: Final = {
    "anthropic": ("/messages", "/messages/count_tokens", "input_tokens"),
    "gemini": (":generateContent", ":countTokens", "totalTokens"),
    "bedrock_converse": ("/converse", "/count-tokens", "inputTokens"),
    "openai_responses": ("/responses", "/responses/input_tokens", "input_tokens"),
}
_NOT_COUNTED: Final = ("max_tokens", "max_output_tokens", "stream", "store", "temperature", "top_p", "stop_sequences")
_CONVERSE_COUNTED: Final = ("messages", "system", "toolConfig", "additionalModelRequestFields")
_MAX_ANSWER_BYTES: Final = 64 * 1024
_MAX_WITHOUT_COUNTER: Final = 1_024


async def count_tokens(gateway: Gateway, client_request: ClientRequest) -> GatewayResponse:
    """Return the number of tokens of a request in the caller's shape."""
    dialect, body = _unwrap_request(client_request)
    read = dialects.load(dialect).read_request
    canonical: Request = await run_off_loop(len(body), read, body)
    model = gateway.names.find(client_request.model, client_request.reply_dialect).models[0]
    target = await gateway.target(model)
    count = await _ask_provider(gateway, client_request, dialect, canonical, target)
    source = "provider" if count is not None else "estimate"
    if count is None:
        count = _estimate(canonical, model.id)
    headers = {"content-type": JSON_TYPE, "x-dragoman-model": model.id, "x-dragoman-count": source}
    return GatewayResponse(headers=headers, body=msgspec.json.encode(_shape(client_request.reply_dialect, count)))


def _unwrap_request(client_request: ClientRequest) -> tuple[str, bytes]:
    """Return the request that is counted, and its dialect; Gemini and Bedrock have a whole request inside the body."""
    dialect, fields = client_request.dialect, client_request.fields
    if dialect == "bedrock_converse":
        return _bedrock_request(client_request.value("input"), client_request.model)
    inner = fields.get("generateContentRequest")
    return dialect, client_request.request.body if inner is None else bytes(inner)


def _bedrock_request(value: Any, model: str) -> tuple[str, bytes]:
    match value:
        case {"converse": dict() as wire}:
            return "bedrock_converse", msgspec.json.encode(wire)
        case {"invokeModel": {"body": str() as text}}:
            try:
                fields = decode_fields(base64.b64decode(text, validate=True))
            except binascii.Error:
                pass
            else:
                return "anthropic", with_fields(fields, model=model, anthropic_version=None, anthropic_beta=None)
    raise invalid_request_error("input: a request of converse or invokeModel is required.")


def _estimate(canonical: Request, model: str) -> int:
    tools = [tool for tool in canonical.tools if isinstance(tool, ToolDefinition)]
    return tokens.estimate(canonical.messages, tools, model)


def _shape(dialect: str, count: int) -> dict[str, Any]:
    match dialect:
        case "gemini":
            return {"totalTokens": count}
        case "bedrock_converse":
            return {"inputTokens": count}
        case "openai_responses":
            return {"object": "response.input_tokens", "input_tokens": count}
        case _:
            return {"input_tokens": count}


async def _ask_provider(
    gateway: Gateway, client_request: ClientRequest, counted: str, canonical: Request, target: Target
) -> int | None:
    """Return the provider's number; none if it has no counting endpoint or does not answer."""
    dialect = target.provider.dialect
    if dialect not in _COUNTERS or target.model.id in gateway.without_counter:
        return None
    path, counter_path, field = _COUNTERS[dialect]
    if dialect == client_request.dialect:
        body, caller_headers = _rename_model(client_request, target.model.name), dict(client_request.request.headers)
    else:
        wire = translate_request(canonical, counted, target.model, target.provider, stream=False).wire
        body, caller_headers = msgspec.json.encode(_to_counted(dialect, wire, target.model.name)), {}
    request = build_request(
        target, body, stream=False, caller_headers=header_rules.request_headers(caller_headers, dialect)
    )
    request = msgspec.structs.replace(request, url=request.url.replace(path, counter_path, 1))
    try:
        response = await open_response(gateway.client, request, gateway.timeouts)
    except NetworkError:
        return None
    try:
        if response.status in (404, 405, 501):
            if len(gateway.without_counter) >= _MAX_WITHOUT_COUNTER:
                gateway.without_counter.clear()
            gateway.without_counter.add(target.model.id)
        if response.status != 200:
            return None
        answer = msgspec.json.decode(await response.read_all(_MAX_ANSWER_BYTES))
    except (NetworkError, *DECODE_ERRORS):
        return None
    finally:
        response.close()
    count = answer.get(field) if isinstance(answer, dict) else None
    return count if isinstance(count, int) else None


def _rename_model(client_request: ClientRequest, name: str) -> bytes:
    """Return the caller's body with the provider's name of the model."""
    fields = client_request.fields
    if client_request.model == name:
        return client_request.request.body
    changed: dict[str, Any] = {"model": name} if "model" in fields else {}
    inner = client_request.value("generateContentRequest")
    if isinstance(inner, dict):
        changed["generateContentRequest"] = {**inner, "model": f"models/{name}"}
    return with_fields(fields, **changed) if changed else client_request.request.body


def _to_counted(dialect: str, wire: dict[str, Any], model: str) -> dict[str, Any]:
    """Return a translated request without options that a counting endpoint rejects."""
    if dialect == "gemini":
        return {"generateContentRequest": {"model": f"models/{model}", **wire}}
    if dialect == "bedrock_converse":
        return {"input": {"converse": {name: value for name, value in wire.items() if name in _CONVERSE_COUNTED}}}
    return {name: value for name, value in wire.items() if name not in _NOT_COUNTED}
