"""Errors of the Messages API. Every body, valid or not, yields a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.anthropic.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import text_or_none
from dragoman.wire.faults import PAYMENT_REQUIRED, classify_status, make_fault, parse_error_body

_ERROR_TYPES: Final = {
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "billing_error": ("forbidden", ErrorClass.AUTH),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "request_too_large": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "timeout_error": ("timeout", ErrorClass.NETWORK),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
}

_STATUS_TYPES: Final = {413: "request_too_large", 529: "overloaded_error", PAYMENT_REQUIRED: "billing_error"}


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Read a failed response."""
    body = parse_error_body(body)
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    kind, message = str(error.get("type", "")), str(error.get("message", "no message"))
    code, error_class = _ERROR_TYPES.get(kind, classify_status(status))
    if error_class is ErrorClass.INVALID_REQUEST and any(
        sign in message.lower() for sign in ("context", "tokens exceed", "too long", "too large")
    ):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    body_id = text_or_none(body.get("request_id")) if isinstance(body, dict) else None
    fields = {"provider_code": kind or None, "request_id": headers.get("request-id") or body_id}
    return make_fault(NAME, (code, error_class), message, status, headers, **fields)


def write_error(fault: Fault) -> Written:
    """Write the fault as an error of this API."""
    kinds = {code: kind for kind, (code, _) in reversed(_ERROR_TYPES.items())}
    kind = _STATUS_TYPES.get(fault.status or 0) or kinds.get(fault.code, "api_error")
    error = {"type": fault.provider_code or kind, "message": fault.message}
    wire = {"type": "error", "error": error}
    return Written({**wire, "request_id": fault.request_id} if fault.request_id else wire)
