"""A signed URL is good exactly as it was made, for whom it was made, until it is over."""

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


async def signed(attachments: Attachments, owner: Owner = ANN) -> tuple[str, Location]:
    stored = await attachments.put(owner, "thread-123", "run-456", png())
    url = await attachments.signed_url(stored.bucket, stored.path, owner)
    return url, Location(stored.bucket, stored.path)


def code_of(attachments: Attachments, url: str, owner: Owner | None = ANN) -> str:
    with pytest.raises(DragomanError) as caught:
        attachments.verify(url, owner)
    assert url.partition("token=")[2] not in str(caught.value) or "token=" not in url
    return caught.value.code


def test_the_parser_takes_the_format_apart() -> None:
    parsed = parse_signed_url(SEED_URL, ("https://xxx.supabase.co",))
    assert parsed.location == Location("agent-files", "agent-inputs/u/t/r/img.jpg")
    assert parsed.token == "xxx"
    assert "xxx" not in repr(parsed)


def test_the_url_alone_says_its_bucket_and_its_path() -> None:
    parsed = parse_signed_url(SEED_URL)
    assert {"bucket": parsed.bucket, "path": parsed.path} == {
        "bucket": "agent-files",
        "path": "agent-inputs/u/t/r/img.jpg",
    }
    inside = parse_signed_url(SEED_URL.replace("img.jpg", "storage/v1/object/sign/x/y"))
    assert inside.bucket == "agent-files", "the first place that looks like a storage is the storage"
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
def test_a_url_that_does_not_lead_to_our_storage_is_foreign(url: str) -> None:
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
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
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
def test_a_query_without_exactly_one_token_is_refused(query: str) -> None:
    with pytest.raises(AttachmentUrlError) as caught:
        parse_signed_url(f"{BASE}/storage/v1/object/sign/agent-files/a/b?{query}", (BASE,))
    assert caught.value.code == "bad_signature"


def test_a_name_that_needs_escapes_is_decoded_once() -> None:
    url = f"{BASE}/storage/v1/object/sign/agent-files/agent-inputs/u/my%20cat%20%281%29.png?token=x"
    assert parse_signed_url(url, (BASE,)).location.path == "agent-inputs/u/my cat (1).png"


# --- our own ---------------------------------------------------------------------------------------------------------


async def test_a_url_has_the_format_and_is_good(in_folder: Attachments) -> None:
    url, place = await signed(in_folder)
    assert url.startswith(f"{BASE}/storage/v1/object/sign/agent-files/agent-inputs/ann/thread-123/run-456/")
    assert in_folder.parse_signed_url(url) == place
    assert in_folder.verify(url, ANN) == place
    assert in_folder.verify(url, None) == place


async def test_a_url_is_good_until_the_second_it_is_over(in_folder: Attachments, clock: Clock) -> None:
    url, place = await signed(in_folder)
    begun = clock.now
    assert in_folder.verify(url, ANN, begun + MAX_TTL_S - 1) == place
    for late in (0, 1, 3_600, 10**9):
        clock.now = begun + MAX_TTL_S + late
        assert code_of(in_folder, url) == "url_expired"


async def test_a_clock_that_is_set_back_revives_nothing(in_folder: Attachments, clock: Clock) -> None:
    url, place = await signed(in_folder)
    begun = clock.now
    assert in_folder.verify(url, ANN, begun - 30) == place
    clock.now = begun - 31
    assert code_of(in_folder, url) == "bad_signature"
    clock.now = begun - 3_600
    assert code_of(in_folder, url) == "bad_signature"


@pytest.mark.parametrize(("asked", "given"), [(10**9, MAX_TTL_S), (60, 60), (0, 1), (-5, 1)])
async def test_no_url_is_good_for_more_than_a_quarter_of_an_hour(
    in_folder: Attachments, clock: Clock, asked: int, given: int
) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    url = await in_folder.signed_url(stored.bucket, stored.path, ANN, asked)
    in_folder.verify(url, ANN, clock.now + given - 1)
    clock.now += given
    assert code_of(in_folder, url) == "url_expired"


async def test_a_url_of_somebody_else_is_like_a_missing_one(in_folder: Attachments) -> None:
    url, _ = await signed(in_folder)
    assert code_of(in_folder, url, BOB) == "attachment_not_found"
    assert code_of(in_folder, url, Owner("ann", "other team")) == "attachment_not_found"
    assert code_of(in_folder, url, Owner("ann")) == "attachment_not_found"


async def test_nobody_gets_a_url_to_a_path_that_is_not_his(in_folder: Attachments) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    for path in (stored.path, "../other/x", "agent-inputs/bob/none"):
        with pytest.raises(UnknownAttachmentError):
            await in_folder.signed_url(stored.bucket, path, BOB)
    with pytest.raises(UnknownAttachmentError):
        await in_folder.signed_url("other-files", stored.path, ANN)
    with pytest.raises(AttachmentError):
        await in_folder.signed_url("agent-files/x", stored.path, ANN)


async def test_one_thousand_changed_urls_are_all_refused(in_folder: Attachments) -> None:
    url, _ = await signed(in_folder)
    other, _ = await signed(in_folder, BOB)
    second, _ = await signed(in_folder)
    chance = random.Random(20_261_115)
    mutants: set[str] = set()
    while len(mutants) < 1_000:
        mutants.add(mutant(url, (other, second), chance))
        mutants -= {url, other, second}
    accepted = []
    for changed in sorted(mutants):
        for owner in (ANN, None):
            try:
                accepted.append((changed, in_folder.verify(changed, owner)))
            except DragomanError:
                continue
    assert accepted == []


def mutant(url: str, others: tuple[str, ...], chance: random.Random) -> str:
    """The URL with something changed in it: a bit, a sign, a part, a field of its token, or the way it is written."""
    at = chance.randrange(len(url))
    head, _, token = url.partition("?token=")
    fields = token.split(".")
    match chance.randrange(10):
        case 0:
            return url[:at] + chr(ord(url[at]) ^ 1 << chance.randrange(7)) + url[at + 1 :]
        case 1:
            return url[:at] + chance.choice(string.printable) + url[at + 1 :]
        case 2:
            return url[:at] + url[at + 1 :]
        case 3:
            return url[:at] + chance.choice(string.ascii_letters + "/.%=&-_") + url[at:]
        case 4:
            return url[:at] + f"%{ord(url[at]):02x}" + url[at + 1 :]
        case 5:
            there = chance.choice(others)
            return chance.choice(
                [head + "?token=" + there.partition("?token=")[2], there.partition("?")[0] + "?token=" + token]
            )
        case 6:
            place = chance.randrange(1, len(fields))
            fields[place] = chance.choice(
                [fields[place] + "=", fields[place][::-1], fields[place].swapcase(), str(chance.randrange(10**12)), ""]
            )
            return f"{head}?token={'.'.join(fields)}"
        case 7:
            place = chance.randrange(2, len(fields))
            fields[place] = chance.choice(others).partition("?token=")[2].split(".")[place]
            return f"{head}?token={'.'.join(fields)}" + ("" if fields != token.split(".") else "=")
        case 8:
            added = chance.choice(
                ["&exp=9999999999", "&token=" + token, "&download=x", "&user_id=ann", "&", "#", "&method=PUT"]
            )
            return url + added + str(chance.randrange(100))
        case _:
            last = token[-1]  # the last sign of a base64 text has bits that nobody reads
            alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
            return (
                url[:-1]
                + alphabet[alphabet.index(last) ^ chance.randrange(1, 4)]
                + ("" if chance.random() < 0.5 else "=")
            )


async def test_every_changed_bit_of_a_token_is_refused(in_folder: Attachments) -> None:
    url, _ = await signed(in_folder)
    start = url.index("token=") + 6
    for at in range(start, len(url)):
        for bit in range(7):
            changed = url[:at] + chr(ord(url[at]) ^ 1 << bit) + url[at + 1 :]
            assert code_of(in_folder, changed) in ("bad_signature", "foreign_attachment_url")


async def test_a_token_for_another_method_is_refused(in_folder: Attachments, clock: Clock) -> None:
    url, _ = await signed(in_folder)
    urls = in_folder._urls
    with pytest.raises(AttachmentUrlError):
        urls.verify(url, clock.now, "PUT")  # type: ignore[call-arg]


async def test_fields_cannot_be_moved_into_each_other(tmp_path: Path, clock: Clock) -> None:
    environment = {"DRAGOMAN_SIGNING_KEYS": f"k:{'s' * 32}"}
    made = open_attachments((tmp_path / "f").as_uri(), base_url=BASE, environment=environment, clock=clock)
    tokens = set()
    for owner in (Owner("ann", "x"), Owner("ann", None), Owner("ann", "-"), Owner("ann", "")):
        stored = await made.put(owner, "t", "r", png())
        url = await made.signed_url(stored.bucket, stored.path, owner)
        tokens.add(url.rpartition(".")[2])
        assert made.verify(url, owner).path == stored.path
    assert len(tokens) == 4


async def test_a_url_of_another_server_is_refused(in_folder: Attachments, tmp_path: Path, clock: Clock) -> None:
    other = open_attachments((tmp_path / "other").as_uri(), base_url=BASE, environment={}, clock=clock)
    url, _ = await signed(other)
    assert code_of(in_folder, url) == "bad_signature"


async def test_urls_of_an_old_key_are_good_until_they_are_over(
    in_folder: Attachments, tmp_path: Path, clock: Clock
) -> None:
    url, place = await signed(in_folder)
    keys = SigningKeys.in_file(tmp_path / "files-keys.json")
    keys.rotate(clock.now + 10)
    assert in_folder.verify(url, ANN) == place
    newer, _ = await signed(in_folder)
    assert newer.partition("token=v1.")[2].split(".")[0] != url.partition("token=v1.")[2].split(".")[0]
    keys.rotate(clock.now + 20, forget=True)
    assert code_of(in_folder, url) == "bad_signature"


async def test_ids_with_any_signs_are_in_a_token_as_they_are(in_folder: Attachments) -> None:
    owner = Owner("Änn/..", 'te"am\n')
    url, place = await signed(in_folder, owner)
    assert in_folder.verify(url, owner) == place
    whose = url.partition("token=v1.")[2].split(".")[2]
    assert "Änn" in base64.urlsafe_b64decode(whose + "==").decode()


@pytest.mark.parametrize(
    "base", ["", "x", "https://Host", "https://host/", "ftp://host", "https://a@host", "https://host?x"]
)
def test_a_base_that_no_url_can_begin_with_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_attachments(tmp_path.as_uri(), base_url=base, environment={})
    assert caught.value.code == "invalid_base_url"


@given(st.one_of(st.text(), st.text().map(lambda rest: f"{BASE}/storage/v1/object/sign/agent-files/{rest}?token=x.y")))
def test_whatever_is_sent_as_a_url_is_refused_and_breaks_nothing(url: str) -> None:
    urls = UrlSigner(BASE, "agent-files", SigningKeys.from_text(f"k:{'s' * 32}"))
    with pytest.raises(DragomanError):
        urls.verify(url, 1_800_000_000)


def test_what_is_no_text_is_no_signed_url() -> None:
    url: Any = None
    with pytest.raises(InputError, match="a signed URL is a str, not NoneType"):
        parse_signed_url(url)
