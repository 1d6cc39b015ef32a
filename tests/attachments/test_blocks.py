"""Attachments in messages: a block for the model, and the storage path."""

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
from tests.attachments.samples import HEIC, PDF, TAKEN, TEXT, png

WHEN = datetime(2026, 3, 13, 10, tzinfo=UTC)
META = MessageMetadata()


def stored(mime_type: str, ending: str = "bin", name: str | None = None) -> StoredFile:
    return StoredFile("agent-files", f"agent-inputs/u/t/r/img.{ending}", mime_type, 3, "0" * 64, name)


@pytest.mark.parametrize("mime_type", [mime_type for mime_type in TAKEN if mime_type.startswith("image/")])
def test_a_picture_becomes_an_image_block_that_breaks_no_rule(mime_type: str) -> None:
    block = attachment_block(stored(mime_type), TAKEN[mime_type])
    assert isinstance(block, ImageBlock)
    assert block.media_type == mime_type
    assert base64.b64decode(block.source.data) == TAKEN[mime_type]
    assert media_problem(block) is None


async def test_a_heic_picture_becomes_a_jpeg_for_the_model() -> None:
    pictures = pytest.importorskip("PIL.Image")
    pytest.importorskip("pi_heif")
    block = await model_block(stored("image/heic", "heic"), HEIC)
    assert isinstance(block, ImageBlock)
    assert block.media_type == "image/jpeg"
    assert media_problem(block) is None
    picture = pictures.open(io.BytesIO(base64.b64decode(block.source.data)))
    assert picture.size == (64, 48)
    red, _, blue = picture.getpixel((60, 40))
    assert red > 2 * blue
    with pytest.raises(AttachmentError) as caught:
        await model_block(stored("image/heic", "heic"), HEIC[:200])
    assert caught.value.code == "type_not_allowed"


async def test_without_the_extra_a_heic_picture_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert await model_block(stored("image/heic", "heic"), HEIC) == attachment_block(stored("image/heic"), HEIC)


@pytest.mark.parametrize("mime_type", [mime_type for mime_type in TAKEN if mime_type.startswith("audio/")])
def test_an_audio_file_becomes_an_audio_block(mime_type: str) -> None:
    block = attachment_block(stored(mime_type), TAKEN[mime_type])
    assert isinstance(block, AudioBlock)
    assert block.media_type == mime_type
    assert base64.b64decode(block.source.data) == TAKEN[mime_type]
    assert media_problem(block) is None


def test_a_pdf_becomes_a_document_with_its_name() -> None:
    block = attachment_block(stored("application/pdf", name="report.pdf"), PDF)
    assert isinstance(block, DocumentBlock)
    assert (block.media_type, block.name) == ("application/pdf", "report.pdf")
    assert media_problem(block) is None


def test_a_text_becomes_a_text_under_its_name() -> None:
    said = TEXT.decode()
    assert attachment_block(stored("text/plain", name="notes.txt"), TEXT) == TextBlock(f"notes.txt:\n\n{said}")
    assert attachment_block(stored("text/plain"), b"\xef\xbb\xbf" + TEXT) == TextBlock(f"Attached text:\n\n{said}")


def test_one_attachment_is_an_object_several_are_a_list_and_none_is_nothing() -> None:
    one = Attachment("agent-files", "agent-inputs/u/t/r/img.jpg", "image/jpeg")
    other = Attachment("agent-files", "agent-inputs/u/t/r/img.png", "image/png")
    assert message_metadata() is None
    assert message_metadata(stored("image/jpeg", "jpg")) == one
    assert message_metadata(stored("image/jpeg", "jpg"), stored("image/png", "png")) == (one, other)


def test_the_metadata_that_is_kept_is_the_specified_one() -> None:
    metadata = MessageMetadata(user_message_attachments=message_metadata(stored("image/jpeg", "jpg", "cat.jpg")))
    message = Message("01K4Q2ZZZZZZZZZZZZZZZZZZZZ", "s", Role.USER, (TextBlock("帮我看看这张图"),), metadata, WHEN)
    written = json.loads(dragoman.encode(message))["metadata"]
    assert written["user_message_attachments"] == {
        "bucket": "agent-files",
        "path": "agent-inputs/u/t/r/img.jpg",
        "mime_type": "image/jpeg",
    }


@pytest.mark.parametrize("name", dialects.callable_names())
def test_a_picture_reaches_the_model_in_every_dialect_that_has_pictures(name: str) -> None:
    block = attachment_block(stored("image/png"), png())
    asked = Message("01K4Q2ZZZZZZZZZZZZZZZZZZZZ", "s", Role.USER, (TextBlock("What is it?"), block), META, WHEN)
    dialect = dialects.load(name)
    written = dialect.write_request(Request(model="m", messages=(asked,)))
    assert isinstance(block, ImageBlock)
    assert block.source.data in json.dumps(written.wire)
    assert written.losses == ()


# --- serving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mime_type", "ending", "type_served", "how"),
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
def test_only_pictures_are_shown_and_nothing_runs(mime_type: str, ending: str, type_served: str, how: str) -> None:
    headers = response_headers(stored(mime_type, ending))
    assert headers["Content-Type"] == type_served
    assert headers["Content-Disposition"] == f'{how}; filename="img.{ending}"'
    assert headers["Content-Length"] == "3"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["Cache-Control"] == "private, no-store"


def test_headers_can_always_be_sent() -> None:
    odd = StoredFile("b", "agent-inputs/u/a' (1);=x,.png", "image/png", 1, "0" * 64, 'evil"\r\nSet-Cookie: x')
    for name, value in response_headers(odd).items():
        assert f"{name}{value}".isascii()
        assert value.isprintable()
    assert "Set-Cookie" not in str(response_headers(odd))
