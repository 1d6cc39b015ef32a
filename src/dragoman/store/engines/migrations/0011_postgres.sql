-- Calls for which no price was known are counted apart from what the others cost. Earlier versions wrote them as 0.
ALTER TABLE usage ADD COLUMN unpriced BIGINT NOT NULL DEFAULT 0;
ALTER TABLE past_usage ADD COLUMN unpriced BIGINT NOT NULL DEFAULT 0;
UPDATE usage SET unpriced = 1, cost_usd = '0' FROM messages AS m WHERE m.session_id = usage.session_id AND m.seq = usage.seq
  AND m.metadata -> 'usage' ->> 'pricing_version' IN ('unpriced', 'not-recorded');
-- An amount that no call can have cost is not added up: negative, beyond a billion, or with more than 100 decimals.
CREATE OR REPLACE FUNCTION dragoman_decimal_add(numeric, text) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
  amount numeric;
BEGIN
  IF $2 IS NULL OR $2 !~ '^[0-9]{1,120}(\.[0-9]{1,120})?(E[+-][0-9]{1,3})?$' THEN
    RETURN $1;
  END IF;
  amount := $2::numeric;
  RETURN CASE WHEN amount BETWEEN 0 AND 1000000000 AND scale(amount) <= 100 THEN $1 + amount ELSE $1 END;
END
$$;
