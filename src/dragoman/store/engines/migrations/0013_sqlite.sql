ALTER TABLE sessions ADD COLUMN received_at INTEGER NOT NULL DEFAULT 0; -- when it was imported; 0 if it began here
-- Hashes of what no message repeats. A row of an earlier version has none until it changes.
ALTER TABLE tool_calls ADD COLUMN hash BLOB;
ALTER TABLE tool_ids ADD COLUMN hash BLOB;
ALTER TABLE idempotency ADD COLUMN hash BLOB;
