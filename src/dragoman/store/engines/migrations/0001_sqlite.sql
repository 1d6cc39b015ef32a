CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  workspace_path TEXT NOT NULL,
  active_model TEXT,
  routing_policy_json TEXT,
  schema_version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  title TEXT,
  metadata_json TEXT,
  user_id TEXT,
  team_id TEXT,
  parent_session_id TEXT,
  parent_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  last_message_id TEXT NOT NULL,
  indexed_seq INTEGER NOT NULL,
  hash BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_time ON sessions (updated_at, id);
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at, id) WHERE user_id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_to_index ON sessions (id) WHERE indexed_seq < last_seq;

CREATE TABLE messages (
  number INTEGER PRIMARY KEY, -- what the index for searching knows it by; without a name, VACUUM would change it
  id TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  role TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  schema_version INTEGER NOT NULL,
  status TEXT NOT NULL,
  hash BLOB NOT NULL, -- before what is long, so that it is read without it
  unknown_json TEXT,
  blobs_json TEXT,
  metadata_json TEXT NOT NULL,
  content_json TEXT NOT NULL,
  UNIQUE (session_id, seq)
);
CREATE UNIQUE INDEX messages_by_id ON messages (session_id, id);

CREATE TABLE tool_calls (
  id TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  message_id TEXT NOT NULL,
  result_message_id TEXT,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  provider_id TEXT,
  provider TEXT,
  created_at INTEGER NOT NULL,
  completed_at INTEGER,
  seq INTEGER NOT NULL,
  block INTEGER NOT NULL,
  result_seq INTEGER,
  PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE INDEX idx_tool_calls_session_status ON tool_calls (session_id, status);

CREATE TABLE tool_ids (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  number INTEGER NOT NULL,
  provider TEXT NOT NULL,
  tool_id TEXT NOT NULL,
  provider_id TEXT NOT NULL,
  PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

CREATE TABLE usage (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  day TEXT NOT NULL,
  model TEXT,
  provider TEXT,
  user_id TEXT,
  team_id TEXT,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  cache_creation_input_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost_usd TEXT NOT NULL,
  PRIMARY KEY (session_id, seq)
) WITHOUT ROWID;

CREATE TABLE idempotency (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  key TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, key)
) WITHOUT ROWID;

CREATE TABLE leases (
  session_id TEXT PRIMARY KEY REFERENCES sessions (id),
  owner TEXT NOT NULL,
  expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_refs (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  PRIMARY KEY (session_id, seq, sha256)
) WITHOUT ROWID;
CREATE INDEX blob_refs_by_hash ON blob_refs (sha256);

CREATE TABLE entries (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  agent_key TEXT,
  type TEXT NOT NULL,
  entry_json TEXT NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (session_id, seq)
);
CREATE INDEX entries_by_type ON entries (session_id, type, seq);
CREATE INDEX entries_by_agent ON entries (session_id, agent_key, seq) WHERE agent_key IS NOT NULL;

CREATE TABLE past_usage (
  id TEXT PRIMARY KEY,
  day TEXT NOT NULL,
  model TEXT,
  provider TEXT,
  user_id TEXT,
  team_id TEXT,
  messages INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  cache_creation_input_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost_usd TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_states (
  sha256 TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  changed_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE erasures (
  id TEXT PRIMARY KEY,
  receipt_json TEXT NOT NULL
) WITHOUT ROWID;

CREATE VIRTUAL TABLE search USING fts5 (words, parts, session, content = '', contentless_delete = 1, tokenize = 'ascii');
