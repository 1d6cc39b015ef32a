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

from dragoman.attachments.deleting import delete_with_files
from dragoman.attachments.keys import SigningKeys
from dragoman.attachments.kinds import kind_of, named_type
from dragoman.attachments.paths import cleaned_name
from dragoman.attachments.room import KEYS_VARIABLE, Attachments, Erasing, Files, open_attachments, open_files
from dragoman.attachments.saying import attachment_block, is_attached_text, message_metadata, model_block
from dragoman.attachments.serving import serving_headers
from dragoman.attachments.urls import ROUTE, SignedUrl, parse_signed_url
from dragoman.attachments.values import MAX_BYTES, MAX_TTL_S, STATUSES, Opened, Owner, Place, Storage, Stored

__all__ = [
    "KEYS_VARIABLE",
    "MAX_BYTES",
    "MAX_TTL_S",
    "ROUTE",
    "STATUSES",
    "Attachments",
    "Erasing",
    "Files",
    "Opened",
    "Owner",
    "Place",
    "SignedUrl",
    "SigningKeys",
    "Storage",
    "Stored",
    "attachment_block",
    "cleaned_name",
    "delete_with_files",
    "is_attached_text",
    "kind_of",
    "message_metadata",
    "model_block",
    "named_type",
    "open_attachments",
    "open_files",
    "parse_signed_url",
    "serving_headers",
]
