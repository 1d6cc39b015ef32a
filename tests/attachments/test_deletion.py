"""A session goes with the files that only it names, in every storage; if they cannot go, it stays."""

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
from tests.store.messages import said

LOCAL = Owner("local")


@pytest.fixture
def store(runner: asyncio.Runner) -> Iterator[Store]:
    """A store in memory."""
    opened = open_store("memory:")
    runner.run(opened.open())
    yield opened
    runner.run(opened.close())


def showing(*files: StoredFile | str) -> Message:
    """A message that names files."""
    named = [("agent-files", one) if isinstance(one, str) else (one.bucket, one.path) for one in files]
    return said("look", user_message_attachments=tuple(Attachment(*one, "image/png") for one in named))


async def talk(store: Store, name: str, *messages: Message, user_id: str | None = "ann", **given: Any) -> Session:
    await store.create_session(name, user_id=user_id, **given)
    await store.append(name, messages or [said("hello")])
    return await store.get_session(name)


async def deleted(store: Store, session: Session, files: Attachments | None, **how: Any) -> int | None:
    return await delete_with_files(store, session.id, Owners.of(session), files, **how)


async def are_there(attachments: Attachments, *files: StoredFile, owner: Owner = ANN) -> list[bool]:
    found = []
    for one in files:
        try:
            await attachments.read(one.bucket, one.path, owner)
            found.append(True)
        except UnknownAttachmentError:
            found.append(False)
    return found


async def test_a_session_goes_with_what_was_uploaded_for_it_and_what_only_it_names(
    store: Store, attachments: Attachments
) -> None:
    sent, unsent, unsorted = [await attachments.put(ANN, to, "r", png()) for to in ("s1", "s1", "elsewhere")]
    of_other, shared = [await attachments.put(ANN, to, "r", png()) for to in ("s2", "elsewhere")]
    bobs = await attachments.put(BOB, "s1", "r", png())
    session = await talk(store, "s1", showing(sent, unsorted, shared), team_id="infra")
    await talk(store, "s2", showing(of_other, shared), team_id="infra")
    assert await deleted(store, session, attachments) == 3
    assert await are_there(attachments, sent, unsent, unsorted, of_other, shared) == [False] * 3 + [True] * 2
    assert await are_there(attachments, bobs, owner=BOB) == [True]
    with pytest.raises(UnknownSessionError):
        await deleted(store, session, attachments)


async def test_a_file_stays_until_the_last_session_that_names_it_goes(store: Store, in_folder: Attachments) -> None:
    shared, behind = [await in_folder.put(ANN, "s1", "r", png()) for _ in range(2)]
    session = await talk(store, "s1", showing(shared), showing(behind))
    fork = await store.fork("s1", 1)
    assert await deleted(store, session, in_folder) == 1
    assert await are_there(in_folder, shared, behind) == [True, False]
    assert await deleted(store, fork, in_folder) == 1
    assert await are_there(in_folder, shared) == [False]


async def test_a_file_that_its_user_shows_in_another_team_stays(store: Store, in_folder: Attachments) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    red = await talk(store, "s1", showing(file), team_id="red")
    blue = await talk(store, "s2", showing(file), team_id="blue")
    assert await deleted(store, red, in_folder) == 0
    assert await are_there(in_folder, file) == [True]
    assert await deleted(store, blue, in_folder) == 1


@pytest.mark.parametrize("user_id", [None, "local"])
async def test_what_is_nobodys_is_that_of_the_one_person_of_this_machine(
    store: Store, in_folder: Attachments, user_id: str | None
) -> None:
    mine, shared = [await in_folder.put(LOCAL, "s1", "r", png()) for _ in range(2)]
    session = await talk(store, "s1", showing(mine, shared), user_id=user_id)
    await talk(store, "s2", showing(shared), user_id=None if user_id else "local")
    assert await deleted(store, session, in_folder) == 1
    assert await are_there(in_folder, mine, shared, owner=LOCAL) == [False, True]


async def test_what_a_message_names_that_can_be_no_file_of_its_owner_is_left_alone(
    store: Store, in_folder: Attachments
) -> None:
    bobs, anns = await in_folder.put(BOB, "b", "r", png()), await in_folder.put(ANN, "s1", "r", png())
    odd = [
        bobs.path,
        bobs.path.replace("/bob/", "/ann/../bob/"),
        "agent-inputs/ann//x.png",
        "agent-inputs/ann/x.",
        "agent-inputs/ann/#",
        "nowhere",
    ]
    session = await talk(store, "s1", showing(anns, *odd))
    assert await deleted(store, session, in_folder) == 1
    assert await are_there(in_folder, bobs, owner=BOB) == [True]


async def test_without_a_place_for_files_the_session_goes_alone(store: Store) -> None:
    session = await talk(store, "s1", showing("agent-inputs/ann/s1/r/x.png"))
    assert await deleted(store, session, None) == 0
    with pytest.raises(UnknownSessionError):
        await store.get_session("s1")


async def test_a_session_in_which_a_turn_runs_stays_with_its_files(store: Store, in_folder: Attachments) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    session = await talk(store, "s1", showing(file))
    async with store.turns.lease("s1"):
        with pytest.raises(ConflictError) as caught:
            await deleted(store, session, in_folder)
    assert caught.value.code == "turn_in_flight"
    assert await are_there(in_folder, file) == [True]
    assert await deleted(store, session, in_folder) == 1


async def test_a_session_whose_files_cannot_be_deleted_stays_and_is_deleted_later(
    store: Store, in_supabase: Attachments, supabase: SupabaseServer
) -> None:
    file = await in_supabase.put(ANN, "s1", "r", png())
    session = await talk(store, "s1", showing(file))
    supabase.answers["keep"] = web.Response()
    with pytest.raises(StorageError) as caught:
        await deleted(store, session, in_supabase)
    assert caught.value.code == "attachments_left"
    assert str(caught.value).startswith("session s1: cannot delete its attachments, so the session is kept (")
    assert [row.message.metadata.attachments[0].path for row in await store.read("s1")] == [file.path]
    async with store.turns.lease("s1"):  # which nobody holds any more
        pass
    del supabase.answers["keep"]
    assert await deleted(store, session, in_supabase) == 1


async def test_a_session_in_which_something_happened_since_stays_with_its_files(
    store: Store, in_folder: Attachments
) -> None:
    file = await in_folder.put(ANN, "s1", "r", png())
    session = await talk(store, "s1", showing(file))
    since = session.updated_at
    assert await deleted(store, session, in_folder, untouched_since=since) is None
    assert await are_there(in_folder, file) == [True]
    later = since + timedelta(microseconds=1)
    assert await deleted(store, session, in_folder, untouched_since=later) == 1


async def test_what_is_said_while_files_are_deleted_is_not_lost(
    store: Store, in_supabase: Attachments, supabase: SupabaseServer
) -> None:
    session = await talk(store, "s1", showing(await in_supabase.put(ANN, "s1", "r", png())))
    later = session.updated_at + timedelta(microseconds=1)

    class Talking(Attachments):
        async def delete_all(self, owner: Owner, thread: str | None = None) -> int:
            await store.append("s1", said("wait"))
            return await in_supabase.delete_all(owner, thread)

    talking = Talking(in_supabase._storage, in_supabase._urls)
    assert await deleted(store, session, talking, untouched_since=later) is None
    assert (await store.get_session("s1")).last_seq == 2


async def test_who_only_deletes_makes_no_folder_and_no_key(store: Store, tmp_path: Path) -> None:
    session = await talk(store, "s1", showing("agent-inputs/ann/s1/r/x.png", "agent-inputs/ann/t/r/x.png"))
    async with open_files((tmp_path / "files").as_uri()) as files:
        assert await delete_with_files(store, "s1", Owners.of(session), files) == 0
    assert list(tmp_path.iterdir()) == []


async def test_retaining_goes_on_behind_a_session_whose_files_cannot_be_deleted(
    in_supabase: Attachments, supabase: SupabaseServer, tmp_path: Path
) -> None:
    place = f"supabase://{supabase.url}/agent-files?scheme=http"
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY, "DRAGOMAN_SERVE_ATTACHMENTS": place}
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as kept:
        await talk(kept, "s1", showing(await in_supabase.put(ANN, "s1", "r", png())))
        await talk(kept, "s2")
    how = ("retain", "--older-than", "0s", "--yes")
    supabase.answers["keep"] = web.Response()
    told = await asyncio.to_thread(run, *how, "--json", store=tmp_path / "chats.db", env=environment)
    found = json.loads(told.stdout)
    assert ([one["id"] for one in found["sessions"]], found["attachments"]) == (["s2"], 0)
    assert [one["session_id"] for one in found["left"]] == ["s1"]
    assert "a deletion had no effect" in found["left"][0]["fault"]
    assert told.returncode == 2
    assert told.stderr.startswith("dragoman: 1 session not deleted, because their attachments could not be deleted")
    told = await asyncio.to_thread(run, *how, store=tmp_path / "chats.db", env=environment)
    assert told.stdout.startswith("s1  cannot delete its attachments, so the session is kept (")
    assert told.stdout.endswith("\ndeleted 0 sessions\n")
    del supabase.answers["keep"]
    told = await asyncio.to_thread(run, *how, store=tmp_path / "chats.db", env=environment)
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "deleted 1 session with 1 attachment")
    assert supabase.kept == {}
