"""Paths of attachments: ``agent-inputs/{user}/{thread}/{run}/{ulid}.{ext}``, in ASCII.

The client's file name is never part of a path. Ids of users, threads and runs with other characters than letters,
digits, ``_`` and ``-`` are replaced by their digest. Invariant: two users never have the same prefix, and no path leads
out of its prefix.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Final

from dragoman.attachments.types import Owner
from dragoman.errors import AttachmentError, UnknownAttachmentError

PREFIX: Final = "agent-inputs"
MAX_NAME_BYTES: Final = 255
_MAX_PATH: Final = 1_024
# Characters that every storage accepts in a key (Supabase has the smallest set, August 2026).
_KEY: Final = re.compile(r"[A-Za-z0-9_/!.*'() &$=@;:+,?-]+")
_BUCKET: Final = re.compile(r"[A-Za-z0-9_!.*'() &$=@;:+,?-]{1,100}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = re.compile(r"h-[0-9a-f]{40}")
_DEVICES: Final = re.compile(r"(?i)con|prn|aux|nul|com[0-9]|lpt[0-9]")  # not allowed as folder names on Windows


def new_path(owner: Owner, thread: str, run: str, ulid: str, extension: str) -> str:
    """The path of a new attachment."""
    return f"{prefix_of(owner, thread)}{_segment(run)}/{ulid}.{extension}"


def prefix_of(owner: Owner, thread: str | None = None) -> str:
    """The common prefix of the attachments of a user, or of one thread."""
    prefix = f"{PREFIX}/{_segment(owner.user_id)}/"
    return prefix if thread is None else f"{prefix}{_segment(thread)}/"


def _segment(name: str) -> str:
    """A path segment for an id: the id, or its digest if the id has other characters or looks like a digest."""
    if _PLAIN.fullmatch(name) and not _DIGEST.fullmatch(name) and not _DEVICES.fullmatch(name):
        return name
    return "h-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def validate_bucket(bucket: str) -> str:
    """The bucket; raises ``AttachmentError`` for an invalid name."""
    if not _BUCKET.fullmatch(bucket) or bucket.strip(".") == "":
        raise AttachmentError("not a valid bucket name", code="invalid_path")
    return bucket


def validate_path(path: str) -> str:
    """The path; raises ``AttachmentError`` if it is not valid in every storage."""
    if len(path) > _MAX_PATH or not _KEY.fullmatch(path):
        raise AttachmentError("not a valid path of an attachment", code="invalid_path")
    steps = path.split("/")
    if ".." in steps:
        raise not_found_error()  # its target is not the caller's
    for step in steps:
        if not step or step != step.strip(" ") or step.endswith("."):
            raise AttachmentError("a segment of the path is empty, or ends in a dot", code="invalid_path")
    return path


def validate_owner(path: str, owner: Owner) -> str:
    """The path, if it is that user's. A path of another user raises the same error as a missing file."""
    if not path.startswith(prefix_of(owner)):
        raise not_found_error()
    return path


def not_found_error() -> UnknownAttachmentError:
    """The error of a missing file and of a file of another user."""
    return UnknownAttachmentError("there is no such attachment", remedy="Upload the file")


def clean_name(name: str | None) -> str | None:
    """The client's file name for display: last path segment, printable characters, limited length."""
    if not name:
        return None
    step = PurePosixPath(name.replace("\\", "/")).name
    text = "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in step)
    text = "".join(sign for sign in text if sign.isprintable())
    return _truncate_name(text.strip()) or None


def _truncate_name(name: str) -> str:
    """The name cut to the limit of file systems, with its extension."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = f".{extension}" if dot and len(extension) <= 16 else ""
    stem_bytes = (stem if tail else name).encode()[: MAX_NAME_BYTES - len(tail.encode())]
    return stem_bytes.decode("utf-8", "ignore") + tail
