"""Errors of Ollama chat, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.ollama.blocks import NAME
from dragoman.dialects.parts.headers import retry_after_s
from dragoman.exchange import ErrorClass, Fault, Written

_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_OVERFLOW: Final = ("context length", "context size", "context window", "input length exceeds", "prompt too long")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """What went wrong on the other side: a sentence, and hardly ever more."""
    if isinstance(body, bytes | str):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    message = error if isinstance(error, str) and error else "no message"
    code, error_class = _by_status(status)
    if any(sign in message.lower() for sign in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        retry_after_s=retry_after_s(headers),
        status=status,
        provider=NAME,
    )


def _by_status(status: int | None) -> tuple[str, ErrorClass]:
    match status:
        case 401 | 403:
            return "unauthorized", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408:
            return "timeout", ErrorClass.NETWORK
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 503:  # the queue of requests is full
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if 400 <= status < 500:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:  # in a stream there is no status, and the model was already running
            return "server_error", ErrorClass.SERVER_ERROR


def write_error(fault: Fault) -> Written:
    """The fault as this API says it."""
    return Written({"error": fault.message})
