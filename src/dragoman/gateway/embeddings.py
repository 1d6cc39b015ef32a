"""Embeddings: passed to a provider of the same API, translated for a provider of another one.

    response = await embed(gateway, client_request)

OpenAI's endpoint serves both OpenAI dialects; Gemini and Ollama have their own. The other APIs have no embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects
from dragoman.client.call import NetworkError
from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway import embedding_forms
from dragoman.gateway import headers as header_rules
from dragoman.gateway.client_request import ClientRequest, with_fields
from dragoman.gateway.model_lists import json_response
from dragoman.gateway.types import JSON_TYPE, GatewayError, GatewayResponse, invalid_request_error
from dragoman.gateway.upstream import Target, UpstreamRequest, build_request, open_response

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_MAX_BYTES: Final = 64 * 2**20


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


async def embed(gateway: Gateway, client_request: ClientRequest) -> GatewayResponse:
    """Return the embeddings in the caller's form."""
    form = client_request.reply_dialect
    model = gateway.names.find(client_request.model, form).models[0]
    target = await gateway.target(model)
    provider_form = embedding_forms.FORMS.get(target.provider.dialect)
    if provider_form is None:
        raise invalid_request_error(
            f"{model.id} is reached by the API {target.provider.dialect}, which has no embeddings."
            " Choose a model of another provider."
        )
    if provider_form == form:
        return await _pass_on(gateway, client_request, target)
    return await _translate(gateway, client_request, target, provider_form)


async def _pass_on(gateway: Gateway, client_request: ClientRequest, target: Target) -> GatewayResponse:
    """Send the caller's body, and return the provider's response as it is."""
    request, model = client_request.request, target.model
    upstream = build_request(
        target,
        _rename_model(client_request, model.name),
        stream=False,
        caller_headers=header_rules.request_headers(request.headers, client_request.reply_dialect),
        query=header_rules.forward_query(request.query),
    )
    path_end = request.path if target.provider.dialect == "ollama" else f":{request.path.rpartition(':')[2]}"
    answer = await _send(gateway, upstream, target, path_end)
    headers = {"x-dragoman-model": model.id, **header_rules.response_headers(answer.headers)}
    headers["content-type"] = answer.headers.get("content-type", JSON_TYPE)
    return GatewayResponse(status=answer.status, headers=headers, body=answer.body)


def _rename_model(client_request: ClientRequest, name: str) -> bytes:
    """Return the caller's body with the provider's name of the model."""
    fields = client_request.fields
    if client_request.model == name:
        return client_request.request.body
    if client_request.reply_dialect != "gemini":
        return with_fields(fields, model=name)
    changed: dict[str, Any] = {"model": f"models/{name}"} if "model" in fields else {}
    requests = client_request.value("requests")
    if isinstance(requests, list):
        changed["requests"] = [{**part, "model": f"models/{name}"} for part in requests if isinstance(part, dict)]
    return with_fields(fields, **changed)


async def _translate(gateway: Gateway, client_request: ClientRequest, target: Target, form: str) -> GatewayResponse:
    """Send the texts in the provider's form, and return the vectors in the caller's."""
    request, model = client_request.request, target.model
    fields = {name: client_request.value(name) for name in client_request.fields}
    wanted = embedding_forms.read_request(client_request.reply_dialect, request.path, fields)
    body = msgspec.json.encode(embedding_forms.write_request(form, wanted, model.name))
    upstream = build_request(target, body, stream=False)
    answer = await _send(gateway, upstream, target, embedding_forms.path_end(form))
    if not 200 <= answer.status < 300:
        raise GatewayError(
            dialects.load(target.provider.dialect).read_error(answer.status, answer.headers, answer.body)
        )
    try:
        found = embedding_forms.read_reply(form, answer.body)
    except msgspec.DecodeError as error:
        message = f"the provider's response has no embeddings: {error}"
        raise GatewayError(
            Fault(code="bad_content_type", message=message, error_class=ErrorClass.SERVER_ERROR)
        ) from None
    response = json_response(embedding_forms.write_reply(wanted, found, client_request.model))
    response.headers["x-dragoman-model"] = model.id
    if wanted.losses:
        response.headers["x-dragoman-losses"] = ", ".join(wanted.losses)
    return response


async def _send(gateway: Gateway, upstream: UpstreamRequest, target: Target, path_end: str) -> _Answer:
    url = _embedding_url(upstream, target, path_end)
    try:
        response = await open_response(gateway.client, msgspec.structs.replace(upstream, url=url), gateway.timeouts)
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    try:
        return _Answer(response.status, dict(response.headers), await response.read_all(_MAX_BYTES))
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    finally:
        response.close()


def _embedding_url(upstream: UpstreamRequest, target: Target, path_end: str) -> str:
    """Return the URL: that of a call, with another end of its path."""
    base, question, query = upstream.url.partition("?")
    match target.provider.dialect:
        case "gemini":
            base = base.rpartition(":")[0] + path_end
        case "ollama":
            base = base.removesuffix("/api/chat") + path_end
        case _:
            base = f"{target.endpoint.base_url}/embeddings"
    return base + question + query
