-- A letter is seldom small enough for a page of keys: a table of its own, and the key beside it.
CREATE TABLE letters_with_rows (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL, -- '' where there is no team
  letter_id TEXT NOT NULL,
  sender_id TEXT NOT NULL,
  task_id TEXT NOT NULL,
  type TEXT NOT NULL,
  trace_id TEXT,
  session_id TEXT, -- what it came from
  message_id TEXT,
  turn_id TEXT,
  user_id TEXT,
  created_at INTEGER NOT NULL,
  fingerprint BLOB NOT NULL, -- of what makes it this letter and no other
  hash BLOB NOT NULL,
  letter_json TEXT NOT NULL, -- with *** in place of what is sensitive
  PRIMARY KEY (recipient_id, team_id, letter_id)
);
INSERT INTO letters_with_rows (recipient_id, team_id, letter_id, sender_id, task_id, type, trace_id, session_id, message_id, turn_id,
  user_id, created_at, fingerprint, hash, letter_json)
SELECT recipient_id, team_id, letter_id, sender_id, task_id, type, trace_id, session_id, message_id, turn_id, user_id, created_at,
  fingerprint, hash, letter_json
FROM letters;
DROP TABLE letters;
ALTER TABLE letters_with_rows RENAME TO letters;
CREATE INDEX letters_by_task ON letters (task_id, team_id, created_at);
CREATE INDEX letters_by_session ON letters (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX letters_by_user ON letters (user_id) WHERE user_id IS NOT NULL;

-- available_at is 0 of what may be handed out, so that nobody has to look past what is in somebody's hands.
UPDATE inbox SET available_at = 0 WHERE lease IS NULL AND error_class IS NULL;
DROP INDEX IF EXISTS inbox_ready;
CREATE INDEX IF NOT EXISTS inbox_free ON inbox (recipient_id, team_id, number) WHERE state = 'ready' AND available_at = 0;
CREATE INDEX IF NOT EXISTS inbox_timed ON inbox (recipient_id, team_id, available_at) WHERE state = 'ready' AND available_at > 0;
