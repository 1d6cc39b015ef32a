"""From an attachment to what a message says of it: the block that a model gets, and the metadata that is kept.

The one rule: metadata is bucket, path and type. A URL is never in it.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Final

from dragoman.attachments.heic import jpeg_from_heic
from dragoman.attachments.types import StoredFile
from dragoman.message import Attachment, AudioBlock, ContentBlock, DocumentBlock, ImageBlock, ImageSource, TextBlock

_DIALECT: Final = "attachments"  # no dialect: who writes one out passes over it


async def model_block(file: StoredFile, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """What a model is given of it; a HEIC picture as JPEG, if the extra that decodes it is installed."""
    if file.mime_type == "image/heic":
        jpeg = await asyncio.to_thread(jpeg_from_heic, data)
        if jpeg is not None:
            return ImageBlock(_source(jpeg), "image/jpeg")
    return attachment_block(file, data)


def attachment_block(file: StoredFile, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """What a model is given of it as it is. Every dialect writes these blocks in its own way."""
    if file.mime_type == "text/plain":
        text = f"{file.name or 'Attached text'}:\n\n{data.decode('utf-8-sig')}"
        return TextBlock(text, {"dialect": _DIALECT, "path": file.path})
    if file.mime_type.startswith("image/"):
        return ImageBlock(_source(data), file.mime_type)
    if file.mime_type.startswith("audio/"):
        return AudioBlock(_source(data), file.mime_type)
    return DocumentBlock(_source(data), file.mime_type, file.name)


def _source(data: bytes) -> ImageSource:
    return ImageSource("base64", base64.b64encode(data).decode("ascii"))


def is_attachment_text(block: ContentBlock) -> bool:
    """Whether a text is that of a file, and nobody's own words."""
    return isinstance(block, TextBlock) and (block.provider_raw or {}).get("dialect") == _DIALECT


def message_metadata(*files: StoredFile) -> Attachment | tuple[Attachment, ...] | None:
    """The value of ``user_message_attachments``: one as itself, several as a list, none not at all."""
    attachments = tuple(Attachment(file.bucket, file.path, file.mime_type) for file in files)
    return attachments if len(attachments) > 1 else attachments[0] if attachments else None
