-- An append changes neither of these most of the time, and so no index of sessions: they are listed by updated_at in
-- tens of seconds, and is_behind says that the index for searching may lack something of one.
ALTER TABLE sessions ADD COLUMN listed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN is_behind INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET listed_at = (updated_at - (updated_at % 10000000 + 10000000) % 10000000) / 10000000,
  is_behind = CASE WHEN indexed_seq < last_seq THEN 1 ELSE 0 END;
DROP INDEX IF EXISTS sessions_by_time;
DROP INDEX IF EXISTS sessions_by_user;
DROP INDEX IF EXISTS sessions_to_index;
CREATE INDEX sessions_by_time ON sessions (listed_at);
CREATE INDEX sessions_by_user ON sessions (user_id, listed_at) WHERE user_id IS NOT NULL;
CREATE INDEX sessions_to_index ON sessions (id) WHERE is_behind = 1;
