"""Tests of signed URLs: format, owner, expiry, keys and mutations."""

from __future__ import annotations

import base64
import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.attachments import (
    MAX_TTL_S,
    Attachments,
    Location,
    Owner,
    SigningKeys,
    open_attachments,
    parse_signed_url,
)
from dragoman.attachments.signed_urls import UrlSigner
from dragoman.errors import (
    AttachmentError,
    AttachmentUrlError,
    DragomanError,
    InputError,
    SettingsError,
    UnknownAttachmentError,
)
from tests.attachments.conftest import ANN, BASE, BOB, Clock
from tests.attachments.samples import png

SEED_URL = "https://xxx.supabase.co/storage/v1/object/sign/agent-files/agent-inputs/u/t/r/img.jpg?token=xxx"


async def put_and_sign(attachments: Attachments, owner: Owner = ANN) -> tuple[str, Location]:
    stored = await attachments.put(owner, "thread-123", "run-456", png())
    url = await attachments.signed_url(stored.bucket, stored.path, owner)
    return url, Location(stored.bucket, stored.path)


def get_error_code(attachments: Attachments, url: str, owner: Owner | None = ANN) -> str:
    with pytest.raises(DragomanError) as caught:
        attachments.verify(url, owner)
    assert url.partition("token=")[2] not in str(caught.value) or "token=" not in url
    return caught.value.code


def test_parser_splits_url() -> None:
    parsed = parse_signed_url(SEED_URL, ("https://xxx.supabase.co",))
    assert parsed.location == Location("agent-files", "agent-inputs/u/t/r/img.jpg")
    assert parsed.token == "xxx"
    assert "xxx" not in repr(parsed)


def test_parser_reads_bucket_and_path_without_base() -> None:
    parsed = parse_signed_url(SEED_URL)
    assert {"bucket": parsed.bucket, "path": parsed.path} == {
        "bucket": "agent-files",
        "path": "agent-inputs/u/t/r/img.jpg",
    }
    inside = parse_signed_url(SEED_URL.replace("img.jpg", "storage/v1/object/sign/x/y"))
    assert inside.bucket == "agent-files", "the first storage prefix counts"
    for foreign in ("", "x", SEED_URL.replace("/sign/", "/public/"), SEED_URL.replace("https:", "file:")):
        with pytest.raises(AttachmentUrlError):
            parse_signed_url(foreign)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "https://evil/storage/v1/object/sign/agent-files/agent-inputs/u/t/r/img.jpg?token=xxx",
        SEED_URL.replace("https:", "http:"),
        SEED_URL.replace("https:", "HTTPS:"),
        SEED_URL.replace("xxx.supabase.co", "XXX.supabase.co"),
        SEED_URL.replace("xxx.supabase.co", "xxx.supabase.co:443"),
        SEED_URL.replace("xxx.supabase.co", "xxx.supabase.co."),
        SEED_URL.replace("xxx.supabase.co", "xxx.supabase.co@evil"),
        SEED_URL.replace("xxx.supabase.co", "xxx.supabase.co.evil"),
        SEED_URL.replace("xxx.supabase.co", "evil#@xxx.supabase.co"),
        SEED_URL.replace("xxx.supabase.co", "user@xxx.supabase.co"),
        SEED_URL.replace("xxx.supabase.co", "\u0445\u0445\u0445.supabase.co"),
        SEED_URL.replace("xxx.supabase.co/", "xxx.supabase.co\\@evil/"),
        SEED_URL.replace("/sign/", "/public/"),
        SEED_URL.replace("/sign/", "/authenticated/"),
        SEED_URL.replace("/sign/", "/upload/sign/"),
        SEED_URL.replace("/object/", "/Object/"),
        SEED_URL.replace("/storage/v1/", "/storage/v1/../v1/"),
        SEED_URL.replace("agent-files/agent-inputs/u/t/r/img.jpg", "agent-files"),
        SEED_URL + "#x",
        " " + SEED_URL,
        SEED_URL + "\n",
        SEED_URL + "&download=" + "x" * 5_000,
    ],
)
def test_url_of_other_storage_is_foreign(url: str) -> None:
    with pytest.raises(AttachmentUrlError) as caught:
        parse_signed_url(url, ("https://xxx.supabase.co",))
    assert caught.value.code == "foreign_attachment_url"


@pytest.mark.parametrize(
    "path",
    [
        "agent%2Dfiles/x",
        "agent%2ffiles/x",
        "a//x",
        "a/b//x",
        "a/x%2fy",
        "a/x%5cy",
        "a/x%00",
        "a/%zz",
        "a/%",
        "a/%ff",
        "a/%2e/x",
        "a/x/",
        "a/./x",
        "a/x.",
        "a/%252e%252e/x",
        "a/%E7%8C%AB.png",
        "a/x%0a",
    ],
)
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        parse_signed_url(f"{BASE}/storage/v1/object/sign/{path}?token=x", (BASE,))
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "token=",
        "token",
        "x=1",
        "token=a&token=b",
        "token=a&token=a",
        "token=a&x=1",
        "token=a&download",
        "token=a%62",
        "&token=a",
        "token=a&",
        "Token=a",
    ],
)
def test_query_without_exactly_one_token_is_rejected(query: str) -> None:
    with pytest.raises(AttachmentUrlError) as caught:
        parse_signed_url(f"{BASE}/storage/v1/object/sign/agent-files/a/b?{query}", (BASE,))
    assert caught.value.code == "bad_signature"


def test_escaped_name_is_decoded_once() -> None:
    url = f"{BASE}/storage/v1/object/sign/agent-files/agent-inputs/u/my%20cat%20%281%29.png?token=x"
    assert parse_signed_url(url, (BASE,)).location.path == "agent-inputs/u/my cat (1).png"


# --- Dragoman's URLs -------------------------------------------------------------------------------------------------


async def test_signed_url_has_format_and_is_valid(in_folder: Attachments) -> None:
    url, location = await put_and_sign(in_folder)
    assert url.startswith(f"{BASE}/storage/v1/object/sign/agent-files/agent-inputs/ann/thread-123/run-456/")
    assert in_folder.parse_signed_url(url) == location
    assert in_folder.verify(url, ANN) == location
    assert in_folder.verify(url, None) == location


async def test_url_is_valid_until_expiry(in_folder: Attachments, clock: Clock) -> None:
    url, location = await put_and_sign(in_folder)
    start = clock.now
    assert in_folder.verify(url, ANN, start + MAX_TTL_S - 1) == location
    for late in (0, 1, 3_600, 10**9):
        clock.now = start + MAX_TTL_S + late
        assert get_error_code(in_folder, url) == "url_expired"


async def test_backward_clock_step_does_not_extend_validity(in_folder: Attachments, clock: Clock) -> None:
    url, location = await put_and_sign(in_folder)
    start = clock.now
    assert in_folder.verify(url, ANN, start - 30) == location
    clock.now = start - 31
    assert get_error_code(in_folder, url) == "bad_signature"
    clock.now = start - 3_600
    assert get_error_code(in_folder, url) == "bad_signature"


@pytest.mark.parametrize(("requested_s", "actual_s"), [(10**9, MAX_TTL_S), (60, 60), (0, 1), (-5, 1)])
async def test_ttl_is_limited_to_15_minutes(
    in_folder: Attachments, clock: Clock, requested_s: int, actual_s: int
) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    url = await in_folder.signed_url(stored.bucket, stored.path, ANN, requested_s)
    in_folder.verify(url, ANN, clock.now + actual_s - 1)
    clock.now += actual_s
    assert get_error_code(in_folder, url) == "url_expired"


async def test_url_of_other_owner_raises_not_found(in_folder: Attachments) -> None:
    url, _ = await put_and_sign(in_folder)
    assert get_error_code(in_folder, url, BOB) == "attachment_not_found"
    assert get_error_code(in_folder, url, Owner("ann", "other team")) == "attachment_not_found"
    assert get_error_code(in_folder, url, Owner("ann")) == "attachment_not_found"


async def test_path_of_other_owner_is_not_signed(in_folder: Attachments) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    for path in (stored.path, "../other/x", "agent-inputs/bob/none"):
        with pytest.raises(UnknownAttachmentError):
            await in_folder.signed_url(stored.bucket, path, BOB)
    with pytest.raises(UnknownAttachmentError):
        await in_folder.signed_url("other-files", stored.path, ANN)
    with pytest.raises(AttachmentError):
        await in_folder.signed_url("agent-files/x", stored.path, ANN)


async def test_1000_mutated_urls_are_rejected(in_folder: Attachments) -> None:
    url, _ = await put_and_sign(in_folder)
    other, _ = await put_and_sign(in_folder, BOB)
    second, _ = await put_and_sign(in_folder)
    rng = random.Random(20_261_115)
    mutants: set[str] = set()
    while len(mutants) < 1_000:
        mutants.add(mutate_url(url, (other, second), rng))
        mutants -= {url, other, second}
    accepted = []
    for changed in sorted(mutants):
        for owner in (ANN, None):
            try:
                accepted.append((changed, in_folder.verify(changed, owner)))
            except DragomanError:
                continue
    assert accepted == []


def mutate_url(url: str, others: tuple[str, ...], rng: random.Random) -> str:
    """Return the URL with a random change: a bit, a character, a part, a token field, or its spelling."""
    at = rng.randrange(len(url))
    head, _, token = url.partition("?token=")
    fields = token.split(".")
    match rng.randrange(10):
        case 0:
            return url[:at] + chr(ord(url[at]) ^ 1 << rng.randrange(7)) + url[at + 1 :]
        case 1:
            return url[:at] + rng.choice(string.printable) + url[at + 1 :]
        case 2:
            return url[:at] + url[at + 1 :]
        case 3:
            return url[:at] + rng.choice(string.ascii_letters + "/.%=&-_") + url[at:]
        case 4:
            return url[:at] + f"%{ord(url[at]):02x}" + url[at + 1 :]
        case 5:
            other = rng.choice(others)
            return rng.choice(
                [head + "?token=" + other.partition("?token=")[2], other.partition("?")[0] + "?token=" + token]
            )
        case 6:
            index = rng.randrange(1, len(fields))
            fields[index] = rng.choice(
                [fields[index] + "=", fields[index][::-1], fields[index].swapcase(), str(rng.randrange(10**12)), ""]
            )
            return f"{head}?token={'.'.join(fields)}"
        case 7:
            index = rng.randrange(2, len(fields))
            fields[index] = rng.choice(others).partition("?token=")[2].split(".")[index]
            return f"{head}?token={'.'.join(fields)}" + ("" if fields != token.split(".") else "=")
        case 8:
            suffix = rng.choice(
                ["&exp=9999999999", "&token=" + token, "&download=x", "&user_id=ann", "&", "#", "&method=PUT"]
            )
            return url + suffix + str(rng.randrange(100))
        case _:
            last_character = token[-1]  # the last character of base64 contains unused bits
            alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
            return (
                url[:-1]
                + alphabet[alphabet.index(last_character) ^ rng.randrange(1, 4)]
                + ("" if rng.random() < 0.5 else "=")
            )


async def test_every_bit_flip_of_token_is_rejected(in_folder: Attachments) -> None:
    url, _ = await put_and_sign(in_folder)
    start = url.index("token=") + 6
    for at in range(start, len(url)):
        for bit in range(7):
            changed = url[:at] + chr(ord(url[at]) ^ 1 << bit) + url[at + 1 :]
            assert get_error_code(in_folder, changed) in ("bad_signature", "foreign_attachment_url")


async def test_token_for_other_method_is_rejected(in_folder: Attachments, clock: Clock) -> None:
    url, _ = await put_and_sign(in_folder)
    urls = in_folder._urls
    with pytest.raises(AttachmentUrlError):
        urls.verify(url, clock.now, "PUT")  # type: ignore[call-arg]


async def test_token_fields_are_unambiguous(tmp_path: Path, clock: Clock) -> None:
    environment = {"DRAGOMAN_SIGNING_KEYS": f"k:{'s' * 32}"}
    opened = open_attachments((tmp_path / "f").as_uri(), base_url=BASE, environment=environment, clock=clock)
    tokens = set()
    for owner in (Owner("ann", "x"), Owner("ann", None), Owner("ann", "-"), Owner("ann", "")):
        stored = await opened.put(owner, "t", "r", png())
        url = await opened.signed_url(stored.bucket, stored.path, owner)
        tokens.add(url.rpartition(".")[2])
        assert opened.verify(url, owner).path == stored.path
    assert len(tokens) == 4


async def test_url_of_other_server_is_rejected(in_folder: Attachments, tmp_path: Path, clock: Clock) -> None:
    other = open_attachments((tmp_path / "other").as_uri(), base_url=BASE, environment={}, clock=clock)
    url, _ = await put_and_sign(other)
    assert get_error_code(in_folder, url) == "bad_signature"


async def test_urls_of_old_key_are_valid_until_key_is_forgotten(
    in_folder: Attachments, tmp_path: Path, clock: Clock
) -> None:
    url, location = await put_and_sign(in_folder)
    keys = SigningKeys.in_file(tmp_path / "files-keys.json")
    keys.rotate(clock.now + 10)
    assert in_folder.verify(url, ANN) == location
    newer, _ = await put_and_sign(in_folder)
    assert newer.partition("token=v1.")[2].split(".")[0] != url.partition("token=v1.")[2].split(".")[0]
    keys.rotate(clock.now + 20, forget=True)
    assert get_error_code(in_folder, url) == "bad_signature"


async def test_token_contains_ids_unchanged(in_folder: Attachments) -> None:
    owner = Owner("Änn/..", 'te"am\n')
    url, location = await put_and_sign(in_folder, owner)
    assert in_folder.verify(url, owner) == location
    encoded_owner = url.partition("token=v1.")[2].split(".")[2]
    assert "Änn" in base64.urlsafe_b64decode(encoded_owner + "==").decode()


@pytest.mark.parametrize(
    "base", ["", "x", "https://Host", "https://host/", "ftp://host", "https://a@host", "https://host?x"]
)
def test_invalid_base_url_is_rejected(tmp_path: Path, base: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_attachments(tmp_path.as_uri(), base_url=base, environment={})
    assert caught.value.code == "invalid_base_url"


@given(st.one_of(st.text(), st.text().map(lambda rest: f"{BASE}/storage/v1/object/sign/agent-files/{rest}?token=x.y")))
def test_random_url_is_rejected(url: str) -> None:
    urls = UrlSigner(BASE, "agent-files", SigningKeys.from_text(f"k:{'s' * 32}"))
    with pytest.raises(DragomanError):
        urls.verify(url, 1_800_000_000)


def test_url_that_is_not_str_raises_input_error() -> None:
    url: Any = None
    with pytest.raises(InputError, match="a signed URL is a str, not NoneType"):
        parse_signed_url(url)
