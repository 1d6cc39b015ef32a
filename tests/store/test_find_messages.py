"""Tests of lookups by time, client id, tool call, owner and attachment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dragoman.errors import DragomanError, UnknownMessageError, UnknownSessionError
from dragoman.message import Attachment, Message, MessageMetadata, Role, TextBlock
from dragoman.store import Owners, Store
from dragoman.store.tool_call_rows import CallInfo
from tests.store.messages import call_message, create_usage, result_message, text_message

NOON = datetime(2026, 3, 13, 12, tzinfo=UTC)
MOMENT_LATER = NOON + timedelta(microseconds=1_234_567)


def message_at(hours: int, **metadata: Any) -> Message:
    """Return a message created this many hours after noon."""
    created_at = NOON + timedelta(hours=hours)
    return Message("", "", Role.USER, (TextBlock(f"h{hours}"),), MessageMetadata(**metadata), created_at)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 64])
async def test_seq_before_returns_newest_message_before_time(store: Store, length: int) -> None:
    session = await store.create_session()
    await store.append(session.id, [message_at(2 * n) for n in range(length)])
    for hours in range(-1, 2 * length + 2):
        moment = NOON + timedelta(hours=hours)
        assert await store.seq_before(session.id, moment) == min(length, max(0, (hours + 1) // 2))


async def test_seq_before_includes_shared_messages(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [message_at(n) for n in range(6)])
    fork = await store.fork(session.id, 3)
    await store.append(fork.id, [message_at(10), message_at(11)])
    of_fork = await store.fork(fork.id, 4)
    assert [await store.seq_before(fork.id, NOON + timedelta(hours=h)) for h in (0, 2, 5, 11, 12)] == [0, 2, 3, 4, 5]
    assert await store.seq_before(of_fork.id, NOON + timedelta(hours=12)) == 4


async def test_seq_before_of_unordered_times_is_boundary(store: Store) -> None:
    session = await store.create_session()
    hours = [5, 1, 9, 2, 8, 3]
    await store.append(session.id, [message_at(n) for n in hours])
    seq = await store.seq_before(session.id, NOON + timedelta(hours=4))
    assert seq == 0 or hours[seq - 1] < 4
    assert seq == len(hours) or hours[seq] >= 4


async def test_seq_before_of_unknown_session_raises(store: Store) -> None:
    with pytest.raises(UnknownSessionError):
        await store.seq_before("nobody", NOON)


# --- client ids-------------------------------------------------------------------------------------------------------

UNUSUAL_IDS = ["msg-1", "100%", "a_b", "!", 'quo"te', "back\\slash", "图", "a:b.c"]


@pytest.mark.parametrize("wanted_id", UNUSUAL_IDS)
async def test_message_is_found_by_client_id(store: Store, wanted_id: str) -> None:
    session = await store.create_session()
    others = [client_id for client_id in (*UNUSUAL_IDS, "aXb", "100", "MSG-1") if client_id != wanted_id]
    await store.append(
        session.id, [message_at(n, message_id=client_id) for n, client_id in enumerate([*others, wanted_id])]
    )
    row = await store.find_message(session.id, wanted_id)
    assert (row.seq, row.message.metadata.message_id) == (len(others) + 1, wanted_id)
    assert (await store.find_message(session.id, row.message.id)).seq == row.seq


async def test_newest_client_id_wins_and_id_has_precedence(store: Store) -> None:
    session = await store.create_session()
    first, _ = await store.append(session.id, [message_at(0, message_id="m"), message_at(1, message_id="m")])
    assert (await store.find_message(session.id, "m")).seq == 2
    await store.append(session.id, message_at(2, message_id=first.message.id))
    assert (await store.find_message(session.id, first.message.id)).seq == 1


async def test_client_id_in_nested_metadata_is_ignored(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, message_at(0, extra={"inner": {"message_id": "m"}}))
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "m")


async def test_client_id_is_found_in_shared_messages_only(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [message_at(0, message_id="shared"), message_at(1, message_id="behind")])
    fork = await store.fork(session.id, 1)
    assert (await store.find_message(fork.id, "shared")).seq == 1
    with pytest.raises(UnknownMessageError):
        await store.find_message(fork.id, "behind")


async def test_client_id_with_nul_is_rejected(store: Store) -> None:
    session = await store.create_session()
    with pytest.raises(DragomanError):
        await store.find_message(session.id, "a\0b")


async def test_find_calls_returns_tool_results_and_durations(store: Store) -> None:
    session = await store.create_session()
    messages = [
        text_message("x"),
        call_message("tu_1", "tu_2").replace(created_at=NOON),
        result_message("tu_1").replace(created_at=MOMENT_LATER),
    ]
    await store.append(session.id, messages)
    fork = await store.fork(session.id, 3)
    expected = {"tu_1": CallInfo("look", 3, 1_235), "tu_2": CallInfo("look", None, None)}
    assert await store.find_calls(fork.id, ["tu_1", "tu_2", "tu_9"]) == expected
    assert await store.find_calls(fork.id, []) == {}


# --- owners ----------------------------------------------------------------------------------------------------------


async def test_sessions_are_filtered_by_owner_and_team(store: Store) -> None:
    owners_and_teams = [("ann", "red"), ("ann", "blue"), ("ann", None), ("bob", "red"), (None, None), ("local", None)]
    session_ids = {
        owner_and_team: (await store.create_session(user_id=owner_and_team[0], team_id=owner_and_team[1])).id
        for owner_and_team in owners_and_teams
    }

    async def list_ids(owners: Owners) -> set[str]:
        return {session.id for session in await store.list_sessions_of(owners)}

    assert await list_ids(Owners("ann", "red")) == {session_ids["ann", "red"]}
    assert await list_ids(Owners("ann")) == {session_ids["ann", None]}
    assert await list_ids(Owners("eve", "red")) == set()
    assert await list_ids(Owners("local", is_everywhere=True)) == {session_ids[None, None], session_ids["local", None]}


async def test_sessions_are_listed_in_pages(store: Store) -> None:
    created = [(await store.create_session(user_id="ann")).id for _ in range(5)]
    listed: list[str] = []
    before = None
    while page := await store.list_sessions_of(Owners("ann"), before=before, limit=2):
        listed.extend(session.id for session in page)
        before = (page[-1].updated_at, page[-1].id)
    assert listed == created[::-1]


async def test_search_by_owner_includes_forks(store: Store) -> None:
    anns = await store.create_session(user_id="ann", team_id="red")
    bobs = await store.create_session(user_id="bob")
    await store.append(anns.id, [text_message("copper one"), text_message("copper two")])
    await store.append(
        bobs.id, [text_message("copper three", user_id="ann", team_id="red"), text_message("copper four")]
    )
    fork = await store.fork(bobs.id, 1, user_id="ann")
    await store.change_session(fork.id, team_id="red")

    async def search_hits(owners: Owners, **filters: Any) -> set[tuple[str, str]]:
        hits = await store.search("copper", owners=owners, **filters)
        return {(hit.session_id, hit.snippet.split()[-1]) for hit in hits}

    assert await search_hits(Owners("ann", "red")) == {(anns.id, "one"), (anns.id, "two"), (fork.id, "three")}
    assert await search_hits(Owners("ann")) == set()
    assert await search_hits(Owners("bob")) == {(bobs.id, "three"), (bobs.id, "four")}
    assert await search_hits(Owners("ann", "red"), session_id=fork.id) == {(fork.id, "three")}
    assert await search_hits(Owners("ann", "red"), session_id=bobs.id) <= {(bobs.id, "three")}


async def test_totals_are_filtered_by_owner(store: Store) -> None:
    for user, team, cost in (("ann", "red", "1"), ("ann", None, "2"), (None, None, "4"), ("local", None, "8")):
        session = await store.create_session(user_id=user, team_id=team)
        usage = create_usage(1, 1, cost)
        await store.append(
            session.id, text_message("x", Role.ASSISTANT, model="m", usage=usage, user_id=user, team_id=team)
        )
    await store.delete_session(session.id)

    async def read_costs(owners: Owners) -> list[str]:
        return [str(total.cost_usd) for total in await store.costs.totals("model", owners=owners)]

    assert await read_costs(Owners("ann", "red")) == ["1"]
    assert await read_costs(Owners("ann")) == ["2"]
    assert await read_costs(Owners("local", is_everywhere=True)) == ["12"]
    assert await read_costs(Owners("eve")) == []


# --- attachments-------------------------------------------------------------------------------------------------------


def message_with_files(*paths: str) -> Message:
    return message_at(0, user_message_attachments=tuple(Attachment("b", path, "image/png") for path in paths))


async def test_refs_are_exclusive_or_shared(store: Store) -> None:
    first = await store.create_session(user_id="ann")
    await store.append(first.id, [message_with_files("shared"), message_with_files("own", "too"), text_message("none")])
    fork = await store.fork(first.id, 1)
    other = await store.create_session(user_id="ann")
    await store.append(other.id, [message_with_files("other"), message_with_files("too")])
    foreign = await store.create_session(user_id="bob")
    await store.append(foreign.id, message_with_files("own"))
    refs = await store.find_attachment_refs(first.id, Owners("ann"), "oth")
    assert refs.exclusive == {("b", "own")}
    assert refs.shared == {("b", "other"), ("b", "too")}
    refs = await store.find_attachment_refs(first.id, Owners("ann"), "nowhere/")
    assert (refs.exclusive, refs.shared) == ({("b", "own")}, {("b", "too")})
    refs = await store.find_attachment_refs(first.id, Owners("ann"), "sha")  # shared with the fork
    assert (refs.exclusive, refs.shared) == ({("b", "own")}, {("b", "shared"), ("b", "too")})
    assert (await store.find_attachment_refs(fork.id, Owners("ann"), "x")).exclusive == set()
    await store.delete_session(first.id)
    assert (await store.find_attachment_refs(fork.id, Owners("ann"), "x")).exclusive == {("b", "shared")}
    assert (await store.verify()).is_sound
