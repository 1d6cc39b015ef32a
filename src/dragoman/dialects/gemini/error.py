"""Convert errors to and from ``google.rpc.Status`` in JSON.

The status name takes precedence over the HTTP status, and an error detail over both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.key_case import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import integer_or_none
from dragoman.wire.faults import classify_status, make_fault, parse_error_body, retry_after_s

_STATUSES: Final = {
    "RESOURCE_EXHAUSTED": ("rate_limited", ErrorClass.RATE_LIMIT, 429),
    "UNAVAILABLE": ("overloaded", ErrorClass.RATE_LIMIT, 503),
    "UNAUTHENTICATED": ("unauthorized", ErrorClass.AUTH, 401),
    "PERMISSION_DENIED": ("forbidden", ErrorClass.AUTH, 403),
    "NOT_FOUND": ("not_found", ErrorClass.INVALID_REQUEST, 404),
    "INVALID_ARGUMENT": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "FAILED_PRECONDITION": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "OUT_OF_RANGE": ("invalid_request", ErrorClass.INVALID_REQUEST, 400),
    "ALREADY_EXISTS": ("invalid_request", ErrorClass.INVALID_REQUEST, 409),
    "UNIMPLEMENTED": ("invalid_request", ErrorClass.INVALID_REQUEST, 501),
    "DEADLINE_EXCEEDED": ("timeout", ErrorClass.NETWORK, 504),
    "CANCELLED": ("cancelled", ErrorClass.CANCELLED, 499),
    "INTERNAL": ("server_error", ErrorClass.SERVER_ERROR, 500),
    "ABORTED": ("server_error", ErrorClass.SERVER_ERROR, 409),
    "UNKNOWN": ("server_error", ErrorClass.SERVER_ERROR, 500),
    "DATA_LOSS": ("server_error", ErrorClass.SERVER_ERROR, 500),
}
_RETRY_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_OVERFLOW: Final = re.compile(
    r"exceeds the maximum number of tokens|context (window|length)|input.{0,20}too long", re.I
)


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    body = parse_error_body(body)
    if isinstance(body, list) and body:  # a JSON array stream has its errors in an array
        body = body[0]
    value = body.get("error") if isinstance(body, dict) else None
    error = value if isinstance(value, dict) else {"message": value} if isinstance(value, str) else {}
    kind, message = str(error.get("status", "")), str(error.get("message", "no message"))
    status = status if status is not None else integer_or_none(error.get("code"))
    code, error_class = _STATUSES[kind][:2] if kind in _STATUSES else classify_status(status)
    items = error.get("details")
    details = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    if any(item.get("reason") in ("API_KEY_INVALID", "API_KEY_EXPIRED") for item in details):
        code, error_class = "unauthorized", ErrorClass.AUTH
    if error_class is ErrorClass.INVALID_REQUEST and _OVERFLOW.search(message):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    fields = {
        "provider_code": kind or None,
        "request_id": next((item["requestId"] for item in details if isinstance(item.get("requestId"), str)), None),
        "retry_after_s": _retry_after(details, headers),
    }
    return make_fault(NAME, (code, error_class), message, status, headers, **fields)


def _retry_after(details: list[dict[str, Any]], headers: Mapping[str, str]) -> float | None:
    for item in details:
        delay = _RETRY_DELAY.fullmatch(str(item.get("retryDelay", "")))
        if delay:
            return float(delay[1])
    return retry_after_s(headers)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    kinds = {code: kind for kind, (code, _, _) in reversed(_STATUSES.items())}
    kinds["context_overflow"] = "INVALID_ARGUMENT"
    kind = fault.provider_code if fault.provider_code in _STATUSES else kinds.get(fault.code, "INTERNAL")
    error: dict[str, Any] = {"code": fault.status or _STATUSES[kind][2], "message": fault.message, "status": kind}
    if fault.retry_after_s is not None:
        delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{fault.retry_after_s:g}s"}
        error["details"] = [delay]
    if fault.request_id is not None:
        request_info = {"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": fault.request_id}
        error["details"] = [*error.get("details", ()), request_info]
    return Written({"error": error})
