"""The log of llm, a command line tool: a chain of messages by their hashes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlite_utils
from llm.logs import LogStore
from llm.parts import Message, TextPart

from benchmarks.contestants.store_ground import make_operations
from benchmarks.worker import Operation


class LlmStore:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        self._log = LogStore(sqlite_utils.Database(self._connection))
        self._thread_ids: set[str] = set()

    def _thread(self, session: str) -> str:
        if session not in self._thread_ids:
            self._log.ensure_thread(session)
            self._thread_ids.add(session)
        return session

    def seed(self, session: str, texts: list[str]) -> None:
        self._log.append(self._thread(session), [_message(said) for said in texts])

    def append(self, session: str, content: str) -> None:
        self._log.append(self._thread(session), [_message(content)])

    def last(self, session: str, count: int) -> int:
        return len(self._log.thread_messages(session)[-count:])

    def close(self) -> None:
        self._connection.close()


def _message(content: str) -> Message:
    return Message(role="assistant", parts=[TextPart(text=content)])


def operations() -> dict[str, Operation]:
    return make_operations(LlmStore)[1]
