"""Small files of every accepted type, and files that only resemble one."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 2, height: int = 3) -> bytes:
    """Return a PNG with this size in its header. It can be decoded if it is small."""
    rows = zlib.compress((b"\0" + b"\x80" * width) * height) if width * height < 10_000 else zlib.compress(b"\0")
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int = 2, height: int = 3, before: bytes = b"") -> bytes:
    """Return the segments of a JPEG up to its first frame, with ``before`` in a comment."""
    comment = b"\xff\xfe" + struct.pack(">H", len(before) + 2) + before
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\0"
    return (
        b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + comment + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0\0\xff\xd9"
    )


def gif(width: int = 1, height: int = 1) -> bytes:
    return (
        b"GIF89a"
        + struct.pack("<HH", width, height)
        + b"\x80\0\0\0\0\0\xff\xff\xff!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
    )


def webp(width: int = 1, height: int = 1) -> bytes:
    """Return a lossless WebP."""
    bits = (width - 1) | (height - 1) << 14
    body = b"VP8L" + struct.pack("<I", 13) + b"/" + struct.pack("<I", bits) + b"\x07\x10\x11\x11\x88\x88\xfe\x07\0"
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def lossy_webp(width: int, height: int) -> bytes:
    body = b"VP8 " + struct.pack("<I", 20) + b"\x30\1\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 10
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp_vp8x(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + sides + b"\0" * 8
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


# A red image of 64 × 48 pixels with a blue upper left quarter, created for these tests with libheif.
HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAX1tZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAA"
    "ACJpbG9jAAAAAERAAAEAAQAAAAABoQABAAAAAAAAADYAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRt"
    "AAAAAAABAAAA/WlwcnAAAADdaXBjbwAAAHZodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMA"
    "AAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5j"
    "bHgAAQANAAaAAAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAAEAAAAABAAAAMAAAAAEAAAAAAAAAAv////AAAAACAAAAEHBp"
    "eGkAAAAAAwgICAAAABhpcG1hAAAAAAAAAAEAAQWBAgMFhAAAAD5tZGF0AAAAMigBr1j5Et3/5z7kdaL/TFLxzDULTMD+cLXZPram"
    "U7H1q3P/f/Qm/fmg1oRMlGRaQ4lW"
)


def heic(width: int = 64, height: int = 48) -> bytes:
    """Return the HEIC image with another size in its header."""
    at = HEIC.index(b"ispe") + 8
    return HEIC[:at] + struct.pack(">II", width, height) + HEIC[at + 8 :]


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", len(body) + 8) + name + body


def mp4(*handlers: bytes) -> bytes:
    """Return an ISO media file with a track for each handler."""
    tracks = [box(b"trak", box(b"mdia", box(b"hdlr", bytes(8), kind, bytes(13)))) for kind in handlers]
    return box(b"ftyp", b"M4A ", bytes(4), b"isom") + box(b"moov", *tracks) + box(b"mdat", bytes(32))


def ogg(packet: bytes) -> bytes:
    """Return the first page of an Ogg stream."""
    return b"OggS\0\x02" + bytes(20) + bytes([1, len(packet)]) + packet


def webm(*codecs: bytes) -> bytes:
    head = b"\x42\x86\x81\x01\x42\x82\x84webm"
    tracks = b"".join(b"\xae\x86" + bytes([0x80 | len(codec)]) + codec for codec in codecs)
    return b"\x1aE\xdf\xa3" + bytes([0x80 | len(head)]) + head + b"\x16T\xaek" + tracks


def wav() -> bytes:
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8_000, 16_000, 2, 16)
    body = b"WAVE" + b"LIST" + struct.pack("<I", 4) + b"INFO" + form + b"data" + struct.pack("<I", 4) + bytes(4)
    return b"RIFF" + struct.pack("<I", len(body)) + body


MP3_FRAME = b"\xff\xfb\x90\x00" + bytes(413)  # 128 kbit/s at 44.1 kHz
AAC_FRAME = b"\xff\xf1\x50\x80\x01\x1f\xfc\x00"
ID3 = b"ID3\x04\0\0\0\0\0\x0a" + b"TIT2" + bytes(6)

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
TEXT = "帮我看看这张图\nand a second line\n".encode()
SCRIPT = b"<script>document.title='owned'</script>"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'owned\'"></svg>'

VALID_FILES = {
    "image/png": png(),
    "image/jpeg": jpeg(),
    "image/gif": gif(),
    "image/webp": webp(),
    "image/heic": HEIC,
    "audio/mpeg": ID3 + MP3_FRAME * 3,
    "audio/wav": wav(),
    "audio/mp4": mp4(b"soun"),
    "audio/aac": AAC_FRAME * 3,
    "audio/ogg": ogg(b"OpusHead\x01\x01" + bytes(10)),
    "audio/flac": b"fLaC\0\0\0\x22" + bytes(34),
    "audio/webm": webm(b"A_OPUS"),
    "application/pdf": PDF,
    "text/plain": TEXT,
}

INVALID_FILES = {
    "html": b"<!doctype html><title>x</title>" + SCRIPT,
    "html with a byte order mark": b"\xef\xbb\xbf  \n<HTML><body onload=alert(1)>",
    "script": SCRIPT,
    "svg": SVG,
    "svg without its declaration": b'\n <svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
    "svg behind a comment": b'<!-- x --><svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
    "xml": b'<?xml version="1.0"?><x/>',
    "pdf and html": b"%PDF-1.4\n<html>" + SCRIPT + b"\n%%EOF",
    "html, then pdf": b"<html>" + SCRIPT + b"</html>\n" + PDF,
    "something, then pdf": b"\0\0\0" + PDF,
    "gif and script by a comment": b"GIF89a/*" + gif()[8:] + b"*/=1;alert(1)",
    "gif and script by an assignment": b"GIF89a=1;alert(document.domain);//",
    "gif and html": gif()[:-1] + b"!\xfe\x27" + SCRIPT + b"\0;",
    "jpeg and html": jpeg(before=SCRIPT),
    "png and html": png()[:33] + _chunk(b"tEXt", b"Comment\0" + SCRIPT) + png()[33:],
    "png without a header": b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
    "png of no size": png(0, 3),
    "png cut": png()[:20],
    "jpeg without a frame": b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xd9",
    "jpeg that steps on the spot": b"\xff\xd8\xff\xe0\0\0" + b"\0" * 40,
    "gif cut": b"GIF89a",
    "webp cut": webp()[:14],
    "riff of another kind": b"RIFF\x10\0\0\0WAVEfmt " + b"\0" * 16,
    "heic without a picture": HEIC[:28] + bytes(60),
    "heif of another codec": HEIC.replace(b"hvc1", b"av01"),
    "film": mp4(b"vide", b"soun"),
    "film without sound": mp4(b"vide"),
    "webm film": webm(b"V_VP9", b"A_OPUS"),
    "ogg film": ogg(b"\x80theora\x03\x02\x01"),
    "wave without samples": wav()[:-12],
    "one sync word": b"\xff\xfb\x90\x00" + bytes(600),
    "a tag and no sound": ID3 + b"\x01" * 40,
    "flac cut": b"fLaC" + bytes(10),
    "mp3 and html": ID3[:9] + b"\x32<html>" + SCRIPT + bytes(5) + MP3_FRAME * 2,
    "zip": b"PK\3\4" + b"\0" * 40,
    "program": b"\x7fELF\2\1\1" + b"\0" * 40,
    "bmp": b"BM" + b"\0" * 60,
    "utf-16": "plain".encode("utf-16"),
    "latin-1": "café".encode("latin-1"),
    "text with a NUL": b"plain\0text",
}

# Valid files that also contain a script or a page: accepted, and harmless with the headers of a response.
POLYGLOT_FILES = {
    "gif with a page at its end": gif() + b"\n" + b" " * 2_000 + SCRIPT,
    "png with a page at its end": png() + b" " * 2_000 + SCRIPT,
    "text with markup in it": b"Look at this:\n" + SCRIPT,
    "text that begins with a heading": b"<h1>Readme</h1>\n" + SCRIPT,
}
