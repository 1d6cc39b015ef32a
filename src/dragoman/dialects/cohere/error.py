"""Errors of Cohere Chat, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.cohere.blocks import NAME
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.exchange import ErrorClass, Fault, Written

RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_OVERFLOW: Final = ("too many tokens", "context length", "context window", "token limit", "too long")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side: a sentence, and the id of the request."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    error = body if isinstance(body, dict) else {}
    message = text_or_none(error.get("message")) or text_or_none(error.get("error")) or "no message"
    code, error_class = _by_status(status)
    if status in (None, 400, 422) and any(sign in message.lower() for sign in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
        request_id=text_or_none(error.get("id")),
    )


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401 | 402 | 403 | 498:  # 498: an invalid token
            return "unauthorized", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408 | 504:
            return "timeout", ErrorClass.NETWORK
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 499:
            return "cancelled", ErrorClass.CANCELLED
        case 503:
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if 400 <= status < 500:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:  # in a stream there is no status, and the model was already running
            return "server_error", ErrorClass.SERVER_ERROR


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    wire = {"id": fault.request_id} if fault.request_id else {}
    return Written({**wire, "message": fault.message})
