"""Tests of Supabase storage: token verification, and validation of its responses and files."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dragoman.attachments import Attachments, open_attachments
from dragoman.attachments.supabase import verify_claims
from dragoman.errors import AttachmentUrlError, DragomanError, SettingsError, StorageError, StoreUnusableError
from tests.attachments.conftest import ANN, BASE, BOB
from tests.attachments.samples import SCRIPT, png
from tests.attachments.supabase_server import KEY, SECRET, SupabaseServer, jwt
from tests.attachments.test_signed_urls import mutate_url
from tests.servers.fixtures import free_ports

PATH = "agent-inputs/ann/t/r/img.png"
NOW = int(time.time())
LIFE_S = 7200  # of a token, longer than all tests run
ENVIRONMENT = {"SUPABASE_SERVICE_ROLE_KEY": KEY, "SUPABASE_JWT_SECRET": SECRET}


@pytest.fixture
def project() -> Attachments:
    """Attachments of a project that receives no requests."""
    return open_attachments("supabase://xxx.supabase.co/agent-files", base_url=BASE, environment=ENVIRONMENT)


def create_url(token: str, path: str = PATH, host: str = "https://xxx.supabase.co", route: str = "object") -> str:
    return f"{host}/storage/v1/{route}/sign/agent-files/{path}?token={token}"


def create_claims(**changes: Any) -> dict[str, Any]:
    merged = {"url": f"agent-files/{PATH}", "scope": "download", "iat": NOW, "exp": NOW + LIFE_S} | changes
    return {name: value for name, value in merged.items() if value is not ...}


def get_error_code(attachments: Attachments, url: str) -> str:
    with pytest.raises(DragomanError) as caught:
        attachments.verify(url, ANN)
    assert SECRET not in str(caught.value)
    return caught.value.code


@pytest.mark.parametrize(
    "claims",
    [
        create_claims(),
        create_claims(scope=...),
        create_claims(iat=...),
        create_claims(transformations="width:100"),
        create_claims(iat=NOW + 20),
    ],
)
def test_token_of_storage_is_valid(project: Attachments, claims: dict[str, Any]) -> None:
    assert project.verify(create_url(jwt(claims)), ANN, NOW).path == PATH
    assert (
        project.verify(create_url(jwt(claims, kid="storage-url-signing-key_1"), route="render/image"), ANN, NOW).path
        == PATH
    )


@pytest.mark.parametrize(
    "claims",
    [
        create_claims(url="agent-files/agent-inputs/ann/t/r/other.png"),
        create_claims(url=PATH),
        create_claims(url=...),
        create_claims(url=[f"agent-files/{PATH}"]),
        create_claims(scope="upload"),
        create_claims(scope=None),
        create_claims(scope=..., upsert=False),
        create_claims(exp=...),
        create_claims(exp="9999999999"),
        create_claims(exp=NOW + 0.5),
        create_claims(exp=True),
        create_claims(iat=NOW + 3_600),
        create_claims(iat="x"),
    ],
)
def test_token_with_other_claims_is_rejected(project: Attachments, claims: dict[str, Any]) -> None:
    assert get_error_code(project, create_url(jwt(claims))) == "bad_signature"


def test_expired_token_is_rejected(project: Attachments) -> None:
    url = create_url(jwt(create_claims()))
    assert project.verify(url, ANN, NOW + LIFE_S - 1).path == PATH
    with pytest.raises(AttachmentUrlError) as caught:
        project.verify(url, ANN, NOW + LIFE_S)
    assert caught.value.code == "url_expired"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS512", "RS256", "hs256", ""])
def test_other_algorithm_is_rejected(project: Attachments, algorithm: str) -> None:
    assert get_error_code(project, create_url(jwt(create_claims(), algorithm=algorithm))) in (
        "bad_signature",
        "foreign_attachment_url",
    )


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "e30.e30.", "e30.e30.e30", "e30.e30.e30.e30", "W10.W10.W10"])
def test_malformed_token_is_rejected(project: Attachments, token: str) -> None:
    assert get_error_code(project, create_url(token)) == "bad_signature"


def test_other_secret_and_critical_extensions_are_rejected(project: Attachments) -> None:
    assert get_error_code(project, create_url(jwt(create_claims(), secret="x" * 32))) == "bad_signature"
    assert get_error_code(project, create_url(jwt(create_claims(), crit=["x"]))) == "bad_signature"


def test_url_is_rejected_without_jwt_secret(project: Attachments) -> None:
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY}
    without_secret = open_attachments("supabase://xxx.supabase.co/agent-files", base_url=BASE, environment=environment)
    assert without_secret.parse_signed_url(create_url("x")).path == PATH
    with pytest.raises(AttachmentUrlError) as caught:
        without_secret.verify(create_url(jwt(create_claims())), ANN)
    assert "SUPABASE_JWT_SECRET" in str(caught.value)


def test_valid_token_for_path_of_other_user_raises_not_found(project: Attachments) -> None:
    with pytest.raises(DragomanError) as caught:
        project.verify(create_url(jwt(create_claims())), BOB)
    assert caught.value.code == "attachment_not_found"


def test_other_bucket_and_host_are_rejected(project: Attachments) -> None:
    token = jwt(create_claims())
    assert get_error_code(project, create_url(token).replace("agent-files", "other")) == "attachment_not_found"
    assert get_error_code(project, create_url(token, host="https://yyy.supabase.co")) == "foreign_attachment_url"
    also = open_attachments(
        "supabase://xxx.supabase.co/agent-files?also=files.example.com", base_url=BASE, environment=ENVIRONMENT
    )
    assert also.verify(create_url(token, host="https://files.example.com"), ANN, NOW).path == PATH


def test_1000_mutated_urls_are_rejected(project: Attachments) -> None:
    url = create_url(jwt(create_claims()))
    others = (
        create_url(jwt(create_claims(url="agent-files/other")), "other"),
        create_url(jwt(create_claims(exp=NOW + 5))),
    )
    rng = random.Random(20_261_116)
    mutants: set[str] = set()
    while len(mutants) < 1_000:
        mutants.add(mutate_url(url, others, rng))
        mutants -= {url, *others}
    accepted = []
    for changed in sorted(mutants):
        try:
            accepted.append((changed, project.verify(changed, ANN, NOW)))
        except DragomanError:
            continue
    assert accepted == []


def test_unused_base64_bits_are_verified(project: Attachments) -> None:
    token = jwt(create_claims())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for bits in (1, 2, 3):
        with pytest.raises(AttachmentUrlError):
            verify_claims(token[:-1] + alphabet[alphabet.index(token[-1]) ^ bits], SECRET)
    assert verify_claims(token, SECRET)["url"] == f"agent-files/{PATH}"


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def test_storage_serves_url_that_it_signed(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    stored = await in_supabase.put(ANN, "t", "r", png(), declared_type="image/png")
    url = await in_supabase.signed_url(stored.bucket, stored.path, ANN, 60)
    assert url.startswith(f"http://{supabase.url}/storage/v1/object/sign/agent-files/agent-inputs/ann/t/r/")
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert (response.status, response.content_type, await response.read()) == (200, "image/png", png())


@pytest.fixture(params=["with the project's secret", "without it"])
def in_supabase_with_own_key(
    request: pytest.FixtureRequest, supabase: SupabaseServer, runner: asyncio.Runner
) -> Iterator[Attachments]:
    """A storage that signs with its own key, with and without a configured project secret."""
    environment = dict(ENVIRONMENT)
    if request.param == "without it":
        del environment["SUPABASE_JWT_SECRET"]
    supabase.sign_with_own_key()
    url = f"supabase://{supabase.url}/agent-files?scheme=http&also=files.example.com"
    opened = open_attachments(url, base_url=BASE, environment=environment)
    yield opened
    runner.run(opened.close())


async def test_storage_verifies_tokens_of_its_own_key(
    in_supabase_with_own_key: Attachments, supabase: SupabaseServer
) -> None:
    stored = await in_supabase_with_own_key.put(ANN, "t", "r", png(), declared_type="image/png")
    url = await in_supabase_with_own_key.signed_url(stored.bucket, stored.path, ANN, 60)
    assert (await in_supabase_with_own_key.read_signed_url(url, ANN, "image/png"))[1] == png()
    elsewhere = url.replace(f"http://{supabase.url}", "https://files.example.com")  # an alias that does not respond
    assert (await in_supabase_with_own_key.read_signed_url(elsewhere, ANN, "image/png"))[1] == png()
    with pytest.raises(DragomanError) as caught:
        await in_supabase_with_own_key.read_signed_url(url, BOB, "image/png")
    assert caught.value.code == "attachment_not_found"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"scope": "upload"}, "bad_signature"),
        ({"url": "agent-files/agent-inputs/ann/t/r/other.png"}, "bad_signature"),
        ({"exp": NOW - 10}, "url_expired"),
    ],
)
async def test_token_rejected_by_storage_is_rejected(
    in_supabase_with_own_key: Attachments, supabase: SupabaseServer, changes: dict[str, Any], code: str
) -> None:
    supabase.objects[f"agent-files/{PATH}"] = png(), "image/png"
    url = create_url(supabase.token(**create_claims(**changes)), host=f"http://{supabase.url}")
    with pytest.raises(DragomanError) as caught:
        await in_supabase_with_own_key.read_signed_url(url, ANN)
    assert caught.value.code == code
    for token in (jwt(create_claims(), secret="x" * 32), supabase.token(**create_claims())[:-2] + "AA", "x", "a.b.c"):
        with pytest.raises(DragomanError) as caught:
            await in_supabase_with_own_key.read_signed_url(create_url(token, host=f"http://{supabase.url}"), ANN)
        assert caught.value.code == "bad_signature"


async def test_storage_is_not_queried_for_files_of_other_users(
    in_supabase_with_own_key: Attachments, supabase: SupabaseServer
) -> None:
    supabase.objects[f"agent-files/{PATH}"] = png(), "image/png"
    with pytest.raises(DragomanError) as caught:
        await in_supabase_with_own_key.read_signed_url(create_url("a.e30.c", host=f"http://{supabase.url}"), BOB)
    assert (caught.value.code, supabase.requests) == ("attachment_not_found", [])


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "attachment_not_found"), (429, "storage_failed"), (302, "storage_failed"), (503, "storage_failed")],
)
async def test_failed_verification_request_raises_error(
    in_supabase_with_own_key: Attachments, supabase: SupabaseServer, status: int, code: str
) -> None:
    supabase.objects[f"agent-files/{PATH}"] = png(), "image/png"
    supabase.responses["GET sign"] = web.Response(status=status, headers={"Location": "http://127.0.0.1:9/"})
    with pytest.raises(DragomanError) as caught:
        await in_supabase_with_own_key.read_signed_url(
            create_url(supabase.token(**create_claims()), host=f"http://{supabase.url}"), ANN
        )
    assert caught.value.code == code


async def test_content_of_foreign_upload_is_validated(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.objects[f"agent-files/{PATH}"] = b"<html>" + SCRIPT, "image/png"
    url = await in_supabase.signed_url("agent-files", PATH, ANN)
    with pytest.raises(DragomanError) as caught:
        await in_supabase.read_signed_url(url, ANN, "image/png")
    assert caught.value.code == "type_not_allowed"


async def test_oversized_foreign_upload_is_rejected(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.objects[f"agent-files/{PATH}"] = png() + bytes(21 * 1024 * 1024), "image/png"
    with pytest.raises(DragomanError) as caught:
        await in_supabase.read("agent-files", PATH, ANN)
    assert caught.value.code == "attachment_too_large"


@pytest.mark.parametrize(
    "body",
    [
        {"signedURL": f"/object/sign/agent-files/{PATH}"},
        {"signedURL": f"@evil/storage/v1/object/sign/agent-files/{PATH}?token=x"},
        {"signedURL": "/object/sign/agent-files/agent-inputs/bob/t/r/img.png?token=x"},
        {"signedURL": f"/object/sign/other/{PATH}?token=x"},
        {"signedURL": 7},
        {},
        [],
    ],
)
async def test_unexpected_signed_url_raises_storage_error(
    in_supabase: Attachments, supabase: SupabaseServer, body: object
) -> None:
    supabase.objects[f"agent-files/{PATH}"] = png(), "image/png"
    supabase.responses["sign"] = web.json_response(body)
    with pytest.raises(StorageError):
        await in_supabase.signed_url("agent-files", PATH, ANN)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 409, 500, 503])
async def test_error_status_raises_storage_error(
    in_supabase: Attachments, supabase: SupabaseServer, status: int
) -> None:
    headers = {"Location": "http://127.0.0.1:9/"} if status == 301 else {}
    supabase.responses["GET"] = web.Response(status=status, text="x" * 10_000, headers=headers)
    with pytest.raises(StorageError) as caught:
        await in_supabase.open("agent-files", PATH, ANN)
    assert str(status) in str(caught.value)
    assert KEY not in str(caught.value)


async def test_deletion_without_effect_raises_storage_error(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    await in_supabase.put(ANN, "t", "r", png())
    supabase.responses["keep"] = web.Response()
    with pytest.raises(StorageError, match="had no effect"):
        await in_supabase.delete_all(ANN)
    supabase.responses["list"] = web.json_response({"name": "x"})
    with pytest.raises(StorageError, match="a list"):
        await in_supabase.delete_all(ANN)


async def test_delete_all_reads_every_page_of_list(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.objects |= {
        f"agent-files/agent-inputs/ann/t/r/{number}.png": (b"x", "image/png") for number in range(2_500)
    }
    assert await in_supabase.delete_all(ANN) == 2_500
    assert supabase.objects == {}


async def test_unreachable_storage_raises_storage_error() -> None:
    (port,) = free_ports(1)
    url = f"supabase://127.0.0.1:{port}/agent-files?scheme=http"
    async with open_attachments(url, base_url=BASE, environment=ENVIRONMENT) as unreachable:
        with pytest.raises(StorageError) as caught:
            await unreachable.put(ANN, "t", "r", png())
        assert KEY not in str(caught.value)


async def test_wrong_service_key_raises_storage_error(supabase: SupabaseServer) -> None:
    environment = {"SUPABASE_SERVICE_ROLE_KEY": "another"}
    url = f"supabase://{supabase.url}/agent-files?scheme=http"
    async with open_attachments(url, base_url=BASE, environment=environment) as other:
        with pytest.raises(StorageError):
            await other.put(ANN, "t", "r", png())
    assert supabase.objects == {}


@pytest.mark.parametrize(
    "url",
    [
        "supabase://",
        "supabase://xxx.supabase.co",
        "supabase://xxx.supabase.co/a/b",
        "supabase://key@xxx.supabase.co/a",
        "supabase://xxx.supabase.co/a?scheme=http",
        "supabase://127.0.0.1/a?scheme=ftp",
        "supabase://xxx.supabase.co/a?key=x",
    ],
)
def test_invalid_storage_url_is_rejected(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments(url, base_url=BASE, environment=ENVIRONMENT)
    assert caught.value.code == "not_a_store"


@pytest.mark.parametrize(
    ("key", "code"), [("", "missing_key"), (" ", "missing_key"), ("a b", "invalid_key"), ("é", "invalid_key")]
)
def test_invalid_service_key_is_rejected(key: str, code: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_attachments("supabase://xxx.supabase.co/a", base_url=BASE, environment={"SUPABASE_SERVICE_ROLE_KEY": key})
    assert caught.value.code == code
