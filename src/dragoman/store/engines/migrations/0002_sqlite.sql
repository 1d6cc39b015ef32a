CREATE TABLE events (
  id TEXT NOT NULL,
  timestamp_us INTEGER NOT NULL,
  session_id TEXT NOT NULL, -- of no table: what belongs to no session has "system" here
  turn_id TEXT,
  parent_event_id TEXT,
  type TEXT NOT NULL,
  actor TEXT NOT NULL,
  sensitivity TEXT NOT NULL,
  payload_json TEXT NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE INDEX events_by_type ON events (type, timestamp_us);
CREATE INDEX events_by_turn ON events (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX events_by_parent ON events (parent_event_id) WHERE parent_event_id IS NOT NULL;

CREATE TABLE evaluations (
  id TEXT NOT NULL,
  session_id TEXT NOT NULL, -- as above
  turn_id TEXT,
  message_id TEXT,
  task_id TEXT,
  agent_id TEXT,
  plan_id TEXT,
  evaluator TEXT NOT NULL,
  model TEXT,
  score REAL,
  success INTEGER,
  cost_usd TEXT,
  duration_ms REAL,
  notes TEXT,
  fingerprint_json TEXT,
  created_at INTEGER NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE INDEX evaluations_by_time ON evaluations (created_at);
CREATE INDEX evaluations_by_task ON evaluations (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX evaluations_by_agent ON evaluations (agent_id, created_at) WHERE agent_id IS NOT NULL;

CREATE TABLE repricings (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  pricing_version TEXT NOT NULL,
  cost_usd TEXT NOT NULL,
  repriced_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, seq, pricing_version)
) WITHOUT ROWID;
