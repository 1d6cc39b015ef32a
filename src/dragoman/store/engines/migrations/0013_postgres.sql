ALTER TABLE sessions ADD COLUMN received_at BIGINT NOT NULL DEFAULT 0; -- when it was imported; 0 if it began here
-- Hashes of what no message repeats. A row of an earlier version has none until it changes.
ALTER TABLE tool_calls ADD COLUMN hash BYTEA;
ALTER TABLE tool_ids ADD COLUMN hash BYTEA;
ALTER TABLE idempotency ADD COLUMN hash BYTEA;
CREATE FUNCTION call_hash(TEXT, TEXT, TEXT, BIGINT, BIGINT, BIGINT) RETURNS BYTEA LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS 'SELECT sha256(convert_to(concat_ws(chr(10), $1, coalesce($2, ''''), coalesce($3, ''''), $4, $5, coalesce($6::text, '''')), ''UTF8''))';
