"""The type of a file from its bytes: images, audio, PDF and plain text; and the size of an image.

``detect_type(data)`` returns the type or raises; ``validate_type(data, declared)`` also compares it with the declared
type. Only headers are read, nothing is decoded. Invariant: a file that a browser could run as a page or a script is
rejected. A file that is valid in two formats is harmless with the headers of ``response_headers``.
"""

from __future__ import annotations

import re
from typing import Final

from dragoman.attachments.media import audio_type, heic_size, is_heic
from dragoman.attachments.types import MAX_BYTES, MAX_PIXELS, MAX_SIDE, MAX_TEXT_BYTES
from dragoman.errors import AttachmentError
from dragoman.humanize import format_size
from dragoman.media_types import detect_media_type

EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/heic": "heic",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/mp4": "m4a",
    "audio/aac": "aac",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
    "audio/webm": "weba",
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/markdown": "md",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "application/json": "json",
}
_TEXT_TYPES: Final = frozenset(
    ("text/plain", "text/markdown", "text/csv", "text/tab-separated-values", "application/json")
)  # their bytes are alike: the declared type decides
_TYPES: Final = {
    **{extension: mime for mime, extension in EXTENSIONS.items()},
    "jpeg": "image/jpeg",
    "heif": "image/heic",
    "oga": "audio/ogg",
    "opus": "audio/ogg",
}
_TYPE_ALIASES: Final = {  # other names of a type
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/heif": "image/heic",
    "audio/mp3": "audio/mpeg",
    "audio/x-mp3": "audio/mpeg",
    "audio/mpeg3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/m4a": "audio/mp4",
    "audio/x-m4a": "audio/mp4",
    "audio/x-aac": "audio/aac",
    "audio/aacp": "audio/aac",
    "audio/opus": "audio/ogg",
    "application/ogg": "audio/ogg",
    "audio/x-flac": "audio/flac",
    "application/x-pdf": "application/pdf",
    "text/x-markdown": "text/markdown",
}
_SNIFF_BYTES: Final = 1_445  # bytes that browsers sniff (WHATWG MIME Sniffing, 2026)
_MARKUP: Final = re.compile(
    rb"(?i)<(?:!doctype|html|head|body|script|iframe|svg|object|embed|meta|link|style|foreignobject)\b"
)
_PAGE: Final = re.compile(  # the start of a page or a drawing
    rb"(?i)[\t\n\f\r ]*<(?:!doctype\b|\?xml\b|(?:html|head|body|script|iframe|svg|style|title)[\s/>])"
)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")  # binary data bytes (WHATWG)
_BOM: Final = b"\xef\xbb\xbf"


def type_from_path(path: str) -> str:
    """The type from the extension of one of our paths."""
    return _TYPES.get(path.rpartition(".")[2], "application/octet-stream")


def is_text_type(media_type: str | None) -> bool:
    """Whether a type is one of the accepted text formats."""
    return media_type in _TEXT_TYPES


def canonical_type(declared: str | None) -> str | None:
    """The accepted type for a declared name, which may be an alias; none if it is not accepted."""
    media_type = _normalize_type(declared)
    return media_type if media_type in EXTENSIONS else None


def validate_type(data: bytes, declared: str | None) -> str:
    """The type of a file; raises ``AttachmentError`` if it is not accepted or not the declared one."""
    declared_type = _normalize_type(declared)
    if declared_type is not None and declared_type not in EXTENSIONS:
        raise _type_error(f"{declared_type[:100]!r} is not an accepted type")
    actual_type = detect_type(data)
    if is_text_type(actual_type) and is_text_type(declared_type):
        return declared_type or actual_type
    if declared_type is not None and declared_type != actual_type:
        raise AttachmentError(
            f"declared as {declared_type}, but the content is {actual_type}",
            remedy="Declare the right type",
            code="type_mismatch",
        )
    return actual_type


def _normalize_type(declared: str | None) -> str | None:
    """A declared type without parameters; none if it is generic."""
    media_type = (declared or "").partition(";")[0].strip().lower()
    return None if media_type in ("", "application/octet-stream") else _TYPE_ALIASES.get(media_type, media_type)


def detect_type(data: bytes) -> str:
    """The type of a file; raises ``AttachmentError`` if it is not accepted."""
    if not data:
        raise AttachmentError("the file is empty", code="empty_attachment")
    if len(data) > MAX_BYTES:
        raise too_large_error(MAX_BYTES)
    mime_type = _type_from_magic(data)
    if mime_type is None:
        return _check_text(data)
    if _MARKUP.search(data[:_SNIFF_BYTES]):
        raise _type_error(f"the file has the header of {mime_type} but contains HTML or a script")
    if mime_type.startswith("image/"):
        _check_size(_image_size(data, mime_type))
    return mime_type


def too_large_error(limit: int) -> AttachmentError:
    """The error of a file that is too large."""
    return AttachmentError(
        f"the file is larger than {format_size(limit)}", remedy="Send a smaller file", code="attachment_too_large"
    )


def _type_from_magic(data: bytes) -> str | None:
    media_type = detect_media_type(data)
    if media_type == "application/pdf" and not re.match(rb"%PDF-[12]\.\d", data):
        media_type = None
    return media_type or ("image/heic" if is_heic(data) else audio_type(data))


def _check_text(data: bytes) -> str:
    body = data.removeprefix(_BOM)
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        raise _type_error("not an image, audio or PDF of a supported format, and not UTF-8 text") from None
    if _CONTROL.search(body):
        raise _type_error("not an image, audio or PDF of a supported format, and text with control characters")
    if _PAGE.match(body) or b"http://www.w3.org/2000/svg" in body[:_SNIFF_BYTES]:
        raise _type_error("HTML, XML or SVG, not plain text")
    if len(data) > MAX_TEXT_BYTES:
        raise too_large_error(MAX_TEXT_BYTES)
    return "text/plain"


def _type_error(reason: str) -> AttachmentError:
    accepted = "PNG, JPEG, GIF, WebP, HEIC, MP3, WAV, M4A, AAC, Ogg, FLAC, WebM audio, PDF and plain text"
    return AttachmentError(reason, remedy=f"Send one of {accepted}", code="type_not_allowed")


# --- images ----------------------------------------------------------------------------------------------------------


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width > MAX_SIDE or height > MAX_SIDE or width * height > MAX_PIXELS:
        raise AttachmentError(
            f"the image has {width} × {height} pixels; the limits are {MAX_SIDE} per side and {MAX_PIXELS} in all",
            remedy="Resize the image",
            code="image_too_large",
        )


def _image_size(data: bytes, mime_type: str) -> tuple[int, int]:
    match mime_type:
        case "image/png":
            size = _png_size(data)
        case "image/jpeg":
            size = _jpeg_size(data)
        case "image/gif":
            size = _gif_size(data)
        case "image/heic":
            size = heic_size(data)
        case _:
            size = _webp_size(data)
    if size is None or 0 in size:
        raise _type_error(f"the file has the header of {mime_type} but is not one")
    return size


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 33 or data[8:16] != b"\x00\x00\x00\rIHDR":
        return None
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _gif_size(data: bytes) -> tuple[int, int] | None:
    colours = 3 << ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0
    first_block = data[13 + colours : 14 + colours]
    if first_block not in (b"!", b",") or data[6:8] == b"/*":  # a GIF that is also a script
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X" if len(data) >= 30:
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case b"VP8L" if len(data) >= 25 and data[20] == 0x2F:
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case _:
            return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """The size in the first frame header. Other segments are skipped by their length."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        elif marker == 0xDA or (length := int.from_bytes(data[at + 2 : at + 4])) < 2:
            return None
        else:
            at += 2 + length
    return None
