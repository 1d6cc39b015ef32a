"""Bedrock's ``invoke``: a request of Anthropic's Messages API in the envelope of AWS.

    response = await invoke(gateway, found, request)

The body is a Messages request without ``model`` and ``stream``, which are in the path; beta flags are in the body. A
stream consists of binary frames, each of which contains one event. Errors have the shape of Bedrock.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from dragoman import dialects
from dragoman.gateway import endpoints
from dragoman.gateway.client_request import decode_fields, decode_value, with_fields
from dragoman.gateway.endpoints import Match
from dragoman.gateway.error_shapes import error_response
from dragoman.gateway.streams import MEDIA_TYPES, FrameGate
from dragoman.gateway.translation import failure_frames
from dragoman.gateway.types import GatewayRequest, GatewayResponse, invalid_request_error
from dragoman.wire.frames import aws_frame

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_DIALECT: Final = "bedrock_converse"  # of errors, and of names that nothing else resolves
_PATH: Final = "/v1/messages"
_ERROR_EVENT: Final = b"event: error"
_FLAG: Final = re.compile(r"[\x21-\x7e]+")


async def invoke(gateway: Gateway, found: Match, request: GatewayRequest) -> GatewayResponse:
    """Return the response to a Messages request in Bedrock's envelope."""
    inner = endpoints.match("POST", _PATH)
    assert inner is not None
    response = await gateway.handle(inner, _open_envelope(gateway, found, request))
    if response.status >= 400 and isinstance(response.body, bytes):
        fault = dialects.load("anthropic").read_error(response.status, response.headers, response.body)
        return error_response(_DIALECT, fault, request.request_id)
    if not isinstance(response.body, bytes):
        response.headers["content-type"] = MEDIA_TYPES["aws-eventstream"]
        response.headers["x-amzn-bedrock-content-type"] = "application/json"
        response.body = _wrap_stream(response.body)
    return response


def _open_envelope(gateway: Gateway, found: Match, request: GatewayRequest) -> GatewayRequest:
    fields = decode_fields(request.body)
    headers = dict(request.headers)
    if betas := _read_betas(fields):
        headers["anthropic-beta"] = ",".join(betas)
    model = found.values["model"]
    resolution = gateway.names.find(model, _DIALECT)
    name = resolution.models[0].id if resolution.reason == "provider" else model
    stream = True if found.endpoint.stream else None
    body = with_fields(fields, model=name, stream=stream, anthropic_version=None, anthropic_beta=None)
    return msgspec.structs.replace(request, path=_PATH, query="", headers=headers, body=body)


def _read_betas(fields: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the beta flags of a body, which become a header."""
    betas = decode_value(fields, "anthropic_beta") or []
    if not isinstance(betas, list) or not all(isinstance(beta, str) and _FLAG.fullmatch(beta) for beta in betas):
        raise invalid_request_error("anthropic_beta: a list of names is required.")
    return betas


async def _wrap_stream(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield a binary frame for each event; an error becomes an exception of the stream."""
    gate = FrameGate("sse")
    async with aclosing(body):
        async for data in body:
            yield b"".join(_wrap_frame(frame) for frame in gate.feed(data))


def _wrap_frame(frame: bytes) -> bytes:
    text = b"".join(line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:"))
    if not text.startswith(b"{"):  # a comment, or the mark of an end that some servers send
        return b""
    if frame.startswith(_ERROR_EVENT):
        fault = dialects.load("anthropic").read_error(None, {}, text)
        return failure_frames(_DIALECT, None, fault)
    return aws_frame({"bytes": base64.b64encode(text).decode()}, "chunk")
