"""How a request is refused: one shape for every error, and one table from our own errors to statuses.

    raise Refusal(422, "empty_content", "A message has to say something.")
    raise not_found_error()                    the same for what is missing and for what is somebody else's

The body is always ``{"error": {"code", "message", "request_id"}}``. The one rule: no answer holds what the caller was
not meant to see. What fails on our side is told by its code alone, and the rest goes to the log under the request id.
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


class ErrorDetail(msgspec.Struct, frozen=True):
    """What is wrong: a code for programs, a message for people, and the name under which the log has more."""

    code: str
    message: str
    request_id: str


class ErrorBody(msgspec.Struct, frozen=True):
    """What every refusal looks like."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


def not_found_error() -> ApiError:
    """The one answer for what is missing and for what is somebody else's."""
    return ApiError(404, "not_found", "There is nothing here, or it is not yours.")


# By code, where one class of error has several answers; else by class, the first that fits.
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
    """The status for an error of ours."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((status for kind, status in _BY_CLASS if isinstance(error, kind)), 500)


def to_api_error(error: errors.DragomanError) -> ApiError:
    """What a caller is told about an error of ours."""
    status = status_for(error)
    if status == 404:
        return not_found_error()
    if status >= 500:  # where it happened is our business: a path, an address
        return ApiError(status, error.code, redact(error.what))
    return ApiError(status, error.code, redact(str(error)))


def error_response(request: Request, error: Exception) -> Response:
    """The answer to a request that ended in an error. What nobody expected is logged, and told by its id alone."""
    match error:
        case ApiError():
            return _to_response(request, error)
        case errors.DragomanError():
            api_error = to_api_error(error)
            if api_error.status >= 500:
                _log.error("%s", error, extra={"request_id": get_request_id(request)})
            return _to_response(request, api_error)
        case _:
            _log.error("an error that nobody expected", exc_info=error, extra={"request_id": get_request_id(request)})
            return _to_response(
                request,
                ApiError(500, "internal_error", "Something failed here. The log has more under the request id."),
            )


def get_request_id(request: Request) -> str:
    """The name of a request, in its answer and in the log."""
    return str(request.scope.get("dragoman.request_id", ""))


def _to_response(request: Request, error: ApiError) -> Response:
    body = ErrorBody(ErrorDetail(error.code, with_names(error.message), get_request_id(request)))
    return Response(
        msgspec.json.encode(body),
        error.status,
        media_type="application/json",
        headers={"cache-control": "no-store", **error.headers},
    )
