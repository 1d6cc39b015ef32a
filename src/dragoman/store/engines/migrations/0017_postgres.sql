-- Which session a link to a read-only page shows, by the hash of the link's secret.
CREATE TABLE shares (
  hash TEXT COLLATE "C" PRIMARY KEY,
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id)
);
CREATE INDEX shares_by_session ON shares (session_id);
