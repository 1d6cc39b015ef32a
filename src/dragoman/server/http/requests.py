"""What a request says, read strictly: its body as JSON, its body as one of our types, its query.

    value = await json_body(request)           or a refusal: 400, 413, 415, 422
    asked = parse_as(value, RenameThread)       422 with the path of what does not fit, and what was expected
    limit = whole_number(request, "limit", default=50, least=1, most=200)
    words = text_param(request, "q")

The one rule: time and memory stay within the limits whatever is sent. A body is refused as soon as it is too large,
never after it was read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec
from starlette.requests import ClientDisconnect, Request

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


async def json_body(request: Request, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The body of a request as a JSON value. A large one is parsed off the event loop."""
    data = await json_bytes(request, max_bytes)
    return await run_off_loop(len(data), read_json, data)


async def json_bytes(request: Request, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The body of a request that says that it is JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "The body has to be application/json.")
    return await read_body(request, max_bytes)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a body, unless there are too many or they are compressed."""
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
        raise ApiError(400, "incomplete_body", "The body ended before its end.") from None
    return b"".join(chunks)


def too_large_error(max_bytes: int) -> ApiError:
    """The refusal of a body that is too large. What is left of it is thrown away as it comes."""
    return ApiError(413, "too_large", f"The body has more than the {max_bytes} bytes allowed.")


def parse_as(value: object, target: type[T]) -> T:
    """A JSON value as one of our types."""
    try:
        return msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid_request", f"{error}.") from None


@overload
def text_param(request: Request, name: str, *, max_length: int = 1_000) -> str: ...
@overload
def text_param(request: Request, name: str, default: T, *, max_length: int = 1_000) -> str | T: ...
def text_param(request: Request, name: str, default: Any = _REQUIRED, *, max_length: int = 1_000) -> Any:
    """A parameter of the query; 422 if it is missing and there is no default, said twice, or too long."""
    values = request.query_params.getlist(name)
    if not values:
        if default is _REQUIRED:
            raise ApiError(422, "missing_parameter", f"The query has to have {name}.")
        return default
    if len(values) > 1:
        raise ApiError(422, "duplicate_parameter", f"The query has {name} more than once.")
    if "\0" in values[0]:
        raise ApiError(422, "invalid_character", f"{name} holds a NUL.")
    if len(values[0]) > max_length:
        raise ApiError(422, "invalid_parameter", f"{name} is longer than {max_length} characters.")
    return values[0]


def int_param(request: Request, name: str, *, default: int, minimum: int = 1, maximum: int = 200) -> int:
    """A whole number of the query. One that is too small or no number is refused, one that is too large is capped."""
    text = text_param(request, name, None)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text) or int(text) < minimum:
        raise ApiError(422, "invalid_parameter", f"{name} has to be a whole number, {minimum} or more.")
    return min(int(text), maximum)


def validate_id(value: str, name: str) -> str:
    """A value that a client may choose as the id of a thread, a run or a message."""
    if "\0" in value:
        raise ApiError(422, "invalid_character", f"{name} holds a NUL.")
    if not _IDENTIFIER.fullmatch(value):
        raise ApiError(422, "invalid_id", f"{name} has to be 1 to 128 of A-Z a-z 0-9 _ . : -")
    return value
