"""Every type of image, audio and video is written to a target or reported as a loss with its reason."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from dragoman import dialects
from dragoman.exchange import Request
from dragoman.fidelity import measure_conversion
from dragoman.message import AudioBlock, ImageBlock, ImageSource, MediaBlock, Message, MessageMetadata, Role, VideoBlock
from dragoman.message import TextBlock as Text

BYTES = ImageSource("base64", base64.b64encode(b"not a real file " * 4).decode())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KINDS: dict[str, type[ImageBlock | AudioBlock | VideoBlock]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
}
TYPES = {
    "image": ("png", "jpeg", "gif", "webp", "heic", "heif", "avif", "tiff", "bmp", "svg+xml", "x-unknown"),
    "audio": ("wav", "mpeg", "ogg", "flac", "aac", "mp4", "webm", "x-unknown"),
    "video": ("mp4", "webm", "quicktime", "x-matroska", "mpeg", "x-unknown"),
}
# Types that at least these dialects accept. Converse accepts WebP and GIF; Gemini accepts HEIC, but not GIF.
ACCEPTED = {
    "image/png": {"anthropic", "bedrock_converse", "cohere", "gemini", "ollama", "openai_chat", "openai_responses"},
    "image/heic": {"gemini", "gemini_interactions"},
    "audio/ogg": {"bedrock_converse", "gemini", "gemini_interactions"},
    "video/mp4": {"bedrock_converse", "gemini", "gemini_interactions"},
}
OPENAI_UNSUPPORTED = ("image/heic", "audio/wav", "audio/ogg", "video/mp4")


def ask(media_type: str, model: str | None = None) -> Request:
    block: MediaBlock = KINDS[media_type.partition("/")[0]](BYTES, media_type)
    return Request(
        model=model, messages=(Message("m1", "s1", Role.USER, (Text("See."), block), MessageMetadata(), NOON),)
    )


@pytest.mark.parametrize("media_type", [f"{kind}/{name}" for kind, names in TYPES.items() for name in names])
def test_media_type_is_written_or_a_loss(media_type: str) -> None:
    kept = set()
    for name in dialects.names():
        dialect = dialects.load(name)
        (finding,) = [
            found
            for found in measure_conversion(ask(media_type), dialect)
            if found.kind == media_type.partition("/")[0]
        ]
        assert finding.outcome in ("kept", "changed", "loss"), name
        if finding.outcome == "loss":
            assert finding.note
        else:
            kept.add(name)
    assert kept >= ACCEPTED.get(media_type, set())
    if media_type == "image/heic":
        assert kept == ACCEPTED[media_type]


@pytest.mark.parametrize("media_type", OPENAI_UNSUPPORTED)
def test_media_type_unsupported_by_openai_is_a_loss(media_type: str) -> None:
    for name in ("openai_chat", "openai_responses"):
        losses = dialects.load(name).write_request(ask(media_type, "gpt-5")).losses
        assert [loss.block_type for loss in losses] == [media_type.partition("/")[0]]
    written = dialects.load("openai_chat").write_request(ask("audio/ogg", "gpt-4o-audio-preview"))
    assert [(loss.block_type, "audio/ogg" in loss.reason) for loss in written.losses] == [("audio", True)]
