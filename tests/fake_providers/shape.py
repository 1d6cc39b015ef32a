"""Checks that several fakes share: known fields, valid base64, images of the declared type.

Each returns a problem or nothing; the fake converts it to the provider's error text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

_MAGIC: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF",),
}
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PLAIN_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")


def decode_base64(data: object) -> bytes | None:
    """Return the bytes of base64 text; ``None`` if it is not valid."""
    if not isinstance(data, str) or not data:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def detect_media_type(data: bytes) -> str | None:
    """Return the media type that the first bytes indicate; ``None`` if they match no known type."""
    for media_type, prefixes in _MAGIC.items():
        if data.startswith(prefixes) and (media_type != "image/webp" or data[8:12] == b"WEBP"):
            return media_type
    return None


def unknown_keys(value: dict[str, Any], known: Collection[str]) -> Iterator[str]:
    """Yield the keys that the API does not have."""
    yield from (key for key in value if key not in known)


def data_url(text: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a data URL."""
    match = re.fullmatch(r"data:([\w.+/-]+);base64,(.*)", text, flags=re.DOTALL)
    return (match[1], match[2]) if match else None


def schema_problems(schema: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the parts that are not valid JSON Schema, with their paths."""
    if not isinstance(schema, dict):
        yield where, "is not an object"
        return
    kind = schema.get("type")
    if kind == "array" and "items" not in schema and "prefixItems" not in schema:
        yield where, "array schema missing items"
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            yield from schema_problems(inner, (*where, "properties", name))
    if isinstance(schema.get("items"), dict):
        yield from schema_problems(schema["items"], (*where, "items"))
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        yield where, "required is not a list of names"
