"""Tests of API keys on every engine."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dragoman.errors import ConflictError, UnknownNameError
from dragoman.store import ApiKey, Store
from tests.store.conftest import Clock


async def test_key_is_found_by_public_id(store: Store, clock: Clock) -> None:
    store.clock = clock
    expires = clock() + timedelta(days=90)
    created = await store.keys.create(
        "8fK2mQ0x",
        b"\x00hash\xff",
        user_id="ada",
        team_id="blue",
        name="laptop",
        scopes=("chat", "mail"),
        expires_at=expires,
    )
    assert await store.keys.find("8fK2mQ0x") == created
    assert created == ApiKey(
        public_id="8fK2mQ0x",
        secret_hash=b"\x00hash\xff",
        name="laptop",
        user_id="ada",
        team_id="blue",
        scopes=("chat", "mail"),
        created_at=clock(),
        expires_at=expires,
    )
    assert await store.keys.find("8fK2mQ0y") is None


async def test_duplicate_public_id_is_conflict(store: Store) -> None:
    await store.keys.create("same", b"1", user_id="ada")
    with pytest.raises(ConflictError):
        await store.keys.create("same", b"2", user_id="bob")
    found = await store.keys.find("same")
    assert found is not None
    assert found.user_id == "ada"


async def test_key_is_valid_until_expired_or_revoked(store: Store, clock: Clock) -> None:
    store.clock = clock
    key = await store.keys.create("one", b"1", user_id="ada", expires_at=clock() + timedelta(hours=1))
    assert key.is_valid(clock())
    assert not key.is_valid(clock() + timedelta(hours=1))
    revoked = await store.keys.revoke("one")
    assert not revoked.is_valid(clock())
    clock.move(hours=1)
    assert (await store.keys.revoke("one")).revoked_at == revoked.revoked_at
    with pytest.raises(UnknownNameError, match="two"):
        await store.keys.revoke("two")


async def test_keys_are_listed_by_age_and_user(store: Store, clock: Clock) -> None:
    store.clock = clock
    for number, user in enumerate(("bob", "ada", "bob")):
        await store.keys.create(f"key{number}", b"1", user_id=user)
        clock.move(seconds=1)
    assert [key.public_id for key in await store.keys.list()] == ["key0", "key1", "key2"]
    assert [key.public_id for key in await store.keys.list(user_id="bob")] == ["key0", "key2"]


async def test_last_use_never_decreases(store: Store, clock: Clock) -> None:
    store.clock = clock
    await store.keys.create("one", b"1", user_id="ada")
    await store.keys.touch("one")
    first_use = clock()
    clock.move(hours=-1)
    await store.keys.touch("one")
    found = await store.keys.find("one")
    assert found is not None
    assert found.last_used_at == first_use


async def test_erasure_deletes_keys_of_user(store: Store) -> None:
    await store.keys.create("one", b"1", user_id="ada")
    await store.keys.create("two", b"1", user_id="bob")
    await store.erase_user("ada")
    assert [key.public_id for key in await store.keys.list()] == ["two"]


def test_repr_does_not_contain_hash(clock: Clock) -> None:
    key = ApiKey(public_id="one", secret_hash=b"canary", user_id="ada", created_at=clock())
    assert "canary" not in repr(key)
