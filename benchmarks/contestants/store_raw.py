"""The limit: SQLite itself, one insert a commit; with several writers, one thread that commits together what waits."""

from __future__ import annotations

import queue
import sqlite3
import threading
from pathlib import Path

import msgspec

from benchmarks.contestants.store_ground import LONGEST, PER_WRITER, make_operations, text
from benchmarks.worker import Operation

_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class RawStore:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, session TEXT, body BLOB)"
        )
        self._connection.execute("CREATE INDEX IF NOT EXISTS by_session ON messages (session, id)")

    def seed(self, session: str, texts: list[str]) -> None:
        self._connection.execute("BEGIN")
        for said in texts:
            self.append(session, said)
        self._connection.execute("COMMIT")

    def append(self, session: str, content: str) -> None:
        body = _encode({"role": "assistant", "content": [{"type": "text", "text": content}]})
        self._connection.execute("INSERT INTO messages (session, body) VALUES (?, ?)", (session, body))

    def last(self, session: str, count: int) -> int:
        rows = self._connection.execute(
            "SELECT body FROM messages WHERE session = ? ORDER BY id DESC LIMIT ?", (session, count)
        )
        return len([_decode(body) for (body,) in rows])

    def close(self) -> None:
        self._connection.close()

    def write_concurrently(self, writers: int) -> None:
        """Everybody hands over what there is to write and waits until it is committed."""
        pending: queue.SimpleQueue[tuple[str, str, threading.Event]] = queue.SimpleQueue()

        def commit() -> None:
            remaining = writers * PER_WRITER
            while remaining:
                batch = [pending.get()]
                while not pending.empty():
                    batch.append(pending.get())
                self._connection.execute("BEGIN")
                for session, content, _ in batch:
                    self.append(session, content)
                self._connection.execute("COMMIT")
                for _, _, done in batch:
                    done.set()
                remaining -= len(batch)

        def write(number: int) -> None:
            for _ in range(PER_WRITER):
                done = threading.Event()
                pending.put((f"of {number}", text(), done))
                done.wait()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in (*threads, committer := threading.Thread(target=commit)):
            thread.start()
        for thread in (*threads, committer):
            thread.join()


def operations() -> dict[str, Operation]:
    return make_operations(RawStore, up_to=LONGEST)[1]
