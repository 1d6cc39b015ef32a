"""Tests of deleting a session together with the files that only this session references."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dragoman.attachments import Attachments, Owner, StoredFile, delete_with_files, open_files
from dragoman.errors import ConflictError, StorageError, UnknownAttachmentError, UnknownSessionError
from dragoman.message import Attachment, Message
from dragoman.store import Owners, Session, Store, open_store
from tests.attachments.conftest import ANN, BOB
from tests.attachments.samples import png
from tests.attachments.supabase_server import KEY, SupabaseServer
from tests.cli_store import run
from tests.store.messages import text_message

LOCAL = Owner("local")


@pytest.fixture
def store(runner: asyncio.Runner) -> Iterator[Store]:
    """A store in memory."""
    opened = open_store("memory:")
    runner.run(opened.open())
    yield opened
    runner.run(opened.close())


def message_with_files(*files: StoredFile | str) -> Message:
    """Return a message that references these files."""
    paths = [("agent-files", file) if isinstance(file, str) else (file.bucket, file.path) for file in files]
    return text_message("look", user_message_attachments=tuple(Attachment(*file, "image/png") for file in paths))


async def create_session(
    store: Store, name: str, *messages: Message, user_id: str | None = "ann", **fields: Any
) -> Session:
    await store.create_session(name, user_id=user_id, **fields)
    await store.append(name, messages or [text_message("hello")])
    return await store.get_session(name)


async def delete_session(store: Store, session: Session, files: Attachments | None, **options: Any) -> int | None:
    return await delete_with_files(store, session.id, Owners.of(session), files, **options)


async def list_existence(attachments: Attachments, *files: StoredFile, owner: Owner = ANN) -> list[bool]:
    exists = []
    for file in files:
        try:
            await attachments.read(file.bucket, file.path, owner)
            exists.append(True)
        except UnknownAttachmentError:
            exists.append(False)
    return exists


async def test_delete_removes_uploads_and_unshared_files(store: Store, attachments: Attachments) -> None:
    referenced, unreferenced, of_other_thread = [
        await attachments.put(ANN, thread, "r", png()) for thread in ("s1", "s1", "elsewhere")
    ]
    of_other, shared = [await attachments.put(ANN, thread, "r", png()) for thread in ("s2", "elsewhere")]
    bobs = await attachments.put(BOB, "s1", "r", png())
    session = await create_session(
        store, "s1", message_with_files(referenced, of_other_thread, shared), team_id="infra"
    )
    await create_session(store, "s2", message_with_files(of_other, shared), team_id="infra")
    assert await delete_session(store, session, attachments) == 3
    assert (
        await list_existence(attachments, referenced, unreferenced, of_other_thread, of_other, shared)
        == [False] * 3 + [True] * 2
    )
    assert await list_existence(attachments, bobs, owner=BOB) == [True]
    with pytest.raises(UnknownSessionError):
        await delete_session(store, session, attachments)


async def test_file_is_deleted_with_last_session_that_references_it(store: Store, in_folder: Attachments) -> None:
    shared, unshared = [await in_folder.put(ANN, "s1", "r", png()) for _ in range(2)]
    session = await create_session(store, "s1", message_with_files(shared), message_with_files(unshared))
    fork = await store.fork("s1", 1)
    assert await delete_session(store, session, in_folder) == 1
    assert await list_existence(in_folder, shared, unshared) == [True, False]
    assert await delete_session(store, fork, in_folder) == 1
    assert await list_existence(in_folder, shared) == [False]


async def test_file_referenced_in_another_team_remains(store: Store, in_folder: Attachments) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    red = await create_session(store, "s1", message_with_files(file), team_id="red")
    blue = await create_session(store, "s2", message_with_files(file), team_id="blue")
    assert await delete_session(store, red, in_folder) == 0
    assert await list_existence(in_folder, file) == [True]
    assert await delete_session(store, blue, in_folder) == 1


@pytest.mark.parametrize("user_id", [None, "local"])
async def test_session_without_user_belongs_to_local_user(
    store: Store, in_folder: Attachments, user_id: str | None
) -> None:
    own, shared = [await in_folder.put(LOCAL, "s1", "r", png()) for _ in range(2)]
    session = await create_session(store, "s1", message_with_files(own, shared), user_id=user_id)
    await create_session(store, "s2", message_with_files(shared), user_id=None if user_id else "local")
    assert await delete_session(store, session, in_folder) == 1
    assert await list_existence(in_folder, own, shared, owner=LOCAL) == [False, True]


async def test_delete_ignores_paths_of_other_owners(store: Store, in_folder: Attachments) -> None:
    bobs, anns = await in_folder.put(BOB, "b", "r", png()), await in_folder.put(ANN, "s1", "r", png())
    invalid = [
        bobs.path,
        bobs.path.replace("/bob/", "/ann/../bob/"),
        "agent-inputs/ann//x.png",
        "agent-inputs/ann/x.",
        "agent-inputs/ann/#",
        "nowhere",
    ]
    session = await create_session(store, "s1", message_with_files(anns, *invalid))
    assert await delete_session(store, session, in_folder) == 1
    assert await list_existence(in_folder, bobs, owner=BOB) == [True]


async def test_session_is_deleted_without_attachment_storage(store: Store) -> None:
    session = await create_session(store, "s1", message_with_files("agent-inputs/ann/s1/r/x.png"))
    assert await delete_session(store, session, None) == 0
    with pytest.raises(UnknownSessionError):
        await store.get_session("s1")


async def test_session_with_running_turn_is_not_deleted(store: Store, in_folder: Attachments) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    session = await create_session(store, "s1", message_with_files(file))
    async with store.turns.lease("s1"):
        with pytest.raises(ConflictError) as caught:
            await delete_session(store, session, in_folder)
    assert caught.value.code == "turn_in_flight"
    assert await list_existence(in_folder, file) == [True]
    assert await delete_session(store, session, in_folder) == 1


async def test_session_remains_if_files_cannot_be_deleted(
    store: Store, in_supabase: Attachments, supabase: SupabaseServer
) -> None:
    file = await in_supabase.put(ANN, "s1", "r", png())
    session = await create_session(store, "s1", message_with_files(file))
    supabase.responses["keep"] = web.Response()
    with pytest.raises(StorageError) as caught:
        await delete_session(store, session, in_supabase)
    assert caught.value.code == "attachments_left"
    assert str(caught.value).startswith("session s1: cannot delete its attachments, so the session is kept (")
    assert [row.message.metadata.attachments[0].path for row in await store.read("s1")] == [file.path]
    async with store.turns.lease("s1"):  # the lease was released
        pass
    del supabase.responses["keep"]
    assert await delete_session(store, session, in_supabase) == 1


async def test_session_changed_since_selection_is_not_deleted(store: Store, in_folder: Attachments) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    session = await create_session(store, "s1", message_with_files(file))
    since = session.updated_at
    assert await delete_session(store, session, in_folder, untouched_since=since) is None
    assert await list_existence(in_folder, file) == [True]
    later = since + timedelta(microseconds=1)
    assert await delete_session(store, session, in_folder, untouched_since=later) == 1


async def test_append_during_file_deletion_is_not_lost(
    store: Store, in_supabase: Attachments, supabase: SupabaseServer
) -> None:
    session = await create_session(store, "s1", message_with_files(await in_supabase.put(ANN, "s1", "r", png())))
    later = session.updated_at + timedelta(microseconds=1)

    class AppendingAttachments(Attachments):
        async def delete_all(self, owner: Owner, thread: str | None = None) -> int:
            await store.append("s1", text_message("wait"))
            return await in_supabase.delete_all(owner, thread)

    appending = AppendingAttachments(in_supabase._storage, in_supabase._urls)
    assert await delete_session(store, session, appending, untouched_since=later) is None
    assert (await store.get_session("s1")).last_seq == 2


async def test_delete_creates_no_folder_and_no_key(store: Store, tmp_path: Path) -> None:
    session = await create_session(
        store, "s1", message_with_files("agent-inputs/ann/s1/r/x.png", "agent-inputs/ann/t/r/x.png")
    )
    async with open_files((tmp_path / "files").as_uri()) as files:
        assert await delete_with_files(store, "s1", Owners.of(session), files) == 0
    assert list(tmp_path.iterdir()) == []


async def test_retain_continues_after_failed_file_deletion(
    in_supabase: Attachments, supabase: SupabaseServer, tmp_path: Path
) -> None:
    url = f"supabase://{supabase.url}/agent-files?scheme=http"
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY, "DRAGOMAN_SERVE_ATTACHMENTS": url}
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        await create_session(store, "s1", message_with_files(await in_supabase.put(ANN, "s1", "r", png())))
        await create_session(store, "s2")
    command = ("retain", "--older-than", "0s", "--yes")
    supabase.responses["keep"] = web.Response()
    result = await asyncio.to_thread(run, *command, "--json", store=tmp_path / "chats.db", env=environment)
    report = json.loads(result.stdout)
    assert ([row["id"] for row in report["sessions"]], report["attachments"]) == (["s2"], 0)
    assert [row["session_id"] for row in report["left"]] == ["s1"]
    assert "a deletion had no effect" in report["left"][0]["fault"]
    assert result.returncode == 2
    assert result.stderr.startswith("dragoman: 1 session not deleted, because their attachments could not be deleted")
    result = await asyncio.to_thread(run, *command, store=tmp_path / "chats.db", env=environment)
    assert result.stdout.startswith("s1  cannot delete its attachments, so the session is kept (")
    assert result.stdout.endswith("\ndeleted 0 sessions\n")
    del supabase.responses["keep"]
    result = await asyncio.to_thread(run, *command, store=tmp_path / "chats.db", env=environment)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "deleted 1 session with 1 attachment")
    assert supabase.objects == {}
