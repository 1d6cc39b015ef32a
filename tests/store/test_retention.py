"""Deletion, retention, erasure of a person, and size reports, on every engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import CorruptDataError, DragomanError, InputError, StorageError, UnknownSessionError
from dragoman.message import (
    Attachment,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    Role,
    TextBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.store import Row, Session, Store
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import answer_message, call_message, message, result_message, text_message

LARGE = "the whole report, at length. " * 1_000
TABLES = (
    "messages",
    "tool_calls",
    "tool_ids",
    "usage",
    "idempotency",
    "leases",
    "blob_refs",
    "attachment_refs",
    "search",
)


async def ask(store: Store, sql: str, *arguments: Any) -> Any:
    """The rows that a statement gives."""

    def asked() -> Any:
        return (yield sql, arguments)

    return await store._read(asked())


async def change(store: Store, sql: str, *arguments: Any) -> None:
    """Run a statement behind the store's back."""

    def asked() -> Any:
        yield sql, arguments

    await store._write(asked())


async def history(store: Store, session_id: str) -> list[Row]:
    return [row async for row in store.history(session_id)]


def texts(rows: Sequence[Row]) -> list[str]:
    return [block.text for row in rows for block in row.message.content if isinstance(block, TextBlock)]


def paid(text: str, cost: str, **metadata: Any) -> Message:
    usage = Usage(input_tokens=3, output_tokens=4, cost_usd=Decimal(cost), pricing_version="1", latency_ms=1)
    return answer_message(text, usage=usage, model="openai:gpt-6", provider="openai", **metadata)


async def everything(store: Store, **session: Any) -> Session:
    """A session that has a row in every table."""
    made = await store.create_session(**session)
    await store.append(made.id, [text_message("hello"), paid("hi", "0.10"), call_message("tu_1")], idempotency_key="k")
    file = Attachment("agent-files", "agent-inputs/a.png", "image/png")
    await store.append(made.id, [result_message("tu_1"), text_message(LARGE, user_message_attachments=file)])
    await store.save_tool_ids(made.id, [("openai", "tu_1", "call_1")])
    await store.turns.acquire(made.id, "me", 0)
    await store.search("hello")
    return made


# --- deleting --------------------------------------------------------------------------------------------------------


async def test_of_a_session_that_is_deleted_nothing_is_left_but_what_it_cost(store: Store) -> None:
    session = await everything(store, user_id="ann")
    assert all([(await ask(store, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES])
    await store.delete_session(session.id)
    assert [(await ask(store, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES] == [0] * len(TABLES)
    assert await store.list_sessions() == []
    assert await store.search("hello") == []
    with pytest.raises(UnknownSessionError):
        await store.read(session.id)
    with pytest.raises(UnknownSessionError):
        await store.delete_session(session.id)
    (total,) = await store.costs.totals("user")
    assert (total.group, total.messages, total.cost_usd, total.output_tokens) == (None, 1, Decimal("0.10"), 4)
    assert [one.group for one in await store.costs.totals("session")] == [None]


async def test_a_session_of_a_deleted_one_s_id_may_be_made_anew(store: Store) -> None:
    session = await everything(store)
    await store.delete_session(session.id)
    await store.create_session(session.id)
    assert await store.read(session.id) == []


@pytest.mark.parametrize("at", [[5, 3, 3, 0], [2], [0, 0], [1, 5]], ids=str)
async def test_forks_of_a_session_that_is_deleted_read_what_they_read_before(store: Store, at: list[int]) -> None:
    session = await everything(store)
    forks = [await store.fork(session.id, place) for place in at]
    for fork in forks:
        await store.append(
            fork.id,
            [call_message("tu_1" if fork is forks[0] else "tu_2"), result_message("tu_2"), result_message("tu_1")],
        )
        await store.save_tool_ids(fork.id, [("openai", "tu_2", fork.id)])
    deeper = [await store.fork(fork.id) for fork in forks]
    before = [(await history(store, one.id), await calls(store, one.id)) for one in (*forks, *deeper)]
    await store.delete_session(session.id)
    after = [(await history(store, one.id), await calls(store, one.id)) for one in (*forks, *deeper)]
    assert after == before
    assert (session.id in {row.message.session_id for row in before[0][0]}) == (at[0] > 0)
    for fork, place in zip(forks, at, strict=True):
        assert ("openai", "tu_1", "call_1") in await store.tool_ids(fork.id) or place < max(at) or place == 0
        assert len(await store.search("hello", session_id=fork.id)) == (place > 0)
        if place > 0:
            assert (await store.get_message(fork.id, before[0][0][0].message.id)).seq == 1
        assert [row.seq for row in await history(store, fork.id)] == list(range(1, place + 4))


async def calls(store: Store, session_id: str) -> list[tuple[Any, ...]]:
    found = await store.tool_calls(session_id)
    return [(call.id, call.status, call.seq, call.result_seq, call.message_id) for call in found]


async def test_a_chain_of_forks_outlives_every_link(store: Store) -> None:
    chain = [await everything(store)]
    for number in range(3):
        chain.append(await store.fork(chain[-1].id))
        await store.append(chain[-1].id, [text_message(f"link {number}"), text_message(LARGE)])
    last = chain.pop()
    before = await history(store, last.id)
    for session in (chain[1], chain[0], chain[2]):
        await store.delete_session(session.id)
        assert await history(store, last.id) == before
    await store.append(last.id, text_message("on we go"))
    assert [row.seq for row in await history(store, last.id)] == list(range(1, len(before) + 2))


async def test_what_a_fork_shares_is_known_by_its_ids(store: Store) -> None:
    session = await everything(store)
    fork = await store.fork(session.id)
    first = (await store.read(session.id))[0].message
    rows = await store.append(fork.id, first.replace(session_id=fork.id))
    assert [row.seq for row in rows] == [1]
    assert (await store.get_session(fork.id)).last_seq == 5


async def test_a_damaged_message_that_is_handed_on_is_still_damaged(store: Store) -> None:
    session = await everything(store)
    fork = await store.fork(session.id)
    await change(store, "UPDATE messages SET content_json = replace(content_json, 'hello', 'hallo') WHERE seq = 1")
    await store.delete_session(session.id)
    with pytest.raises(CorruptDataError):
        await store.read(fork.id)


# --- retention -------------------------------------------------------------------------------------------------------


async def test_sessions_that_nobody_has_touched_for_long_are_deleted(store: Store, clock: Clock) -> None:
    store.clock = clock
    old, other, running, young = [await store.create_session(user_id=who) for who in ("ann", "bob", "ann", "ann")]
    clock.move(days=31)
    await store.append(young.id, text_message("still here"))
    await store.turns.acquire(running.id, "me", 60)
    month = timedelta(days=30)
    assert await store.retain(month, user_id="ann", dry_run=True) == [old]
    assert await store.get_session(old.id) == old
    assert await store.retain(month, user_id="ann") == [old]
    assert await store.retain(month) == [other]
    assert await store.retain(month) == []
    assert {session.id for session in await store.list_sessions()} == {running.id, young.id}


async def test_who_holds_a_session_deletes_it_only_while_it_is_old_and_nobody_else_holds_it(
    store: Store, clock: Clock
) -> None:
    store.clock = clock
    old, young = await store.create_session(), await store.create_session()
    clock.move(days=31)
    await store.append(young.id, text_message("still here"))
    month_ago = clock() - timedelta(days=30)
    for session in (old, young):
        await store.turns.acquire(session.id, "me", 60)
    assert not await store.delete_if_inactive(old.id, month_ago, "another")
    assert not await store.delete_if_inactive(young.id, month_ago, "me")
    assert await store.delete_if_inactive(old.id, month_ago, "me")
    assert not await store.delete_if_inactive(old.id, month_ago, "me")
    assert [session.id for session in await store.list_sessions()] == [young.id]


# --- erasure ---------------------------------------------------------------------------------------------------------

SECRET = "xyzzy-plugh"


async def erasable(store: Store) -> tuple[Session, Session, Session]:
    """A session of a person, one of somebody else in which the person speaks, and somebody else's fork of the first."""
    own = await everything(store, user_id="ann")
    await store.append(own.id, [text_message(f"{SECRET} {LARGE}", user_id="ann"), paid(SECRET, "0.25", user_id="ann")])
    await store.append(own.id, text_message("from bob", user_id="bob"))
    shared = await store.create_session(user_id="bob", title="ours")
    await store.append(
        shared.id,
        [
            text_message("I am bob", user_id="bob"),
            text_message(f"I am ann, {SECRET} {LARGE}!", user_id="ann", run_id=SECRET, extra={"note": SECRET}),
            call_message("tu_9", user_id="ann"),
            result_message("tu_9"),
            paid(f"dear {SECRET}", "1.5", user_id="ann", team_id="t"),
            answer_message(f"{SECRET} is still arr", status=MessageStatus.PARTIAL, user_id="ann"),
        ],
        idempotency_key="k",
    )
    fork = await store.fork(own.id, user_id="bob", title="mine")
    await store.append(fork.id, text_message("bob goes on", user_id="bob"))
    await store.search(SECRET)
    return own, shared, fork


async def test_files_are_deleted_when_everything_else_is_and_the_receipt_says_how_many(store: Store) -> None:
    await store.create_session(user_id="ann")
    seen: list[Any] = []

    async def delete() -> int:
        seen.append((await store.erasures())[-1])
        assert await store.list_sessions(user_id="ann") == []
        return 3

    receipt = await store.erase_user("ann", delete)
    assert (receipt.attachments, receipt.attachments_fault) == (3, None)
    assert await store.erasures() == [receipt]
    assert (seen[0].id, seen[0].attachments) == (receipt.id, None)
    assert seen[0].attachments_fault == "the files are not deleted yet"
    without = await store.erase_user("ann")
    assert (without.attachments, without.attachments_fault) == (None, None)


async def test_files_that_cannot_be_deleted_are_in_the_receipt_until_another_one_tells_that_they_are(
    store: Store,
) -> None:
    await store.create_session(user_id="ann")
    faults: list[DragomanError | None] = [StorageError("the bucket is away"), None]

    async def delete() -> int:
        if (fault := faults.pop(0)) is not None:
            raise fault
        return 2

    first = await store.erase_user("ann", delete)
    assert (first.sessions, first.attachments, first.attachments_fault) == (1, None, "the bucket is away")
    second = await store.erase_user("ann", delete)
    assert (second.sessions, second.attachments, second.attachments_fault) == (0, 2, None)
    assert await store.erasures() == [first, second]


async def test_a_file_whose_deletion_breaks_off_stays_in_the_receipt(store: Store) -> None:
    async def delete() -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        await store.erase_user("ann", delete)
    (receipt,) = await store.erasures()
    assert receipt.attachments_fault == "the files are not deleted yet"


async def test_of_a_person_who_is_erased_nothing_is_found_but_the_receipt(store: Store) -> None:
    own, shared, fork = await erasable(store)
    costs = {one.group: one.cost_usd for one in await store.costs.totals("day")}
    seqs = [row.seq for row in await history(store, fork.id)]
    receipt = await store.erase_user("ann")
    with pytest.raises(UnknownSessionError):
        await store.get_session(own.id)
    assert texts(await history(store, fork.id)) == ["[erased]"] * 5 + ["from bob", "bob goes on"]
    assert [row.seq for row in await history(store, fork.id)] == seqs
    rows = await history(store, shared.id)
    assert texts(rows) == ["I am bob", "[erased]", "[erased]", "[erased]"]
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.message.metadata.user_id for row in rows] == ["bob", None, None, None, None, None]
    assert rows[5].message.metadata.status is MessageStatus.CANCELLED
    assert await store.search(SECRET) == []
    assert len(await store.search("bob", session_id=shared.id)) == 1
    assert {one.group: one.cost_usd for one in await store.costs.totals("day")} == costs
    assert [one.group for one in await store.costs.totals("user")] == [None]
    assert [(call.id, call.status) for call in await store.tool_calls(shared.id)] == [("tu_9", "succeeded")]
    assert (receipt.sessions, receipt.messages, receipt.forks_cut, receipt.blobs) == (1, 11, 1, 3)
    assert await store.erasures() == [receipt]
    assert [blob async for blob in store.blobs.list()] == []
    again = await store.erase_user("ann")
    assert (again.sessions, again.messages, again.forks_cut, again.blobs) == (0, 0, 0, 0)


async def test_large_content_that_somebody_else_names_too_stays(store: Store) -> None:
    own = await store.create_session(user_id="ann")
    other = await store.create_session(user_id="bob")
    await store.append(own.id, text_message(LARGE))
    (row,) = await store.append(other.id, text_message(LARGE))
    assert (await store.erase_user("ann")).blobs == 0
    assert await store.read(other.id) == [row]


@pytest.mark.parametrize("user_id", ["%", "a_n", 'an"n', "ann!", "änn", ""])
async def test_only_the_person_who_is_named_is_erased(store: Store, user_id: str) -> None:
    session = await store.create_session(user_id="bob")
    await store.append(session.id, [text_message("mine", user_id="ann"), text_message("yours", user_id=user_id)])
    await store.erase_user(user_id)
    assert texts(await history(store, session.id)) == ["mine", "[erased]"]


async def test_the_bytes_of_what_was_erased_are_in_no_file_of_the_store(tmp_path: Path) -> None:
    location = StoreLocation(f"sqlite:///{tmp_path / 'store.db'}")

    def holding() -> list[str]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return [path.name for path in files if SECRET.encode() in path.read_bytes() or b"plugh" in path.read_bytes()]

    async with location.open() as store:
        await erasable(store)
        assert len(holding()) > 1
        async with location.open() as other:  # somebody else has the file open
            await other.list_sessions()
            await store.erase_user("ann")
            assert holding() == []
    assert holding() == []


# --- sizes -----------------------------------------------------------------------------------------------------------


async def test_the_size_of_everything_is_told(store: Store) -> None:
    await everything(store)
    report = await store.sizes()
    assert (report.engine, report.sessions, report.messages) == (store.engine, 1, 5)
    assert (report.blobs, report.blob_bytes) == (1, len(LARGE))
    assert 0 < report.content_bytes < report.database_bytes
    assert report.tables["messages"] > 0
    assert report.database_bytes >= sum(report.tables.values()) / 2


# --- verifying -------------------------------------------------------------------------------------------------------


async def test_a_store_that_is_sound_is_found_so(store: Store) -> None:
    session = await everything(store)
    fork = await store.fork(session.id, 3)
    await store.append(fork.id, [result_message("tu_1"), paid("yes", "0.1"), text_message(LARGE)])
    await store.append(fork.id, answer_message("still arr", status=MessageStatus.PARTIAL))
    told: list[tuple[int, int]] = []
    seen = await store.verify(progress=lambda done, of: told.append((done, of)))
    assert (seen.damage, seen.sessions, seen.messages, seen.blobs) == ((), 2, 9, 1)
    assert seen.is_sound
    assert told[-1] == (9, 9)
    assert (await store.verify(session.id)).messages == 5
    assert (await store.verify(fork.id)).messages == 9
    await store.delete_session(session.id)
    await store.erase_user("nobody")
    assert (await store.verify()).damage == ()
    with pytest.raises(UnknownSessionError):
        await store.verify(session.id)


async def test_what_is_left_after_an_erasure_is_sound(store: Store) -> None:
    await erasable(store)
    await store.erase_user("ann")
    assert (await store.verify()).damage == ()


@pytest.mark.parametrize(
    "name", ["n" * 20_000, "a\0b" * 8_000, "a\0\u2400" * 8_000, "QUJD" * 5_000], ids=["long", "NUL", "both", "base64"]
)
async def test_a_name_or_an_id_that_was_moved_out_is_found_as_it_was_made(store: Store, name: str) -> None:
    session = await store.create_session(user_id="ann")
    call = ToolUseBlock("tu_" + "i" * 20_000, name, {"of": "x"})
    broken = InvalidToolUseBlock("tu_2", name, "{", "no object")
    await store.append(session.id, message(Role.ASSISTANT, [TextBlock(LARGE), call, broken], user_id="ann"))
    await store.append(session.id, result_message(call.id))
    assert (await store.verify()).damage == ()
    assert (await store.verify(session.id)).damage == ()
    await change(store, "UPDATE tool_calls SET name = 'another' WHERE id = 'tu_2'")
    damage = [(found.seq, found.what) for found in (await store.verify()).damage]
    assert (1, "the call tu_2 differs between its message and the table tool_calls") in damage


async def test_the_call_of_an_erased_message_is_sound_although_its_name_was_moved_out(store: Store) -> None:
    session = await store.create_session(user_id="ann")
    block = ToolUseBlock("tu_1", "n" * 20_000, {})
    await store.append(session.id, [text_message("x", user_id="ann"), message(Role.ASSISTANT, [block], user_id="ann")])
    await store.append(session.id, text_message("y", user_id="bob"))
    await store.erase_user("ann")
    assert (await store.verify()).damage == ()


WRONG = {
    "text": "UPDATE messages SET content_json = replace(content_json, 'hello', 'hellp') WHERE seq = 1",
    "metadata": "UPDATE messages SET metadata_json = replace(metadata_json, 'openai', 'openbi') WHERE seq = 2",
    "time": "UPDATE messages SET created_at = created_at + 1 WHERE seq = 2",
    "place": "UPDATE messages SET seq = 9 WHERE seq = 5",
    "gone": "DELETE FROM messages WHERE seq = 3",
    "last": "DELETE FROM messages WHERE seq = 5",
    "count": "UPDATE sessions SET last_seq = last_seq + 1",
    "newest": "UPDATE sessions SET last_message_id = ''",
    "listed": "UPDATE sessions SET listed_at = listed_at + 1",
    "behind": "UPDATE sessions SET indexed_seq = 0, is_behind = 0",
    "call": "DELETE FROM tool_calls",
    "name": "UPDATE tool_calls SET name = 'delete_all'",
    "answer": "UPDATE tool_calls SET result_seq = NULL, status = 'pending'",
    "answered": "UPDATE tool_calls SET result_seq = 5",
    "usage": "UPDATE usage SET cost_usd = '0.01'",
    "no usage": "DELETE FROM usage",
    "reference": "DELETE FROM blob_refs",
    "other reference": "UPDATE blob_refs SET seq = 1",
    "file": "DELETE FROM attachment_refs",
    "other file": "UPDATE attachment_refs SET path = 'x'",
    "parent": "UPDATE sessions SET parent_session_id = 'sess_gone'",
    "share": "UPDATE sessions SET parent_seq = 1, parent_session_id = NULL",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_whatever_is_not_as_it_was_written_is_listed(store: Store, wrong: str) -> None:
    session = await everything(store)
    assert (await store.verify()).is_sound
    await change(store, WRONG[wrong])
    seen = await store.verify()
    assert {found.session_id for found in seen.damage} == {session.id}
    assert not seen.is_sound


async def test_a_session_that_is_noted_as_indexed_beyond_its_end_is_listed_and_indexed_anew(
    database_location: StoreLocation,
) -> None:
    async with database_location.open() as store:
        await store.search_index.stop()  # nothing is indexed in between
        session = await store.create_session()
        await store.append(session.id, text_message("needle"))
        await change(store, "UPDATE sessions SET indexed_seq = 9999")
        assert ["counts 9999 messages" in one.what for one in (await store.verify()).damage] == [True]
    async with database_location.open() as store:
        await store.append(session.id, text_message("needle again"))
        assert sorted(hit.seq for hit in await store.search("needle")) == [1, 2]
        assert (await store.verify()).is_sound
        await change(store, "UPDATE sessions SET indexed_seq = 9999")
        await store.reindex()
        assert sorted(hit.seq for hit in await store.search("needle")) == [1, 2]
        assert (await store.verify()).is_sound


async def test_a_negative_age_is_refused_and_nothing_is_older_than_time(store: Store) -> None:
    await store.create_session("s")
    with pytest.raises(InputError, match="is negative"):
        await store.retain(timedelta(days=-1))
    assert await store.retain(timedelta.max) == []
    assert [one.id for one in await store.list_sessions()] == ["s"]


async def test_a_clock_that_was_set_back_makes_no_session_older(store: Store, clock: Clock) -> None:
    store.clock = clock
    await store.create_session("s")
    newest = clock.now
    clock.move(days=-3650)
    await store.append("s", text_message("one"))
    await store.append("s", text_message("two"))  # which may be put at the end in one statement
    await store.append("s", [text_message("three"), text_message("four")])
    await store.rename_session("s", "a title")
    assert (await store.get_session("s")).updated_at == newest
    assert (await store.verify()).is_sound
    clock.now = newest
    assert await store.retain(timedelta(days=90)) == []


async def test_large_content_that_is_gone_or_changed_is_listed_where_it_is_named(store: Store) -> None:
    session = await everything(store)
    fork = await store.fork(session.id)
    await store.append(fork.id, [text_message(LARGE), text_message(LARGE + "!")])
    first, second = sorted([blob async for blob in store.blobs.list()], key=lambda blob: blob.size)
    await store.blobs.delete(first.sha256)
    seen = await store.verify()
    assert [(found.session_id, found.seq) for found in seen.damage] == [(session.id, 5), (fork.id, 6)]
    await store.blobs.delete(second.sha256)
    assert len((await store.verify()).damage) == 3
    with pytest.raises(CorruptDataError):
        await store.read(session.id)


async def test_a_flipped_bit_in_the_file_is_listed_and_never_served(tmp_path: Path) -> None:
    location = StoreLocation(f"sqlite:///{tmp_path / 'store.db'}")
    path = tmp_path / "store.db"
    async with location.open() as store:
        session = await store.create_session()
        await store.append(session.id, [text_message(f"message {number} " + "abc" * 50) for number in range(300)])
        await store._scrub()
    whole = path.read_bytes()
    for number in (7, 150, 299):
        at = whole.index(f"message {number} ".encode()) + 3
        for bit in (1, 0x80):  # one that changes a letter, and one after which it is no text
            changed = bytearray(whole)
            changed[at] ^= bit
            path.write_bytes(changed)
            async with location.open() as store:
                assert [found.seq for found in (await store.verify()).damage] == [number + 1]
                with pytest.raises(CorruptDataError):
                    await store.read(session.id, number, 1)
                assert len(await store.read(session.id, number - 5, 5)) == 5


async def test_retain_keeps_sessions_that_were_imported_today(store: Store, clock: Clock) -> None:
    store.clock = clock
    undated = b'{"id": "", "session_id": "", "role": "user", "content": [{"type": "text", "text": "When?"}],'
    undated += b' "metadata": {}, "created_at": "1970-01-01T00:00:00Z", "schema_version": 1}\n'
    session = await store.import_session([undated])
    assert session.updated_at == session.created_at == clock.now  # nobody finds it at the end of every list
    old = await store.create_session("old")
    await store.append("old", text_message("Long ago"))
    exported = [line async for line in store.export("old")]
    await store.delete_session("old")
    clock.move(days=400)
    assert [one.id for one in await store.retain(timedelta(days=90), dry_run=True)] == [session.id]
    again = await store.import_session(exported)
    assert again.updated_at == old.updated_at  # which it says of itself
    assert [one.id for one in await store.retain(timedelta(days=90))] == [session.id]
    clock.move(days=91)
    assert [one.id for one in await store.retain(timedelta(days=90))] == ["old"]
