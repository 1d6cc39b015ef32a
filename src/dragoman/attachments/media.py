"""Recognize audio files and HEIC images by their container structure.

    audio_type(data)         audio/mpeg, audio/wav, audio/mp4, audio/aac, audio/ogg, audio/flac, audio/webm, or None
    is_heic(data)            whether it is a HEIC or HEIF still image
    heic_size(data)          the pixels of the largest image in it, or None

Nothing is decoded. Audio and video share magic bytes, so the container must list audio tracks only.
"""

from __future__ import annotations

import re
from typing import Final

_HEIC_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"mif1"})
_BOX_BYTES: Final = 1 << 20  # bytes in which a HEIC file lists its images
_OGG_CODECS: Final = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC", b"Speex   ")
_VIDEO_CODECS: Final = re.compile(rb"V_(?:VP8|VP9|AV1|MPEG|THEORA|MS)")
_AUDIO_CODECS: Final = re.compile(rb"A_(?:OPUS|VORBIS)")
_MATROSKA_HEAD: Final = 64 * 1024  # bytes in which a WebM file lists its tracks
_MP3_KBITS: Final = (  # by the index in a frame header: MPEG 1, then MPEG 2 and 2.5; layer III
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_MP3_HERTZ: Final = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}


def audio_type(data: bytes) -> str | None:
    """The type of an audio file; none for other files."""
    head = data[:16]
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        return "audio/wav" if _is_wave(data) else None
    if head.startswith(b"fLaC"):
        return "audio/flac" if data[4:5] in (b"\x00", b"\x80") and data[5:8] == b"\x00\x00\x22" else None
    if head.startswith(b"OggS"):
        return "audio/ogg" if _is_ogg_audio(data) else None
    if head[4:8] == b"ftyp":
        return "audio/mp4" if _is_mp4_audio(data) else None
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "audio/webm" if _is_webm_audio(data) else None
    start = _first_frame(data)
    if _adts_length(data, start):
        return "audio/aac"
    return "audio/mpeg" if _mp3_length(data, start) else None


def is_heic(data: bytes) -> bool:
    """Whether it is a HEIF still image with the HEVC codec."""
    return _major_brand(data) in _HEIC_BRANDS and b"hvc1" in data[:_BOX_BYTES]


def heic_size(data: bytes) -> tuple[int, int] | None:
    """The stated width and height of the largest image or tile."""
    sizes = [
        (int.from_bytes(data[at + 8 : at + 12]), int.from_bytes(data[at + 12 : at + 16]))
        for at in (match.start() for match in re.finditer(b"ispe", data[:_BOX_BYTES]))
        if at + 16 <= len(data)
    ]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


# --- containers ------------------------------------------------------------------------------------------------------


def _major_brand(data: bytes) -> bytes | None:
    """The major brand of an ISO media file; none for other files."""
    length = int.from_bytes(data[:4])
    is_media = data[4:8] == b"ftyp" and 16 <= length <= min(1_024, len(data)) and length % 4 == 0
    return data[8:12] if is_media else None


def _is_mp4_audio(data: bytes) -> bool:
    handlers = {data[match.start() + 12 : match.start() + 16] for match in re.finditer(b"hdlr", data)}
    return _major_brand(data) is not None and b"soun" in handlers and b"vide" not in handlers


def _is_wave(data: bytes) -> bool:
    """Whether it has a format chunk before the data chunk."""
    at, has_format = 12, False
    while at + 8 <= len(data):
        name, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data":
            return has_format
        has_format = has_format or (name == b"fmt " and length >= 16)
        at += 8 + length + length % 2
    return False


def _is_ogg_audio(data: bytes) -> bool:
    if len(data) < 28 or data[4]:
        return False
    return data[27 + data[26] :].startswith(_OGG_CODECS)


def _is_webm_audio(data: bytes) -> bool:
    head = data[:_MATROSKA_HEAD]
    return b"webm" in head[:64] and bool(_AUDIO_CODECS.search(head)) and not _VIDEO_CODECS.search(head)


# --- frames ----------------------------------------------------------------------------------------------------------


def _first_frame(data: bytes) -> int:
    """The offset of the first frame, after tags and padding."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10 and all(byte < 0x80 for byte in data[at + 6 : at + 10]):
        size = sum(byte << shift for byte, shift in zip(data[at + 6 : at + 10], (21, 14, 7, 0), strict=True))
        at += 10 + size
    if at:
        padding = re.compile(rb"\0*").match(data, at)
        at = padding.end() if padding else at
    return at


def _adts_length(data: bytes, at: int) -> int:
    """The length of an AAC frame at this offset, if another frame or the end follows; else 0."""
    head = data[at : at + 7]
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or head[2] >> 2 & 0xF > 12:
        return 0
    length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return length if length >= 7 and _has_next_frame(data, at + length, 0xF6, 0xF0) else 0


def _mp3_length(data: bytes, at: int) -> int:
    """The length of an MP3 frame at this offset, if another frame or the end follows; else 0."""
    head = data[at : at + 4]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # layer III
        return 0
    version, rate, hertz = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or rate in (0, 15) or hertz == 3:
        return 0
    kbits = _MP3_KBITS[version != 3][rate]
    length = (144 if version == 3 else 72) * kbits * 1_000 // _MP3_HERTZ[version][hertz] + (head[2] >> 1 & 1)
    return length if _has_next_frame(data, at + length, 0xE6, 0xE2) else 0


def _has_next_frame(data: bytes, at: int, mask: int, pattern: int) -> bool:
    """Whether a frame, a tag or the end of the file follows."""
    rest = data[at : at + 3]
    if len(rest) < 2 or rest == b"TAG":
        return at == len(data) or rest == b"TAG"
    return rest[0] == 0xFF and rest[1] & mask == pattern
