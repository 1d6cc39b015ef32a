"""How an attachment is served so that nothing in it runs.

The one rule: the type comes from us, a browser may not guess another one, and only pictures are shown in place.
"""

from __future__ import annotations

from dragoman.attachments.kinds import EXTENSIONS, type_of_path
from dragoman.attachments.values import Opened, Stored

_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


def serving_headers(attachment: Stored | Opened) -> dict[str, str]:
    """The headers of the answer that holds it."""
    return headers_for(attachment.path, attachment.mime_type, attachment.size)


def headers_for(path: str, mime_type: str, size: int) -> dict[str, str]:
    """The same by its parts. The name under which it is saved is the one that we made."""
    known = mime_type if mime_type in EXTENSIONS and mime_type == type_of_path(path) else "application/octet-stream"
    how = "inline" if known in _SHOWN else "attachment"
    name = path.rpartition("/")[2].replace("\\", "").replace('"', "")
    return {
        "Content-Type": f"{known}; charset=utf-8" if known == "text/plain" else known,
        "Content-Length": str(size),
        "Content-Disposition": f'{how}; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-store",
    }
