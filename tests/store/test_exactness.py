"""Tests that a store returns every message byte for byte on every engine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dragoman
from dragoman.message import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
)
from dragoman.store import Store
from dragoman.store.message_rows import MAX_INLINE_BYTES
from dragoman.value import RawJson
from tests import strategies
from tests.store.conftest import StoreLocation
from tests.store.messages import NO_TIME, message, text_message

_numbers = itertools.count()
# Each example has its own session, so one store is enough for all examples.
shared_store_settings = settings(suppress_health_check=[*HealthCheck], max_examples=settings().max_examples // 2)


@shared_store_settings
@given(st.lists(strategies.messages, max_size=4, unique_by=lambda message_value: message_value.id))
def test_random_messages_round_trip_byte_for_byte(
    store: Store, runner: asyncio.Runner, messages: list[Message]
) -> None:
    async def check() -> None:
        session = await store.create_session(f"sess_{next(_numbers)}")
        stored_messages = [message_value.replace(session_id=session.id) for message_value in messages]
        await store.append(session.id, stored_messages)
        rows = await store.read(session.id)
        assert [dragoman.encode(row.message) for row in rows] == [
            dragoman.encode(message_value) for message_value in stored_messages
        ]
        assert [row.message for row in rows] == stored_messages
        fork = await store.fork(session.id)
        assert await store.read(fork.id) == rows
        assert await store.append(session.id, stored_messages) == rows

    runner.run(check())


# A few long texts among short ones, in every text field of a message.
_long_texts = st.builds(
    lambda unit, more: (unit * (MAX_INLINE_BYTES // max(1, len(unit)) + 1))[: MAX_INLINE_BYTES + more],
    st.sampled_from(['"', "\\", "\\\\", "a", "ä", "🎉", "\0", 'x"\\', "\u2028", "/", "QUJD", "sha256:"]),
    st.integers(-3, 5),
)
_base64_texts = st.binary(min_size=1, max_size=9).map(
    lambda data: base64.b64encode(data * (MAX_INLINE_BYTES // len(data))).decode()
)
_texts = _long_texts | _base64_texts | strategies.texts
_large_blocks = (
    st.builds(TextBlock, _texts)
    | st.builds(lambda data: ImageBlock(ImageSource("base64", data), "image/png"), _texts)
    | st.builds(lambda text: DocumentBlock(ImageSource("url", text), "text/plain", text), _texts)
    | st.builds(lambda text: ToolUseBlock("tu_1", "look", {"a": [text], text: text}), _texts)
    | st.builds(lambda text: OpaqueBlock("acme", {"x": text}), _texts)
    | st.builds(lambda text: ToolResultBlock("tu_1", (TextBlock(text), TextBlock(text))), _texts)
)


@shared_store_settings
@given(st.lists(_large_blocks, min_size=1, max_size=4))
def test_large_texts_round_trip(store: Store, runner: asyncio.Runner, blocks: list) -> None:  # type: ignore[type-arg]
    async def check() -> None:
        session = await store.create_session()
        rows = await store.append(session.id, message(Role.ASSISTANT, blocks))
        assert await store.read(session.id) == rows
        assert rows[0].message.content == tuple(blocks)

    runner.run(check())


async def read_blob_sizes(store: Store) -> dict[str, int]:
    return {blob.sha256: blob.size async for blob in store.blobs.list()}


async def measure_largest_row(store: Store) -> int:
    def select():  # type: ignore[no-untyped-def]
        return (yield "SELECT max(length(content_json)) FROM messages", ())

    return int((await store._read(select()))[0][0])


async def test_large_content_is_stored_once_outside_its_row(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    image_bytes, text = random.Random(1).randbytes(300_000), "long result " * 20_000
    image = ImageBlock(ImageSource("base64", base64.b64encode(image_bytes).decode()), "image/png")
    for session_id in (session.id, session.id, other.id):
        answer = ToolResultBlock("tu_1", (TextBlock(text), image, TextBlock("short")))
        rows = await store.append(session_id, [message(Role.USER, [image, image]), message(Role.TOOL, [answer])])
        assert (await store.tail(session_id, limit=2)) == rows
    assert await read_blob_sizes(store) == {  # an image is stored as bytes, not as base64
        hashlib.sha256(image_bytes).hexdigest(): 300_000,
        hashlib.sha256(text.encode()).hexdigest(): len(text),
    }
    assert await measure_largest_row(store) < 1000


async def test_large_content_is_read_by_other_store(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        rows = await first_store.append(session.id, text_message("x" * 100_000))
        assert await second_store.read(session.id) == rows


async def test_text_that_resembles_blob_reference_is_text(store: Store) -> None:
    session = await store.create_session()
    sha256 = hashlib.sha256(b"a" * 50_000).hexdigest()
    rows = await store.append(session.id, message(Role.USER, [TextBlock(f"sha256:{sha256}"), TextBlock("a" * 50_000)]))
    assert await store.read(session.id) == rows


async def test_growing_content_moves_to_blob(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, text_message("a", Role.ASSISTANT, status=MessageStatus.PARTIAL))
    for size in (100, MAX_INLINE_BYTES + 100, 3 * MAX_INLINE_BYTES, 50):
        row = await store.update(session.id, row.message.replace(content=(TextBlock("a" * size),)))
        assert await store.read(session.id) == [row]


async def test_unknown_fields_survive_update(store: Store) -> None:
    session = await store.create_session()
    data = (
        b'{"id":"01HZ001","session_id":"%s","role":"critic","content":[{"type":"hologram", "depth":1e2},'
        b'{"type":"text","text":"hi","mood":{"a" : 1}}],"metadata":{"status":"partial","rank":3},'
        b'"created_at":"2026-05-08T12:30:15.250000Z","schema_version":1,"sealed":"yes"}' % session.id.encode()
    )
    newer = dragoman.decode(data)
    await store.append(session.id, newer)
    (row,) = await store.read(session.id)
    assert dragoman.encode(row.message) == dragoman.encode(newer)
    assert isinstance(row.message.content[0], UnknownBlock)
    more = (*row.message.content, TextBlock("more"))
    await store.update(session.id, row.message.replace(content=more))
    (row,) = await store.read(session.id)
    saved = dragoman.encode(row.message)
    for part in (b'{"type":"hologram", "depth":1e2}', b'"mood":{"a" : 1}', b'"rank":3', b'"sealed":"yes"', b'"critic"'):
        assert part in saved
    assert row.message.content[-1] == TextBlock("more")


async def test_large_unknown_block_round_trips(store: Store) -> None:
    session = await store.create_session()
    data = b'{"type":"hologram", "points" : "%s"}' % (b"\\u0041" * MAX_INLINE_BYTES)
    message_value = Message(
        "01HZ001", session.id, Role.USER, (UnknownBlock(RawJson(data)),), MessageMetadata(), NO_TIME
    )
    await store.append(session.id, message_value)
    (row,) = await store.read(session.id)
    assert dragoman.encode(row.message) == dragoman.encode(message_value)


@pytest.mark.parametrize(
    "size",
    [0, 1, MAX_INLINE_BYTES - 3, MAX_INLINE_BYTES - 2, MAX_INLINE_BYTES - 1, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1],
)
async def test_texts_at_inline_limit_round_trip(store: Store, size: int) -> None:
    session = await store.create_session()
    contents = ["a" * size, "ä" * size, base64.b64encode(os.urandom(size)).decode(), '"' * size]
    rows = await store.append(session.id, [text_message(text) for text in contents])
    assert await store.read(session.id) == rows
