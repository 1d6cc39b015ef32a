"""Faults: damaged streams, and the bodies and headers of errors.

    stream_error(dialect, code, message, **excerpts)  the event that ends a damaged stream
    early_end(dialect, head, tail)                    the event for a stream that ended before its message
    parse_error_body(body)                            the parsed body of an error, if it is JSON
    classify_status(status)                           code and class of a failure, by its HTTP status
    make_fault(dialect, classification, message, …)   the fault, with whether and when to retry
    retry_after_s(headers)                            the delay that the provider requests

Excerpts of the received bytes have a few kilobytes at most, and keys in them are masked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.event import StreamError
from dragoman.exchange import ErrorClass, Fault

PAYMENT_REQUIRED: Final = 402
HEAD_BYTES: Final = 1024
_TAIL_BYTES: Final = 4096
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SECRET: Final = re.compile(
    r"(?i)(bearer\s+|\b(?:sk|pk|gsk|xai|key)[-_]|api[-_ ]?key[\"']?\s*[:=]\s*[\"']?)[\w.~+/-]{6,}"
)
_RETRYABLE: Final = frozenset({ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR, ErrorClass.NETWORK})
_NETWORK_CODES: Final = ("stream_incomplete", "stream_broken")


def stream_error(dialect: str, code: str, message: str, **excerpts: str | None) -> StreamError:
    """Return the event that ends a damaged stream. ``provider_raw`` has the excerpts."""
    error_class = ErrorClass.NETWORK if code in _NETWORK_CODES else ErrorClass.SERVER_ERROR
    fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=dialect)
    raw = {name: text for name, text in excerpts.items() if text}
    return StreamError(fault, {"dialect": dialect, **raw} if raw else None)


def early_end(dialect: str, head: bytes | None, tail: bytes) -> StreamError:
    """Return the fault of a stream that ended before its message: empty, not a stream, or cut.

    ``head`` has the first bytes if no event was read from them, ``tail`` those of an unfinished event.
    """
    head = head and head.removeprefix(BYTE_ORDER_MARK)
    first_byte = b"" if head is None else head.lstrip()[:1]
    if head is not None and not first_byte:
        return stream_error(dialect, "empty_response", "nothing arrived")
    if head is not None and first_byte in (b"<", b"{"):
        content = "a page" if first_byte == b"<" else "a JSON object"
        return stream_error(dialect, "bad_content_type", f"{content} arrived instead of a stream", head=redact(head))
    tail_text = tail[:_TAIL_BYTES].decode("utf-8", "backslashreplace")
    return stream_error(dialect, "stream_incomplete", "the stream ended before the message did", tail=tail_text)


def redact(head: bytes) -> str:
    """Return the first kilobyte as text, with keys masked."""
    return _SECRET.sub(r"\1***", head[:HEAD_BYTES].decode("utf-8", "backslashreplace"))


def parse_error_body(body: Any) -> Any:
    """Return the parsed body of an error; ``None`` if it is not JSON."""
    if not isinstance(body, bytes | str):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def make_fault(
    dialect: str,
    classification: tuple[str, ErrorClass],
    message: str,
    status: int | None,
    headers: Mapping[str, str],
    **more: Any,
) -> Fault:
    """Return the fault of a failed request. ``classification`` is its code and its class."""
    code, error_class = classification
    fields = {"retry_after_s": retry_after_s(headers), **more}
    return Fault(
        code=code,
        message=message,
        error_class=error_class,
        retryable=error_class in _RETRYABLE,
        status=status,
        provider=dialect,
        **fields,
    )


def classify_status(status: int | None) -> tuple[str, ErrorClass]:
    """Return code and class of an HTTP status."""
    match status:
        case 401:
            return "unauthorized", ErrorClass.AUTH
        case 402 | 403:
            return "forbidden", ErrorClass.AUTH
        case 404:
            return "not_found", ErrorClass.INVALID_REQUEST
        case 408:
            return "timeout", ErrorClass.NETWORK
        case 413:
            return "context_overflow", ErrorClass.CONTEXT_OVERFLOW
        case 429:
            return "rate_limited", ErrorClass.RATE_LIMIT
        case 503 | 529:
            return "overloaded", ErrorClass.RATE_LIMIT
        case int() if status >= 500:
            return "server_error", ErrorClass.SERVER_ERROR
        case int() if status >= 400:
            return "invalid_request", ErrorClass.INVALID_REQUEST
        case _:
            return "server_error", ErrorClass.OTHER


_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the delay that the provider requests. A date needs a clock, so the caller resolves it."""
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = lowered.get(name, "")
        if _SECONDS.fullmatch(value):
            return float(value) / unit
    return None
