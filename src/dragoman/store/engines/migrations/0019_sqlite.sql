-- Old events are found by the end of their run: an index entry for each run instead of one for each batch of events.
DROP INDEX IF EXISTS run_events_by_time;
ALTER TABLE runs ADD COLUMN has_events INTEGER NOT NULL DEFAULT 1; -- 0 when they were deleted because of their age
CREATE INDEX IF NOT EXISTS runs_by_end ON runs (ended_at) WHERE has_events = 1 AND ended_at IS NOT NULL;
