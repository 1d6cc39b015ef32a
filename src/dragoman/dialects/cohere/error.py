"""Errors of Cohere, both ways: a sentence, and the id of the request.

The one rule: whatever the body is, there is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.cohere.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import text_or_none
from dragoman.wire.faults import classify_status, make_fault, parse_error_body

_OVERFLOW: Final = ("too many tokens", "context length", "context window", "token limit", "too long")
_STATUSES: Final = {  # its own, and where it differs from what others mean by them
    None: ("server_error", ErrorClass.SERVER_ERROR),  # in a stream, where the model was already running
    498: ("unauthorized", ErrorClass.AUTH),  # an invalid token
    499: ("cancelled", ErrorClass.CANCELLED),
    504: ("timeout", ErrorClass.NETWORK),
}


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side: a sentence, and the id of the request."""
    body = parse_error_body(body)
    error = body if isinstance(body, dict) else {}
    if isinstance(error.get("error"), dict):  # what stands between us and Cohere says it like the others do
        error = error["error"]
    message = text_or_none(error.get("message")) or text_or_none(error.get("error")) or "no message"
    code, error_class = _STATUSES.get(status) or classify_status(status)
    if status in (None, 400, 422) and any(phrase in message.lower() for phrase in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return make_fault(NAME, (code, error_class), message, status, headers, request_id=text_or_none(error.get("id")))


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    wire = {"id": fault.request_id} if fault.request_id else {}
    return Written({**wire, "message": fault.message})
