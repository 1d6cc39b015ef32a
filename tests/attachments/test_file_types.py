"""Tests of file types, which are detected from the content."""

from __future__ import annotations

import pytest

from dragoman.attachments.file_types import EXTENSIONS, detect_type, type_from_path, validate_type
from dragoman.attachments.types import MAX_BYTES, MAX_TEXT_BYTES
from dragoman.errors import AttachmentError
from tests.attachments.samples import (
    INVALID_FILES,
    PDF,
    POLYGLOT_FILES,
    TEXT,
    VALID_FILES,
    gif,
    heic,
    jpeg,
    lossy_webp,
    png,
    webp,
    webp_vp8x,
)


def get_error_code(data: bytes, declared: str | None = None) -> str:
    with pytest.raises(AttachmentError) as caught:
        validate_type(data, declared)
    return caught.value.code


@pytest.mark.parametrize("mime_type", VALID_FILES)
def test_type_is_detected_from_content(mime_type: str) -> None:
    assert detect_type(VALID_FILES[mime_type]) == mime_type
    assert validate_type(VALID_FILES[mime_type], mime_type) == mime_type
    assert validate_type(VALID_FILES[mime_type], None) == mime_type
    assert validate_type(VALID_FILES[mime_type], "application/octet-stream") == mime_type
    assert type_from_path(f"a/b.{EXTENSIONS[mime_type]}") == mime_type


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mime_type", VALID_FILES)
@pytest.mark.parametrize("declared", VALID_FILES)
def test_wrong_declared_type_is_rejected(mime_type: str, declared: str) -> None:
    if mime_type != declared:
        assert get_error_code(VALID_FILES[mime_type], declared) == "type_mismatch"
    else:
        assert validate_type(VALID_FILES[mime_type], declared) == declared


def test_declared_type_is_normalized() -> None:
    assert validate_type(TEXT, "Text/Plain; charset=utf-8") == "text/plain"
    assert validate_type(jpeg(), "image/jpg") == "image/jpeg"
    assert validate_type(b"\xef\xbb\xbf" + TEXT, "text/plain") == "text/plain"
    assert validate_type(b"# Title\n", "text/x-markdown") == "text/markdown"


@pytest.mark.parametrize("media_type", ["text/markdown", "text/csv", "text/tab-separated-values", "application/json"])
def test_text_file_keeps_declared_type(media_type: str) -> None:
    assert validate_type(b'{"a": 1}', media_type) == media_type
    with pytest.raises(AttachmentError, match="but the content is image/jpeg"):
        validate_type(jpeg(), media_type)
    assert get_error_code(png(), "text/csv") == "type_mismatch"
    assert validate_type(VALID_FILES["image/heic"], "image/heif") == "image/heic"
    assert validate_type(VALID_FILES["audio/webm"], "audio/webm;codecs=opus") == "audio/webm"
    assert validate_type(VALID_FILES["audio/mp4"], "audio/x-m4a") == "audio/mp4"
    assert validate_type(VALID_FILES["audio/mpeg"], "audio/mp3") == "audio/mpeg"
    assert validate_type(VALID_FILES["audio/ogg"], "audio/opus") == "audio/ogg"


@pytest.mark.parametrize("declared", ["text/html", "image/svg+xml", "text/css", "image/*", "x", "\r\nSet-Cookie: a"])
def test_unsupported_declared_type_is_rejected(declared: str) -> None:
    assert get_error_code(png(), declared) == "type_not_allowed"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", INVALID_FILES)
@pytest.mark.parametrize("declared", [None, *VALID_FILES])
def test_invalid_file_is_rejected_as_every_declared_type(name: str, declared: str | None) -> None:
    assert get_error_code(INVALID_FILES[name], declared) == "type_not_allowed"


@pytest.mark.parametrize("name", POLYGLOT_FILES)
def test_polyglot_file_is_accepted_as_its_valid_type(name: str) -> None:
    assert detect_type(POLYGLOT_FILES[name]) in ("image/gif", "image/png", "text/plain")


@pytest.mark.parametrize("make", [png, jpeg, gif, heic, webp, webp_vp8x, lossy_webp])
def test_image_size_limit_applies_to_header(make: type) -> None:
    limit = 16_383 if make in (webp, lossy_webp) else 16_384  # the largest size that these formats encode
    assert detect_type(make(limit, 10)).startswith("image/")
    if limit == 16_384:
        assert get_error_code(make(limit + 1, 10)) == "image_too_large"
        assert get_error_code(make(10, limit + 1)) == "image_too_large"
    assert get_error_code(make(10_000, 10_000)) == "image_too_large"


def test_small_file_with_huge_image_header_is_rejected() -> None:
    bomb = png(100_000, 100_000)
    assert len(bomb) < 1_024
    assert get_error_code(bomb, "image/png") == "image_too_large"


def test_empty_and_oversized_files_are_rejected() -> None:
    assert get_error_code(b"") == "empty_attachment"
    assert detect_type(png() + b"\0" * (MAX_BYTES - len(png()))) == "image/png"
    assert get_error_code(png() + b"\0" * (MAX_BYTES - len(png()) + 1)) == "attachment_too_large"
    assert detect_type(b"x" * MAX_TEXT_BYTES) == "text/plain"
    assert get_error_code(b"x" * (MAX_TEXT_BYTES + 1)) == "attachment_too_large"
    assert detect_type(PDF + b"\n" * MAX_TEXT_BYTES) == "application/pdf"
