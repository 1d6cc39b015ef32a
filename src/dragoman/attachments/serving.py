"""How an attachment is served so that nothing in it runs.

The one rule: the type comes from us, a browser may not guess another one, and only pictures are shown in place.
"""

from __future__ import annotations

from dragoman.attachments.file_types import EXTENSIONS, type_from_path
from dragoman.attachments.types import OpenFile, StoredFile

_INLINE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def response_headers(attachment: StoredFile | OpenFile) -> dict[str, str]:
    """The headers of the answer that holds it."""
    return make_headers(attachment.path, attachment.mime_type, attachment.size)


def make_headers(path: str, mime_type: str, size: int) -> dict[str, str]:
    """The same by its parts. The name under which it is saved is the one that we made."""
    media_type = (
        mime_type if mime_type in EXTENSIONS and mime_type == type_from_path(path) else "application/octet-stream"
    )
    disposition = "inline" if media_type in _INLINE_TYPES else "attachment"
    name = path.rpartition("/")[2].replace("\\", "").replace('"', "")
    return {
        "Content-Type": f"{media_type}; charset=utf-8" if media_type == "text/plain" else media_type,
        "Content-Length": str(size),
        "Content-Disposition": f'{disposition}; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-store",
    }
