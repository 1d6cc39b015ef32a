"""Convert errors. The error name decides; the HTTP status is used only without a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.bedrock_converse.mappings import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.wire.faults import classify_status, make_fault, parse_error_body

# The first name of a code is the one that is written.
_ERROR_TYPES: Final = {
    "ThrottlingException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "TooManyRequestsException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "ServiceQuotaExceededException": ("rate_limited", ErrorClass.RATE_LIMIT),
    "ModelNotReadyException": ("overloaded", ErrorClass.RATE_LIMIT),
    "UnrecognizedClientException": ("unauthorized", ErrorClass.AUTH),
    "ExpiredTokenException": ("unauthorized", ErrorClass.AUTH),
    "InvalidSignatureException": ("unauthorized", ErrorClass.AUTH),
    "IncompleteSignatureException": ("unauthorized", ErrorClass.AUTH),
    "MissingAuthenticationTokenException": ("unauthorized", ErrorClass.AUTH),
    "AccessDeniedException": ("forbidden", ErrorClass.AUTH),
    "ResourceNotFoundException": ("not_found", ErrorClass.INVALID_REQUEST),
    "ValidationException": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "ConflictException": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "ModelTimeoutException": ("timeout", ErrorClass.NETWORK),
    "InternalServerException": ("server_error", ErrorClass.SERVER_ERROR),
    "ServiceUnavailableException": ("server_error", ErrorClass.SERVER_ERROR),
    "ModelErrorException": ("server_error", ErrorClass.SERVER_ERROR),
    "ModelStreamErrorException": ("server_error", ErrorClass.SERVER_ERROR),
}
_OVERFLOW: Final = ("too long", "tokens exceed", "exceeds maximum length", "context length", "context window")


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault. Its name is in a header, or in the body for older services."""
    body = parse_error_body(body)
    error = body if isinstance(body, dict) else {}
    if isinstance(error.get("error"), dict):  # proxies use the common error format
        error = error["error"]
    lower_headers = {name.lower(): value for name, value in headers.items()}
    kind = str(lower_headers.get("x-amzn-errortype") or error.get("__type") or error.get("code") or "")
    kind = kind.partition(":")[0].rpartition("#")[2]  # com.amazon.coral.service#Kind, Kind:http://…
    message = str(error.get("message") or error.get("Message") or "no message")
    code, error_class = _ERROR_TYPES.get(kind, _classify_status(status))
    if error_class is ErrorClass.INVALID_REQUEST and any(phrase in message.lower() for phrase in _OVERFLOW):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    fields = {"provider_code": kind or None, "request_id": lower_headers.get("x-amzn-requestid")}
    return make_fault(NAME, (code, error_class), message, status, headers, **fields)


def _classify_status(status: int | None) -> tuple[str, ErrorClass]:
    if status in (None, 424):  # streams have no status; 424 means that the model failed
        return "server_error", ErrorClass.SERVER_ERROR
    return classify_status(status)


def write_error(fault: Fault) -> Written:
    """Write a fault. ``__type`` belongs in ``x-amzn-errortype``; the SDKs also read it from the body."""
    kinds = {code: kind for kind, (code, _) in reversed(_ERROR_TYPES.items())}
    kinds["context_overflow"] = "ValidationException"
    kind = fault.provider_code if fault.provider_code in _ERROR_TYPES else kinds.get(fault.code)
    return Written({"__type": kind or "InternalServerException", "message": fault.message})
