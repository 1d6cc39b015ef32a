"""Convert errors: usually only a message. Any body is read as a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.ollama.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.wire.faults import classify_status, make_fault, parse_error_body

_OVERFLOW: Final = ("context length", "context size", "context window", "input length exceeds", "prompt too long")
_STREAM_FAULT: Final = ("server_error", ErrorClass.SERVER_ERROR)  # streams have no status


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    body = parse_error_body(body)
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    message = error if isinstance(error, str) and error else "no message"
    code, error_class = classify_status(status) if status is not None else _STREAM_FAULT
    if any(phrase in message.lower() for phrase in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    return make_fault(NAME, (code, error_class), message, status, headers)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    return Written({"error": fault.message})
