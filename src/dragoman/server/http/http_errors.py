"""Error responses: one shape for all errors, and the HTTP status of each of our own errors.

    raise ApiError(422, "empty_content", "messages[0].content is empty.")
    raise not_found_error()                  the same for missing resources and those of other users

The body is always ``{"error": {"code", "message", "request_id"}}``. Invariant: a response never contains internal
details. An error on our side has only its code; the rest is logged with the request id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

from dragoman import errors
from dragoman.attachments import STATUSES
from dragoman.ids import with_names
from dragoman.redaction import redact

if TYPE_CHECKING:
    from starlette.requests import Request

_log: Final = logging.getLogger("dragoman.server")


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Code for programs, message for people, and the request id in the log."""

    code: str
    message: str
    request_id: str
    reason: str | None = None  # why a model cannot be used, such as ``no_vision_support``


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.reason = reason


def not_found_error() -> ApiError:
    """The same error for a missing resource and for one of another user."""
    return ApiError(404, "not_found", "The resource does not exist, or belongs to another user.")


# By code, if one class of errors has several statuses; otherwise by the first matching class.
_BY_CODE: Final[Mapping[str, int]] = {
    **STATUSES,
    "invalid_json": 400,
    "duplicate_key": 400,
    "too_deep": 400,
    "invalid_unicode": 400,
    "too_large": 413,
    "number_out_of_range": 422,
    "too_many_keys": 422,
    "too_many_values": 422,
    "idempotency_key_reused": 422,
    "letter_too_large": 413,
    "sender_mismatch": 403,
}
_BY_CLASS: Final[tuple[tuple[type[errors.DragomanError], int], ...]] = (
    (errors.UnknownSessionError, 404),
    (errors.UnknownMessageError, 404),
    (errors.UnknownAttachmentError, 404),
    (errors.UnknownLetterError, 404),
    (errors.UnknownNameError, 422),
    (errors.InputError, 422),
    (errors.RoutingError, 422),
    (errors.ConflictError, 409),
    (errors.StorageError, 503),
    (errors.RemoteFaultError, 502),
    (errors.ToolError, 422),
    (errors.SettingsError, 503),
    (errors.BusError, 503),
)


def status_for(error: errors.DragomanError) -> int:
    """The HTTP status of one of our errors."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((status for kind, status in _BY_CLASS if isinstance(error, kind)), 500)


def to_api_error(error: errors.DragomanError) -> ApiError:
    """The error response for one of our errors."""
    status = status_for(error)
    if status == 404:
        return not_found_error()
    if status >= 500:  # the location is internal: a path, an address
        return ApiError(status, error.code, redact(error.what))
    reason = error.validation_failure if isinstance(error, errors.RoutingConstraintError) else None
    return ApiError(status, error.code, redact(str(error)), reason=reason)


def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that raised an error. An unexpected error is logged, and only its id is returned."""
    match error:
        case ApiError():
            return _to_response(request, error)
        case errors.DragomanError():
            api_error = to_api_error(error)
            if api_error.status >= 500:
                _log.error("%s", error, extra={"request_id": get_request_id(request)})
            return _to_response(request, api_error)
        case _:
            _log.error("unexpected error", exc_info=error, extra={"request_id": get_request_id(request)})
            return _to_response(
                request,
                ApiError(
                    500, "internal_error", "An unexpected error occurred. The log has details under the request id."
                ),
            )


def get_request_id(request: Request) -> str:
    """The id of a request, in its response and in the log."""
    return str(request.scope.get("dragoman.request_id", ""))


def _to_response(request: Request, error: ApiError) -> Response:
    body = ErrorBody(ErrorDetail(error.code, with_names(error.message), get_request_id(request), error.reason))
    return Response(
        msgspec.json.encode(body),
        error.status,
        media_type="application/json",
        headers={"cache-control": "no-store", **error.headers},
    )
