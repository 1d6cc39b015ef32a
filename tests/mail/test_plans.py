"""Tests that an index covers every statement of mail, so that its cost does not grow with the queue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.mail import Mail
from dragoman.mail.stored_letter import to_stored
from dragoman.store import open_store
from dragoman.store.engines import write_scheduler
from dragoman.store.mailbox.letters import get_key
from tests.mail.conftest import Clock, failure, pass_time, result

CONSTANT_SCAN = re.compile(
    r"SCAN (CONSTANT ROW|[0-9]+ CONSTANT ROWS|.*VALUES CLAUSE|[tv])"
)  # rows of the statement itself


async def test_no_statement_scans_a_mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    statements: set[str] = set()

    class RecordingConnection:
        """A connection that records its statements."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def execute(self, sql: str, arguments: Any = ()) -> Any:
            statements.add(sql)
            return self._connection.execute(sql, arguments)

        def changes(self) -> int:
            return int(self._connection.changes())

    original = write_scheduler.run_operation
    monkeypatch.setattr(
        write_scheduler,
        "run_operation",
        lambda connection, operation: original(RecordingConnection(connection), operation),
    )
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        statements.clear()  # drop statements of the open
        store.clock = clock
        mail = Mail(store)
        for number in range(3):
            await mail.send(result("T", message_id=f"L{number}"))
        await mail.send(failure("U", depends_on=["V"]))
        await mail.send(result("V", to="CC"))
        (first, second, *_) = await mail.receive("ARCH")
        await first.extend(90)
        await first.ack()
        await second.nack("no", error_class="not_retryable")
        await mail.send_all([result(f"W{number % 5}", message_id=f"M{number}") for number in range(9)])
        await mail.ack_all(await mail.receive("ARCH"))
        before = set(statements)
        await pass_time(store, clock, hours=1)
        of_test = statements - before
        statements -= of_test
        await mail.receive("ARCH", letter_id="M8")
        published = [
            to_stored(result(f"X{number % 3}", message_id=f"O{number}"), mail.encryptor) for number in range(9)
        ]
        await mail.store.mail.post_all(published, via_transport=True)
        await mail.store.mail.post(to_stored(result("X1"), mail.encryptor), via_transport=True)
        claimed = await mail.store.mail.claim(30, 10)
        await mail.store.mail.mark_published([(get_key(posted), 7) for posted, _, _ in claimed], 30)
        await mail.store.mail.receive([first.leased.letter, *published])
    connection = apsw.Connection(str(path))
    connection.create_scalar_function("lease_now", lambda *_: 0, 0, deterministic=True)
    plans = {
        sql: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?")).fetchall()]
        for sql in statements
        if sql.startswith(("SELECT", "INSERT", "UPDATE", "DELETE")) and "box" in sql
    }
    connection.close()
    assert len(plans) > 10
    whole = "(recipient_id=? AND team_id=?)"
    for sql, steps in plans.items():
        for step in steps:
            assert not step.startswith("SCAN") or CONSTANT_SCAN.fullmatch(step), (sql, steps)
            if whole in step:  # a whole mailbox may be read only in delivery order
                assert "inbox_free" in step or "mailboxes" in step, (sql, steps)
