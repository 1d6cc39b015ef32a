-- Old events are found by their time alone: an index that grows at its end. Only an erasure looks for the runs of a user.
DROP INDEX IF EXISTS events_by_type;
DROP INDEX IF EXISTS events_by_parent;
DROP INDEX IF EXISTS runs_by_user;
CREATE INDEX IF NOT EXISTS events_by_time ON events (timestamp_us);
