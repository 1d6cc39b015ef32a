"""Store the fields of a request with its first message, for formats that contain only messages.

    embed_request(request) -> messages         model, tools and options in the metadata of the first message
    restore_request(messages) -> Request       the request again
    request_fields(request) -> fields          model, tools and options as a JSON object
    request_from(fields, messages) -> Request  the request again

Invariant: restore_request(embed_request(request)) equals the request.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.exchange import OpaqueTool, Options, Request, ToolDefinition
from dragoman.message import Message

KEY: Final = "dragoman.request"  # in metadata.extra
_DEFAULT_OPTIONS: Final = Options()


def request_fields(request: Request) -> dict[str, Any]:
    """Return the fields beside the messages: model, tools, options and dialect-specific fields."""
    fields: dict[str, Any] = {}
    if request.model is not None:
        fields["model"] = request.model
    if request.tools:
        fields["tools"] = [msgspec.to_builtins(tool) for tool in request.tools]
    if request.options is not _DEFAULT_OPTIONS and request.options != _DEFAULT_OPTIONS:
        fields["options"] = msgspec.to_builtins(request.options)
    if request.provider_raw is not None and request.provider_raw.keys() != {"dialect"}:
        fields["provider_raw"] = request.provider_raw
    return fields


def embed_request(request: Request) -> tuple[Message, ...]:
    """Return the messages; the metadata of the first one contains the other fields of the request."""
    fields = request_fields(request)
    if not fields or not request.messages:
        return request.messages
    first, *others = request.messages
    extra = {**(first.metadata.extra or {}), KEY: fields}
    return (first.replace(metadata=first.metadata.replace(extra=extra)), *others)


def restore_request(messages: tuple[Message, ...]) -> Request:
    """Return the request that was embedded in these messages; an invalid object stays where it is."""
    extra = messages[0].metadata.extra if messages else None
    if not extra or not isinstance(extra.get(KEY), dict):
        return Request(model=None, messages=messages)
    first, *others = messages
    rest = {key: value for key, value in extra.items() if key != KEY}
    stripped = first.replace(metadata=first.metadata.replace(extra=rest or None))
    try:
        return request_from(extra[KEY], (stripped, *others))
    except (msgspec.ValidationError, TypeError, AttributeError):
        return Request(model=None, messages=messages)


def request_from(fields: dict[str, Any], messages: tuple[Message, ...]) -> Request:
    """Return the request of these messages and of what ``request_fields`` returned."""
    return Request(
        model=fields.get("model"),
        messages=messages,
        tools=tuple(_read_tool(tool) for tool in fields.get("tools", ())),
        options=msgspec.convert(fields.get("options", {}), Options),
        provider_raw=fields.get("provider_raw"),
    )


def _read_tool(wire: dict[str, Any]) -> ToolDefinition | OpaqueTool:
    return msgspec.convert(wire, OpaqueTool) if "wire" in wire else msgspec.convert(wire, ToolDefinition)
