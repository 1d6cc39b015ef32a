"""Sessions found by a part of their id, as a person types it."""

from __future__ import annotations

from dragoman.store import Store


async def test_a_session_is_found_by_a_beginning_or_an_end_of_its_id(store: Store) -> None:
    made = await store.create_session()
    other = await store.create_session("of-my-own")
    for part in (made.id, made.id[:20], made.id[5:20], made.id[-6:], made.id[-6:].lower()):
        assert [session.id for session in await store.find_sessions(part)] == [made.id]
    assert [session.id for session in await store.find_sessions("OF-MY")] == [other.id]
    assert [session.id for session in await store.find_sessions("own")] == [other.id]


async def test_the_middle_of_an_id_finds_nothing_and_no_sign_in_it_is_special(store: Store) -> None:
    await store.create_session("of-my-own")
    for part in ("my", "%", "_", "of%", "o'r", "of-my-own-and-more"):
        assert await store.find_sessions(part) == []


async def test_sessions_that_fit_alike_come_newest_first_and_not_more_than_asked_for(store: Store) -> None:
    made = [(await store.create_session(f"like-{number}")).id for number in range(5)]
    await store.rename_session(made[2], "changed last")
    found = [session.id for session in await store.find_sessions("like-", limit=3)]
    assert found[0] == made[2]
    assert len(found) == 3
