CREATE TABLE api_keys (
  public_id TEXT COLLATE "C" PRIMARY KEY,
  secret_hash BYTEA NOT NULL,
  name TEXT,
  user_id TEXT NOT NULL,
  team_id TEXT,
  scopes TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  revoked_at BIGINT,
  last_used_at BIGINT
);
CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE runs (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  run_id TEXT COLLATE "C" NOT NULL,
  status TEXT NOT NULL, -- running, finished, error, cancelled or interrupted
  request_hash BYTEA NOT NULL,
  idempotency_key TEXT, -- what the request called itself, beside the id of its run
  user_id TEXT,
  owner TEXT NOT NULL, -- the worker that runs it
  alive_until BIGINT NOT NULL, -- when it is given up, unless its worker says that it lives
  cancel_at BIGINT, -- when somebody asked for its end
  first_number BIGINT NOT NULL, -- of its events; they are counted through a session
  last_number BIGINT NOT NULL,
  interrupts_json TEXT, -- what an interrupted one waits for
  started_at BIGINT NOT NULL,
  ended_at BIGINT,
  PRIMARY KEY (session_id, run_id)
);
CREATE UNIQUE INDEX runs_by_key ON runs (session_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_by_number ON runs (session_id, first_number);
CREATE INDEX runs_alive ON runs (owner) WHERE status = 'running';
CREATE INDEX runs_by_user ON runs (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE run_events (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  first_number BIGINT NOT NULL,
  last_number BIGINT NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  events_json TEXT NOT NULL, -- one event a line
  PRIMARY KEY (session_id, first_number)
);
CREATE INDEX run_events_by_time ON run_events (created_at);
