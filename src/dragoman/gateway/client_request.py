"""The caller's request: its dialects, its model, and whether it wants a stream. Pure.

    parse(match, path, headers, query, body) -> ClientRequest

Only the top level of the body is decoded. The values stay as they are, so that a provider of the same dialect receives
the same bytes. ``with_fields`` replaces single top-level values without touching the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.gateway.endpoints import Match, detect_dialect
from dragoman.gateway.types import GatewayRequest, invalid_request_error
from dragoman.jsontext import DECODE_ERRORS, has_every_key

_TopLevel = dict[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(_TopLevel).decode
_encode: Final = msgspec.json.Encoder().encode
_REQUIRED: Final = {
    "openai_chat": "messages",
    "anthropic": "messages",
    "cohere": "messages",
    "gemini": "contents",
}
_CONVERSATION: Final = ("input", "previous_response_id", "conversation", "prompt")  # one of them is required
_QUESTIONS: Final = {"ollama": "messages", "ollama_generate": "prompt"}
_STREAM_BY_DEFAULT: Final = ("ollama", "ollama_generate")
_EMPTY: Final = (b"[]", b"null", b'""')


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model."""

    request: GatewayRequest
    dialect: str  # of the body
    reply_dialect: str  # of the response
    model: str
    stream: bool
    framing: str | None  # of the streamed response, if not the usual one of the dialect
    fields: _TopLevel  # the top level of the body

    def value(self, name: str) -> Any:
        """Return a decoded top-level value, or none."""
        return decode_value(self.fields, name)


def parse(found: Match, request: GatewayRequest) -> ClientRequest:
    """Return the request of a chat endpoint; ``GatewayError`` if it cannot be one."""
    fields = decode_fields(request.body)
    reply_dialect = detect_dialect(found, request.path, request.headers)
    dialect = _body_dialect(reply_dialect, fields)
    stream = found.endpoint.stream
    if stream is None:
        stream = _read_stream(fields, default=reply_dialect in _STREAM_BY_DEFAULT)
    return ClientRequest(
        request=request,
        dialect=dialect,
        reply_dialect=reply_dialect,
        model=found.values.get("model") or _read_model(fields),
        stream=stream,
        framing=_framing(reply_dialect, request.query),
        fields=fields,
    )


def check_content(client_request: ClientRequest) -> None:
    """Reject a request without messages: every provider does, but not every compatible server."""
    fields, dialect = client_request.fields, client_request.dialect
    if dialect == "openai_responses":
        _check_input(fields)
    elif (name := _REQUIRED.get(dialect)) is not None and _is_empty(fields, name):
        raise invalid_request_error(f"{name}: at least one message is required.")


def _check_input(fields: _TopLevel) -> None:
    """Reject a Responses request without a conversation, such as one in the form of Chat Completions."""
    if "input" not in fields and "messages" in fields:
        raise invalid_request_error(
            "messages: the Responses API has input in its place. Send input, or send this request to"
            " /v1/chat/completions."
        )
    if all(_is_empty(fields, name) for name in _CONVERSATION):
        raise invalid_request_error("input: at least one item is required.")


def _is_empty(fields: _TopLevel, name: str) -> bool:
    return bytes(fields.get(name, b"null")).strip() in _EMPTY


def is_load(client_request: ClientRequest) -> bool:
    """Whether a request of Ollama's API has no question. Its clients load a model in this way before the first one."""
    name = _QUESTIONS.get(client_request.dialect)
    return name is not None and _is_empty(client_request.fields, name)


def with_fields(fields: Mapping[str, msgspec.Raw], **values: Any) -> bytes:
    """Return a body with other top-level values; ``None`` removes one. All other values keep their bytes."""
    changed: dict[str, Any] = {**fields, **values}
    return msgspec.json.encode({name: value for name, value in changed.items() if value is not None})


def decode_fields(body: bytes) -> _TopLevel:
    """Return the top level of a body, or raise ``GatewayError``."""
    try:
        fields = _decode(body)
    except DECODE_ERRORS as error:
        raise invalid_request_error(f"The body is not a JSON object: {error}.") from None
    encoded = _encode(fields)
    if len(encoded) != len(body) and not has_every_key(body, encoded):
        _reject_repeated_names(body)
    return fields


def _reject_repeated_names(body: bytes) -> None:
    """Reject a name that occurs twice at the top level: the provider may read another one of its values."""
    try:
        pairs = json.loads(body.decode("utf-8", "replace"), object_pairs_hook=list, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise invalid_request_error(f"The body is not a JSON object: {error}.") from None
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise invalid_request_error(f"{name}: this name occurs twice in the body. Send it once.")
        seen.add(name)


def _body_dialect(dialect: str, fields: _TopLevel) -> str:
    """Return the dialect of a body: some clients send a Responses request to the path of Chat Completions."""
    is_response = dialect == "openai_chat" and "input" in fields and "messages" not in fields
    return "openai_responses" if is_response else dialect


def _read_model(fields: _TopLevel) -> str:
    model = decode_value(fields, "model" if "model" in fields else "name")  # older clients of Ollama call it ``name``
    if not isinstance(model, str) or not model:
        raise invalid_request_error("model: the name of a model is required.")
    return model


def _read_stream(fields: _TopLevel, *, default: bool) -> bool:
    value = decode_value(fields, "stream")
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_request_error("stream: true or false is required.")
    return value


def decode_value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """Return a decoded value of the top level of a body, or none. The decoder of the top level does not check it."""
    raw = fields.get(name)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except UnicodeDecodeError:
        raise invalid_request_error(f"{name}: the text is not valid UTF-8.") from None
    except DECODE_ERRORS as error:
        raise invalid_request_error(f"{name}: the value cannot be read: {error}.") from None


def _framing(dialect: str, query: str) -> str | None:
    return "json-array" if dialect == "gemini" and "alt=sse" not in query.split("&") else None
