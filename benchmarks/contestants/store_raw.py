"""The limit: SQLite itself, one insert a commit; with several writers, one thread that commits together what waits."""

from __future__ import annotations

import queue
import sqlite3
import threading
from pathlib import Path

import msgspec

from benchmarks.contestants.store_ground import LONGEST, PER_WRITER, operations_of, text
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

    def append(self, session: str, said: str) -> None:
        body = _encode({"role": "assistant", "content": [{"type": "text", "text": said}]})
        self._connection.execute("INSERT INTO messages (session, body) VALUES (?, ?)", (session, body))

    def last(self, session: str, count: int) -> int:
        rows = self._connection.execute(
            "SELECT body FROM messages WHERE session = ? ORDER BY id DESC LIMIT ?", (session, count)
        )
        return len([_decode(body) for (body,) in rows])

    def close(self) -> None:
        self._connection.close()

    def written_by(self, writers: int) -> None:
        """Everybody hands over what there is to write and waits until it is committed."""
        waiting: queue.SimpleQueue[tuple[str, str, threading.Event]] = queue.SimpleQueue()

        def commit() -> None:
            left = writers * PER_WRITER
            while left:
                batch = [waiting.get()]
                while not waiting.empty():
                    batch.append(waiting.get())
                self._connection.execute("BEGIN")
                for session, said, _ in batch:
                    self.append(session, said)
                self._connection.execute("COMMIT")
                for _, _, done in batch:
                    done.set()
                left -= len(batch)

        def write(number: int) -> None:
            for _ in range(PER_WRITER):
                done = threading.Event()
                waiting.put((f"of {number}", text(), done))
                done.wait()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in (*threads, committing := threading.Thread(target=commit)):
            thread.start()
        for thread in (*threads, committing):
            thread.join()


def operations() -> dict[str, Operation]:
    return operations_of(RawStore, up_to=LONGEST)[1]
