"""Failures in the shape of each API: status, headers and body. Pure.

    error_response(dialect, fault, request_id)     the response to a failed request
    fault_from(error)                              the fault of an exception of Dragoman

Invariant: a client of an API receives a status and a body that its own SDK maps to the right exception, and the delay
that the provider requested.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from dragoman import dialects, errors
from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway.types import JSON_TYPE, GatewayResponse

_STATUSES: Final = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "rate_limited": 429,
    "overloaded": 503,
    "context_overflow": 400,
    "invalid_request": 400,
    "timeout": 504,
    "server_error": 500,
    "cancelled": 499,
}
_FALLBACK_CLASSES: Final = frozenset(
    (ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK, ErrorClass.AUTH, ErrorClass.CONTEXT_OVERFLOW)
)
_NETWORK_STATUS: Final = 502  # the provider did not answer, or with something that is no answer
_OVERLOADED: Final = {"anthropic": 529}
OPENAI_DIALECTS: Final = ("openai_chat", "openai_responses")  # two APIs with the same codes
_REQUEST_ID_HEADERS: Final = {"anthropic": "request-id", "bedrock_converse": "x-amzn-requestid"}


def error_response(dialect: str, fault: Fault, request_id: str = "") -> GatewayResponse:
    """Return the response to a failed request in a dialect."""
    own = own_fault(dialect, fault)
    status = error_status(dialect, own)
    wire = dialects.load(dialect).write_error(own.replace(status=status)).wire
    headers = {"content-type": JSON_TYPE, **_retry_headers(own)}
    if dialect == "bedrock_converse":
        headers["x-amzn-errortype"] = wire["__type"]
    headers |= request_id_header(dialect, request_id)
    return GatewayResponse(status=status, headers=headers, body=msgspec.json.encode(wire))


def may_fall_back(fault: Fault) -> bool:
    """Whether another model may answer after this failure."""
    return fault.error_class in _FALLBACK_CLASSES or fault.code == "not_found"


def request_id_header(dialect: str, request_id: str) -> dict[str, str]:
    """Return the id of a request in the header that clients of a dialect read."""
    return {_REQUEST_ID_HEADERS.get(dialect, "x-request-id"): request_id} if request_id else {}


def own_fault(dialect: str, fault: Fault) -> Fault:
    """Return the fault without the code of another API; the gateway's own codes stay."""
    if fault.provider in (dialect, "dragoman"):
        return fault
    has_same_codes = fault.provider in OPENAI_DIALECTS and dialect in OPENAI_DIALECTS
    return fault.replace(provider=dialect, provider_code=fault.provider_code if has_same_codes else None)


def error_status(dialect: str, fault: Fault) -> int:
    """Return the HTTP status of a fault in a dialect."""
    if fault.code == "overloaded" or fault.status == _OVERLOADED["anthropic"]:
        return _OVERLOADED.get(dialect, _STATUSES["overloaded"])
    if fault.status is not None and 400 <= fault.status <= 599:
        return fault.status
    return _STATUSES.get(fault.code, _NETWORK_STATUS)


def _retry_headers(fault: Fault) -> dict[str, str]:
    if fault.retry_after_s is None:
        return {}
    return {
        "retry-after": str(math.ceil(fault.retry_after_s)),
        "retry-after-ms": str(round(fault.retry_after_s * 1000)),
    }


def fault_from(error: errors.DragomanError) -> Fault:
    """Return the fault of one of our errors: bad input is the caller's, the rest is the server's."""
    if isinstance(error, errors.RemoteFaultError):
        return error.fault
    if isinstance(error, errors.SettingsError):
        return Fault(code="server_error", message=str(error), error_class=ErrorClass.OTHER, status=503)
    if isinstance(error, errors.InputError):
        status = 413 if error.code == "too_large" else 400
        return Fault(code="invalid_request", message=str(error), error_class=ErrorClass.INVALID_REQUEST, status=status)
    return Fault(code="server_error", message=error.what, error_class=ErrorClass.SERVER_ERROR, status=503)
