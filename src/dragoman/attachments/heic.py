"""HEIC pictures as JPEG, for models that take no HEIC. Needs the extra ``dragoman[heic]``.

    jpeg_from_heic(data)     the picture as JPEG, or None if the extra is not installed

It takes up to a second of one processor: call it in a thread. The size of the picture was checked before.
"""

from __future__ import annotations

import io
from typing import Final

from dragoman.errors import AttachmentError

MAX_SIDE_PIXELS: Final = 4_096  # more than any model looks at
_QUALITY: Final = 88


def jpeg_from_heic(data: bytes) -> bytes | None:
    """The picture as JPEG, turned as its metadata says; none if nobody here can decode it."""
    try:
        import pi_heif  # noqa: PLC0415  an extra
    except ImportError:
        return None
    try:
        image = pi_heif.open_heif(io.BytesIO(data)).to_pillow().convert("RGB")
        image.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=_QUALITY)
    except (ValueError, RuntimeError, SyntaxError, OSError, MemoryError):
        text = "it begins as image/heic, and cannot be decoded"
        raise AttachmentError(text, remedy="Send it as JPEG", code="type_not_allowed") from None
    return jpeg.getvalue()
