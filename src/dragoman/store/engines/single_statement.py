"""What SQLite does in one statement, which is a transaction by itself.

    PREPARE     the views and triggers of a connection that writes
    PUT         one message more at the end of its session, with the time of it
    POST        a letter into the inbox of its recipient, with what it says of its task

A trigger does what an operation does in several steps, where nothing unusual is to be done. On any doubt it refuses,
nothing has changed, and the operation is run. The one rule: what is done here and what the operation does are the same
rows.
"""

from __future__ import annotations

from typing import Final

from dragoman.store.engines.tables import LETTER_COLUMNS
from dragoman.store.message_reader import COLUMNS


def _new(columns: str) -> str:
    return ", ".join(f"NEW.{name.strip()}" for name in columns.split(","))


def _into(view: str, columns: str) -> str:
    return f"INSERT INTO {view} ({columns}) VALUES ({', '.join('?' * len(columns.split(',')))})"


PUT: Final = _into("at_the_end", f"{COLUMNS}, now, listed_at")
POST: Final = _into("at_the_door", f"{LETTER_COLUMNS}, task_state")
PREPARE: Final = f"""
CREATE TEMP VIEW at_the_end AS SELECT {COLUMNS}, 0 AS now, 0 AS listed_at FROM messages;
CREATE TEMP TRIGGER put_at_the_end INSTEAD OF INSERT ON at_the_end BEGIN
  UPDATE sessions SET last_seq = NEW.seq, last_message_id = NEW.id, updated_at = max(updated_at, NEW.now)
    WHERE id = NEW.session_id AND last_seq = NEW.seq - 1 AND last_message_id < NEW.id;
  SELECT raise(ABORT, 'it does not end there') WHERE changes() = 0;
  UPDATE sessions SET listed_at = max(listed_at, NEW.listed_at), is_behind = 1
    WHERE id = NEW.session_id AND (is_behind = 0 OR listed_at < NEW.listed_at);
  INSERT INTO messages ({COLUMNS}) VALUES ({_new(COLUMNS)});
END;

CREATE TEMP VIEW at_the_door AS SELECT {LETTER_COLUMNS}, '' AS task_state FROM letters;
CREATE TEMP TRIGGER put_at_the_door INSTEAD OF INSERT ON at_the_door BEGIN
  SELECT raise(ABORT, 'another one of its task is before it') WHERE (
    SELECT number FROM inbox WHERE recipient_id = NEW.recipient_id AND team_id = NEW.team_id AND task_id = NEW.task_id
      AND ended_at IS NULL ORDER BY number LIMIT 1) IS NOT NULL; -- in that order, an index has it
  SELECT raise(ABORT, 'others wait for its task') WHERE NEW.task_state = 'succeeded' AND EXISTS (
    SELECT 1 FROM task_needs WHERE needed_id = NEW.task_id AND team_id = NEW.team_id);
  INSERT INTO letters ({LETTER_COLUMNS}) VALUES ({_new(LETTER_COLUMNS)});
  INSERT INTO task_states (task_id, team_id, state, changed_at)
    SELECT NEW.task_id, NEW.team_id, NEW.task_state, NEW.created_at WHERE NEW.task_state IS NOT NULL
    ON CONFLICT (task_id, team_id) DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at
      WHERE task_states.state <> 'succeeded';
  INSERT INTO mailboxes (recipient_id, team_id, last_number) VALUES (NEW.recipient_id, NEW.team_id, 1)
    ON CONFLICT (recipient_id, team_id) DO UPDATE SET last_number = last_number + 1;
  INSERT INTO inbox (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts, arrived_at)
    SELECT NEW.recipient_id, NEW.team_id, NEW.letter_id, last_number, NEW.task_id, 'ready', 0, 0, NEW.created_at
    FROM mailboxes WHERE recipient_id = NEW.recipient_id AND team_id = NEW.team_id;
END;
"""
