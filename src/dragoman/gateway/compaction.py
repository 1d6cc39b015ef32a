"""Compaction of the Responses API: a summary in place of the items of a conversation.

    response = await compact(gateway, client_request)          POST /v1/responses/compact
    client_request = open_compactions(client_request)          items of ours become text before a call

A provider of the Responses API is asked for its own compaction. Otherwise the model writes a summary, and the opaque
item contains it. A request whose last item is ``compaction_trigger`` gets a response with such an item.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects
from dragoman.client.call import NetworkError
from dragoman.event import unfold
from dragoman.exchange import Reply, StopReason
from dragoman.gateway import headers as header_rules
from dragoman.gateway.chat_call import ChatCall
from dragoman.gateway.client_request import ClientRequest, with_fields
from dragoman.gateway.identity import echo_request, end_fields, reply_identity
from dragoman.gateway.model_lists import json_response
from dragoman.gateway.model_names import Resolution
from dragoman.gateway.response_state import DIALECT, keep_locally, resolve_state, to_items, with_input
from dragoman.gateway.types import JSON_TYPE, GatewayError, GatewayResponse, invalid_request_error
from dragoman.gateway.upstream import Target, build_request, open_response
from dragoman.message import OpaqueBlock

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_PREFIX: Final = "dragoman.summary."  # of the opaque content of an item of ours
_PATHS: Final = ("/responses", "/responses/compact")
_MAX_BYTES: Final = 64 * 2**20
_NO_ENDPOINT: Final = (404, 405, 501)
_NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
_INTRODUCTION: Final = "Summary of the conversation so far:\n\n"
_INSTRUCTION: Final = (
    "Write a summary of this conversation that replaces it. Include the goals and wishes of the user, decisions and"
    " their reasons, what was done with which result, names of files and values that are still needed, and what"
    " remains to be done. Answer with the summary only."
)


async def compact(gateway: Gateway, client_request: ClientRequest) -> GatewayResponse:
    """Return the compaction of a conversation."""
    resolution = gateway.names.find(client_request.model, DIALECT)
    client_request, _ = await resolve_state(gateway, client_request)
    if not to_items(client_request.value("input")):
        raise invalid_request_error("input: at least one item is required.")
    target = await gateway.target(resolution.models[0])
    if target.provider.dialect == DIALECT:
        response = await _ask_provider(gateway, client_request, target)
        if response is not None:
            return response
    answer = await _summarize(gateway, client_request, resolution)
    if isinstance(answer, GatewayResponse):
        return answer
    item, wire = answer
    now = gateway.services.clock()
    compaction = {
        "id": f"resp_{gateway.new_id()}",
        "object": "response.compaction",
        "created_at": int(now.timestamp()),
        "output": [item],
        "usage": wire.get("usage") or _NO_USAGE,
    }
    return json_response(compaction)


def has_trigger(client_request: ClientRequest) -> bool:
    """Whether a request asks for a compaction instead of an answer."""
    raw = client_request.fields.get("input")
    if client_request.reply_dialect != DIALECT or raw is None or b"compaction_trigger" not in bytes(raw):
        return False
    items = client_request.value("input")
    return isinstance(items, list) and bool(items) and _kind(items[-1]) == "compaction_trigger"


async def answer_trigger(gateway: Gateway, client_request: ClientRequest, resolution: Resolution) -> GatewayResponse:
    """Return a response whose only item is the compaction of the items before the trigger."""
    items = to_items(client_request.value("input"))[:-1]
    answer = await _summarize(gateway, with_input(client_request, items), resolution)
    if isinstance(answer, GatewayResponse):
        return answer
    item, wire = answer
    now = gateway.services.clock()
    fields = {name: client_request.value(name) for name in client_request.fields if name != "input"}
    identity = {**reply_identity(DIALECT, gateway.new_id(), now), **echo_request(fields)}
    reply = Reply(content=(OpaqueBlock(DIALECT, item),), stop_reason=StopReason.END_TURN, model=wire.get("model"))
    response = {**dialects.load(DIALECT).write_reply(reply).wire, **identity, **end_fields(DIALECT, now)}
    response |= {"usage": wire.get("usage"), "output": [item]}
    keep_locally(with_input(client_request, []), response)
    if not client_request.stream:
        return json_response(response)
    headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
    return GatewayResponse(headers=headers, body=_stream(reply, identity, response))


async def _stream(reply: Reply, identity: dict[str, Any], response: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response with one item."""
    writer: Any = dialects.load(DIALECT).stream_writer()
    writer.identity = identity
    *events, end = unfold(reply)
    yield b"".join(writer.feed(event) for event in events)
    writer.identity = response
    yield writer.feed(end) + writer.close()


async def _summarize(
    gateway: Gateway, client_request: ClientRequest, resolution: Resolution
) -> GatewayResponse | tuple[dict[str, Any], dict[str, Any]]:
    """Return the item with the model's summary and the response that has it, or the response to a failure."""
    question = {"role": "user", "content": [{"type": "input_text", "text": _INSTRUCTION}]}
    items = [*to_items(client_request.value("input")), question]
    fields = {name: raw for name, raw in client_request.fields.items() if name in ("model", "instructions")}
    body = with_fields(fields, input=items, store=False)
    request = msgspec.structs.replace(client_request.request, body=body, local_responses=None)
    inner = msgspec.structs.replace(
        client_request, request=request, stream=False, fields=msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    )
    response = await ChatCall(gateway, open_compactions(inner), resolution).run()
    if response.status != 200 or not isinstance(response.body, bytes):
        return response
    wire = msgspec.json.decode(response.body)
    text = "".join(part.get("text", "") for item in wire["output"] for part in item.get("content") or ())
    sealed = base64.b64encode(f"{_PREFIX}{text}".encode()).decode()
    return {"id": f"cmp_{gateway.new_id()}", "type": "compaction", "encrypted_content": sealed}, wire


async def _ask_provider(gateway: Gateway, client_request: ClientRequest, target: Target) -> GatewayResponse | None:
    """Return the provider's compaction; none if it has no such endpoint."""
    client_request = open_compactions(client_request)
    fields = {name: raw for name, raw in client_request.fields.items() if name not in ("stream", "store")}
    body = with_fields(fields, model=target.model.name)
    request = build_request(
        target,
        body,
        stream=False,
        caller_headers=header_rules.request_headers(client_request.request.headers, DIALECT),
    )
    request = msgspec.structs.replace(request, url=request.url.replace(*_PATHS, 1))
    try:
        response = await open_response(gateway.client, request, gateway.timeouts)
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    try:
        if response.status in _NO_ENDPOINT:
            return None
        answer = await response.read_all(_MAX_BYTES)
    except NetworkError as error:
        raise GatewayError(error.fault) from None
    finally:
        response.close()
    headers = {"x-dragoman-model": target.model.id, **header_rules.response_headers(response.headers)}
    headers["content-type"] = response.headers.get("content-type", JSON_TYPE)
    return GatewayResponse(status=response.status, headers=headers, body=answer)


def open_compactions(client_request: ClientRequest) -> ClientRequest:
    """Return a request in which the compactions of ours are messages with the summary."""
    raw = client_request.fields.get("input")
    if client_request.dialect != DIALECT or raw is None or b'"compaction"' not in bytes(raw):
        return client_request
    items = to_items(client_request.value("input"))
    opened = [_open_item(item) for item in items]
    return client_request if opened == items else with_input(client_request, opened)


def _open_item(item: Any) -> Any:
    if _kind(item) != "compaction":
        return item
    try:
        text = base64.b64decode(str(item.get("encrypted_content")), validate=True).decode()
    except (binascii.Error, ValueError):
        return item
    if not text.startswith(_PREFIX):
        return item
    content = [{"type": "input_text", "text": _INTRODUCTION + text.removeprefix(_PREFIX)}]
    return {"type": "message", "role": "user", "content": content}


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None
