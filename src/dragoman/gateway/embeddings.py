"""Embeddings: passed to a provider of the same API.

    response = await embed(gateway, found, request)

OpenAI's endpoint serves both OpenAI dialects; Gemini and Ollama have their own. A model of another API is refused,
because vectors of one API are not requested in the form of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from dragoman.client.call import NetworkError
from dragoman.gateway import headers as header_rules
from dragoman.gateway.client_request import ClientRequest, with_fields
from dragoman.gateway.types import JSON_TYPE, GatewayError, GatewayRequest, GatewayResponse, invalid_request_error
from dragoman.gateway.upstream import Target, UpstreamRequest, build_request, open_response

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_FAMILIES: Final = {
    "openai_chat": ("openai_chat", "openai_responses"),
    "gemini": ("gemini",),
    "ollama": ("ollama",),
}
_MAX_BYTES: Final = 64 * 2**20


async def embed(gateway: Gateway, client_request: ClientRequest) -> GatewayResponse:
    """Return the provider's response to a request for embeddings."""
    request = client_request.request
    dialect = client_request.reply_dialect
    model = gateway.names.find(client_request.model, dialect).models[0]
    target = await gateway.target(model)
    if target.provider.dialect not in _FAMILIES[dialect]:
        raise invalid_request_error(
            f"{model.id} is reached by the API {target.provider.dialect}, which has no embeddings in this form."
        )
    body = client_request.request.body
    if "model" in client_request.fields and client_request.model != model.name:
        body = with_fields(client_request.fields, model=model.name)
    upstream = build_request(
        target,
        body,
        stream=False,
        caller_headers=header_rules.request_headers(request.headers, dialect),
        query=header_rules.forward_query(request.query),
    )
    upstream = msgspec.structs.replace(upstream, url=_embedding_url(upstream, target, request))
    try:
        response = await open_response(gateway.client, upstream, gateway.timeouts)
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    try:
        answer = await response.read_all(_MAX_BYTES)
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    finally:
        response.close()
    headers = {"x-dragoman-model": model.id, **header_rules.response_headers(response.headers)}
    headers["content-type"] = response.headers.get("content-type", JSON_TYPE)
    return GatewayResponse(status=response.status, headers=headers, body=answer)


def _embedding_url(upstream: UpstreamRequest, target: Target, request: GatewayRequest) -> str:
    """Return the URL: that of a call, with the last part of the caller's path."""
    base, question, query = upstream.url.partition("?")
    match target.provider.dialect:
        case "gemini":
            base = f"{base.rpartition(':')[0]}:{request.path.rpartition(':')[2]}"
        case "ollama":
            base = base.removesuffix("/api/chat") + request.path
        case _:
            base = f"{target.endpoint.base_url}/embeddings"
    return base + question + query
