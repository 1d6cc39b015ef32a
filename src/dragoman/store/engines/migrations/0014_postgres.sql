-- The hash of a tool call covers its whole row. A row that was written before has none until it changes.
DROP FUNCTION call_hash(TEXT, TEXT, TEXT, BIGINT, BIGINT, BIGINT);
CREATE FUNCTION call_hash(TEXT, TEXT, BIGINT, TEXT, TEXT, TEXT, BIGINT, TEXT, TEXT, BIGINT, BIGINT, BIGINT)
  RETURNS BYTEA LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS 'SELECT sha256(convert_to(concat_ws(chr(10), $1, $2, $3, $4, $5, coalesce($6, ''''), coalesce($7::text, ''''), coalesce($8, ''''), coalesce($9, ''''), $10, $11, coalesce($12::text, '''')), ''UTF8''))';
UPDATE tool_calls SET hash = NULL WHERE hash IS NOT NULL;
