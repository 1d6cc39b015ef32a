"""Convert errors: a message and a request id. Any body is read as a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.cohere.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import text_or_none
from dragoman.wire.faults import classify_status, make_fault, parse_error_body

_OVERFLOW: Final = ("too many tokens", "context length", "context window", "token limit", "too long")
_STATUSES: Final = {  # statuses that differ from the common meaning
    None: ("server_error", ErrorClass.SERVER_ERROR),  # in a stream
    498: ("unauthorized", ErrorClass.AUTH),  # an invalid token
    499: ("cancelled", ErrorClass.CANCELLED),
    504: ("timeout", ErrorClass.NETWORK),
}


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    body = parse_error_body(body)
    error = body if isinstance(body, dict) else {}
    if isinstance(error.get("error"), dict):  # proxies use the common error format
        error = error["error"]
    message = text_or_none(error.get("message")) or text_or_none(error.get("error")) or "no message"
    code, error_class = _STATUSES.get(status) or classify_status(status)
    if status in (None, 400, 422) and any(phrase in message.lower() for phrase in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return make_fault(NAME, (code, error_class), message, status, headers, request_id=text_or_none(error.get("id")))


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    wire = {"id": fault.request_id} if fault.request_id else {}
    return Written({**wire, "message": fault.message})
