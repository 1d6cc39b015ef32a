"""The type of a file follows from its bytes."""

from __future__ import annotations

import pytest

from dragoman.attachments.file_types import EXTENSIONS, detect_type, type_from_path, validate_type
from dragoman.attachments.types import MAX_BYTES, MAX_TEXT_BYTES
from dragoman.errors import AttachmentError
from tests.attachments.samples import (
    PDF,
    REFUSED,
    SLIPPING,
    TAKEN,
    TEXT,
    gif,
    heic,
    jpeg,
    png,
    webp,
    webp_extended,
    webp_with_loss,
)


def code_of(data: bytes, declared: str | None = None) -> str:
    with pytest.raises(AttachmentError) as caught:
        validate_type(data, declared)
    return caught.value.code


@pytest.mark.parametrize("mime_type", TAKEN)
def test_every_type_that_is_taken_is_told_by_its_content(mime_type: str) -> None:
    assert detect_type(TAKEN[mime_type]) == mime_type
    assert validate_type(TAKEN[mime_type], mime_type) == mime_type
    assert validate_type(TAKEN[mime_type], None) == mime_type
    assert validate_type(TAKEN[mime_type], "application/octet-stream") == mime_type
    assert type_from_path(f"a/b.{EXTENSIONS[mime_type]}") == mime_type


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mime_type", TAKEN)
@pytest.mark.parametrize("declared", TAKEN)
def test_a_file_that_is_not_what_was_declared_is_refused(mime_type: str, declared: str) -> None:
    if mime_type != declared:
        assert code_of(TAKEN[mime_type], declared) == "type_mismatch"
    else:
        assert validate_type(TAKEN[mime_type], declared) == declared


def test_parameters_letters_and_old_names_of_a_declared_type_do_not_matter() -> None:
    assert validate_type(TEXT, "Text/Plain; charset=utf-8") == "text/plain"
    assert validate_type(jpeg(), "image/jpg") == "image/jpeg"
    assert validate_type(b"\xef\xbb\xbf" + TEXT, "text/plain") == "text/plain"
    assert validate_type(b"# Title\n", "text/x-markdown") == "text/markdown"


@pytest.mark.parametrize("media_type", ["text/markdown", "text/csv", "text/tab-separated-values", "application/json"])
def test_a_text_file_keeps_its_declared_type(media_type: str) -> None:
    assert validate_type(b'{"a": 1}', media_type) == media_type
    with pytest.raises(AttachmentError, match="but the content is image/jpeg"):
        validate_type(jpeg(), media_type)
    assert code_of(png(), "text/csv") == "type_mismatch"
    assert validate_type(TAKEN["image/heic"], "image/heif") == "image/heic"
    assert validate_type(TAKEN["audio/webm"], "audio/webm;codecs=opus") == "audio/webm"
    assert validate_type(TAKEN["audio/mp4"], "audio/x-m4a") == "audio/mp4"
    assert validate_type(TAKEN["audio/mpeg"], "audio/mp3") == "audio/mpeg"
    assert validate_type(TAKEN["audio/ogg"], "audio/opus") == "audio/ogg"


@pytest.mark.parametrize("declared", ["text/html", "image/svg+xml", "text/css", "image/*", "x", "\r\nSet-Cookie: a"])
def test_a_declared_type_that_is_not_taken_is_refused_whatever_the_content_is(declared: str) -> None:
    assert code_of(png(), declared) == "type_not_allowed"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("declared", [None, *TAKEN])
def test_what_only_looks_like_a_type_is_refused_under_every_name(name: str, declared: str | None) -> None:
    assert code_of(REFUSED[name], declared) == "type_not_allowed"


@pytest.mark.parametrize("name", SLIPPING)
def test_what_is_a_good_file_besides_something_else_is_taken(name: str) -> None:
    assert detect_type(SLIPPING[name]) in ("image/gif", "image/png", "text/plain")


@pytest.mark.parametrize("make", [png, jpeg, gif, heic, webp, webp_extended, webp_with_loss])
def test_a_picture_is_as_large_as_its_header_says(make: type) -> None:
    limit = 16_383 if make in (webp, webp_with_loss) else 16_384  # the most that these can say
    assert detect_type(make(limit, 10)).startswith("image/")
    if limit == 16_384:
        assert code_of(make(limit + 1, 10)) == "image_too_large"
        assert code_of(make(10, limit + 1)) == "image_too_large"
    assert code_of(make(10_000, 10_000)) == "image_too_large"


def test_a_small_file_that_claims_to_be_a_huge_picture_is_refused_unread() -> None:
    bomb = png(100_000, 100_000)
    assert len(bomb) < 1_024
    assert code_of(bomb, "image/png") == "image_too_large"


def test_nothing_and_too_much_are_refused() -> None:
    assert code_of(b"") == "empty_attachment"
    assert detect_type(png() + b"\0" * (MAX_BYTES - len(png()))) == "image/png"
    assert code_of(png() + b"\0" * (MAX_BYTES - len(png()) + 1)) == "attachment_too_large"
    assert detect_type(b"x" * MAX_TEXT_BYTES) == "text/plain"
    assert code_of(b"x" * (MAX_TEXT_BYTES + 1)) == "attachment_too_large"
    assert detect_type(PDF + b"\n" * MAX_TEXT_BYTES) == "application/pdf"
