"""Tests of request bodies and parameters: strict validation, and limits on what is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from dragoman.errors import JsonError
from dragoman.server.http.http_errors import ApiError, to_api_error
from dragoman.server.http.requests import int_param, json_body, parse_as, text_param, validate_id

JSON = {"content-type": "application/json"}


def make_request(body: bytes | list[bytes] = b"", headers: dict[str, str] | None = None, query: str = "") -> Request:
    """Build a request like one from a server."""
    pieces = [body] if isinstance(body, bytes) else body
    messages = iter(
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    )

    async def receive() -> Any:
        return next(messages)

    raw = [(name.encode(), value.encode()) for name, value in (JSON if headers is None else headers).items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": query.encode(), "headers": raw}
    return Request(scope, receive)


async def get_error(request: Request) -> tuple[int, str]:
    """Return the status and the code of the error that a body causes."""
    try:
        body = await json_body(request)
    except JsonError as error:
        api_error = to_api_error(error)
        return api_error.status, api_error.code
    except ApiError as error:
        return error.status, error.code
    pytest.fail(f"the body was accepted as {body!r:.80}")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b"", 400, "invalid_json", id="empty"),
        pytest.param(b"{}{}", 400, "invalid_json", id="two values"),
        pytest.param(b"\xef\xbb\xbf{}", 400, "invalid_json", id="byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), 400, "invalid_json", id="UTF-16"),
        pytest.param(b'{"a":"\xc0\xaf"}', 400, "invalid_json", id="overlong UTF-8"),
        pytest.param(b'{"a":"\xff"}', 400, "invalid_json", id="invalid UTF-8"),
        pytest.param(b'{"threadId":"a","threadId":"b"}', 400, "duplicate_key", id="duplicate key"),
        pytest.param(b'{"a":NaN}', 400, "invalid_json", id="NaN"),
        pytest.param(b"[-Infinity]", 400, "invalid_json", id="infinity"),
        pytest.param(b'{"a":1e400}', 422, "number_out_of_range", id="beyond double"),
        pytest.param(b'{"a":' + b"9" * 5_000 + b"}", 422, "number_out_of_range", id="5,000 digits"),
        pytest.param(b'{"a":18446744073709551617}', 422, "number_out_of_range", id="beyond 64 bits"),
        pytest.param(b"[" * 100_000, 400, "too_deep", id="100,000 levels"),
        pytest.param(b"[" * 65 + b"]" * 65, 400, "too_deep", id="65 levels"),
        pytest.param(json.dumps({str(n): 0 for n in range(20_000)}).encode(), 422, "too_many_keys", id="20,000 keys"),
        pytest.param(json.dumps([0] * 200_000).encode(), 422, "too_many_values", id="200,000 values"),
        pytest.param(b'{"a":"\\ud800"}', 400, "invalid_unicode", id="lone surrogate"),
        pytest.param(b'{"a":"\x01"}', 400, "invalid_json", id="control byte"),
    ],
)
async def test_invalid_body_is_rejected(body: bytes, status: int, code: str) -> None:
    assert await get_error(make_request(body)) == (status, code)


async def test_valid_body_is_parsed_exactly() -> None:
    assert await json_body(make_request(b'{"n":9007199254740993,"z":"a\\u0000b"}')) == {
        "n": 9007199254740993,
        "z": "a\0b",
    }
    assert await json_body(make_request(b"[" * 64 + b"]" * 64)) is not None


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_body_without_json_content_type_is_rejected(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert await get_error(make_request(b"{}", headers)) == (415, "unsupported_media_type")


async def test_compressed_body_is_rejected() -> None:
    assert await get_error(make_request(b"\x1f\x8b", {**JSON, "content-encoding": "gzip"})) == (
        415,
        "unsupported_encoding",
    )


async def test_body_with_too_large_content_length_is_not_read() -> None:
    request = make_request([], {**JSON, "content-length": str(4 * 1024 * 1024 + 1)})
    assert await get_error(request) == (413, "too_large")


async def test_body_is_read_only_up_to_the_limit() -> None:
    count = 0

    async def receive_endlessly() -> AsyncIterator[dict[str, Any]]:
        nonlocal count
        while True:
            count += 1
            yield {"type": "http.request", "body": b" " * 65_536, "more_body": True}

    request = make_request()
    request._receive = receive_endlessly().__anext__
    assert await get_error(request) == (413, "too_large")
    assert count == 4 * 1024 * 1024 // 65_536 + 1


class Rename(msgspec.Struct):
    title: str
    tags: list[int] = []


def test_validation_error_names_the_path() -> None:
    assert parse_as({"title": "x", "tags": [1]}, Rename) == Rename("x", [1])
    with pytest.raises(ApiError, match=r"Expected `int`, got `str` - at `\$\.tags\[1\]`") as caught:
        parse_as({"title": "x", "tags": [1, "2"]}, Rename)
    assert (caught.value.status, caught.value.code) == (422, "invalid_request")


@pytest.mark.parametrize("value", ["-1", "0", "1e9", "abc", "10;drop", "", "٣", "1.0", "9" * 30, "+5", " 5"])
def test_invalid_number_in_query_is_rejected(value: str) -> None:
    from urllib.parse import quote

    with pytest.raises(ApiError) as caught:
        int_param(make_request(query=f"limit={quote(value)}"), "limit", default=50)
    assert caught.value.status == 422


def test_too_large_number_is_capped() -> None:
    assert int_param(make_request(query="limit=1000"), "limit", default=50, maximum=200) == 200
    assert int_param(make_request(), "limit", default=50) == 50


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "missing_parameter"),
        ("q=a&q=b", "duplicate_parameter"),
        ("q=a%00b", "invalid_character"),
        (f"q={'a' * 1001}", "invalid_parameter"),
    ],
)
def test_text_parameter_is_required_once_and_limited(query: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        text_param(make_request(query=query), "q")
    assert (caught.value.status, caught.value.code) == (422, code)


@pytest.mark.parametrize("value", ["", "a b", "a/b", "ü", "a" * 129, "a\n", "../x"])
def test_id_has_letters_digits_and_four_symbols(value: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_id(value, "threadId")
    assert (caught.value.status, caught.value.code) == (422, "invalid_id")
    assert validate_id("A-z_0.9:" * 16, "threadId")
