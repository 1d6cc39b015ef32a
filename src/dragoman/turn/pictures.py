"""A picture that a person names by its path, as a block of a message."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path

from dragoman.errors import InputError
from dragoman.message import ImageBlock, ImageSource


def picture_from(path: Path) -> ImageBlock:
    """The picture of a file."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise InputError(
            "its name is not that of a picture", where=str(path), remedy="Name a .png, .jpg, .gif or .webp"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})", where=str(path)) from None
    return ImageBlock(ImageSource("base64", base64.b64encode(data).decode()), kind)
