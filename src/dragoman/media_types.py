"""Detect the media type of a file by its first bytes."""

from __future__ import annotations

from typing import Final

_SIGNATURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF": "application/pdf",
}
DETECTABLE_TYPES: Final = frozenset({*_SIGNATURES.values(), "image/webp"})


def detect_media_type(data: bytes) -> str | None:
    """The type of a picture or a PDF that every provider accepts, by its first 12 bytes; ``None`` for anything else."""
    for signature, media_type in _SIGNATURES.items():
        if data.startswith(signature):
            return media_type
    return "image/webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None
