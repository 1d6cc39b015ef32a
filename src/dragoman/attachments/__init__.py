"""Files that users send with their messages: kept, looked at, named by signed URLs, and given to models.

    async with open_attachments("file:///folder", base_url="http://127.0.0.1:8000") as attachments:
        stored = await attachments.put(owner, thread, run, data, declared_type="image/png")
        url = await attachments.signed_url(stored.bucket, stored.path, owner)
        stored, data = await attachments.received(url, owner, "image/png")     a URL that came with a message
        await model_block(stored, data), message_metadata(stored)              what the message says of it
        opened = await attachments.open(stored.bucket, stored.path, None)      for whoever has shown a signed URL
        serving_headers(opened)

    async with open_files("file:///folder") as files:                          for who deletes, and has no server
        await delete_with_files(store, session.id, Owners.of(session), files)  a session, and the files of it alone

Bytes come in from a door and go out to a browser or into a message; they are kept in a folder, in a bucket of S3 or in
Supabase storage. ``STATUSES`` has the HTTP status for the code of each error. Invariant: a path is used only if it is
the caller's, and a URL only if its token is verified, by us or by the storage that signed it.
"""

from __future__ import annotations

from dragoman.attachments.attachments import KEYS_VARIABLE, Attachments, Files, UserFiles, open_attachments, open_files
from dragoman.attachments.deletion import delete_with_files
from dragoman.attachments.file_types import canonical_type, detect_type
from dragoman.attachments.paths import clean_name
from dragoman.attachments.saying import attachment_block, is_attachment_text, message_metadata, model_block
from dragoman.attachments.serving import response_headers
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
