"""Long parts of the requests of gateway calls: once in a session, and gone with it. On every engine."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from dragoman.errors import CorruptDataError
from dragoman.store import Session, Store
from dragoman.store.gateway_calls import GatewayCall, NewPlace
from tests.store.messages import answer_message, text_message
from tests.store.test_retention import execute, query

TOOLS, OTHER = b"tools", b"other tools"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def record(store: Store, place: str, *parts: bytes, after: str | None = None, user_id: str = "ann") -> str:
    """Record a call with these parts; return its session."""
    now = store.clock()
    new = Session(id=f"sess_{store.new_id()}", user_id=user_id, created_at=now, updated_at=now)
    continues = await store.gateway.find([after.encode()]) if after is not None else None
    messages = text_message("hi", user_id=user_id), answer_message("yes", user_id=user_id)
    call = GatewayCall(
        session=new,
        continues=continues,
        messages=tuple(one.replace(id=store.new_id(), session_id=new.id) for one in messages),
        places=(NewPlace(hash=place.encode(), offset=2),),
        request_parts={digest(content): content for content in parts},
    )
    return (await store.gateway.record(call)).session_id


async def rows(store: Store) -> list[tuple[Any, ...]]:
    return [
        tuple(row) for row in await query(store, "SELECT session_id, seq, content FROM request_parts ORDER BY 1, 2")
    ]


async def test_part_is_stored_once_in_session(store: Store) -> None:
    session = await record(store, "a", TOOLS)
    assert await record(store, "b", TOOLS, OTHER, after="a") == session
    store.gateway._known_parts.clear()  # as after a restart
    assert await record(store, "c", TOOLS, after="b") == session
    assert await rows(store) == [(session, 2, TOOLS), (session, 4, OTHER)]
    other = await record(store, "d", TOOLS)
    assert await store.gateway.read_parts(other, [digest(TOOLS), digest(OTHER)]) == {digest(TOOLS): TOOLS}
    assert (await store.verify()).is_sound


async def test_parts_are_deleted_with_their_session(store: Store) -> None:
    first, second = await record(store, "a", TOOLS), await record(store, "b", TOOLS)
    await store.delete_session(first)
    assert await rows(store) == [(second, 2, TOOLS)]


@pytest.mark.parametrize(("own", "expected"), [(TOOLS, [(4, TOOLS)]), (OTHER, [(2, TOOLS), (4, OTHER)])])
async def test_fork_keeps_parts_of_shared_messages(store: Store, own: bytes, expected: list[tuple[int, bytes]]) -> None:
    parent = await record(store, "a", TOOLS)
    await record(store, "b", b"of the parent alone", after="a")
    fork = await record(store, "c", own, after="a")
    assert fork != parent
    await store.delete_session(parent)
    assert await rows(store) == [(fork, *row) for row in expected]
    assert (await store.verify()).is_sound


async def test_erased_user_leaves_no_part_in_fork_of_another_user(store: Store) -> None:
    session = await record(store, "a", TOOLS)
    await store.fork(session, user_id="bob")
    await store.erase_user("ann")
    assert await rows(store) == []
    assert (await store.verify()).is_sound


async def test_changed_part_is_detected_and_not_returned(store: Store) -> None:
    session = await record(store, "a", TOOLS)
    await execute(store, "UPDATE request_parts SET content = ?", OTHER)
    with pytest.raises(CorruptDataError, match="does not match its hash"):
        await store.gateway.read_parts(session, [digest(TOOLS)])
    (damage,) = (await store.verify()).damage
    assert (damage.session_id, damage.seq) == (session, 2)
    assert "part" in damage.what
