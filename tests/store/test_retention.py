"""Tests of deletion, retention, erasure, size reports and verification on every engine."""

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


async def query(store: Store, sql: str, *arguments: Any) -> Any:
    """Return the rows of a statement."""

    def select() -> Any:
        return (yield sql, arguments)

    return await store._read(select())


async def execute(store: Store, sql: str, *arguments: Any) -> None:
    """Run a statement directly on the database."""

    def statement() -> Any:
        yield sql, arguments

    await store._write(statement())


async def read_history(store: Store, session_id: str) -> list[Row]:
    return [row async for row in store.history(session_id)]


def texts(rows: Sequence[Row]) -> list[str]:
    return [block.text for row in rows for block in row.message.content if isinstance(block, TextBlock)]


def answer_with_cost(text: str, cost: str, **metadata: Any) -> Message:
    usage = Usage(input_tokens=3, output_tokens=4, cost_usd=Decimal(cost), pricing_version="1", latency_ms=1)
    return answer_message(text, usage=usage, model="openai:gpt-6", provider="openai", **metadata)


async def create_full_session(store: Store, **session: Any) -> Session:
    """Create a session that has a row in every table."""
    created = await store.create_session(**session)
    await store.append(
        created.id, [text_message("hello"), answer_with_cost("hi", "0.10"), call_message("tu_1")], idempotency_key="k"
    )
    file = Attachment("agent-files", "agent-inputs/a.png", "image/png")
    await store.append(created.id, [result_message("tu_1"), text_message(LARGE, user_message_attachments=file)])
    await store.save_tool_ids(created.id, [("openai", "tu_1", "call_1")])
    await store.turns.acquire(created.id, "me", 0)
    await store.search("hello")
    return created


# --- deletion --------------------------------------------------------------------------------------------------------


async def test_deleted_session_leaves_only_its_cost(store: Store) -> None:
    session = await create_full_session(store, user_id="ann")
    assert all([(await query(store, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES])
    await store.delete_session(session.id)
    assert [(await query(store, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES] == [0] * len(TABLES)
    assert await store.list_sessions() == []
    assert await store.search("hello") == []
    with pytest.raises(UnknownSessionError):
        await store.read(session.id)
    with pytest.raises(UnknownSessionError):
        await store.delete_session(session.id)
    (total,) = await store.costs.totals("user")
    assert (total.group, total.messages, total.cost_usd, total.output_tokens) == (None, 1, Decimal("0.10"), 4)
    assert [total.group for total in await store.costs.totals("session")] == [None]


async def test_id_of_deleted_session_can_be_reused(store: Store) -> None:
    session = await create_full_session(store)
    await store.delete_session(session.id)
    await store.create_session(session.id)
    assert await store.read(session.id) == []


@pytest.mark.parametrize("seqs", [[5, 3, 3, 0], [2], [0, 0], [1, 5]], ids=str)
async def test_forks_of_deleted_session_are_unchanged(store: Store, seqs: list[int]) -> None:
    session = await create_full_session(store)
    forks = [await store.fork(session.id, seq) for seq in seqs]
    for fork in forks:
        await store.append(
            fork.id,
            [call_message("tu_1" if fork is forks[0] else "tu_2"), result_message("tu_2"), result_message("tu_1")],
        )
        await store.save_tool_ids(fork.id, [("openai", "tu_2", fork.id)])
    deeper = [await store.fork(fork.id) for fork in forks]
    before = [(await read_history(store, fork.id), await list_calls(store, fork.id)) for fork in (*forks, *deeper)]
    await store.delete_session(session.id)
    after = [(await read_history(store, fork.id), await list_calls(store, fork.id)) for fork in (*forks, *deeper)]
    assert after == before
    assert (session.id in {row.message.session_id for row in before[0][0]}) == (seqs[0] > 0)
    for fork, seq in zip(forks, seqs, strict=True):
        assert ("openai", "tu_1", "call_1") in await store.tool_ids(fork.id) or seq < max(seqs) or seq == 0
        assert len(await store.search("hello", session_id=fork.id)) == (seq > 0)
        if seq > 0:
            assert (await store.get_message(fork.id, before[0][0][0].message.id)).seq == 1
        assert [row.seq for row in await read_history(store, fork.id)] == list(range(1, seq + 4))


async def list_calls(store: Store, session_id: str) -> list[tuple[Any, ...]]:
    calls = await store.tool_calls(session_id)
    return [(call.id, call.status, call.seq, call.result_seq, call.message_id) for call in calls]


async def test_chain_of_forks_survives_deletion_of_ancestors(store: Store) -> None:
    chain = [await create_full_session(store)]
    for number in range(3):
        chain.append(await store.fork(chain[-1].id))
        await store.append(chain[-1].id, [text_message(f"link {number}"), text_message(LARGE)])
    last = chain.pop()
    before = await read_history(store, last.id)
    for session in (chain[1], chain[0], chain[2]):
        await store.delete_session(session.id)
        assert await read_history(store, last.id) == before
    await store.append(last.id, text_message("on we go"))
    assert [row.seq for row in await read_history(store, last.id)] == list(range(1, len(before) + 2))


async def test_shared_message_is_not_appended_again(store: Store) -> None:
    session = await create_full_session(store)
    fork = await store.fork(session.id)
    first = (await store.read(session.id))[0].message
    rows = await store.append(fork.id, first.replace(session_id=fork.id))
    assert [row.seq for row in rows] == [1]
    assert (await store.get_session(fork.id)).last_seq == 5


async def test_inherited_damaged_message_is_still_damaged(store: Store) -> None:
    session = await create_full_session(store)
    fork = await store.fork(session.id)
    await execute(store, "UPDATE messages SET content_json = replace(content_json, 'hello', 'hallo') WHERE seq = 1")
    await store.delete_session(session.id)
    with pytest.raises(CorruptDataError):
        await store.read(fork.id)


# --- retention -------------------------------------------------------------------------------------------------------


async def test_retain_deletes_inactive_sessions(store: Store, clock: Clock) -> None:
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


async def test_delete_if_inactive_requires_age_and_lease(store: Store, clock: Clock) -> None:
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


async def create_erasable_sessions(store: Store) -> tuple[Session, Session, Session]:
    """Create a session of ann, a session of bob with messages of ann, and bob's fork of the first."""
    own = await create_full_session(store, user_id="ann")
    await store.append(
        own.id, [text_message(f"{SECRET} {LARGE}", user_id="ann"), answer_with_cost(SECRET, "0.25", user_id="ann")]
    )
    await store.append(own.id, text_message("from bob", user_id="bob"))
    shared = await store.create_session(user_id="bob", title="ours")
    await store.append(
        shared.id,
        [
            text_message("I am bob", user_id="bob"),
            text_message(f"I am ann, {SECRET} {LARGE}!", user_id="ann", run_id=SECRET, extra={"note": SECRET}),
            call_message("tu_9", user_id="ann"),
            result_message("tu_9"),
            answer_with_cost(f"dear {SECRET}", "1.5", user_id="ann", team_id="t"),
            answer_message(f"{SECRET} is still arr", status=MessageStatus.PARTIAL, user_id="ann"),
        ],
        idempotency_key="k",
    )
    fork = await store.fork(own.id, user_id="bob", title="mine")
    await store.append(fork.id, text_message("bob goes on", user_id="bob"))
    await store.search(SECRET)
    return own, shared, fork


async def test_erasure_deletes_files_last_and_receipt_counts_them(store: Store) -> None:
    await store.create_session(user_id="ann")
    receipts: list[Any] = []

    async def delete() -> int:
        receipts.append((await store.erasures())[-1])
        assert await store.list_sessions(user_id="ann") == []
        return 3

    receipt = await store.erase_user("ann", delete)
    assert (receipt.attachments, receipt.attachments_fault) == (3, None)
    assert await store.erasures() == [receipt]
    assert (receipts[0].id, receipts[0].attachments) == (receipt.id, None)
    assert receipts[0].attachments_fault == "the files are not deleted yet"
    without = await store.erase_user("ann")
    assert (without.attachments, without.attachments_fault) == (None, None)


async def test_failed_file_deletion_is_in_receipt_until_repeated(
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


async def test_interrupted_file_deletion_is_in_receipt(store: Store) -> None:
    async def delete() -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        await store.erase_user("ann", delete)
    (receipt,) = await store.erasures()
    assert receipt.attachments_fault == "the files are not deleted yet"


async def test_erased_user_leaves_only_receipt(store: Store) -> None:
    own, shared, fork = await create_erasable_sessions(store)
    costs = {total.group: total.cost_usd for total in await store.costs.totals("day")}
    seqs = [row.seq for row in await read_history(store, fork.id)]
    receipt = await store.erase_user("ann")
    with pytest.raises(UnknownSessionError):
        await store.get_session(own.id)
    assert texts(await read_history(store, fork.id)) == ["[erased]"] * 5 + ["from bob", "bob goes on"]
    assert [row.seq for row in await read_history(store, fork.id)] == seqs
    rows = await read_history(store, shared.id)
    assert texts(rows) == ["I am bob", "[erased]", "[erased]", "[erased]"]
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.message.metadata.user_id for row in rows] == ["bob", None, None, None, None, None]
    assert rows[5].message.metadata.status is MessageStatus.CANCELLED
    assert await store.search(SECRET) == []
    assert len(await store.search("bob", session_id=shared.id)) == 1
    assert {total.group: total.cost_usd for total in await store.costs.totals("day")} == costs
    assert [total.group for total in await store.costs.totals("user")] == [None]
    assert [(call.id, call.status) for call in await store.tool_calls(shared.id)] == [("tu_9", "succeeded")]
    assert (receipt.sessions, receipt.messages, receipt.forks_cut, receipt.blobs) == (1, 11, 1, 3)
    assert await store.erasures() == [receipt]
    assert [blob async for blob in store.blobs.list()] == []
    repeated = await store.erase_user("ann")
    assert (repeated.sessions, repeated.messages, repeated.forks_cut, repeated.blobs) == (0, 0, 0, 0)


async def test_shared_blob_survives_erasure(store: Store) -> None:
    own = await store.create_session(user_id="ann")
    other = await store.create_session(user_id="bob")
    await store.append(own.id, text_message(LARGE))
    (row,) = await store.append(other.id, text_message(LARGE))
    assert (await store.erase_user("ann")).blobs == 0
    assert await store.read(other.id) == [row]


@pytest.mark.parametrize("user_id", ["%", "a_n", 'an"n', "ann!", "änn", ""])
async def test_erasure_matches_user_id_exactly(store: Store, user_id: str) -> None:
    session = await store.create_session(user_id="bob")
    await store.append(session.id, [text_message("mine", user_id="ann"), text_message("yours", user_id=user_id)])
    await store.erase_user(user_id)
    assert texts(await read_history(store, session.id)) == ["mine", "[erased]"]


async def test_erased_bytes_are_in_no_file(tmp_path: Path) -> None:
    location = StoreLocation(f"sqlite:///{tmp_path / 'store.db'}")

    def list_files_with_secret() -> list[str]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return [path.name for path in files if SECRET.encode() in path.read_bytes() or b"plugh" in path.read_bytes()]

    async with location.open() as store:
        await create_erasable_sessions(store)
        assert len(list_files_with_secret()) > 1
        async with location.open() as other:  # the file is open elsewhere
            await other.list_sessions()
            await store.erase_user("ann")
            assert list_files_with_secret() == []
    assert list_files_with_secret() == []


# --- sizes -----------------------------------------------------------------------------------------------------------


async def test_size_report_covers_all_tables(store: Store) -> None:
    await create_full_session(store)
    report = await store.sizes()
    assert (report.engine, report.sessions, report.messages) == (store.engine, 1, 5)
    assert (report.blobs, report.blob_bytes) == (1, len(LARGE))
    assert 0 < report.content_bytes < report.database_bytes
    assert report.tables["messages"] > 0
    assert report.database_bytes >= sum(report.tables.values()) / 2


# --- verification ----------------------------------------------------------------------------------------------------


async def test_verify_accepts_sound_store(store: Store) -> None:
    session = await create_full_session(store)
    fork = await store.fork(session.id, 3)
    await store.append(fork.id, [result_message("tu_1"), answer_with_cost("yes", "0.1"), text_message(LARGE)])
    await store.append(fork.id, answer_message("still arr", status=MessageStatus.PARTIAL))
    progress_calls: list[tuple[int, int]] = []
    report = await store.verify(progress=lambda done, of: progress_calls.append((done, of)))
    assert (report.damage, report.sessions, report.messages, report.blobs) == ((), 2, 9, 1)
    assert report.is_sound
    assert progress_calls[-1] == (9, 9)
    assert (await store.verify(session.id)).messages == 5
    assert (await store.verify(fork.id)).messages == 9
    await store.delete_session(session.id)
    await store.erase_user("nobody")
    assert (await store.verify()).damage == ()
    with pytest.raises(UnknownSessionError):
        await store.verify(session.id)


async def test_store_is_sound_after_erasure(store: Store) -> None:
    await create_erasable_sessions(store)
    await store.erase_user("ann")
    assert (await store.verify()).damage == ()


@pytest.mark.parametrize(
    "name", ["n" * 20_000, "a\0b" * 8_000, "a\0\u2400" * 8_000, "QUJD" * 5_000], ids=["long", "NUL", "both", "base64"]
)
async def test_long_tool_name_and_id_pass_verification(store: Store, name: str) -> None:
    session = await store.create_session(user_id="ann")
    call = ToolUseBlock("tu_" + "i" * 20_000, name, {"of": "x"})
    broken = InvalidToolUseBlock("tu_2", name, "{", "no object")
    await store.append(session.id, message(Role.ASSISTANT, [TextBlock(LARGE), call, broken], user_id="ann"))
    await store.append(session.id, result_message(call.id))
    assert (await store.verify()).damage == ()
    assert (await store.verify(session.id)).damage == ()
    await execute(store, "UPDATE tool_calls SET name = 'another' WHERE id = 'tu_2'")
    damage = [(found.seq, found.what) for found in (await store.verify()).damage]
    assert (1, "the call tu_2 differs between its message and the table tool_calls") in damage


async def test_erased_call_with_long_name_passes_verification(store: Store) -> None:
    session = await store.create_session(user_id="ann")
    block = ToolUseBlock("tu_1", "n" * 20_000, {})
    await store.append(session.id, [text_message("x", user_id="ann"), message(Role.ASSISTANT, [block], user_id="ann")])
    await store.append(session.id, text_message("y", user_id="bob"))
    await store.erase_user("ann")
    assert (await store.verify()).damage == ()


DAMAGE_STATEMENTS = {
    "text": "UPDATE messages SET content_json = replace(content_json, 'hello', 'hellp') WHERE seq = 1",
    "metadata": "UPDATE messages SET metadata_json = replace(metadata_json, 'openai', 'openbi') WHERE seq = 2",
    "time": "UPDATE messages SET created_at = created_at + 1 WHERE seq = 2",
    "seq": "UPDATE messages SET seq = 9 WHERE seq = 5",
    "missing": "DELETE FROM messages WHERE seq = 3",
    "last": "DELETE FROM messages WHERE seq = 5",
    "count": "UPDATE sessions SET last_seq = last_seq + 1",
    "newest": "UPDATE sessions SET last_message_id = ''",
    "listed": "UPDATE sessions SET listed_at = listed_at + 1",
    "behind": "UPDATE sessions SET indexed_seq = 0, is_behind = 0",
    "call": "DELETE FROM tool_calls",
    "name": "UPDATE tool_calls SET name = 'delete_all'",
    "answer": "UPDATE tool_calls SET result_seq = NULL, status = 'pending'",
    "other answer": "UPDATE tool_calls SET result_seq = 5",
    "usage": "UPDATE usage SET cost_usd = '0.01'",
    "no usage": "DELETE FROM usage",
    "reference": "DELETE FROM blob_refs",
    "other reference": "UPDATE blob_refs SET seq = 1",
    "file": "DELETE FROM attachment_refs",
    "other file": "UPDATE attachment_refs SET path = 'x'",
    "parent": "UPDATE sessions SET parent_session_id = 'sess_gone'",
    "share": "UPDATE sessions SET parent_seq = 1, parent_session_id = NULL",
}


@pytest.mark.parametrize("damage_name", DAMAGE_STATEMENTS)
async def test_verify_reports_changed_rows(store: Store, damage_name: str) -> None:
    session = await create_full_session(store)
    assert (await store.verify()).is_sound
    await execute(store, DAMAGE_STATEMENTS[damage_name])
    report = await store.verify()
    assert {found.session_id for found in report.damage} == {session.id}
    assert not report.is_sound


async def test_index_position_beyond_end_is_reported_and_repaired(
    database_location: StoreLocation,
) -> None:
    async with database_location.open() as store:
        await store.search_index.stop()  # disables background indexing
        session = await store.create_session()
        await store.append(session.id, text_message("needle"))
        await execute(store, "UPDATE sessions SET indexed_seq = 9999")
        assert ["counts 9999 messages" in found_damage.what for found_damage in (await store.verify()).damage] == [True]
    async with database_location.open() as store:
        await store.append(session.id, text_message("needle again"))
        assert sorted(hit.seq for hit in await store.search("needle")) == [1, 2]
        assert (await store.verify()).is_sound
        await execute(store, "UPDATE sessions SET indexed_seq = 9999")
        await store.reindex()
        assert sorted(hit.seq for hit in await store.search("needle")) == [1, 2]
        assert (await store.verify()).is_sound


async def test_retain_rejects_negative_age(store: Store) -> None:
    await store.create_session("s")
    with pytest.raises(InputError, match="is negative"):
        await store.retain(timedelta(days=-1))
    assert await store.retain(timedelta.max) == []
    assert [session.id for session in await store.list_sessions()] == ["s"]


async def test_backward_clock_step_does_not_age_sessions(store: Store, clock: Clock) -> None:
    store.clock = clock
    await store.create_session("s")
    newest = clock.now
    clock.move(days=-3650)
    await store.append("s", text_message("one"))
    await store.append("s", text_message("two"))  # fast path
    await store.append("s", [text_message("three"), text_message("four")])
    await store.rename_session("s", "a title")
    assert (await store.get_session("s")).updated_at == newest
    assert (await store.verify()).is_sound
    clock.now = newest
    assert await store.retain(timedelta(days=90)) == []


async def test_verify_reports_missing_blobs_by_message(store: Store) -> None:
    session = await create_full_session(store)
    fork = await store.fork(session.id)
    await store.append(fork.id, [text_message(LARGE), text_message(LARGE + "!")])
    first, second = sorted([blob async for blob in store.blobs.list()], key=lambda blob: blob.size)
    await store.blobs.delete(first.sha256)
    report = await store.verify()
    assert [(found.session_id, found.seq) for found in report.damage] == [(session.id, 5), (fork.id, 6)]
    await store.blobs.delete(second.sha256)
    assert len((await store.verify()).damage) == 3
    with pytest.raises(CorruptDataError):
        await store.read(session.id)


async def test_flipped_bit_is_reported_and_never_returned(tmp_path: Path) -> None:
    location = StoreLocation(f"sqlite:///{tmp_path / 'store.db'}")
    path = tmp_path / "store.db"
    async with location.open() as store:
        session = await store.create_session()
        await store.append(session.id, [text_message(f"message {number} " + "abc" * 50) for number in range(300)])
        await store._scrub()
    whole = path.read_bytes()
    for number in (7, 150, 299):
        at = whole.index(f"message {number} ".encode()) + 3
        for bit in (1, 0x80):  # changes a letter, and makes invalid UTF-8
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
    assert session.updated_at == session.created_at == clock.now  # not at the end of every list
    old = await store.create_session("old")
    await store.append("old", text_message("Long ago"))
    exported = [line async for line in store.export("old")]
    await store.delete_session("old")
    clock.move(days=400)
    assert [session.id for session in await store.retain(timedelta(days=90), dry_run=True)] == [session.id]
    imported = await store.import_session(exported)
    assert imported.updated_at == old.updated_at  # the time in the export
    assert [session.id for session in await store.retain(timedelta(days=90))] == [session.id]
    clock.move(days=91)
    assert [session.id for session in await store.retain(timedelta(days=90))] == ["old"]
