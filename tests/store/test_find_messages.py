"""Things are found by what others know of them: by a moment, by a client's name, by whose they are."""

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


def at(hours: int, **metadata: Any) -> Message:
    """Something that was said so many hours after noon."""
    when = NOON + timedelta(hours=hours)
    return Message("", "", Role.USER, (TextBlock(f"h{hours}"),), MessageMetadata(**metadata), when)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 64])
async def test_the_newest_message_before_a_moment_is_found(store: Store, length: int) -> None:
    session = await store.create_session()
    await store.append(session.id, [at(2 * n) for n in range(length)])
    for hours in range(-1, 2 * length + 2):
        moment = NOON + timedelta(hours=hours)
        assert await store.seq_before(session.id, moment) == min(length, max(0, (hours + 1) // 2))


async def test_what_a_fork_shares_is_looked_at_as_well(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [at(n) for n in range(6)])
    fork = await store.fork(session.id, 3)
    await store.append(fork.id, [at(10), at(11)])
    of_fork = await store.fork(fork.id, 4)
    assert [await store.seq_before(fork.id, NOON + timedelta(hours=h)) for h in (0, 2, 5, 11, 12)] == [0, 2, 3, 4, 5]
    assert await store.seq_before(of_fork.id, NOON + timedelta(hours=12)) == 4


async def test_where_times_are_out_of_order_it_is_a_place_between_before_and_after(store: Store) -> None:
    session = await store.create_session()
    hours = [5, 1, 9, 2, 8, 3]
    await store.append(session.id, [at(n) for n in hours])
    place = await store.seq_before(session.id, NOON + timedelta(hours=4))
    assert place == 0 or hours[place - 1] < 4
    assert place == len(hours) or hours[place] >= 4


async def test_a_session_that_is_not_there_has_no_places(store: Store) -> None:
    with pytest.raises(UnknownSessionError):
        await store.seq_before("nobody", NOON)


# --- names -----------------------------------------------------------------------------------------------------------

ODD = ["msg-1", "100%", "a_b", "!", 'quo"te', "back\\slash", "图", "a:b.c"]


@pytest.mark.parametrize("name", ODD)
async def test_a_message_is_found_by_the_name_that_its_client_gave_it(store: Store, name: str) -> None:
    session = await store.create_session()
    others = [one for one in (*ODD, "aXb", "100", "MSG-1") if one != name]
    await store.append(session.id, [at(n, message_id=one) for n, one in enumerate([*others, name])])
    row = await store.find_message(session.id, name)
    assert (row.seq, row.message.metadata.message_id) == (len(others) + 1, name)
    assert (await store.find_message(session.id, row.message.id)).seq == row.seq


async def test_the_newest_of_one_name_is_meant_and_an_id_goes_before_it(store: Store) -> None:
    session = await store.create_session()
    first, _ = await store.append(session.id, [at(0, message_id="m"), at(1, message_id="m")])
    assert (await store.find_message(session.id, "m")).seq == 2
    await store.append(session.id, at(2, message_id=first.message.id))
    assert (await store.find_message(session.id, first.message.id)).seq == 1


async def test_a_name_inside_of_what_an_application_keeps_is_none(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, at(0, extra={"inner": {"message_id": "m"}}))
    with pytest.raises(UnknownMessageError):
        await store.find_message(session.id, "m")


async def test_a_name_is_looked_for_in_what_a_fork_shares_and_not_behind_it(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [at(0, message_id="shared"), at(1, message_id="behind")])
    fork = await store.fork(session.id, 1)
    assert (await store.find_message(fork.id, "shared")).seq == 1
    with pytest.raises(UnknownMessageError):
        await store.find_message(fork.id, "behind")


async def test_a_name_with_a_nul_is_nobodys(store: Store) -> None:
    session = await store.create_session()
    with pytest.raises(DragomanError):
        await store.find_message(session.id, "a\0b")


async def test_calls_are_told_by_the_tools_that_they_are_of(store: Store) -> None:
    session = await store.create_session()
    made = [
        text_message("x"),
        call_message("tu_1", "tu_2").replace(created_at=NOON),
        result_message("tu_1").replace(created_at=MOMENT_LATER),
    ]
    await store.append(session.id, made)
    fork = await store.fork(session.id, 3)
    wanted = {"tu_1": CallInfo("look", 3, 1_235), "tu_2": CallInfo("look", None, None)}
    assert await store.find_calls(fork.id, ["tu_1", "tu_2", "tu_9"]) == wanted
    assert await store.find_calls(fork.id, []) == {}


# --- owners ----------------------------------------------------------------------------------------------------------


async def test_sessions_are_those_of_a_user_in_a_team(store: Store) -> None:
    whose = [("ann", "red"), ("ann", "blue"), ("ann", None), ("bob", "red"), (None, None), ("local", None)]
    made = {one: (await store.create_session(user_id=one[0], team_id=one[1])).id for one in whose}

    async def found(owners: Owners) -> set[str]:
        return {session.id for session in await store.list_sessions_of(owners)}

    assert await found(Owners("ann", "red")) == {made["ann", "red"]}
    assert await found(Owners("ann")) == {made["ann", None]}
    assert await found(Owners("eve", "red")) == set()
    assert await found(Owners("local", is_everywhere=True)) == {made[None, None], made["local", None]}


async def test_sessions_come_in_pages(store: Store) -> None:
    made = [(await store.create_session(user_id="ann")).id for _ in range(5)]
    seen: list[str] = []
    before = None
    while page := await store.list_sessions_of(Owners("ann"), before=before, limit=2):
        seen.extend(session.id for session in page)
        before = (page[-1].updated_at, page[-1].id)
    assert seen == made[::-1]


async def test_a_search_for_owners_finds_their_sessions_and_what_their_forks_share(store: Store) -> None:
    anns = await store.create_session(user_id="ann", team_id="red")
    bobs = await store.create_session(user_id="bob")
    await store.append(anns.id, [text_message("copper one"), text_message("copper two")])
    await store.append(
        bobs.id, [text_message("copper three", user_id="ann", team_id="red"), text_message("copper four")]
    )
    fork = await store.fork(bobs.id, 1, user_id="ann")
    await store.change_session(fork.id, team_id="red")

    async def found(owners: Owners, **narrowed: Any) -> set[tuple[str, str]]:
        hits = await store.search("copper", owners=owners, **narrowed)
        return {(hit.session_id, hit.snippet.split()[-1]) for hit in hits}

    assert await found(Owners("ann", "red")) == {(anns.id, "one"), (anns.id, "two"), (fork.id, "three")}
    assert await found(Owners("ann")) == set()
    assert await found(Owners("bob")) == {(bobs.id, "three"), (bobs.id, "four")}
    assert await found(Owners("ann", "red"), session_id=fork.id) == {(fork.id, "three")}
    assert await found(Owners("ann", "red"), session_id=bobs.id) <= {(bobs.id, "three")}


async def test_totals_are_those_of_owners(store: Store) -> None:
    for user, team, cost in (("ann", "red", "1"), ("ann", None, "2"), (None, None, "4"), ("local", None, "8")):
        session = await store.create_session(user_id=user, team_id=team)
        usage = create_usage(1, 1, cost)
        await store.append(
            session.id, text_message("x", Role.ASSISTANT, model="m", usage=usage, user_id=user, team_id=team)
        )
    await store.delete_session(session.id)

    async def spent(owners: Owners) -> list[str]:
        return [str(one.cost_usd) for one in await store.costs.totals("model", owners=owners)]

    assert await spent(Owners("ann", "red")) == ["1"]
    assert await spent(Owners("ann")) == ["2"]
    assert await spent(Owners("local", is_everywhere=True)) == ["12"]
    assert await spent(Owners("eve")) == []


# --- files -----------------------------------------------------------------------------------------------------------


def showing(*paths: str) -> Message:
    return at(0, user_message_attachments=tuple(Attachment("b", path, "image/png") for path in paths))


async def test_files_that_only_one_session_names_are_told_from_those_of_others(store: Store) -> None:
    first = await store.create_session(user_id="ann")
    await store.append(first.id, [showing("shared"), showing("own", "too"), text_message("none")])
    fork = await store.fork(first.id, 1)
    other = await store.create_session(user_id="ann")
    await store.append(other.id, [showing("other"), showing("too")])
    foreign = await store.create_session(user_id="bob")
    await store.append(foreign.id, showing("own"))
    named = await store.find_attachment_refs(first.id, Owners("ann"), "oth")
    assert named.exclusive == {("b", "own")}
    assert named.shared == {("b", "other"), ("b", "too")}
    named = await store.find_attachment_refs(first.id, Owners("ann"), "nowhere/")
    assert (named.exclusive, named.shared) == ({("b", "own")}, {("b", "too")})
    named = await store.find_attachment_refs(first.id, Owners("ann"), "sha")  # which the fork shares
    assert (named.exclusive, named.shared) == ({("b", "own")}, {("b", "shared"), ("b", "too")})
    assert (await store.find_attachment_refs(fork.id, Owners("ann"), "x")).exclusive == set()
    await store.delete_session(first.id)
    assert (await store.find_attachment_refs(fork.id, Owners("ann"), "x")).exclusive == {("b", "shared")}
    assert (await store.verify()).is_sound
