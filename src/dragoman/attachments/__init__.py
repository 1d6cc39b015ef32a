"""Files that users send with their messages: validation, storage, signed URLs, and blocks for models.

    async with open_attachments("file:///folder", base_url="http://127.0.0.1:8000") as attachments:
        stored = await attachments.put(owner, thread, run, data, declared_type="image/png")
        url = await attachments.signed_url(stored.bucket, stored.path, owner)
        stored, data = await attachments.read_signed_url(url, owner, "image/png")     a URL in a message
        await model_block(stored, data), message_metadata(stored)              the block and the metadata of the message
        file = await attachments.open(stored.bucket, stored.path, None)        after the signed URL was verified
        response_headers(file)

    async with open_files("file:///folder") as files:                          deletion only, without a server
        await delete_with_files(store, session.id, Owners.of(session), files)  a session with its own files

Files are stored in a folder, in an S3 bucket or in Supabase storage. ``STATUSES`` maps error codes to HTTP statuses.
Invariant: a path is used only if it belongs to the caller, and a URL only if its token is verified, by us or by the
storage that signed it.
"""

from __future__ import annotations

from dragoman.attachments.attachments import (
    KEYS_VARIABLE,
    Attachments,
    Files,
    UserFiles,
    attachment_block,
    is_attachment_text,
    message_metadata,
    model_block,
    open_attachments,
    open_files,
    response_headers,
)
from dragoman.attachments.deletion import delete_with_files
from dragoman.attachments.file_types import canonical_type, detect_type
from dragoman.attachments.paths import clean_name
from dragoman.attachments.signed_urls import ROUTE, SignedUrl, parse_signed_url
from dragoman.attachments.signing_keys import SigningKeys
from dragoman.attachments.types import MAX_BYTES, MAX_TTL_S, STATUSES, Location, OpenFile, Owner, Storage, StoredFile

__all__ = [
    "KEYS_VARIABLE",
    "MAX_BYTES",
    "MAX_TTL_S",
    "ROUTE",
    "STATUSES",
    "Attachments",
    "Files",
    "Location",
    "OpenFile",
    "Owner",
    "SignedUrl",
    "SigningKeys",
    "Storage",
    "StoredFile",
    "UserFiles",
    "attachment_block",
    "canonical_type",
    "clean_name",
    "delete_with_files",
    "detect_type",
    "is_attachment_text",
    "message_metadata",
    "model_block",
    "open_attachments",
    "open_files",
    "parse_signed_url",
    "response_headers",
]
