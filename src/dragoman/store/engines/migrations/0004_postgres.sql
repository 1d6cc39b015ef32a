CREATE TABLE letters (
  recipient_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL, -- '' where there is no team
  letter_id TEXT COLLATE "C" NOT NULL,
  sender_id TEXT COLLATE "C" NOT NULL,
  task_id TEXT COLLATE "C" NOT NULL,
  type TEXT NOT NULL,
  trace_id TEXT,
  session_id TEXT COLLATE "C", -- what it came from
  message_id TEXT,
  turn_id TEXT,
  user_id TEXT,
  created_at BIGINT NOT NULL,
  fingerprint BYTEA NOT NULL, -- of what makes it this letter and no other
  hash BYTEA NOT NULL,
  letter_json TEXT NOT NULL, -- with *** in place of what is sensitive
  PRIMARY KEY (recipient_id, team_id, letter_id)
);
CREATE INDEX letters_by_task ON letters (task_id, team_id, created_at);
CREATE INDEX letters_by_session ON letters (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX letters_by_user ON letters (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE mailboxes (
  recipient_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  last_number BIGINT NOT NULL,
  PRIMARY KEY (recipient_id, team_id)
);

CREATE TABLE inbox (
  recipient_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  letter_id TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL, -- the order of the mailbox
  task_id TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL, -- ready, behind another of its task, held for other tasks, done, dead
  available_at BIGINT NOT NULL, -- until then somebody has it, or it waits to be tried again
  lease TEXT,
  attempts BIGINT NOT NULL,
  error_class TEXT,
  arrived_at BIGINT NOT NULL,
  ended_at BIGINT,
  PRIMARY KEY (recipient_id, team_id, letter_id)
);
CREATE INDEX inbox_ready ON inbox (recipient_id, team_id, number, available_at) WHERE state = 'ready';
CREATE INDEX inbox_open ON inbox (recipient_id, team_id, task_id, number) WHERE ended_at IS NULL;

CREATE TABLE outbox (
  recipient_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  letter_id TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL,
  task_id TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL, -- ready, behind another of its task, held for other tasks
  available_at BIGINT NOT NULL, -- when it is to be sent, or sent again
  attempts BIGINT NOT NULL,
  put_at BIGINT NOT NULL,
  published_at BIGINT,
  broker_seq BIGINT, -- where the broker has it
  PRIMARY KEY (recipient_id, team_id, letter_id)
);
CREATE INDEX outbox_ready ON outbox (available_at) WHERE state = 'ready';
CREATE INDEX outbox_tasks ON outbox (recipient_id, team_id, task_id, number);

CREATE TABLE dead_letters (
  recipient_id TEXT COLLATE "C" NOT NULL, -- '' where nobody can tell
  team_id TEXT COLLATE "C" NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  letter_id TEXT COLLATE "C",
  sender_id TEXT COLLATE "C",
  task_id TEXT COLLATE "C",
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  user_id TEXT,
  died_at BIGINT NOT NULL,
  resent_at BIGINT,
  key_id TEXT, -- of the key that the bytes are sealed with; NULL where they are the letter's own text, and readable
  raw BYTEA,
  PRIMARY KEY (recipient_id, team_id, id)
);

CREATE TABLE sealed_values (
  recipient_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  letter_id TEXT COLLATE "C" NOT NULL,
  input_id TEXT COLLATE "C" NOT NULL,
  key_id TEXT NOT NULL,
  sealed BYTEA NOT NULL,
  PRIMARY KEY (recipient_id, team_id, letter_id, input_id)
);

CREATE TABLE task_states (
  task_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (task_id, team_id)
);

CREATE TABLE task_needs ( -- what letters are held for
  task_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL,
  needed_id TEXT COLLATE "C" NOT NULL,
  recipient_id TEXT COLLATE "C" NOT NULL,
  letter_id TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (task_id, team_id, needed_id, recipient_id, letter_id)
);
CREATE INDEX task_needs_by_need ON task_needs (needed_id, team_id);
CREATE INDEX task_needs_by_letter ON task_needs (recipient_id, team_id, letter_id);

CREATE TABLE mail_origins ( -- one row: what other stores know this one by
  number BIGINT PRIMARY KEY CHECK (number = 1),
  id TEXT COLLATE "C" NOT NULL
);
