"""Errors of Chat Completions and its variants. Every body, valid or not, yields a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_chat.blocks import NAME
from dragoman.exchange import ErrorClass, Fault, Written
from dragoman.jsontext import text_or_none
from dragoman.wire.faults import PAYMENT_REQUIRED, classify_status, make_fault, parse_error_body

_ERROR_TYPES: Final = {
    "rate_limit_exceeded": ("rate_limited", ErrorClass.RATE_LIMIT),
    "rate_limit_error": ("rate_limited", ErrorClass.RATE_LIMIT),
    "tokens": ("rate_limited", ErrorClass.RATE_LIMIT),
    "requests": ("rate_limited", ErrorClass.RATE_LIMIT),
    "insufficient_quota": ("forbidden", ErrorClass.AUTH),
    "billing_hard_limit_reached": ("forbidden", ErrorClass.AUTH),
    "invalid_api_key": ("unauthorized", ErrorClass.AUTH),
    "authentication_error": ("unauthorized", ErrorClass.AUTH),
    "permission_error": ("forbidden", ErrorClass.AUTH),
    "context_length_exceeded": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "exceed_context_size_error": ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
    "model_not_found": ("not_found", ErrorClass.INVALID_REQUEST),
    "not_found_error": ("not_found", ErrorClass.INVALID_REQUEST),
    "DeploymentNotFound": ("not_found", ErrorClass.INVALID_REQUEST),
    "content_filter": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "content_policy_violation": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "invalid_request_error": ("invalid_request", ErrorClass.INVALID_REQUEST),
    "overloaded_error": ("overloaded", ErrorClass.RATE_LIMIT),
    "engine_overloaded": ("overloaded", ErrorClass.RATE_LIMIT),
    "service_unavailable": ("overloaded", ErrorClass.RATE_LIMIT),
    "timeout": ("timeout", ErrorClass.NETWORK),
    "server_error": ("server_error", ErrorClass.SERVER_ERROR),
    "api_error": ("server_error", ErrorClass.SERVER_ERROR),
}
_WIRE_TYPES: Final = {  # type and code, as OpenAI pairs them
    "rate_limited": ("requests", "rate_limit_exceeded"),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "context_overflow": ("invalid_request_error", "context_length_exceeded"),
    "not_found": ("invalid_request_error", "model_not_found"),
    "invalid_request": ("invalid_request_error", None),
    "forbidden": ("permission_error", None),
    "overloaded": ("server_error", "engine_overloaded"),
    "timeout": ("server_error", "timeout"),
}
_MINIMAX_CODES: Final = {
    1001: "timeout",
    1002: "rate_limit_exceeded",
    1004: "invalid_api_key",
    1008: "insufficient_quota",
    1039: "rate_limit_exceeded",
    2013: "invalid_request_error",
    2049: "invalid_api_key",
}
_OVERFLOW_PHRASES: Final = (
    "context length",
    "context size",
    "context window",
    "maximum context",
    "too many tokens",
    "too long",
)


def is_error(body: dict[str, Any]) -> bool:
    """Return whether a body of HTTP 200 is an error: under ``error``, or as a failed status of another API."""
    return bool(body.get("error")) or (_minimax_error(body) or _cloudflare_error(body)) is not None


CLOUDFLARE: Final = "a body of Cloudflare's own API; use its OpenAI-compatible address, /ai/v1/chat/completions"


def is_cloudflare(body: dict[str, Any]) -> bool:
    """Return whether a body, or the fields of a chunk, are an answer of Cloudflare's own API."""
    is_chunk = isinstance(body.get("response"), str) and not body.keys() & {"object", "done"}
    return "choices" not in body and (is_chunk or (body.get("success") is True and "result" in body))


def _minimax_error(body: dict[str, Any]) -> dict[str, Any] | None:
    match body.get("base_resp"):
        case {"status_code": int(code), "status_msg": str(text)} if code:
            return {"message": text, "code": str(code), "type": _MINIMAX_CODES.get(code, "server_error")}
    return None


def _cloudflare_error(body: dict[str, Any]) -> dict[str, Any] | None:
    match body:
        case {"success": False, "errors": [{"message": str(text)} as error, *_]}:
            return {"message": text, "code": str(error["code"])} if "code" in error else {"message": text}
    return None


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Read a failed response."""
    error = _find_error(body)
    kind, code, message = error.get("type"), error.get("code"), str(error.get("message") or "no message")
    http_status = next((value for value in (status, code, error.get("status")) if type(value) is int), None)
    words = [word for word in (code, kind) if isinstance(word, str) and word]
    classification = next((_ERROR_TYPES[word] for word in words if word in _ERROR_TYPES), None)
    if classification is None or (
        classification[0] == "invalid_request" and http_status in (401, 402, 403, 404, 408, 413, 429)
    ):
        classification = classify_status(http_status)
    if classification[1] is ErrorClass.INVALID_REQUEST and any(sign in message.lower() for sign in _OVERFLOW_PHRASES):
        classification = ("context_overflow", ErrorClass.CONTEXT_OVERFLOW)
    fields = {
        "provider_code": words[0] if words else str(code) if code is not None else None,
        "request_id": headers.get("x-request-id") or text_or_none(error.get("request_id")),
    }
    return make_fault(NAME, classification, message, status, headers, **fields)


def _find_error(body: Any) -> dict[str, Any]:
    """Return the error, which providers put under ``error``, in a text, under ``detail``, in a list, or at the top."""
    raw_body, body = body, parse_error_body(body)
    if body is None and isinstance(raw_body, bytes | str):
        text = raw_body if isinstance(raw_body, str) else raw_body.decode("utf-8", "replace")
        return {"message": text[:1024]}
    if isinstance(body, list) and body:
        body = body[0]
    match body:
        case {"error": dict(error)}:
            return error
        case {"error": str(text)} | {"detail": str(text)}:
            return {**body, "message": text}
        case {"detail": list(details)}:
            return {**body, "message": msgspec.json.encode(details).decode()[:1024]}
        case dict():
            return _minimax_error(body) or _cloudflare_error(body) or body
        case _:
            return {}


def write_error(fault: Fault) -> Written:
    """Write the fault as an error of this API."""
    kind, code = _WIRE_TYPES.get(fault.code, ("server_error", fault.code))
    if fault.status == PAYMENT_REQUIRED:
        kind = code = "insufficient_quota"
    native_code = fault.provider_code if fault.provider == NAME else None
    return Written({"error": {"message": fault.message, "type": kind, "param": None, "code": native_code or code}})
