"""Supabase storage: what it signs is verified here, and what it answers is not taken on trust."""

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
from tests.attachments.test_signed_urls import mutant
from tests.servers.fixtures import free_ports

PATH = "agent-inputs/ann/t/r/img.png"
NOW = int(time.time())
LIFE_S = 7200  # of a token: longer than all tests take
ENVIRONMENT = {"SUPABASE_SERVICE_ROLE_KEY": KEY, "SUPABASE_JWT_SECRET": SECRET}


@pytest.fixture
def project() -> Attachments:
    """A project that nobody calls here."""
    return open_attachments("supabase://xxx.supabase.co/agent-files", base_url=BASE, environment=ENVIRONMENT)


def url_with(token: str, path: str = PATH, host: str = "https://xxx.supabase.co", route: str = "object") -> str:
    return f"{host}/storage/v1/{route}/sign/agent-files/{path}?token={token}"


def claims(**changes: Any) -> dict[str, Any]:
    made = {"url": f"agent-files/{PATH}", "scope": "download", "iat": NOW, "exp": NOW + LIFE_S} | changes
    return {name: value for name, value in made.items() if value is not ...}


def code_of(attachments: Attachments, url: str) -> str:
    with pytest.raises(DragomanError) as caught:
        attachments.verify(url, ANN)
    assert SECRET not in str(caught.value)
    return caught.value.code


@pytest.mark.parametrize(
    "said", [claims(), claims(scope=...), claims(iat=...), claims(transformations="width:100"), claims(iat=NOW + 20)]
)
def test_a_token_of_the_storage_is_good(project: Attachments, said: dict[str, Any]) -> None:
    assert project.verify(url_with(jwt(said)), ANN, NOW).path == PATH
    assert (
        project.verify(url_with(jwt(said, kid="storage-url-signing-key_1"), route="render/image"), ANN, NOW).path
        == PATH
    )


@pytest.mark.parametrize(
    "said",
    [
        claims(url="agent-files/agent-inputs/ann/t/r/other.png"),
        claims(url=PATH),
        claims(url=...),
        claims(url=[f"agent-files/{PATH}"]),
        claims(scope="upload"),
        claims(scope=None),
        claims(scope=..., upsert=False),
        claims(exp=...),
        claims(exp="9999999999"),
        claims(exp=NOW + 0.5),
        claims(exp=True),
        claims(iat=NOW + 3_600),
        claims(iat="x"),
    ],
)
def test_a_token_that_says_something_else_is_refused(project: Attachments, said: dict[str, Any]) -> None:
    assert code_of(project, url_with(jwt(said))) == "bad_signature"


def test_a_token_that_is_over_is_refused(project: Attachments) -> None:
    url = url_with(jwt(claims()))
    assert project.verify(url, ANN, NOW + LIFE_S - 1).path == PATH
    with pytest.raises(AttachmentUrlError) as caught:
        project.verify(url, ANN, NOW + LIFE_S)
    assert caught.value.code == "url_expired"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS512", "RS256", "hs256", ""])
def test_another_algorithm_is_refused(project: Attachments, algorithm: str) -> None:
    assert code_of(project, url_with(jwt(claims(), algorithm=algorithm))) in ("bad_signature", "foreign_attachment_url")


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "e30.e30.", "e30.e30.e30", "e30.e30.e30.e30", "W10.W10.W10"])
def test_what_is_no_token_is_refused(project: Attachments, token: str) -> None:
    assert code_of(project, url_with(token)) == "bad_signature"


def test_another_secret_and_critical_extensions_are_refused(project: Attachments) -> None:
    assert code_of(project, url_with(jwt(claims(), secret="x" * 32))) == "bad_signature"
    assert code_of(project, url_with(jwt(claims(), crit=["x"]))) == "bad_signature"


def test_without_the_secret_no_url_is_good(project: Attachments) -> None:
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY}
    blind = open_attachments("supabase://xxx.supabase.co/agent-files", base_url=BASE, environment=environment)
    assert blind.parse_signed_url(url_with("x")).path == PATH
    with pytest.raises(AttachmentUrlError) as caught:
        blind.verify(url_with(jwt(claims())), ANN)
    assert "SUPABASE_JWT_SECRET" in str(caught.value)


def test_a_good_token_for_the_path_of_somebody_else_is_like_a_missing_one(project: Attachments) -> None:
    with pytest.raises(DragomanError) as caught:
        project.verify(url_with(jwt(claims())), BOB)
    assert caught.value.code == "attachment_not_found"


def test_another_bucket_and_another_host_are_refused(project: Attachments) -> None:
    token = jwt(claims())
    assert code_of(project, url_with(token).replace("agent-files", "other")) == "attachment_not_found"
    assert code_of(project, url_with(token, host="https://yyy.supabase.co")) == "foreign_attachment_url"
    also = open_attachments(
        "supabase://xxx.supabase.co/agent-files?also=files.example.com", base_url=BASE, environment=ENVIRONMENT
    )
    assert also.verify(url_with(token, host="https://files.example.com"), ANN, NOW).path == PATH


def test_one_thousand_changed_urls_are_all_refused(project: Attachments) -> None:
    url = url_with(jwt(claims()))
    others = (url_with(jwt(claims(url="agent-files/other")), "other"), url_with(jwt(claims(exp=NOW + 5))))
    chance = random.Random(20_261_116)
    mutants: set[str] = set()
    while len(mutants) < 1_000:
        mutants.add(mutant(url, others, chance))
        mutants -= {url, *others}
    accepted = []
    for changed in sorted(mutants):
        try:
            accepted.append((changed, project.verify(changed, ANN, NOW)))
        except DragomanError:
            continue
    assert accepted == []


def test_the_bits_that_nobody_reads_in_base64_are_read(project: Attachments) -> None:
    token = jwt(claims())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for bits in (1, 2, 3):
        with pytest.raises(AttachmentUrlError):
            verify_claims(token[:-1] + alphabet[alphabet.index(token[-1]) ^ bits], SECRET)
    assert verify_claims(token, SECRET)["url"] == f"agent-files/{PATH}"


# --- over the wire ---------------------------------------------------------------------------------------------------


async def test_a_url_that_the_storage_signs_is_served_by_it(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    stored = await in_supabase.put(ANN, "t", "r", png(), declared_type="image/png")
    url = await in_supabase.signed_url(stored.bucket, stored.path, ANN, 60)
    assert url.startswith(f"http://{supabase.url}/storage/v1/object/sign/agent-files/agent-inputs/ann/t/r/")
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, "image/png", png())


@pytest.fixture(params=["with the project's secret", "without it"])
def with_own_key(
    request: pytest.FixtureRequest, supabase: SupabaseServer, runner: asyncio.Runner
) -> Iterator[Attachments]:
    """A storage that signs with a key of its own, whether or not we know the secret of the project."""
    environment = dict(ENVIRONMENT)
    if request.param == "without it":
        del environment["SUPABASE_JWT_SECRET"]
    supabase.sign_with_own_key()
    url = f"supabase://{supabase.url}/agent-files?scheme=http&also=files.example.com"
    made = open_attachments(url, base_url=BASE, environment=environment)
    yield made
    runner.run(made.close())


async def test_a_token_that_only_the_storage_can_verify_is_verified_by_it(
    with_own_key: Attachments, supabase: SupabaseServer
) -> None:
    stored = await with_own_key.put(ANN, "t", "r", png(), declared_type="image/png")
    url = await with_own_key.signed_url(stored.bucket, stored.path, ANN, 60)
    assert (await with_own_key.read_signed_url(url, ANN, "image/png"))[1] == png()
    elsewhere = url.replace(f"http://{supabase.url}", "https://files.example.com")  # which nobody answers
    assert (await with_own_key.read_signed_url(elsewhere, ANN, "image/png"))[1] == png()
    with pytest.raises(DragomanError) as caught:
        await with_own_key.read_signed_url(url, BOB, "image/png")
    assert caught.value.code == "attachment_not_found"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"scope": "upload"}, "bad_signature"),
        ({"url": "agent-files/agent-inputs/ann/t/r/other.png"}, "bad_signature"),
        ({"exp": NOW - 10}, "url_expired"),
    ],
)
async def test_a_token_that_the_storage_refuses_is_refused(
    with_own_key: Attachments, supabase: SupabaseServer, changes: dict[str, Any], code: str
) -> None:
    supabase.kept[f"agent-files/{PATH}"] = png(), "image/png"
    url = url_with(supabase.token(**claims(**changes)), host=f"http://{supabase.url}")
    with pytest.raises(DragomanError) as caught:
        await with_own_key.read_signed_url(url, ANN)
    assert caught.value.code == code
    for token in (jwt(claims(), secret="x" * 32), supabase.token(**claims())[:-2] + "AA", "x", "a.b.c"):
        with pytest.raises(DragomanError) as caught:
            await with_own_key.read_signed_url(url_with(token, host=f"http://{supabase.url}"), ANN)
        assert caught.value.code == "bad_signature"


async def test_the_storage_is_asked_only_about_files_of_the_caller(
    with_own_key: Attachments, supabase: SupabaseServer
) -> None:
    supabase.kept[f"agent-files/{PATH}"] = png(), "image/png"
    with pytest.raises(DragomanError) as caught:
        await with_own_key.read_signed_url(url_with("a.e30.c", host=f"http://{supabase.url}"), BOB)
    assert (caught.value.code, supabase.asked) == ("attachment_not_found", [])


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "attachment_not_found"), (429, "storage_failed"), (302, "storage_failed"), (503, "storage_failed")],
)
async def test_a_storage_that_cannot_say_is_a_failure_of_storage(
    with_own_key: Attachments, supabase: SupabaseServer, status: int, code: str
) -> None:
    supabase.kept[f"agent-files/{PATH}"] = png(), "image/png"
    supabase.answers["GET sign"] = web.Response(status=status, headers={"Location": "http://127.0.0.1:9/"})
    with pytest.raises(DragomanError) as caught:
        await with_own_key.read_signed_url(url_with(supabase.token(**claims()), host=f"http://{supabase.url}"), ANN)
    assert caught.value.code == code


async def test_what_others_put_into_the_bucket_is_looked_at(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.kept[f"agent-files/{PATH}"] = b"<html>" + SCRIPT, "image/png"
    url = await in_supabase.signed_url("agent-files", PATH, ANN)
    with pytest.raises(DragomanError) as caught:
        await in_supabase.read_signed_url(url, ANN, "image/png")
    assert caught.value.code == "type_not_allowed"


async def test_what_others_put_there_may_be_too_large(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.kept[f"agent-files/{PATH}"] = png() + bytes(21 * 1024 * 1024), "image/png"
    with pytest.raises(DragomanError) as caught:
        await in_supabase.read("agent-files", PATH, ANN)
    assert caught.value.code == "attachment_too_large"


@pytest.mark.parametrize(
    "answer",
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
async def test_a_url_that_was_not_asked_for_is_not_given_out(
    in_supabase: Attachments, supabase: SupabaseServer, answer: object
) -> None:
    supabase.kept[f"agent-files/{PATH}"] = png(), "image/png"
    supabase.answers["sign"] = web.json_response(answer)
    with pytest.raises(StorageError):
        await in_supabase.signed_url("agent-files", PATH, ANN)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 409, 500, 503])
async def test_what_the_storage_refuses_is_a_failure_of_storage(
    in_supabase: Attachments, supabase: SupabaseServer, status: int
) -> None:
    headers = {"Location": "http://127.0.0.1:9/"} if status == 301 else {}
    supabase.answers["GET"] = web.Response(status=status, text="x" * 10_000, headers=headers)
    with pytest.raises(StorageError) as caught:
        await in_supabase.open("agent-files", PATH, ANN)
    assert str(status) in str(caught.value)
    assert KEY not in str(caught.value)


async def test_a_storage_that_only_says_that_it_deletes_is_a_failure(
    in_supabase: Attachments, supabase: SupabaseServer
) -> None:
    await in_supabase.put(ANN, "t", "r", png())
    supabase.answers["keep"] = web.Response()
    with pytest.raises(StorageError, match="had no effect"):
        await in_supabase.delete_all(ANN)
    supabase.answers["list"] = web.json_response({"name": "x"})
    with pytest.raises(StorageError, match="a list"):
        await in_supabase.delete_all(ANN)


async def test_more_files_than_one_list_has_are_all_let_go(in_supabase: Attachments, supabase: SupabaseServer) -> None:
    supabase.kept |= {f"agent-files/agent-inputs/ann/t/r/{number}.png": (b"x", "image/png") for number in range(2_500)}
    assert await in_supabase.delete_all(ANN) == 2_500
    assert supabase.kept == {}


async def test_a_storage_that_is_not_there_is_a_failure_of_storage() -> None:
    (port,) = free_ports(1)
    url = f"supabase://127.0.0.1:{port}/agent-files?scheme=http"
    async with open_attachments(url, base_url=BASE, environment=ENVIRONMENT) as nowhere:
        with pytest.raises(StorageError) as caught:
            await nowhere.put(ANN, "t", "r", png())
        assert KEY not in str(caught.value)


async def test_another_key_is_refused_by_the_storage(supabase: SupabaseServer) -> None:
    environment = {"SUPABASE_SERVICE_ROLE_KEY": "another"}
    url = f"supabase://{supabase.url}/agent-files?scheme=http"
    async with open_attachments(url, base_url=BASE, environment=environment) as other:
        with pytest.raises(StorageError):
            await other.put(ANN, "t", "r", png())
    assert supabase.kept == {}


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
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_attachments(url, base_url=BASE, environment=ENVIRONMENT)
    assert caught.value.code == "not_a_store"


@pytest.mark.parametrize(
    ("key", "code"), [("", "missing_key"), (" ", "missing_key"), ("a b", "invalid_key"), ("é", "invalid_key")]
)
def test_without_a_usable_key_it_is_not_opened(key: str, code: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_attachments("supabase://xxx.supabase.co/a", base_url=BASE, environment={"SUPABASE_SERVICE_ROLE_KEY": key})
    assert caught.value.code == code
