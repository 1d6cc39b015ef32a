"""Sessions that go together with their files.

    count = await delete_with_files(store, session.id, owners, files)      files went with it
    await delete_with_files(…, files=None)                                 where nobody knows where files are

A session and whose it is come in, and how many files went comes out. Its files are those that were uploaded for it,
sent or not, and those that only its messages name; what another session of the same user names stays, whichever of them
it was uploaded for. The one rule: files first. If they cannot be deleted the session is still there and names them, so
that it can be tried again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dragoman.attachments.paths import prefix_of
from dragoman.attachments.types import Owner
from dragoman.errors import AttachmentError, DragomanError, StorageError, UnknownAttachmentError
from dragoman.ids import name_from_id

if TYPE_CHECKING:
    from datetime import datetime

    from dragoman.attachments.attachments import Files
    from dragoman.store import Owners, Store
    from dragoman.store.attached import AttachmentRefs


async def delete_with_files(
    store: Store, session_id: str, owners: Owners, files: Files | None, *, untouched_since: datetime | None = None
) -> int | None:
    """Delete a session with its files; how many files that were. While a turn runs in it, ``ConflictError``.

    With ``untouched_since`` it stays if something has happened in it since then, and nothing is returned. If files
    cannot be deleted it stays, too: ``StorageError`` with the code attachments_left.
    """
    async with store.turns.lease(session_id) as lease:  # whoever begins a turn needs this, so none begins meanwhile
        if untouched_since is not None and (await store.get_session(session_id)).updated_at >= untouched_since:
            return None
        count = await _delete_files(store, session_id, owners, files) if files is not None else 0
        lease.check()
        if untouched_since is None:
            await store.delete_session(session_id)
        elif not await store.delete_if_inactive(session_id, untouched_since, lease.owner):
            return None
        lease.confirm_release()  # it has gone with the session
    return count


async def _delete_files(store: Store, session_id: str, owners: Owners, files: Files) -> int:
    owner = Owner(owners.user_id, owners.team_id)
    references = await store.find_attachment_refs(session_id, owners, prefix_of(owner, name_from_id(session_id)))
    try:
        return await _delete_unshared(files, owner, session_id, references)
    except DragomanError as error:
        raise StorageError(
            f"its attachments could not be deleted, so it is still there ({error.what})",
            where=f"session {session_id}",
            remedy="Delete it again when they can be",
            code="attachments_left",
        ) from error


async def _delete_unshared(files: Files, owner: Owner, session_id: str, references: AttachmentRefs) -> int:
    session_prefix, count = prefix_of(owner, name_from_id(session_id)), 0
    is_shared = any(path.startswith(session_prefix) for _, path in references.shared)
    if not is_shared:
        count += await files.delete_all(owner, name_from_id(session_id))
    for bucket, path in sorted(references.exclusive):
        if is_shared or not path.startswith(session_prefix):
            # A message may say anything: what can be no file of this owner is none.
            with contextlib.suppress(AttachmentError, UnknownAttachmentError):
                count += await files.delete(bucket, path, owner)
    return count
