"""Files over a real socket: what is taken, what it is called, who may read it, and what a URL that was changed is worth."""

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


def form(data: bytes = png(), name: str = "dot.png", declared: str | None = "image/png", **fields: str) -> FormData:
    made = FormData()
    for key, value in fields.items():
        made.add_field(key, value)
    made.add_field("file", io.BytesIO(data), filename=name, content_type=declared)
    return made


async def upload_file(server: ServerFixture, *args: Any, headers: dict[str, str] | None = None, **fields: str) -> Any:
    return await read_json(server.client.post(UPLOAD, data=form(*args, **fields), headers=headers))


def target(url: str) -> str:
    """Return the target of the request line for a URL."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


# --- uploading -------------------------------------------------------------------------------------------------------


async def test_a_file_is_kept_under_a_name_of_ours_and_can_be_read_by_its_url(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server, threadId="thread-123", runId="run-456")
    assert kept["bucket"] == BUCKET
    assert kept["path"].startswith("agent-inputs/local/thread-123/run-456/")
    assert (kept["mime_type"], kept["size"], kept["name"]) == ("image/png", len(png()), "dot.png")
    route = f"{chat_server.base_url}/storage/v1/object/sign/{BUCKET}/{kept['path']}?token="
    assert kept["url"].startswith(route)
    async with chat_server.client.get(kept["url"]) as answer:
        assert (answer.status, await answer.read()) == (200, png())
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["Cache-Control"] == "private, no-store"
        assert answer.headers["Content-Disposition"].startswith("inline; filename=")


@pytest.mark.parametrize("mime_type", VALID_FILES)
async def test_every_type_that_is_taken_is_served_as_itself(chat_server: ServerFixture, mime_type: str) -> None:
    kept = await upload_file(chat_server, VALID_FILES[mime_type], "x", mime_type)
    async with chat_server.client.get(kept["url"]) as answer:
        assert await answer.read() == VALID_FILES[mime_type]
        assert answer.content_type == mime_type
        is_picture = mime_type.startswith("image/") and mime_type != "image/heic"  # which few browsers show
        assert answer.headers["Content-Disposition"].startswith("inline" if is_picture else "attachment")


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
async def test_what_a_client_calls_its_file_is_shown_and_never_a_path(chat_server: ServerFixture, name: str) -> None:
    body = _body([("file", name, "image/png", png())])
    async with chat_server.client.post(UPLOAD, data=body, headers=_MULTIPART) as answer:
        if answer.status == 400:  # no parser takes a line's end or a NUL in a header
            assert (await answer.json())["error"]["code"] == "invalid_multipart"
            return
        kept = await answer.json()
    assert kept["path"].startswith("agent-inputs/local/unsorted/unsorted/")
    assert not set(kept["path"].rpartition("/")[2]) - set(string.ascii_letters + string.digits + ".")
    shown = kept["name"] or ""
    assert len(shown.encode()) <= 255
    assert not set(shown) & set("/\\\0\r\n\u202e")
    assert name not in kept["url"]


_MULTIPART = {"Content-Type": "multipart/form-data; boundary=xyzzy"}


def _body(parts: list[tuple[str, str | None, str | None, bytes]]) -> bytes:
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
    yield pytest.param(
        INVALID_FILES["html"], "image/png", 415, "type_not_allowed|type_mismatch", id="html as a picture"
    )
    yield pytest.param(INVALID_FILES["svg"], "image/svg+xml", 415, "type_not_allowed", id="svg as itself")
    yield pytest.param(png(), "image/jpeg", 415, "type_mismatch", id="png as jpeg")
    yield pytest.param(PDF, "text/plain", 415, "type_mismatch", id="pdf as text")
    yield pytest.param(b"", "image/png", 422, "empty_attachment", id="nothing")
    yield pytest.param(png(100_000, 100_000), "image/png", 422, "image_too_large", id="a picture of many pixels")
    yield pytest.param(TEXT * 40_000, "text/plain", 413, "attachment_too_large", id="a long text")
    yield pytest.param(png() + b"\0" * MAX_BYTES, "image/png", 413, "attachment_too_large", id="a byte too many")


async def test_what_is_not_taken_is_refused_and_nothing_of_it_is_kept(
    chat_server: ServerFixture, tmp_path: Path
) -> None:
    for case in _invalid_files():
        data, declared, status, codes = case.values
        asked = chat_server.client.post(UPLOAD, data=form(data, "x", declared))
        assert await read_error_code(asked, status) in codes.split("|"), case.id
    assert not [path for path in (tmp_path / "attachments").rglob("*") if path.is_file()]


async def test_an_upload_that_is_too_large_is_refused_while_it_is_sent(chat_server: ServerFixture) -> None:
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
        answered = await client.read_response()
        assert (answered.status, answered.code) == (413, "too_large")
        assert sent < 60  # what the machine holds between the two included


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"Content-Type": "application/json"}, b"{}", 415, "unsupported_media_type"),
        ({"Content-Type": "multipart/form-data"}, b"x", 400, "invalid_multipart"),
        (_MULTIPART, b"not at all", 400, "invalid_multipart"),
        (_MULTIPART, b"", 400, "invalid_multipart"),
        (_MULTIPART, b"--xyzzy--\r\n", 422, "invalid_upload"),
        (_MULTIPART, _body([("file", "x", None, png())])[:-20], 400, "invalid_multipart"),
        (_MULTIPART, _body([("file", None, None, b"x")]), 422, "invalid_upload"),
        (_MULTIPART, _body([("other", "x", None, png())]), 422, "invalid_upload"),
        (_MULTIPART, _body([("file", "x", None, png())] * 2), 422, "invalid_upload"),
        (_MULTIPART, _body([(f"f{n}", None, None, b"x") for n in range(9)]), 422, "invalid_upload"),
        (_MULTIPART, _body([("note", None, None, b"x" * 2_000), ("file", "x", None, png())]), 422, "invalid_upload"),
        (_MULTIPART, _body([("file", None, None, b"x"), ("file", "x", None, png())]), 422, "invalid_upload"),
        (_MULTIPART, _body([("threadId", None, None, b"../x"), ("file", "x", None, png())]), 422, "invalid_id"),
        (_MULTIPART, _body([("runId", None, None, b"a\0b"), ("file", "x", None, png())]), 422, "invalid_character"),
        (_MULTIPART, _body([("threadId", None, None, b"a")] * 2 + [("file", "x", None, png())]), 422, "invalid_upload"),
        ({**_MULTIPART, "Content-Encoding": "gzip"}, b"x", 415, "unsupported_encoding"),
        (_MULTIPART, b"--xyzzy\r\nContent-Disposition: form-data\r\n\r\nx\r\n--xyzzy--\r\n", 400, "invalid_multipart"),
    ],
)
async def test_a_body_that_is_no_upload_is_refused(
    chat_server: ServerFixture, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    assert await read_error_code(chat_server.client.post(UPLOAD, data=body, headers=headers), status) == code


# --- signing ---------------------------------------------------------------------------------------------------------


async def test_a_file_that_was_uploaded_gets_a_new_url(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server)
    place = {"bucket": BUCKET, "path": kept["path"]}
    signed = await read_json(chat_server.client.get(SIGN, params=place))
    assert signed == {**place, "url": signed["url"]}
    async with chat_server.client.get(signed["url"]) as answer:
        assert await answer.read() == png()


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
async def test_a_path_that_is_not_the_callers_gets_no_url(
    chat_server: ServerFixture, bucket: str, path: str, status: int, code: str
) -> None:
    asked = chat_server.client.get(SIGN, params={"bucket": bucket, "path": path})
    assert await read_error_code(asked, status) == code


async def test_a_place_has_to_be_named_whole_and_once(chat_server: ServerFixture) -> None:
    for query in ("", "?bucket=x", "?path=x", "?bucket=x&bucket=y&path=z"):
        assert await read_error_code(chat_server.client.get(SIGN + query), 422)


# --- reading ---------------------------------------------------------------------------------------------------------


async def test_a_url_ends(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server)
    now = time.time()
    for later, status in ((899, 200), (901, 403)):
        chat_server.state.attachments.clock = lambda later=later: now + later
        async with RawClient(chat_server.base_url) as client:
            answered = await client.get(target(kept["url"]))
        assert answered.status == status
        assert status == 200 or answered.code == "url_expired"


WHOLE = [
    *("bytes=" + ",".join(f"{n}-{n}" for n in range(1_000)), "bytes=0-0,2-3", "bytes=5-2", "bytes=x", "bytes=-"),
    *("bytes=0-0\r\nRange: bytes=1-1", "bytes=0-0\r\nIf-Range: x", "lines=0-0", "bytes=" + "9" * 5_000 + "-", "0-0"),
]


@pytest.mark.parametrize("said", WHOLE, ids=range(len(WHOLE)))
async def test_whoever_asks_for_many_ranges_or_for_none_gets_the_whole_file(
    chat_server: ServerFixture, said: str
) -> None:
    kept = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        answered = await client.get(target(kept["url"]), f"Range: {said}")
        assert (answered.status, answered.body) == (200, png())


LONG = b"".join(b"%07d\n" % n for n in range(80_000))  # of several chunks


@pytest.mark.parametrize(
    "said", ["0-0", "0-", "5-9", "262140-262150", "600000-", "639999-639999", "-1", "-262145", "-9999999", "1-9999999"]
)
async def test_a_part_of_a_file_is_what_it_says(chat_server: ServerFixture, said: str) -> None:
    kept = await upload_file(chat_server, LONG, "long.txt", "text/plain")
    async with RawClient(chat_server.base_url) as client:
        answered = await client.get(target(kept["url"]), f"Range: bytes={said}")
        first, last = map(
            int, answered.headers["content-range"].removeprefix("bytes ").removesuffix("/640000").split("-")
        )
        assert (answered.status, answered.body) == (206, LONG[first : last + 1])
        assert answered.headers["content-length"] == str(last + 1 - first)
        begin, _, end = said.partition("-")
        wanted = (int(begin), min(int(end or 639_999), 639_999)) if begin else (max(0, 640_000 - int(end)), 639_999)
        assert (first, last) == wanted
        assert answered.headers["content-security-policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize("said", ["640000-", "640000-640001", "999999999999999-", "-0"])
async def test_a_part_that_there_is_not_is_refused(chat_server: ServerFixture, said: str) -> None:
    kept = await upload_file(chat_server, LONG, "long.txt", "text/plain")
    async with RawClient(chat_server.base_url) as client:
        answered = await client.get(target(kept["url"]), f"Range: bytes={said}")
        assert (answered.status, answered.code) == (416, "range_not_satisfiable")
        assert answered.headers["content-range"] == "bytes */640000"


async def test_what_is_asked_for_is_verified_and_not_the_host_that_is_named(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        for host in ("localhost", "evil.example", "xn--80ak6aa92e.example:443"):
            data = f"GET {target(kept['url'])} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            assert (await client.ask(data)).body == png()


async def test_a_url_made_for_another_address_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    keys = {"attachments": (tmp_path / "files").as_uri()}
    async with run_test_server(tmp_path / "a", **keys) as one, run_test_server(tmp_path / "b", **keys) as other:
        kept = await upload_file(one)
        async with RawClient(other.base_url) as client:  # the same keys and files, and the token holds no address
            assert (await client.get(target(kept["url"]))).status == 200
        foreign = kept["url"].replace(one.base_url, "http://127.0.0.1:1")
        place = one.state.attachments
        with pytest.raises(Exception, match="not the URL of an attachment in our storage"):
            place.verify(foreign, None)


def _tokens(url: str) -> Iterator[str]:
    """Targets with tokens that we never made."""
    bare, _, token = target(url).partition("?token=")
    version, kid, expires, whose, signature = token.split(".")

    def jwt(**header: str) -> str:
        parts = (str(header).replace("'", '"'), f'{{"url":"{BUCKET}/x","exp":99999999999}}')
        return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)

    for made in (
        "",
        jwt(alg="none") + ".",
        jwt(alg="HS256") + "." + signature,
        jwt(alg="none", kid=kid) + "." + signature,
        f"v2.{kid}.{expires}.{whose}.{signature}",
        f"v1.{kid}.{int(expires) + 1}.{whose}.{signature}",
        f"v1.{kid}.{expires}0.{whose}.{signature}",
        f"v1.{kid}.0{expires}.{whose}.{signature}",
        f"v1.other.{expires}.{whose}.{signature}",
        f"v1.{kid}.{expires}.{base64.urlsafe_b64encode(b'[*bob*,null]').decode()}.{signature}",
        f"v1.{kid}.{expires}.{whose}.{'A' * 43}",
        f"{version}.{kid}.{expires}.{whose}",
        signature,
    ):
        yield f"{bare}?token={made}"
    good = f"{bare}?token={token}"
    yield from (
        f"{good}&exp=99999999999",
        f"{good}&token={token}",
        f"{bare}?token={token[:-1]}&token={token}",
        f"{bare}?exp=1&token={token}",
        f"{good}&",
        f"{bare}?&token={token}",
        f"{bare}?TOKEN={token}",
        f"{bare}?token%3D{token}",
        f"{bare}?token={quote(token, safe='').replace('.', '%2E')}",
        f"{bare}?token=+{token}",
        f"{bare};token={token}",
        f"{bare}/?token={token}",
        f"{good}#",
        f"{good}#x",
        bare,
    )


async def test_tokens_that_we_did_not_make_open_nothing(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server)
    async with RawClient(chat_server.base_url) as client:
        assert (await client.get(target(kept["url"]))).status == 200
        for made in _tokens(kept["url"]):
            answered = await client.get(made)
            assert answered.status in (400, 403, 404), made
            if answered.status == 403:
                assert answered.code == "bad_signature", made
            assert b"v1." not in answered.body


def _mutants(url: str, other: str, count: int) -> Iterator[str]:
    """Yield URLs that differ from a signed URL by one change."""
    chance = random.Random(7)
    good, alphabet = target(url), string.ascii_letters + string.digits + "-_.~%/?&=+:;,@!$'()*[]{}|^`\\\"<>"
    seen = {good}
    path, query = good.split("?")
    other_path, other_query = target(other).split("?")
    while len(seen) <= count:
        at, sign = chance.randrange(len(ROUTE), len(good)), chance.choice(alphabet)
        before, here, behind = good[:at], good[at], good[at + 1 :]
        made = chance.choice(
            [
                before + sign + behind,
                before + behind,
                before + sign + here + behind,
                before + here.swapcase() + behind,
                f"{before}%{ord(here):02x}{behind}",
                f"{before}%{ord(here):02X}{behind}",
                good[: at - 1] + here + good[at - 1] + behind,
                before,
                good + sign,
                f"{other_path}?{query}",
                f"{path}?{other_query}",
            ]
        )
        if made not in seen:
            seen.add(made)
            yield made


async def test_a_thousand_urls_that_were_changed_open_nothing(chat_server: ServerFixture) -> None:
    kept, other = await upload_file(chat_server), await upload_file(chat_server)
    refused: dict[int, int] = {}
    async with RawClient(chat_server.base_url) as client:
        for made in _mutants(kept["url"], other["url"], 1_000):
            answered = await client.get(made)
            refused[answered.status] = refused.get(answered.status, 0) + 1
            assert answered.status in (400, 403, 404, 422), made
            assert png() not in answered.body
        assert (await client.get(target(kept["url"]))).body == png()
    assert sum(refused.values()) == 1_000
    assert refused[403] > 300


async def test_nothing_but_reading_can_be_done_with_a_url(chat_server: ServerFixture) -> None:
    kept = await upload_file(chat_server)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert await read_error_code(chat_server.client.request(method, kept["url"]), 405) == "method_not_allowed"
    async with chat_server.client.head(kept["url"]) as answer:
        assert (answer.status, await answer.read()) == (200, b"")


# --- with a message --------------------------------------------------------------------------------------------------


async def test_only_a_url_that_begins_exactly_as_ours_comes_with_a_message_and_none_is_called(
    chat_server: ServerFixture,
) -> None:
    called: list[object] = []

    async def canary(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.append(writer.get_extra_info("peername"))
        writer.close()

    listening = await asyncio.start_server(canary, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    kept = await upload_file(chat_server)
    rest = kept["url"].removeprefix(chat_server.base_url)
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
        given = run_input(user([{"type": "text", "text": "see"}, part]), threadId="t", runId="r")
        asked = chat_server.client.post(RUNS, json=given)
        assert await read_error_code(asked, 422) == "foreign_attachment_url", origin
    assert await read_error_code(chat_server.client.get(f"{API}/history?threadId=t"), 404) == "not_found"
    listening.close()
    await listening.wait_closed()
    assert called == []


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
    ids=["a sign", "one more name", "its token twice", "another bucket", "another user", "a way out"],
)
async def test_a_url_that_was_changed_does_not_come_with_a_message(
    chat_server: ServerFixture, change: Callable[[str], str], status: int, code: str
) -> None:
    kept = await upload_file(chat_server)
    part = {"type": "binary", "mimeType": "image/png", "url": change(kept["url"])}
    given = run_input(user([{"type": "text", "text": "see"}, part]), threadId="t", runId="r")
    assert await read_error_code(chat_server.client.post(RUNS, json=given), status) == code
    assert await read_error_code(chat_server.client.get(f"{API}/history?threadId=t"), 404) == "not_found"
