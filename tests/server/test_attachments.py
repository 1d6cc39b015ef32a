"""Tests of attachments over a real socket: uploads, signed URLs, access and manipulated URLs."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from aiohttp import FormData

from dragoman.attachments import MAX_BYTES, ROUTE
from tests.attachments.samples import INVALID_FILES, PDF, TEXT, VALID_FILES, png
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.raw import RawClient
from tests.server.runs.conftest import RUNS, run_input, user
from tests.server.test_threads import API, read_error_code, read_json

UPLOAD = f"{API}/attachments"
SIGN = f"{API}/attachments/signed-url"
BUCKET = "agent-files"


def make_form(
    data: bytes = png(), name: str = "dot.png", declared: str | None = "image/png", **fields: str
) -> FormData:
    form = FormData()
    for key, value in fields.items():
        form.add_field(key, value)
    form.add_field("file", io.BytesIO(data), filename=name, content_type=declared)
    return form


async def upload_file(server: ServerFixture, *args: Any, headers: dict[str, str] | None = None, **fields: str) -> Any:
    return await read_json(server.client.post(UPLOAD, data=make_form(*args, **fields), headers=headers))


def request_target(url: str) -> str:
    """Return the target of the request line for a URL."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


# --- uploads ---------------------------------------------------------------------------------------------------------


async def test_upload_is_stored_under_generated_name_and_read_by_url(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server, threadId="thread-123", runId="run-456")
    assert stored["bucket"] == BUCKET
    assert stored["path"].startswith("agent-inputs/local/thread-123/run-456/")
    assert (stored["mime_type"], stored["size"], stored["name"]) == ("image/png", len(png()), "dot.png")
    route = f"{chat_server.base_url}/storage/v1/object/sign/{BUCKET}/{stored['path']}?token="
    assert stored["url"].startswith(route)
    async with chat_server.client.get(stored["url"]) as response:
        assert (response.status, await response.read()) == (200, png())
        assert response.headers["Content-Type"] == "image/png"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert response.headers["Cache-Control"] == "private, no-store"
        assert response.headers["Content-Disposition"].startswith("inline; filename=")


@pytest.mark.parametrize("mime_type", VALID_FILES)
async def test_every_accepted_type_is_served_with_its_type(chat_server: ServerFixture, mime_type: str) -> None:
    stored = await upload_file(chat_server, VALID_FILES[mime_type], "x", mime_type)
    async with chat_server.client.get(stored["url"]) as response:
        assert await response.read() == VALID_FILES[mime_type]
        assert response.content_type == mime_type
        is_image = mime_type.startswith("image/") and mime_type != "image/heic"  # few browsers display HEIC
        assert response.headers["Content-Disposition"].startswith("inline" if is_image else "attachment")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..\\x.png",
        "%2e%2e/x",
        "a/\0b",
        "CON",
        "x" * 300 + ".png",
        "a\u202egnp.exe",
        "a\r\nb: c.png",
    ],
)
async def test_client_file_name_is_shown_and_never_used_as_path(chat_server: ServerFixture, name: str) -> None:
    body = _multipart_body([("file", name, "image/png", png())])
    async with chat_server.client.post(UPLOAD, data=body, headers=_MULTIPART) as response:
        if response.status == 400:  # a line break or NUL in a header is rejected by the parser
            assert (await response.json())["error"]["code"] == "invalid_multipart"
            return
        stored = await response.json()
    assert stored["path"].startswith("agent-inputs/local/unsorted/unsorted/")
    assert not set(stored["path"].rpartition("/")[2]) - set(string.ascii_letters + string.digits + ".")
    shown_name = stored["name"] or ""
    assert len(shown_name.encode()) <= 255
    assert not set(shown_name) & set("/\\\0\r\n\u202e")
    assert name not in stored["url"]


_MULTIPART = {"Content-Type": "multipart/form-data; boundary=xyzzy"}


def _multipart_body(parts: list[tuple[str, str | None, str | None, bytes]]) -> bytes:
    data = b""
    for field, filename, kind, content in parts:
        named = f'; filename="{filename}"' if filename is not None else ""
        typed = f"Content-Type: {kind}\r\n" if kind is not None else ""
        head = f'--xyzzy\r\nContent-Disposition: form-data; name="{field}"{named}\r\n{typed}\r\n'
        data += head.encode() + content + b"\r\n"
    return data + b"--xyzzy--\r\n"


def _invalid_files() -> Iterator[Any]:
    for name, data in INVALID_FILES.items():
        yield pytest.param(data, None, 415, "type_not_allowed", id=name)
    yield pytest.param(INVALID_FILES["html"], "image/png", 415, "type_not_allowed|type_mismatch", id="html as image")
    yield pytest.param(INVALID_FILES["svg"], "image/svg+xml", 415, "type_not_allowed", id="svg as itself")
    yield pytest.param(png(), "image/jpeg", 415, "type_mismatch", id="png as jpeg")
    yield pytest.param(PDF, "text/plain", 415, "type_mismatch", id="pdf as text")
    yield pytest.param(b"", "image/png", 422, "empty_attachment", id="empty")
    yield pytest.param(png(100_000, 100_000), "image/png", 422, "image_too_large", id="too many pixels")
    yield pytest.param(TEXT * 40_000, "text/plain", 413, "attachment_too_large", id="text too long")
    yield pytest.param(png() + b"\0" * MAX_BYTES, "image/png", 413, "attachment_too_large", id="one byte too large")


async def test_invalid_file_is_rejected_and_not_stored(chat_server: ServerFixture, tmp_path: Path) -> None:
    for case in _invalid_files():
        data, declared, status, codes = case.values
        request = chat_server.client.post(UPLOAD, data=make_form(data, "x", declared))
        assert await read_error_code(request, status) in codes.split("|"), case.id
    assert not [path for path in (tmp_path / "attachments").rglob("*") if path.is_file()]


async def test_too_large_upload_is_rejected_during_transfer(chat_server: ServerFixture) -> None:
    async with RawClient(chat_server.base_url) as client:
        host = chat_server.base_url.removeprefix("http://")
        head = f"POST {UPLOAD} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n"
        head += f"Content-Type: {_MULTIPART['Content-Type']}\r\n\r\n"
        part = b'--xyzzy\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        await client.send(head.encode() + b"%x\r\n%s\r\n" % (len(part), part))
        sent = 0
        piece = b"%x\r\n%s\r\n" % (1 << 20, b"\0" * (1 << 20))
        try:
            while client.reader is not None and not client.reader._buffer and sent < 200:  # type: ignore[attr-defined]
                await client.send(piece)
                sent += 1
        except OSError:
            pass
        response = await client.read_response()
        assert (response.status, response.code) == (413, "too_large")
        assert sent < 60  # including socket buffers


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"Content-Type": "application/json"}, b"{}", 415, "unsupported_media_type"),
        ({"Content-Type": "multipart/form-data"}, b"x", 400, "invalid_multipart"),
        (_MULTIPART, b"not at all", 400, "invalid_multipart"),
        (_MULTIPART, b"", 400, "invalid_multipart"),
        (_MULTIPART, b"--xyzzy--\r\n", 422, "invalid_upload"),
        (_MULTIPART, _multipart_body([("file", "x", None, png())])[:-20], 400, "invalid_multipart"),
        (_MULTIPART, _multipart_body([("file", None, None, b"x")]), 422, "invalid_upload"),
        (_MULTIPART, _multipart_body([("other", "x", None, png())]), 422, "invalid_upload"),
        (_MULTIPART, _multipart_body([("file", "x", None, png())] * 2), 422, "invalid_upload"),
        (_MULTIPART, _multipart_body([(f"f{n}", None, None, b"x") for n in range(9)]), 422, "invalid_upload"),
        (
            _MULTIPART,
            _multipart_body([("note", None, None, b"x" * 2_000), ("file", "x", None, png())]),
            422,
            "invalid_upload",
        ),
        (_MULTIPART, _multipart_body([("file", None, None, b"x"), ("file", "x", None, png())]), 422, "invalid_upload"),
        (
            _MULTIPART,
            _multipart_body([("threadId", None, None, b"../x"), ("file", "x", None, png())]),
            422,
            "invalid_id",
        ),
        (
            _MULTIPART,
            _multipart_body([("runId", None, None, b"a\0b"), ("file", "x", None, png())]),
            422,
            "invalid_character",
        ),
        (
            _MULTIPART,
            _multipart_body([("threadId", None, None, b"a")] * 2 + [("file", "x", None, png())]),
            422,
            "invalid_upload",
        ),
        ({**_MULTIPART, "Content-Encoding": "gzip"}, b"x", 415, "unsupported_encoding"),
        (_MULTIPART, b"--xyzzy\r\nContent-Disposition: form-data\r\n\r\nx\r\n--xyzzy--\r\n", 400, "invalid_multipart"),
    ],
)
async def test_invalid_upload_body_is_rejected(
    chat_server: ServerFixture, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    assert await read_error_code(chat_server.client.post(UPLOAD, data=body, headers=headers), status) == code


# --- signed URLs-----------------------------------------------------------------------------------------------------


async def test_uploaded_file_gets_new_signed_url(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server)
    place = {"bucket": BUCKET, "path": stored["path"]}
    signed = await read_json(chat_server.client.get(SIGN, params=place))
    assert signed == {**place, "url": signed["url"]}
    async with chat_server.client.get(signed["url"]) as response:
        assert await response.read() == png()


@pytest.mark.parametrize(
    ("bucket", "path", "status", "code"),
    [
        (BUCKET, "../other/x", 404, "not_found"),
        (BUCKET, "agent-inputs/local/../bob/t/r/x.png", 404, "not_found"),
        (BUCKET, "agent-inputs/bob/t/r/x.png", 404, "not_found"),
        (BUCKET, "agent-inputs/local/t/r/missing.png", 404, "not_found"),
        (BUCKET, "agent-inputs", 404, "not_found"),
        (BUCKET, "/agent-inputs/local/t/r/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs//local/t/r/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs/./local/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs/local/x.png.", 400, "invalid_path"),
        (BUCKET, "agent-inputs%2flocal/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs%252flocal/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs\\local\\x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs\u2215local/x.png", 400, "invalid_path"),
        (BUCKET, "agent-inputs/local/x\u2024png", 400, "invalid_path"),
        (BUCKET, "", 400, "invalid_path"),
        (BUCKET, "a\0b", 422, "invalid_character"),
        (BUCKET, "a" * 3_000, 422, "invalid_parameter"),
        ("other-files", "agent-inputs/local/t/r/x.png", 404, "not_found"),
        ("agent/files", "agent-inputs/local/t/r/x.png", 400, "invalid_path"),
        ("..", "agent-inputs/local/t/r/x.png", 400, "invalid_path"),
        ("", "agent-inputs/local/t/r/x.png", 400, "invalid_path"),
    ],
)
async def test_path_of_another_user_gets_no_url(
    chat_server: ServerFixture, bucket: str, path: str, status: int, code: str
) -> None:
    request = chat_server.client.get(SIGN, params={"bucket": bucket, "path": path})
    assert await read_error_code(request, status) == code


async def test_bucket_and_path_are_required_once(chat_server: ServerFixture) -> None:
    for query in ("", "?bucket=x", "?path=x", "?bucket=x&bucket=y&path=z"):
        assert await read_error_code(chat_server.client.get(SIGN + query), 422)


# --- downloads -------------------------------------------------------------------------------------------------------


async def test_signed_url_expires(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server)
    now = time.time()
    for age_s, status in ((899, 200), (901, 403)):
        chat_server.state.attachments.clock = lambda age_s=age_s: now + age_s
        async with RawClient(chat_server.base_url) as client:
            response = await client.get(request_target(stored["url"]))
        assert response.status == status
        assert status == 200 or response.code == "url_expired"


WHOLE_FILE_RANGES = [
    *("bytes=" + ",".join(f"{n}-{n}" for n in range(1_000)), "bytes=0-0,2-3", "bytes=5-2", "bytes=x", "bytes=-"),
    *("bytes=0-0\r\nRange: bytes=1-1", "bytes=0-0\r\nIf-Range: x", "lines=0-0", "bytes=" + "9" * 5_000 + "-", "0-0"),
]


@pytest.mark.parametrize("header", WHOLE_FILE_RANGES, ids=range(len(WHOLE_FILE_RANGES)))
async def test_invalid_or_multiple_ranges_return_whole_file(chat_server: ServerFixture, header: str) -> None:
    stored = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        response = await client.get(request_target(stored["url"]), f"Range: {header}")
        assert (response.status, response.body) == (200, png())


LONG = b"".join(b"%07d\n" % n for n in range(80_000))  # longer than one chunk


@pytest.mark.parametrize(
    "byte_range",
    ["0-0", "0-", "5-9", "262140-262150", "600000-", "639999-639999", "-1", "-262145", "-9999999", "1-9999999"],
)
async def test_range_request_returns_requested_bytes(chat_server: ServerFixture, byte_range: str) -> None:
    stored = await upload_file(chat_server, LONG, "long.txt", "text/plain")
    async with RawClient(chat_server.base_url) as client:
        response = await client.get(request_target(stored["url"]), f"Range: bytes={byte_range}")
        first, last = map(
            int, response.headers["content-range"].removeprefix("bytes ").removesuffix("/640000").split("-")
        )
        assert (response.status, response.body) == (206, LONG[first : last + 1])
        assert response.headers["content-length"] == str(last + 1 - first)
        begin, _, end = byte_range.partition("-")
        expected = (int(begin), min(int(end or 639_999), 639_999)) if begin else (max(0, 640_000 - int(end)), 639_999)
        assert (first, last) == expected
        assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize("byte_range", ["640000-", "640000-640001", "999999999999999-", "-0"])
async def test_unsatisfiable_range_is_rejected(chat_server: ServerFixture, byte_range: str) -> None:
    stored = await upload_file(chat_server, LONG, "long.txt", "text/plain")
    async with RawClient(chat_server.base_url) as client:
        response = await client.get(request_target(stored["url"]), f"Range: bytes={byte_range}")
        assert (response.status, response.code) == (416, "range_not_satisfiable")
        assert response.headers["content-range"] == "bytes */640000"


async def test_host_header_does_not_affect_signature(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        for host in ("localhost", "evil.example", "xn--80ak6aa92e.example:443"):
            data = f"GET {request_target(stored['url'])} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            assert (await client.ask(data)).body == png()


async def test_url_of_another_address_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    keys = {"attachments": (tmp_path / "files").as_uri()}
    async with run_test_server(tmp_path / "a", **keys) as first, run_test_server(tmp_path / "b", **keys) as second:
        stored = await upload_file(first)
        async with RawClient(second.base_url) as client:  # same keys and files; the token contains no address
            assert (await client.get(request_target(stored["url"]))).status == 200
        foreign = stored["url"].replace(first.base_url, "http://127.0.0.1:1")
        attachments = first.state.attachments
        with pytest.raises(Exception, match="not the URL of an attachment in our storage"):
            attachments.verify(foreign, None)


def _invalid_token_targets(url: str) -> Iterator[str]:
    """Yield request targets with forged tokens."""
    bare, _, token = request_target(url).partition("?token=")
    version, kid, expires, owner, signature = token.split(".")

    def jwt(**header: str) -> str:
        parts = (str(header).replace("'", '"'), f'{{"url":"{BUCKET}/x","exp":99999999999}}')
        return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)

    for token_text in (
        "",
        jwt(alg="none") + ".",
        jwt(alg="HS256") + "." + signature,
        jwt(alg="none", kid=kid) + "." + signature,
        f"v2.{kid}.{expires}.{owner}.{signature}",
        f"v1.{kid}.{int(expires) + 1}.{owner}.{signature}",
        f"v1.{kid}.{expires}0.{owner}.{signature}",
        f"v1.{kid}.0{expires}.{owner}.{signature}",
        f"v1.other.{expires}.{owner}.{signature}",
        f"v1.{kid}.{expires}.{base64.urlsafe_b64encode(b'[*bob*,null]').decode()}.{signature}",
        f"v1.{kid}.{expires}.{owner}.{'A' * 43}",
        f"{version}.{kid}.{expires}.{owner}",
        signature,
    ):
        yield f"{bare}?token={token_text}"
    signed = f"{bare}?token={token}"
    yield from (
        f"{signed}&exp=99999999999",
        f"{signed}&token={token}",
        f"{bare}?token={token[:-1]}&token={token}",
        f"{bare}?exp=1&token={token}",
        f"{signed}&",
        f"{bare}?&token={token}",
        f"{bare}?TOKEN={token}",
        f"{bare}?token%3D{token}",
        f"{bare}?token={quote(token, safe='').replace('.', '%2E')}",
        f"{bare}?token=+{token}",
        f"{bare};token={token}",
        f"{bare}/?token={token}",
        f"{signed}#",
        f"{signed}#x",
        bare,
    )


async def test_forged_tokens_are_rejected(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        assert (await client.get(request_target(stored["url"]))).status == 200
        for forged in _invalid_token_targets(stored["url"]):
            response = await client.get(forged)
            assert response.status in (400, 403, 404), forged
            if response.status == 403:
                assert response.code == "bad_signature", forged
            assert b"v1." not in response.body


def _mutant_targets(url: str, other: str, count: int) -> Iterator[str]:
    """Yield URLs that differ from a signed URL by one change."""
    chance = random.Random(7)
    signed, alphabet = request_target(url), string.ascii_letters + string.digits + "-_.~%/?&=+:;,@!$'()*[]{}|^`\\\"<>"
    yielded = {signed}
    path, query = signed.split("?")
    other_path, other_query = request_target(other).split("?")
    while len(yielded) <= count:
        at, character = chance.randrange(len(ROUTE), len(signed)), chance.choice(alphabet)
        before, current, after = signed[:at], signed[at], signed[at + 1 :]
        mutant = chance.choice(
            [
                before + character + after,
                before + after,
                before + character + current + after,
                before + current.swapcase() + after,
                f"{before}%{ord(current):02x}{after}",
                f"{before}%{ord(current):02X}{after}",
                signed[: at - 1] + current + signed[at - 1] + after,
                before,
                signed + character,
                f"{other_path}?{query}",
                f"{path}?{other_query}",
            ]
        )
        if mutant not in yielded:
            yielded.add(mutant)
            yield mutant


async def test_thousand_mutated_urls_are_rejected(chat_server: ServerFixture) -> None:
    stored, other = await upload_file(chat_server), await upload_file(chat_server)
    statuses: dict[int, int] = {}
    async with RawClient(chat_server.base_url) as client:
        for mutant in _mutant_targets(stored["url"], other["url"], 1_000):
            response = await client.get(mutant)
            statuses[response.status] = statuses.get(response.status, 0) + 1
            assert response.status in (400, 403, 404, 422), mutant
            assert png() not in response.body
        assert (await client.get(request_target(stored["url"]))).body == png()
    assert sum(statuses.values()) == 1_000
    assert statuses[403] > 300


async def test_signed_url_allows_reading_only(chat_server: ServerFixture) -> None:
    stored = await upload_file(chat_server)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert await read_error_code(chat_server.client.request(method, stored["url"]), 405) == "method_not_allowed"
    async with chat_server.client.head(stored["url"]) as response:
        assert (response.status, await response.read()) == (200, b"")


# --- messages with URLs ----------------------------------------------------------------------------------------------


async def test_message_url_must_match_origin_exactly_and_is_not_fetched(
    chat_server: ServerFixture,
) -> None:
    connections: list[object] = []

    async def record_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername"))
        writer.close()

    listener = await asyncio.start_server(record_connection, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    stored = await upload_file(chat_server)
    rest = stored["url"].removeprefix(chat_server.base_url)
    host = chat_server.base_url.removeprefix("http://")
    bare = host.partition(":")[0]
    for origin in (
        f"http://127.0.0.1:{port}",
        f"http://{host}@127.0.0.1:{port}",
        f"http://127.0.0.1:{port}#@{host}",
        f"http://user:secret@{host}",
        f"HTTP://{host}",
        f"https://{host}",
        f"http://{bare}",
        f"http://{host.replace(bare, bare + '.')}",
        f"http://{host.replace(bare, 'localhost')}",
        f"http://{host.replace(bare, '127.1')}",
        f"http://{host.replace(bare, '2130706433')}",
        f"http://{host.replace(bare, '[::ffff:127.0.0.1]')}",
        f"http://{host.replace(bare, '①②⑦.0.0.1')}",
        f"//{host}",
        f"http:/{host}",
        f"http://{host}/..",
        "file://",
        "data:image/png;base64,",
        "",
    ):
        part = {"type": "binary", "mimeType": "image/png", "url": f"{origin}{rest}"}
        body = run_input(user([{"type": "text", "text": "see"}, part]), threadId="t", runId="r")
        request = chat_server.client.post(RUNS, json=body)
        assert await read_error_code(request, 422) == "foreign_attachment_url", origin
    assert await read_error_code(chat_server.client.get(f"{API}/history?threadId=t"), 404) == "not_found"
    listener.close()
    await listener.wait_closed()
    assert connections == []


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (lambda url: url[:-1] + ("A" if url[-1] != "A" else "B"), 403, "bad_signature"),
        (lambda url: f"{url}&exp=9999999999", 403, "bad_signature"),
        (lambda url: f"{url}&{url.partition('?')[2]}", 403, "bad_signature"),
        (lambda url: url.replace("/agent-files/", "/other-files/"), 404, "not_found"),
        (lambda url: url.replace("/local/", "/bob/"), 403, "bad_signature"),
        (lambda url: url.replace("/local/", "/../"), 404, "not_found"),
    ],
    ids=["character", "extra parameter", "token twice", "other bucket", "other user", "path traversal"],
)
async def test_message_with_manipulated_url_is_rejected(
    chat_server: ServerFixture, change: Callable[[str], str], status: int, code: str
) -> None:
    stored = await upload_file(chat_server)
    part = {"type": "binary", "mimeType": "image/png", "url": change(stored["url"])}
    body = run_input(user([{"type": "text", "text": "see"}, part]), threadId="t", runId="r")
    assert await read_error_code(chat_server.client.post(RUNS, json=body), status) == code
    assert await read_error_code(chat_server.client.get(f"{API}/history?threadId=t"), 404) == "not_found"
