"""Embeddings: passed to a provider of the same API, translated for a provider of another one.

    response = await embed(gateway, client_request)

OpenAI's endpoint serves both OpenAI dialects; Gemini, Ollama and Cohere have their own. The other APIs have no
embeddings. If a model fails, the next one of the name's list is called.

Usage and cost of a call are added to the totals of its caller before the response is sent. Texts and vectors are not
stored. If the provider reports no tokens, they are estimated.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects
from dragoman.client.call import NetworkError
from dragoman.errors import DragomanError
from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway import embedding_forms
from dragoman.gateway import headers as header_rules
from dragoman.gateway.client_request import ClientRequest, with_fields
from dragoman.gateway.error_shapes import may_fall_back
from dragoman.gateway.hooks import CallEnd, CallStart
from dragoman.gateway.model_lists import json_response
from dragoman.gateway.types import JSON_TYPE, GatewayError, GatewayResponse, invalid_request_error
from dragoman.gateway.upstream import Target, UpstreamRequest, build_request, open_response
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import TokenUsage, Usage
from dragoman.shield import run_to_completion

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_MAX_BYTES: Final = 64 * 2**20
_log: Final = logging.getLogger("dragoman.gateway")


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


async def embed(gateway: Gateway, client_request: ClientRequest) -> GatewayResponse:
    """Return the embeddings in the caller's form."""
    models = gateway.names.find(client_request.model, client_request.reply_dialect).models
    targets = [await gateway.target(model) for model in models]
    usable = [target for target in targets if target.provider.dialect in embedding_forms.FORMS]
    if not usable:
        raise invalid_request_error(
            f"{models[0].id} is served by the API {targets[0].provider.dialect}, which has no embeddings."
            " Choose a model of another provider."
        )
    return await _EmbeddingCall(gateway, client_request, usable).run()


class _EmbeddingCall:
    """One call in progress."""

    def __init__(self, gateway: Gateway, client_request: ClientRequest, targets: list[Target]) -> None:
        self._gateway = gateway
        self._client_request = client_request
        self._targets = targets  # in the order in which they are tried
        self._target = targets[0]  # of the current attempt
        self._started_at = gateway.services.clock()
        self._start_s = gateway.services.client.clock()
        self._body = b""  # of the provider's response, once it is known to have vectors

    async def run(self) -> GatewayResponse:
        """Return the response; usage and cost are counted before."""
        request = self._client_request.request
        call_start = CallStart(
            caller=request.caller,
            dialect=self._client_request.reply_dialect,
            name=self._client_request.model,
            models=tuple(target.model.id for target in self._targets),
            is_stream=False,
            body=request.body,
            request_id=request.request_id,
        )
        await self._gateway.hooks.start(call_start)
        fault: Fault | None = None
        usage: Usage | None = None
        is_cancelled = False
        try:
            response, fault = await self._try_targets()
            if fault is None:
                usage = self._price()
                await run_to_completion(self._count(usage))
            return response
        except GatewayError as error:
            fault = error.fault
            raise
        except BaseException:
            is_cancelled = True
            raise
        finally:
            end = CallEnd(
                start=call_start,
                model=None if fault is not None or is_cancelled else self._target.model.id,
                usage=usage,
                fault=fault,
                is_cancelled=is_cancelled,
                latency_ms=self._latency_ms(),
                session_id=None,
            )
            await run_to_completion(self._gateway.hooks.end(end))

    async def _try_targets(self) -> tuple[GatewayResponse, Fault | None]:
        """Return the response of the first target that does not fail, else of the last one that was tried."""
        for target in self._targets[:-1]:
            self._target = target
            try:
                response, fault = await self._send_in_form()
            except GatewayError as error:
                if not may_fall_back(error.fault):
                    raise
            else:
                if fault is None or not may_fall_back(fault):
                    return response, fault
        self._target = self._targets[-1]
        return await self._send_in_form()

    async def _send_in_form(self) -> tuple[GatewayResponse, Fault | None]:
        """Return the response, and the fault that it contains."""
        gateway, client_request, target = self._gateway, self._client_request, self._target
        provider_form = embedding_forms.FORMS[target.provider.dialect]
        if provider_form != client_request.reply_dialect:
            response, self._body = await _translate(gateway, client_request, target, provider_form)
            return response, None
        response = await _pass_on(gateway, client_request, target)
        assert isinstance(response.body, bytes)
        self._body = response.body
        if 200 <= response.status < 300:
            return response, None
        read_error = dialects.load(target.provider.dialect).read_error
        return response, read_error(response.status, response.headers, response.body)

    def _price(self) -> Usage:
        model, request = self._target.model, self._client_request
        tokens = embedding_forms.read_tokens(self._body)
        if tokens is None:
            fields = {name: request.value(name) for name in request.fields}
            counts = TokenUsage(
                input_tokens=embedding_forms.estimate_tokens(fields, model.id), output_tokens=0, estimated=True
            )
        else:
            counts = TokenUsage(input_tokens=tokens, output_tokens=0)
        return self._gateway.services.price_usage(model, counts, self._started_at, self._latency_ms())

    async def _count(self, usage: Usage) -> None:
        """Add the call to the totals. A failure of the store is logged; the provider has answered already."""
        caller, model = self._client_request.request.caller, self._target.model
        if self._gateway.recorder is None or caller.recording == "off":
            return
        try:
            await self._gateway.services.store.costs.add_call(
                usage, model=model.id, provider=model.provider, user_id=caller.user_id, team_id=caller.team_id
            )
        except DragomanError as error:
            request_id = self._client_request.request.request_id
            _log.error("the cost of a call was not recorded: %s", error, extra={"request_id": request_id})

    def _latency_ms(self) -> int:
        return round((self._gateway.services.client.clock() - self._start_s) * 1000)


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


async def _translate(
    gateway: Gateway, client_request: ClientRequest, target: Target, form: str
) -> tuple[GatewayResponse, bytes]:
    """Send the texts in the provider's form; return the vectors in the caller's, and the provider's own response."""
    request, model = client_request.request, target.model
    fields = {name: client_request.value(name) for name in client_request.fields}
    embedding_request = embedding_forms.read_request(client_request.reply_dialect, request.path, fields)
    body = msgspec.json.encode(embedding_forms.write_request(form, embedding_request, model.name))
    upstream = build_request(target, body, stream=False)
    answer = await _send(gateway, upstream, target, embedding_forms.path_end(form))
    if not 200 <= answer.status < 300:
        raise GatewayError(
            dialects.load(target.provider.dialect).read_error(answer.status, answer.headers, answer.body)
        )
    try:
        embeddings = embedding_forms.read_reply(form, answer.body)
    except DECODE_ERRORS as error:
        message = f"the provider's response has no embeddings: {error}"
        raise GatewayError(
            Fault(code="bad_content_type", message=message, error_class=ErrorClass.SERVER_ERROR)
        ) from None
    response = json_response(
        embedding_forms.write_reply(embedding_request, embeddings, client_request.model, gateway.new_id())
    )
    response.headers["x-dragoman-model"] = model.id
    if embedding_request.losses:
        response.headers["x-dragoman-losses"] = ", ".join(embedding_request.losses)
    return response, answer.body


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
        case "cohere":
            base = base.removesuffix("/chat") + "/embed"
        case _:
            base = f"{target.endpoint.base_url}/embeddings"
    return base + question + query
