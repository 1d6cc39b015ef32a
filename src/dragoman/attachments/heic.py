"""Convert HEIC images to JPEG, for models that do not accept HEIC. Needs the extra ``dragoman[heic]``.

    jpeg_from_heic(data)     JPEG data, or None if the extra is not installed

A conversion uses up to one second of CPU time: call it in a thread. The caller has checked the image size.
"""

from __future__ import annotations

import io
from typing import Final

from dragoman.errors import AttachmentError

MAX_SIDE_PIXELS: Final = 4_096  # larger than any model uses
_QUALITY: Final = 88


def jpeg_from_heic(data: bytes) -> bytes | None:
    """The image as JPEG, rotated by its metadata; none if the extra is not installed."""
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
        text = "the file has the header of image/heic but cannot be decoded"
        raise AttachmentError(text, remedy="Send it as JPEG", code="type_not_allowed") from None
    return jpeg.getvalue()
