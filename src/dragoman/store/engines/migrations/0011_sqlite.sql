-- Calls for which no price was known are counted apart from what the others cost. Earlier versions wrote them as 0.
ALTER TABLE usage ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0;
ALTER TABLE past_usage ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0;
UPDATE usage SET unpriced = 1, cost_usd = '0' WHERE EXISTS (
  SELECT 1 FROM messages AS m WHERE m.session_id = usage.session_id AND m.seq = usage.seq AND json_valid(m.metadata_json)
  AND json_extract(m.metadata_json, '$.usage.pricing_version') IN ('unpriced', 'not-recorded')
);
