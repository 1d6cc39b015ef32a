"""Tests of attachment paths: creation, validation and ownership."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.attachments import Owner, clean_name
from dragoman.attachments.paths import new_path, prefix_of, validate_bucket, validate_owner, validate_path
from dragoman.errors import AttachmentError, UnknownAttachmentError

ULID = "01K4Q2ZZZZZZZZZZZZZZZZZZZZ"


def test_path_contains_plain_ids() -> None:
    assert new_path(Owner("u"), "t", "r", ULID, "jpg") == f"agent-inputs/u/t/r/{ULID}.jpg"


@pytest.mark.parametrize(
    "unsafe", ["", ".", "..", "../bob", "a/b", "a\\b", "é", "a b", "a\0b", "x" * 65, "CON", "a.b", "%2e"]
)
def test_unsafe_id_is_replaced_by_digest(unsafe: str) -> None:
    path = new_path(Owner(unsafe), unsafe, unsafe, ULID, "png")
    assert validate_path(path) == path
    steps = path.split("/")
    assert len(steps) == 5
    assert all(step.startswith("h-") and len(step) == 42 for step in steps[1:4])


@given(st.text(), st.text())
def test_users_never_share_prefix(first: str, second: str) -> None:
    if first != second:
        assert not prefix_of(Owner(first)).startswith(prefix_of(Owner(second)))


def test_user_id_equal_to_digest_has_other_prefix() -> None:
    digest = prefix_of(Owner("../bob")).split("/")[1]
    assert prefix_of(Owner(digest)) != prefix_of(Owner("../bob"))


@given(st.text(), st.text(), st.text())
def test_new_path_passes_validation_of_its_owner(user: str, thread: str, run: str) -> None:
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
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        validate_path(path)
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize("path", ["..", "../other/x", "agent-inputs/ann/../bob/x", "agent-inputs/ann/t/r/.."])
def test_parent_path_raises_not_found(path: str) -> None:
    with pytest.raises(UnknownAttachmentError):
        validate_path(path)


@pytest.mark.parametrize("path", ["agent-inputs/bob/t/r/x", "agent-inputs/annie/x", "agent-inputs/ann", "other/ann/x"])
def test_path_of_other_user_raises_not_found(path: str) -> None:
    with pytest.raises(UnknownAttachmentError) as caught:
        validate_owner(validate_path(path), Owner("ann"))
    assert "bob" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["", ".", "..", "a/b", "a%2fb", "é", "a\0", "x" * 101])
def test_invalid_bucket_is_rejected(bucket: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        validate_bucket(bucket)
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize(
    ("name", "cleaned"),
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
def test_file_name_is_cleaned(name: str | None, cleaned: str | None) -> None:
    assert clean_name(name) == cleaned


def test_long_name_keeps_extension() -> None:
    cleaned = clean_name("猫" * 300 + ".png") or ""
    assert cleaned.endswith("猫.png")
    assert len(cleaned.encode()) <= 255
    assert len((clean_name("x." + "y" * 400) or "").encode()) == 255


@given(st.text())
def test_cleaned_name_is_single_printable_path_segment(name: str) -> None:
    cleaned = clean_name(name)
    assert cleaned is None or (0 < len(cleaned.encode()) <= 255 and cleaned.isprintable() and "/" not in cleaned)
