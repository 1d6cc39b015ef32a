"""From an attachment to what a message says of it: the block that a model gets, and the metadata that is kept.

The one rule: metadata is bucket, path and type. A URL is never in it.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Final

from dragoman.attachments.heic import jpeg_from_heic
from dragoman.attachments.values import Stored
from dragoman.message import Attachment, AudioBlock, ContentBlock, DocumentBlock, ImageBlock, ImageSource, TextBlock

_HERE: Final = "attachments"  # no dialect: who writes one out passes over it


async def model_block(stored: Stored, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """What a model is given of it; a HEIC picture as JPEG, if the extra that decodes it is installed."""
    if stored.mime_type == "image/heic":
        jpeg = await asyncio.to_thread(jpeg_from_heic, data)
        if jpeg is not None:
            return ImageBlock(_source(jpeg), "image/jpeg")
    return attachment_block(stored, data)


def attachment_block(stored: Stored, data: bytes) -> ImageBlock | AudioBlock | DocumentBlock | TextBlock:
    """What a model is given of it as it is. Every dialect writes these blocks in its own way."""
    if stored.mime_type == "text/plain":
        text = f"{stored.name or 'Attached text'}:\n\n{data.decode('utf-8-sig')}"
        return TextBlock(text, {"dialect": _HERE, "path": stored.path})
    if stored.mime_type.startswith("image/"):
        return ImageBlock(_source(data), stored.mime_type)
    if stored.mime_type.startswith("audio/"):
        return AudioBlock(_source(data), stored.mime_type)
    return DocumentBlock(_source(data), stored.mime_type, stored.name)


def _source(data: bytes) -> ImageSource:
    return ImageSource("base64", base64.b64encode(data).decode("ascii"))


def is_attached_text(block: ContentBlock) -> bool:
    """Whether a text is that of a file, and nobody's own words."""
    return isinstance(block, TextBlock) and (block.provider_raw or {}).get("dialect") == _HERE


def message_metadata(*stored: Stored) -> Attachment | tuple[Attachment, ...] | None:
    """The value of ``user_message_attachments``: one as itself, several as a list, none not at all."""
    said = tuple(Attachment(one.bucket, one.path, one.mime_type) for one in stored)
    return said if len(said) > 1 else said[0] if said else None
