-- Which session a link to a read-only page shows, by the hash of the link's secret.
CREATE TABLE shares (
  hash TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id)
) WITHOUT ROWID;
CREATE INDEX shares_by_session ON shares (session_id);
