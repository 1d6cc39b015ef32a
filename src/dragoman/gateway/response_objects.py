"""Endpoints for stored responses and conversations of the Responses API.

Each function takes the gateway, the values of the path and the request, and returns the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec

from dragoman.gateway.model_lists import json_response
from dragoman.gateway.recorder import owner_digest
from dragoman.gateway.response_state import (
    ITEM_ID,
    find_object,
    get_conversation,
    missing_object_error,
)
from dragoman.gateway.types import GatewayRequest, GatewayResponse, invalid_request_error
from dragoman.jsontext import DECODE_ERRORS
from dragoman.store.gateway_calls import StoredObject

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_MAX_PAGE: Final = 100
Values = dict[str, str]


async def retrieve_response(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Return a stored response. A response is stored when it is complete, so that it has no stream."""
    stored = await _get_response(gateway, values, request)
    if parse_qs(request.query).get("stream") == ["true"]:
        raise invalid_request_error("stream: this response is complete. Retrieve it without stream.")
    return json_response(stored.body)


async def delete_response(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Delete a stored response."""
    stored = await _get_response(gateway, values, request)
    await _delete(gateway, stored, request)
    return json_response({"id": stored.id, "object": "response", "deleted": True})


async def cancel_response(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Refuse: a stored response is complete, and only responses in the background can be cancelled."""
    await _get_response(gateway, values, request)
    raise invalid_request_error("Cannot cancel a synchronous response.")


async def list_input_items(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Return the input items of a stored response."""
    stored = await _get_response(gateway, values, request)
    return _page(_with_ids(stored.input, stored.id), request.query)


async def create_conversation(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:  # noqa: ARG001
    """Create a conversation."""
    body, caller, store = _read_body(request), request.caller, gateway.services.store
    name, now = f"conv_{gateway.new_id()}", store.clock()
    details = {"gateway": {"dialect": "openai_responses", "conversation": name}}
    session = await store.create_session(user_id=caller.user_id, team_id=caller.team_id, metadata=details)
    conversation = {
        "id": name,
        "object": "conversation",
        "created_at": int(now.timestamp()),
        "metadata": _read_metadata(body),
    }
    items = _with_ids(_read_items(body), gateway.new_id())
    stored = StoredObject(id=name, session_id=session.id, created_at=now, body=conversation, input=items)
    await store.gateway.save_object(owner_digest(caller.user_id, caller.team_id), stored)
    return json_response(conversation)


async def retrieve_conversation(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Return a conversation."""
    return json_response((await get_conversation(gateway, request.caller, values["id"])).body)


async def update_conversation(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Replace the metadata of a conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    body = {**stored.body, "metadata": _read_metadata(_read_body(request))}
    owner = owner_digest(request.caller.user_id, request.caller.team_id)
    await gateway.services.store.gateway.save_object(owner, msgspec.structs.replace(stored, body=body))
    return json_response(body)


async def delete_conversation(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Delete a conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    await _delete(gateway, stored, request)
    return json_response({"id": stored.id, "object": "conversation.deleted", "deleted": True})


async def list_items(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Return the items of a conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    return _page(stored.input, request.query)


async def create_items(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Add items to a conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    items = _with_ids(_read_items(_read_body(request)), gateway.new_id())
    await append_items(gateway, request, stored.id, items)
    return _page(items, "order=asc")


async def retrieve_item(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Return an item of a conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    for item in stored.input:
        if item.get("id") == values["item"]:
            return json_response(item)
    raise missing_object_error("Item", values["item"])


async def delete_item(gateway: Gateway, values: Values, request: GatewayRequest) -> GatewayResponse:
    """Delete an item of a conversation, and return the conversation."""
    stored = await get_conversation(gateway, request.caller, values["id"])
    owner = owner_digest(request.caller.user_id, request.caller.team_id)
    if not await gateway.services.store.gateway.delete_item(owner, stored.id, values["item"]):
        raise missing_object_error("Item", values["item"])
    return json_response(stored.body)


async def append_items(gateway: Gateway, request: GatewayRequest, conversation_id: str, items: list[Any]) -> None:
    """Add items to a conversation of the caller."""
    owner = owner_digest(request.caller.user_id, request.caller.team_id)
    await gateway.services.store.gateway.append_items(owner, conversation_id, _with_ids(items, gateway.new_id()))


async def _get_response(gateway: Gateway, values: Values, request: GatewayRequest) -> StoredObject:
    stored = await find_object(gateway, request.caller, values["id"])
    if stored is None or stored.body.get("object") == "conversation":
        raise missing_object_error("Response", values["id"])
    return stored


async def _delete(gateway: Gateway, stored: StoredObject, request: GatewayRequest) -> None:
    owner = owner_digest(request.caller.user_id, request.caller.team_id)
    await gateway.services.store.gateway.delete_object(owner, stored.id)


def _read_body(request: GatewayRequest) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(request.body) if request.body else {}
    except DECODE_ERRORS as error:
        raise invalid_request_error(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise invalid_request_error("The body is not a JSON object.")
    return body


def _read_metadata(body: dict[str, Any]) -> dict[str, Any]:
    metadata = body.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise invalid_request_error("metadata: an object is required.")
    return metadata


def _read_items(body: dict[str, Any]) -> list[Any]:
    items = body.get("items")
    if items is None:
        return []
    if not isinstance(items, list):
        raise invalid_request_error("items: a list is required.")
    return items


def _with_ids(items: list[Any], seed: str) -> list[Any]:
    """Return the items as the API lists them: with an id, a type and a status, and content as a list of parts."""
    return [_complete_item(item, f"{ITEM_ID}{seed}_{number}") for number, item in enumerate(items)]


def _complete_item(item: Any, item_id: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid_request_error("items: each item must be an object.")
    whole = {"type": "message", "id": item_id, "status": "completed", **item}
    text = whole.get("content")
    if whole["type"] != "message" or not isinstance(text, str):
        return whole
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if whole.get("role") == "assistant":
        part = {"type": "output_text", "text": text, "annotations": []}
    return {**whole, "content": [part]}


def _page(items: list[Any], query: str) -> GatewayResponse:
    """Return a page of items, the newest first unless the query asks for another order."""
    parameters = parse_qs(query)
    ordered = items if parameters.get("order", ["desc"])[0] == "asc" else items[::-1]
    after = parameters.get("after", [""])[0]
    names = [item.get("id") for item in ordered]
    if after and after not in names:
        raise invalid_request_error(f"after: there is no item {after!r}.")
    start = names.index(after) + 1 if after else 0
    text = parameters.get("limit", ["20"])[0]
    size = min(max(int(text), 1), _MAX_PAGE) if text.isdecimal() else 20
    data = ordered[start : start + size]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0].get("id") if data else None,
            "last_id": data[-1].get("id") if data else None,
            "has_more": start + size < len(ordered),
        }
    )


OPERATIONS: Final[dict[str, Callable[[Gateway, Values, GatewayRequest], Awaitable[GatewayResponse]]]] = {
    "retrieve_response": retrieve_response,
    "delete_response": delete_response,
    "cancel_response": cancel_response,
    "list_input_items": list_input_items,
    "create_conversation": create_conversation,
    "retrieve_conversation": retrieve_conversation,
    "update_conversation": update_conversation,
    "delete_conversation": delete_conversation,
    "list_items": list_items,
    "create_items": create_items,
    "retrieve_item": retrieve_item,
    "delete_item": delete_item,
}
