"""State of the Responses API on any provider: ``previous_response_id``, stored responses and conversations.

    client_request, state = await resolve_state(gateway, client_request)     the request with the earlier items in it
    stored = stored_response(state, response)                                the response to store

A stored response has its own input items and the id of the response before it; a request that names it gets the items
of the whole chain as its input. A conversation has all its items. Nothing of it depends on the provider.

Invariant: a response or a conversation of another owner is the same as a missing one.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway.client_request import ClientRequest, with_fields
from dragoman.gateway.recorder import owner_digest
from dragoman.gateway.types import Caller, GatewayError, invalid_request_error
from dragoman.jsontext import DECODE_ERRORS
from dragoman.store.gateway_calls import StoredObject
from dragoman.wire.frames import sse_frame

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

DIALECT: Final = "openai_responses"
ITEM_ID: Final = "item_"  # of items that arrived without an id
_OUTPUT_ITEMS: Final = ("function_call_output", "custom_tool_call_output")
_OPAQUE_ITEMS: Final = ("compaction", "item_reference")  # these may contain a call
_MAX_CHAIN: Final = 10_000
# A response is stored when it is complete: one that the provider still works on would stay as it is.
_IN_FOREGROUND: Final = {"background": None}
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ResponseState(msgspec.Struct, frozen=True, kw_only=True):
    """The items that a request adds to earlier ones, and the place of its response."""

    input: list[Any]  # its own items
    previous_response_id: str | None = None
    conversation_id: str | None = None
    is_stored: bool = True

    @property
    def echo(self) -> dict[str, Any]:
        """The fields of the response that name what the request continues."""
        fields: dict[str, Any] = {"previous_response_id": self.previous_response_id}
        return fields if self.conversation_id is None else {**fields, "conversation": {"id": self.conversation_id}}


async def resolve_state(gateway: Gateway, client_request: ClientRequest) -> tuple[ClientRequest, ResponseState | None]:
    """Return a request with the items that it refers to, and its state; no state if nothing is stored."""
    local = client_request.request.local_responses
    is_recorded = gateway.recorder is not None and client_request.request.caller.recording == "on"
    if client_request.dialect != DIALECT or not (is_recorded or local is not None):
        return client_request, None
    previous_id = client_request.value("previous_response_id")
    conversation_id = _conversation_id(client_request.value("conversation"))
    if previous_id is not None and conversation_id is not None:
        raise invalid_request_error("previous_response_id and conversation exclude each other.")
    own = to_items(client_request.value("input"))
    state = ResponseState(
        input=own,
        previous_response_id=previous_id,
        conversation_id=conversation_id,
        is_stored=client_request.value("store") is not False,
    )
    if previous_id is None and conversation_id is None:
        is_deferred = client_request.value("background") is True
        return (_with_values(client_request, **_IN_FOREGROUND) if is_deferred else client_request), state
    caller = client_request.request.caller
    earlier = local.find(previous_id) if local is not None else None
    if earlier is None:
        earlier = (
            await read_chain(gateway, caller, str(previous_id))
            if conversation_id is None
            else _without_own_ids((await get_conversation(gateway, caller, conversation_id)).input)
        )
    _check_items(earlier, own)
    return with_input(client_request, [*earlier, *own]), state


def _without_own_ids(items: list[Any]) -> list[Any]:
    """Return the items without the ids that the gateway gave them. A provider rejects ids that it does not know."""
    return [
        {name: value for name, value in item.items() if name != "id" or not str(value).startswith(ITEM_ID)}
        for item in items
    ]


def _check_items(earlier: list[Any], own: list[Any]) -> None:
    """Reject an item that is not an object, and the output of a call that is not in the conversation: providers do,
    but not every compatible server.
    """
    if not all(isinstance(item, dict) for item in own):
        raise invalid_request_error("input: each item must be an object.")
    items = [item for item in (*earlier, *own) if isinstance(item, dict)]
    if any(item.get("type") in _OPAQUE_ITEMS for item in items):
        return
    calls = [item.get("call_id") for item in items if item.get("type") not in _OUTPUT_ITEMS]
    known = {call_id for call_id in calls if isinstance(call_id, str)}
    for item in own:
        call_id = item.get("call_id")
        if item.get("type") in _OUTPUT_ITEMS and not (isinstance(call_id, str) and call_id in known):
            raise invalid_request_error(f"input: the conversation has no call {call_id!r} for this output.")


def with_input(client_request: ClientRequest, items: list[Any]) -> ClientRequest:
    """Return a request with these items, and without a reference to earlier ones."""
    return _with_values(client_request, previous_response_id=None, conversation=None, input=items, **_IN_FOREGROUND)


def _with_values(client_request: ClientRequest, **values: Any) -> ClientRequest:
    body = with_fields(client_request.fields, **values)
    fields = _decode(body)
    request = msgspec.structs.replace(client_request.request, body=body)
    return msgspec.structs.replace(client_request, request=request, fields=fields)


def _conversation_id(value: Any) -> str | None:
    match value:
        case str():
            return value
        case {"id": str(name)}:
            return name
        case None:
            return None
        case _:
            raise invalid_request_error("conversation: an id or an object with an id is required.")


def to_items(value: Any) -> list[Any]:
    """Return the input of a request as items."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    return list(value) if isinstance(value, list) else []


async def read_chain(gateway: Gateway, caller: Caller, response_id: str) -> list[Any]:
    """Return the items of a response and of all responses before it."""
    parts: list[list[Any]] = []
    current: str | None = response_id
    while current is not None and len(parts) < _MAX_CHAIN:
        stored = await find_object(gateway, caller, current)
        if stored is None:
            raise previous_not_found_error(response_id)
        parts.append([*stored.input, *to_items(stored.body.get("output"))])
        previous = stored.body.get("previous_response_id")
        current = previous if isinstance(previous, str) else None
    return [item for part in reversed(parts) for item in part]


async def find_object(gateway: Gateway, caller: Caller, object_id: str) -> StoredObject | None:
    """Return a stored response or conversation of the caller."""
    owner = owner_digest(caller.user_id, caller.team_id)
    return await gateway.services.store.gateway.find_object(owner, object_id)


async def get_conversation(gateway: Gateway, caller: Caller, conversation_id: str) -> StoredObject:
    """Return a conversation of the caller, or raise the error for a missing one."""
    stored = await find_object(gateway, caller, conversation_id)
    if stored is None or stored.body.get("object") != "conversation":
        raise missing_object_error("Conversation", conversation_id)
    return stored


def stored_response(state: ResponseState | None, response: dict[str, Any] | None, now: datetime) -> StoredObject | None:
    """Return the response to store; none if the caller does not want it, or if it has no id."""
    if state is None or response is None or not state.is_stored:
        return None
    response_id = response.get("id")
    if not isinstance(response_id, str) or "\0" in response_id:  # no column can have a NUL
        return None
    body = {**response, **state.echo, "store": True}
    return StoredObject(id=response_id, created_at=now, body=body, input=state.input)


def show_state(state: ResponseState, body: bytes) -> bytes:
    """Return a provider's response with the names of what its request continues: the gateway has resolved them."""
    names = {name: value for name, value in state.echo.items() if value is not None}
    return with_fields(_decode(body), **names) if names else body


def show_state_in_frame(state: ResponseState, frame: bytes) -> bytes:
    """Return a frame of a provider's stream with the same names in its response; most frames have no response."""
    data = b"".join(line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:"))
    try:
        event = _decode(data)
    except DECODE_ERRORS:  # a comment, or the end of the stream
        return frame
    if not bytes(event.get("response", b"")).startswith(b"{"):
        return frame
    response = msgspec.Raw(show_state(state, bytes(event["response"])))
    kind = msgspec.json.decode(event.get("type", b"null"))
    return sse_frame({**event, "response": response}, kind if isinstance(kind, str) else None)


def keep_locally(client_request: ClientRequest, response: dict[str, Any] | None) -> None:
    """Keep a response in the memory of its connection."""
    local = client_request.request.local_responses
    if local is not None and response is not None and isinstance(response.get("id"), str):
        local.add(response["id"], [*to_items(client_request.value("input")), *to_items(response.get("output"))])


def previous_not_found_error(response_id: str) -> GatewayError:
    """Return the error for a response that a request continues, and that does not exist for the caller."""
    return GatewayError(
        Fault(
            code="not_found",
            message=f"Previous response with id {response_id!r} not found.",
            error_class=ErrorClass.INVALID_REQUEST,
            status=400,
            provider=DIALECT,
            provider_code="previous_response_not_found",
        )
    )


def missing_object_error(kind: str, object_id: str) -> GatewayError:
    """Return the error for an object that does not exist for the caller."""
    return GatewayError(
        Fault(
            code="not_found",
            message=f"{kind} with id {object_id!r} not found.",
            error_class=ErrorClass.INVALID_REQUEST,
            status=404,
            provider=DIALECT,
            provider_code="not_found",
        )
    )
