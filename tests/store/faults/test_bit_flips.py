"""Tests of flipped bits in the database file: each is detected by a read or by verify, or is harmless.

Harmless means that every answer the store can give is what it was. A message is never given as anything but what was
written: not changed, and not as if it had never been there.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dragoman import codec
from dragoman.errors import DragomanError, StorageError, StoreError, StoreUnusableError, UnknownNameError
from dragoman.message import ImageBlock, ImageSource, Role, TextBlock, Usage
from dragoman.store import Session, Store, message_rows, open_store
from dragoman.store.operation import Rows, Statement
from tests.conftest import scale
from tests.store.faults.conftest import times
from tests.store.messages import answer_message, call_message, message, result_message, text_message

QUERIES = ("weather", "金陵", "frobnicate")

Answers = dict[tuple[str, ...], Any]  # query: answer or error


class SoundStore:
    """A store with every kind of content, and all answers that it returns."""

    def __init__(self, path: Path, answers: Answers, columns: dict[bytes, message_rows.Columns]) -> None:
        self.path = path
        self.answers = answers
        self.sessions = [question[1] for question in answers if question[0] == "session"]
        self.data = path.read_bytes()
        texts = [text.encode() for item in columns.values() for text in (item.content_json, item.metadata_json)]
        once = [text for text in texts if self.data.count(text) == 1]  # other texts have unused copies in the file
        self.texts = [self.data.index(text) for text in once]
        self.lengths = [len(text) for text in once]
        self.hashes = [self.data.index(item) for item in columns if self.data.count(item) == 1]

    def random_message_offset(self, rng: random.Random) -> int:
        """Return an offset in the text or the hash of a message."""
        if rng.random() < 0.2:
            return rng.choice(self.hashes) + rng.randrange(32)
        number = rng.randrange(len(self.texts))
        return self.texts[number] + rng.randrange(self.lengths[number])

    def copy_with_flip(self, offset: int, bit: int, folder: Path) -> Path:
        """Create a copy with one flipped bit."""
        folder.mkdir()
        data = bytearray(self.data)
        data[offset] ^= 1 << bit
        copy = folder / self.path.name
        copy.write_bytes(data)
        shutil.copytree(f"{self.path}-blobs", f"{copy}-blobs")
        return copy


async def _create_store(path: Path) -> SoundStore:
    async with open_store(f"sqlite:///{path}") as store:
        first = await store.create_session(title="The first one", user_id="u1", metadata={"a": [1, "b"]})
        for number in range(40):
            await store.append(
                first.id,
                [text_message(f"What is the weather in {number}? {'x' * number * 7}"), _answer_message(number)],
            )
        await store.append(
            first.id,
            [text_message("Look that up"), call_message("tu_1", "tu_2"), result_message("tu_1")],
            idempotency_key="k",
        )
        await store.save_tool_ids(first.id, [("anthropic", "tu_1", "toolu_01"), ("anthropic", "tu_2", "toolu_02")])
        await store.append(first.id, message(Role.USER, [TextBlock(text="金陵 " * 20), _image_block()]))
        fork = await store.fork(first.id, 30, title="Another way")
        await store.append(fork.id, [text_message("frobnicate " + "é" * 30_000), _answer_message(99)])
        await store.append(fork.id, answer_message("It goes on", status="partial"))
        empty = await store.create_session(routing_policy={"mode": "fixed"})
        answers = await _read_answers(store, [first.id, fork.id, empty.id])
        columns = {}
        async for row in store.history(first.id):
            one = message_rows.columns_from(row.message)
            columns[message_rows.message_hash(first.id, row.seq, one)] = one
    connection = apsw.Connection(str(path))
    connection.execute("VACUUM")  # no free pages, so little of the file is unused
    connection.close()
    return SoundStore(path, answers, columns)


def _answer_message(number: int) -> Any:
    cost = Decimal("0.0123")
    usage = Usage(input_tokens=100 + number, output_tokens=20, cost_usd=cost, pricing_version="p", latency_ms=1)
    return answer_message(f"It is {number} degrees", usage=usage, model="m", user_id="u1")


def _image_block() -> ImageBlock:
    return ImageBlock(source=ImageSource(kind="base64", data="QUJD" * 8_000), media_type="image/png")


# --- answers ---------------------------------------------------------------------------------------------------------


async def _read_answers(store: Store, sessions: list[str]) -> Answers:
    answers: Answers = {}

    async def record_answer(question: tuple[str, ...], query: Coroutine[Any, Any, Any]) -> None:
        try:
            answers[question] = await query
        except DragomanError as error:
            answers[question] = error

    for session_id in sessions:
        await record_answer(("session", session_id), _read_session(store, session_id))
        await record_answer(("messages", session_id), _read_history(store, session_id))
        await record_answer(("messages of the tail", session_id), _read_tail(store, session_id))
        await record_answer(("calls", session_id), store.tool_calls(session_id))
        await record_answer(("what providers call calls", session_id), store.tool_ids(session_id))
        await record_answer(("idempotency keys", session_id), _read_keys(store, session_id))
    for by in ("session", "user", "model", "day"):
        await record_answer(("totals", by), store.costs.totals(by))  # type: ignore[arg-type]
    await record_answer(("sessions",), _list_sessions(store))
    await record_answer(("search",), _search(store))
    return answers


# Excluded, because no hash covers it: the seconds of a session's last change.


def _without_seconds(session: Session) -> Session:
    seconds = int(session.updated_at.timestamp())
    return msgspec.structs.replace(session, updated_at=datetime.fromtimestamp(seconds // 10 * 10, UTC))


async def _read_session(store: Store, session_id: str) -> Session:
    return _without_seconds(await store.get_session(session_id))


async def _list_sessions(store: Store) -> list[Session]:
    return sorted(map(_without_seconds, await store.list_sessions()), key=lambda session: session.id)


async def _read_keys(store: Store, session_id: str) -> list[tuple[Any, ...]]:
    """Return the idempotency keys of a session, which prevent that a repeated append is stored twice."""
    return await store._read(_select_keys(session_id))


def _select_keys(session_id: str) -> Generator[Statement, Rows, list[tuple[Any, ...]]]:
    return (yield "SELECT key, fingerprint, first_seq, last_seq FROM idempotency WHERE session_id = ?", (session_id,))


async def _read_history(store: Store, session_id: str) -> list[tuple[int, bytes]]:
    return [(row.seq, codec.encode(row.message)) async for row in store.history(session_id, page=25)]


async def _read_tail(store: Store, session_id: str) -> list[tuple[int, bytes]]:
    return [(row.seq, codec.encode(row.message)) for row in await store.tail(session_id, 20)]


async def _search(store: Store) -> dict[str, list[tuple[str, int, str]]]:
    return {word: [(hit.session_id, hit.seq, hit.snippet) for hit in await store.search(word)] for word in QUERIES}


# --- outcomes --------------------------------------------------------------------------------------------------------


async def _find_outcome(path: Path, sound: SoundStore) -> str:
    """``harmless``, ``refused``, ``found when read``, ``found by verify``; a forbidden outcome is in capitals."""
    try:
        async with open_store(f"sqlite:///{path}") as store:
            now = await _read_answers(store, sound.sessions)
            verification = await store.verify()
            changed = [question for question, answer in sound.answers.items() if now[question] != answer]
            if changed == [("search",)] and verification.is_sound:
                await store.reindex()  # the index is derived from the messages
                is_healed = await _search(store) == sound.answers["search",]
                return "in the index, and mended by reindex" if is_healed else "SEARCH IS WRONG FOR GOOD"
    except (StoreUnusableError, StorageError):
        return "refused"
    except StoreError:
        return "found when read"
    return _classify(changed, now, is_found=not verification.is_sound)


def _classify(changed: list[tuple[str, ...]], now: Answers, *, is_found: bool) -> str:
    for question in changed:
        if question[0].startswith("messages") and not isinstance(now[question], DragomanError):
            return f"SERVED AS GOOD: {question}"
        if isinstance(now[question], UnknownNameError) and not is_found:
            return f"GONE WITHOUT A WORD: {question}"
    if any(isinstance(now[question], StoreError) for question in changed):
        return "found when read"
    if is_found:
        return "found by verify"
    return f"UNNOTICED: {changed}" if changed else "harmless"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> SoundStore:
    return asyncio.run(_create_store(tmp_path_factory.mktemp("sound") / "store.db"))


async def _count_outcomes(
    sound: SoundStore, offsets_and_bits: Iterable[tuple[int, int]], folder: Path
) -> tuple[Counter[str], list[str]]:
    """Return the counts of outcomes and the forbidden outcomes."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for offset, bit in offsets_and_bits:
        outcome = await _find_outcome(sound.copy_with_flip(offset, bit, folder / "flipped"), sound)
        outcomes[outcome if outcome.islower() else "WRONG"] += 1
        if not outcome.islower():
            wrong.append(f"byte {offset}, bit {bit}: {outcome}")
        shutil.rmtree(folder / "flipped")
    return outcomes, wrong


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in messages", "anywhere"])
async def test_flipped_bit_is_detected_or_harmless(
    where: str, sound: SoundStore, rng: random.Random, tmp_path: Path, count: Callable[[str], None]
) -> None:
    flips = times(scale(25, 50), 1_000)
    if where == "in messages":
        offsets_and_bits = [(sound.random_message_offset(rng), rng.randrange(8)) for _ in range(flips)]
    else:
        offsets_and_bits = [(rng.randrange(len(sound.data)), rng.randrange(8)) for _ in range(flips)]
    outcomes, wrong = await _count_outcomes(sound, offsets_and_bits, tmp_path)
    count(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
    assert wrong == []
    if where == "in messages":
        assert outcomes["found when read"] == flips


async def test_store_that_ignores_hashes_is_detected(
    sound: SoundStore, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_rows, "message_hash", lambda *_: _EqualToAll())
    offsets = [sound.data.find(b"What is the weather", offset, offset + 60) for offset in sound.texts]
    offsets_and_bits = [(offset, 0) for offset in rng.sample([offset for offset in offsets if offset > 0], 5)]
    _, wrong = await _count_outcomes(sound, offsets_and_bits, tmp_path)
    assert ["SERVED AS GOOD" in item for item in wrong] == [True] * 5


class _EqualToAll:
    """Equal to every hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


async def test_flipped_bit_in_blob_is_detected(sound: SoundStore, rng: random.Random, tmp_path: Path) -> None:
    blobs = [path for path in Path(f"{sound.path}-blobs").rglob("*") if path.is_file()]
    assert len(blobs) == 2
    for number in range(times(10, 100)):
        copy = sound.copy_with_flip(0, 0, tmp_path / str(number))
        copy.write_bytes(sound.data)
        blob = Path(f"{copy}-blobs") / rng.choice(blobs).relative_to(f"{sound.path}-blobs")
        data = bytearray(blob.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        blob.write_bytes(data)
        assert await _find_outcome(copy, sound) == "found when read"
        async with open_store(f"sqlite:///{copy}") as store:
            assert [blob.name in found_damage.what for found_damage in (await store.verify()).damage] == [True]
