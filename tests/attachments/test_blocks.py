"""Tests of attachments in messages: blocks for the model, metadata and response headers."""

from __future__ import annotations

import base64
import io
import json
import sys
from datetime import UTC, datetime

import pytest

import dragoman
from dragoman import Message, MessageMetadata, Role, dialects
from dragoman.attachments import StoredFile, attachment_block, message_metadata, model_block, response_headers
from dragoman.errors import AttachmentError
from dragoman.exchange import Request
from dragoman.message import Attachment, AudioBlock, DocumentBlock, ImageBlock, TextBlock
from dragoman.rules import media_problem
from tests.attachments.samples import HEIC, PDF, TEXT, VALID_FILES, png

CREATED_AT = datetime(2026, 3, 13, 10, tzinfo=UTC)
META = MessageMetadata()


def create_stored_file(mime_type: str, ending: str = "bin", name: str | None = None) -> StoredFile:
    return StoredFile("agent-files", f"agent-inputs/u/t/r/img.{ending}", mime_type, 3, "0" * 64, name)


@pytest.mark.parametrize("mime_type", [mime_type for mime_type in VALID_FILES if mime_type.startswith("image/")])
def test_image_becomes_valid_image_block(mime_type: str) -> None:
    block = attachment_block(create_stored_file(mime_type), VALID_FILES[mime_type])
    assert isinstance(block, ImageBlock)
    assert block.media_type == mime_type
    assert base64.b64decode(block.source.data) == VALID_FILES[mime_type]
    assert media_problem(block) is None


async def test_heic_image_is_converted_to_jpeg() -> None:
    pillow = pytest.importorskip("PIL.Image")
    pytest.importorskip("pi_heif")
    block = await model_block(create_stored_file("image/heic", "heic"), HEIC)
    assert isinstance(block, ImageBlock)
    assert block.media_type == "image/jpeg"
    assert media_problem(block) is None
    image = pillow.open(io.BytesIO(base64.b64decode(block.source.data)))
    assert image.size == (64, 48)
    red, _, blue = image.getpixel((60, 40))
    assert red > 2 * blue
    with pytest.raises(AttachmentError) as caught:
        await model_block(create_stored_file("image/heic", "heic"), HEIC[:200])
    assert caught.value.code == "type_not_allowed"


async def test_heic_image_is_unchanged_without_pi_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert await model_block(create_stored_file("image/heic", "heic"), HEIC) == attachment_block(
        create_stored_file("image/heic"), HEIC
    )


@pytest.mark.parametrize("mime_type", [mime_type for mime_type in VALID_FILES if mime_type.startswith("audio/")])
def test_audio_file_becomes_audio_block(mime_type: str) -> None:
    block = attachment_block(create_stored_file(mime_type), VALID_FILES[mime_type])
    assert isinstance(block, AudioBlock)
    assert block.media_type == mime_type
    assert base64.b64decode(block.source.data) == VALID_FILES[mime_type]
    assert media_problem(block) is None


def test_pdf_becomes_document_block_with_name() -> None:
    block = attachment_block(create_stored_file("application/pdf", name="report.pdf"), PDF)
    assert isinstance(block, DocumentBlock)
    assert (block.media_type, block.name) == ("application/pdf", "report.pdf")
    assert media_problem(block) is None


def test_text_file_becomes_text_block_with_name() -> None:
    text = TEXT.decode()
    assert attachment_block(create_stored_file("text/plain", name="notes.txt"), TEXT) == TextBlock(
        f"notes.txt:\n\n{text}"
    )
    assert attachment_block(create_stored_file("text/plain"), b"\xef\xbb\xbf" + TEXT) == TextBlock(
        f"Attached text:\n\n{text}"
    )


def test_metadata_of_zero_one_and_two_attachments() -> None:
    first = Attachment("agent-files", "agent-inputs/u/t/r/img.jpg", "image/jpeg")
    second = Attachment("agent-files", "agent-inputs/u/t/r/img.png", "image/png")
    assert message_metadata() is None
    assert message_metadata(create_stored_file("image/jpeg", "jpg")) == first
    assert message_metadata(create_stored_file("image/jpeg", "jpg"), create_stored_file("image/png", "png")) == (
        first,
        second,
    )


def test_encoded_metadata_matches_specification() -> None:
    metadata = MessageMetadata(
        user_message_attachments=message_metadata(create_stored_file("image/jpeg", "jpg", "cat.jpg"))
    )
    message = Message(
        "01K4Q2ZZZZZZZZZZZZZZZZZZZZ", "s", Role.USER, (TextBlock("帮我看看这张图"),), metadata, CREATED_AT
    )
    written = json.loads(dragoman.encode(message))["metadata"]
    assert written["user_message_attachments"] == {
        "bucket": "agent-files",
        "path": "agent-inputs/u/t/r/img.jpg",
        "mime_type": "image/jpeg",
    }


@pytest.mark.parametrize("name", dialects.callable_names())
def test_image_is_written_in_every_dialect(name: str) -> None:
    block = attachment_block(create_stored_file("image/png"), png())
    message = Message("01K4Q2ZZZZZZZZZZZZZZZZZZZZ", "s", Role.USER, (TextBlock("What is it?"), block), META, CREATED_AT)
    dialect = dialects.load(name)
    written = dialect.write_request(Request(model="m", messages=(message,)))
    assert isinstance(block, ImageBlock)
    assert block.source.data in json.dumps(written.wire)
    assert written.losses == ()


# --- serving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mime_type", "ending", "type_served", "disposition"),
    [
        ("image/png", "png", "image/png", "inline"),
        ("image/jpeg", "jpg", "image/jpeg", "inline"),
        ("image/gif", "gif", "image/gif", "inline"),
        ("image/webp", "webp", "image/webp", "inline"),
        ("image/heic", "heic", "image/heic", "attachment"),
        ("audio/mpeg", "mp3", "audio/mpeg", "attachment"),
        ("application/pdf", "pdf", "application/pdf", "attachment"),
        ("text/plain", "txt", "text/plain; charset=utf-8", "attachment"),
        ("image/svg+xml", "svg", "application/octet-stream", "attachment"),
        ("text/html", "html", "application/octet-stream", "attachment"),
        ("text/html", "png", "application/octet-stream", "attachment"),
        ("image/png", "html", "application/octet-stream", "attachment"),
        ("application/octet-stream", "png", "application/octet-stream", "attachment"),
    ],
)
def test_only_images_are_served_inline(mime_type: str, ending: str, type_served: str, disposition: str) -> None:
    headers = response_headers(create_stored_file(mime_type, ending))
    assert headers["Content-Type"] == type_served
    assert headers["Content-Disposition"] == f'{disposition}; filename="img.{ending}"'
    assert headers["Content-Length"] == "3"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["Cache-Control"] == "private, no-store"


def test_headers_are_printable_ascii() -> None:
    file = StoredFile("b", "agent-inputs/u/a' (1);=x,.png", "image/png", 1, "0" * 64, 'evil"\r\nSet-Cookie: x')
    for name, value in response_headers(file).items():
        assert f"{name}{value}".isascii()
        assert value.isprintable()
    assert "Set-Cookie" not in str(response_headers(file))
