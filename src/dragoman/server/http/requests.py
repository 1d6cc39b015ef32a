"""Read a request strictly: its body as JSON or as a type, and its query parameters.

    value = await json_body(request)            or an error: 400, 413, 415, 422
    update = parse_as(value, ThreadUpdate)      422 with the path and the expected type
    limit = int_param(request, "limit", default=50, minimum=1, maximum=200)
    query = text_param(request, "q")

Invariant: time and memory are bounded for every input. A body above the limit is rejected before it is read completely.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec
from starlette.requests import ClientDisconnect, Request

from dragoman.humanize import format_size
from dragoman.jsontext import REQUEST, read_json
from dragoman.offload import run_off_loop
from dragoman.server.http.http_errors import ApiError

if TYPE_CHECKING:
    from dragoman.server.state import AppState

MAX_JSON_BYTES: Final = REQUEST.max_bytes or 0
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_REQUIRED: Final[Any] = object()
T = TypeVar("T")


def app_state(request: Request) -> AppState:
    """The state that all requests share."""
    state: AppState = request.app.state.dragoman
    return state


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of a request below the path that the application is mounted at."""
    path: str = scope["path"]
    rest = path.removeprefix(scope.get("root_path", ""))
    return rest if rest[:1] in ("", "/") else path


def request_base_url(request: Request) -> str:
    """The base of the URLs of this server: the configured one, or the address of the request."""
    configured, url = app_state(request).base_url, request.url
    return configured or f"{url.scheme}://{url.netloc}{request.scope.get('root_path', '')}"


async def json_body(request: Request) -> Any:
    """The body as a JSON value. A large body is parsed off the event loop."""
    data = await json_bytes(request)
    return await run_off_loop(len(data), read_json, data)


async def json_bytes(request: Request) -> bytes:
    """The bytes of a JSON body."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "The body must be application/json.")
    return await read_body(request, MAX_JSON_BYTES)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a body, unless it is too large or compressed."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "unsupported_encoding", "The body must not be compressed.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large_error(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large_error(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ApiError(400, "incomplete_body", "The connection closed before the end of the body.") from None
    return b"".join(chunks)


def too_large_error(max_bytes: int) -> ApiError:
    """The error for a body above the limit. The rest of the body is discarded as it arrives."""
    return ApiError(413, "too_large", f"The body is larger than the limit of {format_size(max_bytes)}.")


def parse_as(value: object, target: type[T]) -> T:
    """Convert a JSON value to a type; 422 if it does not match."""
    try:
        return msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid_request", f"{error}.") from None


@overload
def text_param(request: Request, name: str, *, max_length: int = 1_000) -> str: ...
@overload
def text_param(request: Request, name: str, default: T, *, max_length: int = 1_000) -> str | T: ...
def text_param(request: Request, name: str, default: Any = _REQUIRED, *, max_length: int = 1_000) -> Any:
    """A query parameter; 422 if it is repeated, too long, or missing without a default."""
    values = request.query_params.getlist(name)
    if not values:
        if default is _REQUIRED:
            raise ApiError(422, "missing_parameter", f"The query parameter {name} is missing.")
        return default
    if len(values) > 1:
        raise ApiError(422, "duplicate_parameter", f"The query parameter {name} is repeated.")
    if "\0" in values[0]:
        raise ApiError(422, "invalid_character", f"{name} contains a NUL.")
    if len(values[0]) > max_length:
        raise ApiError(422, "invalid_parameter", f"{name} is longer than {max_length} characters.")
    return values[0]


def int_param(request: Request, name: str, *, default: int, minimum: int = 1, maximum: int = 200) -> int:
    """An integer of the query. A value below the minimum is rejected; a value above the maximum is reduced to it."""
    text = text_param(request, name, None)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text) or int(text) < minimum:
        raise ApiError(422, "invalid_parameter", f"{name} must be an integer of at least {minimum}.")
    return min(int(text), maximum)


def validate_id(value: str, name: str) -> str:
    """A thread, run or message id that a client has chosen; 422 if it is not valid."""
    if "\0" in value:
        raise ApiError(422, "invalid_character", f"{name} contains a NUL.")
    if not _IDENTIFIER.fullmatch(value):
        raise ApiError(422, "invalid_id", f"{name} must be 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return value
