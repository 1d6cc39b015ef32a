"""How attachments are named: ``agent-inputs/{user}/{thread}/{run}/{ulid}.{ext}``, in ASCII, made by us alone.

What a client calls its file is never part of a path. The ids of users, threads and runs are, where they are plain; any
other one is replaced by its digest. The one rule: two users never have the same prefix, and no name leads out of one.
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
# What every storage takes as a key (Supabase is the narrowest of them, August 2026).
_KEY: Final = re.compile(r"[A-Za-z0-9_/!.*'() &$=@;:+,?-]+")
_BUCKET: Final = re.compile(r"[A-Za-z0-9_!.*'() &$=@;:+,?-]{1,100}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = re.compile(r"h-[0-9a-f]{40}")
_DEVICES: Final = re.compile(r"(?i)con|prn|aux|nul|com[0-9]|lpt[0-9]")  # what Windows does not take as a folder


def new_path(owner: Owner, thread: str, run: str, ulid: str, extension: str) -> str:
    """The path of a new attachment."""
    return f"{prefix_of(owner, thread)}{_segment(run)}/{ulid}.{extension}"


def prefix_of(owner: Owner, thread: str | None = None) -> str:
    """What the paths of all attachments of a user, or of one of his threads, begin with."""
    prefix = f"{PREFIX}/{_segment(owner.user_id)}/"
    return prefix if thread is None else f"{prefix}{_segment(thread)}/"


def _segment(name: str) -> str:
    """An id as one step of a path: itself if it is plain, else its digest. So is one that looks like a digest."""
    if _PLAIN.fullmatch(name) and not _DIGEST.fullmatch(name) and not _DEVICES.fullmatch(name):
        return name
    return "h-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def validate_bucket(bucket: str) -> str:
    """The bucket, if there can be one of that name."""
    if not _BUCKET.fullmatch(bucket) or bucket.strip(".") == "":
        raise AttachmentError("no bucket has such a name", code="invalid_path")
    return bucket


def validate_path(path: str) -> str:
    """The path, if it names one place in every storage and leads nowhere else."""
    if len(path) > _MAX_PATH or not _KEY.fullmatch(path):
        raise AttachmentError("no attachment has such a path", code="invalid_path")
    steps = path.split("/")
    if ".." in steps:
        raise not_found_error()  # whatever it would lead to is not the caller's
    for step in steps:
        if not step or step != step.strip(" ") or step.endswith("."):
            raise AttachmentError("a step of the path is empty, or ends in a dot", code="invalid_path")
    return path


def validate_owner(path: str, owner: Owner) -> str:
    """The path, if it is that user's. Somebody else's is not told from one that is missing."""
    if not path.startswith(prefix_of(owner)):
        raise not_found_error()
    return path


def not_found_error() -> UnknownAttachmentError:
    """There is none, or it is somebody else's."""
    return UnknownAttachmentError("there is no such attachment", remedy="Upload it")


def clean_name(name: str | None) -> str | None:
    """What a client calls its file, fit to be shown: its last step, without signs that are not seen, not too long."""
    if not name:
        return None
    step = PurePosixPath(name.replace("\\", "/")).name
    text = "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in step)
    text = "".join(sign for sign in text if sign.isprintable())
    return _truncate_name(text.strip()) or None


def _truncate_name(name: str) -> str:
    """The name in as many bytes as a file system takes, with its ending."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = f".{extension}" if dot and len(extension) <= 16 else ""
    stem_bytes = (stem if tail else name).encode()[: MAX_NAME_BYTES - len(tail.encode())]
    return stem_bytes.decode("utf-8", "ignore") + tail
