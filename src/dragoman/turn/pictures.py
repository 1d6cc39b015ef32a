"""A picture that a person names by its path, as a block of a message."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path

from dragoman.errors import InputError
from dragoman.message import ImageBlock, ImageSource


def image_from_file(path: Path) -> ImageBlock:
    """The picture of a file."""
    media_type = mimetypes.guess_type(path.name)[0] or ""
    if not media_type.startswith("image/"):
        raise InputError(
            "its name is not that of a picture", where=str(path), remedy="Name a .png, .jpg, .gif or .webp"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})", where=str(path)) from None
    return ImageBlock(ImageSource("base64", base64.b64encode(data).decode()), media_type)
