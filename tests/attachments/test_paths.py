"""Paths are made here, belong to one user, and lead nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.attachments import Owner, clean_name
from dragoman.attachments.paths import new_path, prefix_of, validate_bucket, validate_owner, validate_path
from dragoman.errors import AttachmentError, UnknownAttachmentError

ULID = "01K4Q2ZZZZZZZZZZZZZZZZZZZZ"


def test_a_path_is_made_of_plain_ids() -> None:
    assert new_path(Owner("u"), "t", "r", ULID, "jpg") == f"agent-inputs/u/t/r/{ULID}.jpg"


@pytest.mark.parametrize(
    "odd", ["", ".", "..", "../bob", "a/b", "a\\b", "é", "a b", "a\0b", "x" * 65, "CON", "a.b", "%2e"]
)
def test_an_id_that_is_not_plain_stands_in_a_path_as_its_digest(odd: str) -> None:
    path = new_path(Owner(odd), odd, odd, ULID, "png")
    assert validate_path(path) == path
    steps = path.split("/")
    assert len(steps) == 5
    assert all(step.startswith("h-") and len(step) == 42 for step in steps[1:4])


@given(st.text(), st.text())
def test_two_users_never_share_a_prefix(one: str, other: str) -> None:
    if one != other:
        assert not prefix_of(Owner(one)).startswith(prefix_of(Owner(other)))


def test_a_user_whose_id_is_the_digest_of_another_has_another_prefix() -> None:
    digest = prefix_of(Owner("../bob")).split("/")[1]
    assert prefix_of(Owner(digest)) != prefix_of(Owner("../bob"))


@given(st.text(), st.text(), st.text())
def test_every_path_that_is_made_is_its_owner_s_and_can_be_checked(user: str, thread: str, run: str) -> None:
    path = new_path(Owner(user), thread, run, ULID, "txt")
    assert validate_owner(validate_path(path), Owner(user)) == path
    assert path.isascii()
    assert path.count("/") == 4


INVALID = [
    "",
    "/",
    "/agent-inputs/ann/x",
    "agent-inputs//ann/x",
    "agent-inputs/ann/x/",
    "agent-inputs/ann/./x",
    "agent-inputs/ann/x.",
    "agent-inputs/ann/%2e%2e/bob/x",
    "agent-inputs/ann%2fx",
    "agent-inputs/ann%252fx",
    "agent-inputs\\ann\\x",
    "agent-inputs/ann/x\0.png",
    "agent-inputs/ann/x\n",
    "agent-inputs/ann\u2215x",
    "agent-inputs/ann\uff0fx",
    "agent-inputs/ann/ x",
    "agent-inputs/ann/x ",
    "agent-inputs/ann/" + "x" * 2_000,
    "C:\\x",
]


@pytest.mark.parametrize("path", INVALID, ids=range(len(INVALID)))
def test_a_path_that_no_attachment_has_is_refused(path: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        validate_path(path)
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize("path", ["..", "../other/x", "agent-inputs/ann/../bob/x", "agent-inputs/ann/t/r/.."])
def test_a_path_that_leads_up_is_like_a_missing_one(path: str) -> None:
    with pytest.raises(UnknownAttachmentError):
        validate_path(path)


@pytest.mark.parametrize("path", ["agent-inputs/bob/t/r/x", "agent-inputs/annie/x", "agent-inputs/ann", "other/ann/x"])
def test_a_path_of_somebody_else_is_like_a_missing_one(path: str) -> None:
    with pytest.raises(UnknownAttachmentError) as caught:
        validate_owner(validate_path(path), Owner("ann"))
    assert "bob" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["", ".", "..", "a/b", "a%2fb", "é", "a\0", "x" * 101])
def test_a_bucket_that_cannot_be_is_refused(bucket: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        validate_bucket(bucket)
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat.png", "cat.png"),
        ("猫.png", "猫.png"),
        ("../../etc/passwd", "passwd"),
        ("..\\x", "x"),
        ("a/\0b", "b"),
        ("C:\\Users\\ann\\cat.png", "cat.png"),
        ("gp\u202egnp.exe", "gpgnp.exe"),
        ("a\r\nSet-Cookie: x", "aSet-Cookie: x"),
        ("  ", None),
        ("", None),
        (None, None),
        ("..", ".."),
        ("CON", "CON"),
        ("\ud800x", "x"),
    ],
)
def test_what_a_client_calls_its_file_is_fit_to_be_shown(name: str | None, shown: str | None) -> None:
    assert clean_name(name) == shown


def test_a_long_name_keeps_its_ending() -> None:
    made = clean_name("猫" * 300 + ".png") or ""
    assert made.endswith("猫.png")
    assert len(made.encode()) <= 255
    assert len((clean_name("x." + "y" * 400) or "").encode()) == 255


@given(st.text())
def test_a_name_is_always_one_step_that_can_be_written(name: str) -> None:
    made = clean_name(name)
    assert made is None or (0 < len(made.encode()) <= 255 and made.isprintable() and "/" not in made)
