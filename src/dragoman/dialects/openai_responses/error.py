"""Errors of the Responses API: bodies, stream events, and errors in a failed response. Every body yields a fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import text_or_none
from dragoman.wire.faults import PAYMENT_REQUIRED, classify_status, make_fault, parse_error_body

_ERROR_CODES: Final = {
    "server_error": ("server_error", ErrorClass.SERVER_ERROR),
    "rate_limit_exceeded": ("rate_limited", ErrorClass.RATE_LIMIT),
    "invalid_api_key": ("unauthorized", ErrorClass.AUTH),
    "context_length_exceeded": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "exceed_context_size_error": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),  # llama.cpp
    "model_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "server_is_overloaded": ("overloaded", ErrorClass.RATE_LIMIT),
    "insufficient_quota": ("forbidden", ErrorClass.AUTH),
    "usage_limit_reached": ("rate_limited", ErrorClass.RATE_LIMIT),
    "slow_down": ("overloaded", ErrorClass.RATE_LIMIT),
    "previous_response_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "invalid_prompt": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "vector_store_timeout": ("timeout", ErrorClass.NETWORK),
    "timeout": ("timeout", ErrorClass.NETWORK),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "service_unavailable_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
}
_WIRE_CODES: Final = {code: word for word, (code, _) in reversed(_ERROR_CODES.items())}
# Codes of HTTP errors, where the codes of failed responses would name another cause.
_HTTP_CODES: Final = {"forbidden": "permission_error", "timeout": "timeout"}
_WIRE_TYPES: Final = {  # type of an error on the wire, beside its code
    ErrorClass.RATE_LIMIT: "rate_limit_error",
    ErrorClass.AUTH: "authentication_error",
    ErrorClass.INVALID_REQUEST: "invalid_request_error",
    ErrorClass.CONTEXT_OVERFLOW: "invalid_request_error",
}
_UNKNOWN_ITEM: Final = re.compile(
    r"Item with id '[^']*' not found|of type '\w+' was provided without its required"
    r"|encrypted content .*could not be (?:verified|decrypted)"
)
_REQUEST_ID: Final = re.compile(r"request ID (req_\w+)")  # a stream has the id only in the message


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Read a failed response."""
    body = parse_error_body(body)
    words, message = _describe_error(body)
    classifications = [_ERROR_CODES[word] for word in words if word in _ERROR_CODES]
    code, error_class = classifications[0] if classifications else classify_status(status)
    if status in (401, 403) and error_class is ErrorClass.INVALID_REQUEST:
        code, error_class = classify_status(status)
    if error_class is ErrorClass.INVALID_REQUEST and any(
        sign in message.lower() for sign in ("context window", "context length", "maximum context")
    ):
        code, error_class = "context_overflow", ErrorClass.CONTEXT_OVERFLOW
    if code == "invalid_request" and _UNKNOWN_ITEM.search(message):
        code = "unknown_item"
    fields = {
        "provider_code": words[0] if words else None,
        "request_id": headers.get("x-request-id") or _find_request_id(body, message),
    }
    return make_fault(NAME, (code, error_class), message, status, headers, **fields)


def _find_request_id(body: Any, message: str) -> str | None:
    match = _REQUEST_ID.search(message)
    if match is not None or not isinstance(body, dict):
        return match.group(1) if match is not None else None
    inner = body.get("error")
    return text_or_none(body.get("request_id")) or text_or_none(
        inner.get("request_id") if isinstance(inner, dict) else None
    )


def _describe_error(body: Any) -> tuple[list[str], str]:
    """Return the names of the error, the most specific first, and its message.

    OpenAI: {"error": {code, type, message}}, in events also without "error"; xAI: {code, "error": text};
    ChatGPT: {"detail": text}.
    """
    outer = body if isinstance(body, dict) else {}
    inner = outer.get("error")
    error = inner if isinstance(inner, dict) else outer
    words = [word for key in ("code", "type") if isinstance(word := error.get(key), str) and word and word != "error"]
    texts = (error.get("message"), inner, outer.get("detail"))
    return words, next((text for text in texts if isinstance(text, str) and text), "no message")


def provider_code(fault: Fault) -> str:
    """Return the error code of this API; the received one, if the fault is from this API."""
    if fault.provider == NAME and fault.provider_code is not None:
        return fault.provider_code
    return _WIRE_CODES.get(fault.code.replace("unknown_item", "invalid_request"), "server_error")


def write_error(fault: Fault) -> Written:
    """Write the fault as an error of this API."""
    kind = _WIRE_TYPES.get(fault.error_class, "server_error")
    is_own = fault.provider == NAME and fault.provider_code is not None
    code = provider_code(fault)
    if not is_own and fault.status != PAYMENT_REQUIRED:
        code = _HTTP_CODES.get(fault.code, code)
    return Written({"error": {"message": fault.message, "type": kind, "param": None, "code": code}})
