CREATE FUNCTION dragoman_jsonb(text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN $1::jsonb;
EXCEPTION WHEN others THEN
  RETURN NULL;  -- a copy for queries; what jsonb cannot say, such as U+0000, is kept in the text beside it
END
$$;
CREATE FUNCTION dragoman_decimal_add(numeric, text) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS 'SELECT $1 + coalesce($2, ''0'')::numeric';
CREATE AGGREGATE decimal_sum(text) (SFUNC = dragoman_decimal_add, STYPE = numeric, INITCOND = '0');

CREATE TABLE sessions (
  id TEXT COLLATE "C" PRIMARY KEY,
  workspace_path TEXT NOT NULL,
  active_model TEXT,
  routing_policy_json TEXT,
  schema_version BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  title TEXT,
  metadata_json TEXT,
  metadata JSONB GENERATED ALWAYS AS (dragoman_jsonb(metadata_json)) STORED,
  user_id TEXT,
  team_id TEXT,
  parent_session_id TEXT COLLATE "C",
  parent_seq BIGINT NOT NULL,
  last_seq BIGINT NOT NULL,
  last_message_id TEXT COLLATE "C" NOT NULL,
  indexed_seq BIGINT NOT NULL,
  hash BYTEA NOT NULL
);
CREATE INDEX sessions_by_time ON sessions (updated_at, id);
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at, id) WHERE user_id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_to_index ON sessions (id) WHERE indexed_seq < last_seq;

CREATE TABLE messages (
  id TEXT COLLATE "C" NOT NULL,
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  role TEXT NOT NULL,
  content_json TEXT NOT NULL,
  metadata_json TEXT NOT NULL,
  metadata JSONB GENERATED ALWAYS AS (dragoman_jsonb(metadata_json)) STORED,
  created_at BIGINT NOT NULL,
  schema_version BIGINT NOT NULL,
  status TEXT NOT NULL,
  unknown_json TEXT,
  blobs_json TEXT,
  hash BYTEA NOT NULL,
  PRIMARY KEY (session_id, seq)
);
CREATE UNIQUE INDEX messages_by_id ON messages (session_id, id);

CREATE TABLE tool_calls (
  id TEXT COLLATE "C" NOT NULL,
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  message_id TEXT NOT NULL,
  result_message_id TEXT,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  provider_id TEXT,
  provider TEXT,
  created_at BIGINT NOT NULL,
  completed_at BIGINT,
  seq BIGINT NOT NULL,
  block BIGINT NOT NULL,
  result_seq BIGINT,
  PRIMARY KEY (session_id, id)
);
CREATE INDEX idx_tool_calls_session_status ON tool_calls (session_id, status);

CREATE TABLE tool_ids (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  number BIGINT NOT NULL,
  provider TEXT NOT NULL,
  tool_id TEXT NOT NULL,
  provider_id TEXT NOT NULL,
  PRIMARY KEY (session_id, number)
);

CREATE TABLE usage (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  day TEXT NOT NULL,
  model TEXT,
  provider TEXT,
  user_id TEXT,
  team_id TEXT,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  cached_input_tokens BIGINT NOT NULL,
  cache_creation_input_tokens BIGINT NOT NULL,
  reasoning_tokens BIGINT NOT NULL,
  cost_usd TEXT NOT NULL,
  PRIMARY KEY (session_id, seq)
);

CREATE TABLE idempotency (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  key TEXT NOT NULL,
  fingerprint BYTEA NOT NULL,
  first_seq BIGINT NOT NULL,
  last_seq BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (session_id, key)
);

CREATE TABLE leases (
  session_id TEXT COLLATE "C" PRIMARY KEY REFERENCES sessions (id),
  owner TEXT NOT NULL,
  expires_at BIGINT NOT NULL
);

CREATE TABLE blob_refs (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  PRIMARY KEY (session_id, seq, sha256)
);
CREATE INDEX blob_refs_by_hash ON blob_refs (sha256);

CREATE TABLE blobs (
  sha256 TEXT COLLATE "C" PRIMARY KEY,
  data BYTEA NOT NULL,
  touched_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE entries (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  agent_key TEXT COLLATE "C",
  type TEXT COLLATE "C" NOT NULL,
  entry_json TEXT NOT NULL,
  hash BYTEA NOT NULL,
  PRIMARY KEY (session_id, seq)
);
CREATE INDEX entries_by_type ON entries (session_id, type, seq);
CREATE INDEX entries_by_agent ON entries (session_id, agent_key, seq) WHERE agent_key IS NOT NULL;

CREATE TABLE past_usage (
  id TEXT COLLATE "C" PRIMARY KEY,
  day TEXT NOT NULL,
  model TEXT,
  provider TEXT,
  user_id TEXT,
  team_id TEXT,
  messages BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  cached_input_tokens BIGINT NOT NULL,
  cache_creation_input_tokens BIGINT NOT NULL,
  reasoning_tokens BIGINT NOT NULL,
  cost_usd TEXT NOT NULL
);

CREATE TABLE blob_states (
  sha256 TEXT COLLATE "C" PRIMARY KEY,
  state TEXT NOT NULL,
  changed_at BIGINT NOT NULL
);

CREATE TABLE erasures (
  id TEXT PRIMARY KEY,
  receipt_json TEXT NOT NULL
);

CREATE TABLE search (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  words TSVECTOR NOT NULL,
  stream TEXT, -- the words in their order, where there are more of them than a tsvector has places for
  PRIMARY KEY (session_id, seq)
);
CREATE INDEX search_by_word ON search USING gin (words)
  WITH (gin_pending_list_limit = 512); -- kB; every search reads the list of what is new
