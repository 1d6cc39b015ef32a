-- available_at is 0 of what may be handed out, so that nobody has to look past what is in somebody's hands.
UPDATE inbox SET available_at = 0 WHERE lease IS NULL AND error_class IS NULL;
DROP INDEX IF EXISTS inbox_ready;
CREATE INDEX IF NOT EXISTS inbox_free ON inbox (recipient_id, team_id, number) WHERE state = 'ready' AND available_at = 0;
CREATE INDEX IF NOT EXISTS inbox_timed ON inbox (recipient_id, team_id, available_at) WHERE state = 'ready' AND available_at > 0;
