"""Content for tests of the page: images, and tool calls that wait for approval."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from tests.fake_providers import call_part, text_part
from tests.web.site import Site


def make_image(red: int) -> dict[str, Any]:
    """Return a small PNG as a file for Playwright."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = b"".join(b"\0" + bytes((red, 80, 120)) * 8 for _ in range(8))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    return {
        "name": f"{red}.png",
        "mimeType": "image/png",
        "buffer": data + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""),
    }


def request_write(site: Site, text: str) -> None:
    """Let the model answer with a call of ``write_file``."""
    site.fakes["anthropic"].answer_with(
        text_part("I write it."), call_part("write_file", {"path": "README.md", "content": text})
    )
