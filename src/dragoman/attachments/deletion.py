"""Delete a session together with its files.

    count = await delete_with_files(store, session.id, owners, files)
    await delete_with_files(…, files=None)                                 without a storage

The files of a session are those uploaded for it, and those that only its messages name. A file that another session of
the same user names is kept. Files are deleted first: if that fails, the session still names them, and the deletion can
be repeated.
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
    from dragoman.store.message_reader import AttachmentRefs


async def delete_with_files(
    store: Store, session_id: str, owners: Owners, files: Files | None, *, untouched_since: datetime | None = None
) -> int | None:
    """Delete a session and its files, and return the number of files. ``ConflictError`` while a turn runs in it.

    With ``untouched_since``, a session that changed since then is kept, and the result is none. If files cannot be
    deleted, the session is kept: ``StorageError`` with the code attachments_left.
    """
    async with store.turns.lease(session_id) as lease:  # prevents a new turn
        if untouched_since is not None and (await store.get_session(session_id)).updated_at >= untouched_since:
            return None
        count = await _delete_files(store, session_id, owners, files) if files is not None else 0
        lease.check()
        if untouched_since is None:
            await store.delete_session(session_id)
        elif not await store.delete_if_inactive(session_id, untouched_since, lease.owner):
            return None
        lease.confirm_release()  # deleted with the session
    return count


async def _delete_files(store: Store, session_id: str, owners: Owners, files: Files) -> int:
    owner = Owner(owners.user_id, owners.team_id)
    references = await store.find_attachment_refs(session_id, owners, prefix_of(owner, name_from_id(session_id)))
    try:
        return await _delete_unshared(files, owner, session_id, references)
    except DragomanError as error:
        raise StorageError(
            f"cannot delete its attachments, so the session is kept ({error.what})",
            where=f"session {session_id}",
            remedy="Delete the session again",
            code="attachments_left",
        ) from error


async def _delete_unshared(files: Files, owner: Owner, session_id: str, references: AttachmentRefs) -> int:
    session_prefix, count = prefix_of(owner, name_from_id(session_id)), 0
    is_shared = any(path.startswith(session_prefix) for _, path in references.shared)
    if not is_shared:
        count += await files.delete_all(owner, name_from_id(session_id))
    for bucket, path in sorted(references.exclusive):
        if is_shared or not path.startswith(session_prefix):
            # A message may name any path; a path of another owner is skipped.
            with contextlib.suppress(AttachmentError, UnknownAttachmentError):
                count += await files.delete(bucket, path, owner)
    return count
