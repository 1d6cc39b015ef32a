CREATE TABLE letters (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL, -- '' where there is no team
  letter_id TEXT NOT NULL,
  sender_id TEXT NOT NULL,
  task_id TEXT NOT NULL,
  type TEXT NOT NULL,
  trace_id TEXT,
  session_id TEXT, -- what it came from
  message_id TEXT,
  turn_id TEXT,
  user_id TEXT,
  created_at INTEGER NOT NULL,
  fingerprint BLOB NOT NULL, -- of what makes it this letter and no other
  hash BLOB NOT NULL,
  letter_json TEXT NOT NULL, -- with *** in place of what is sensitive
  PRIMARY KEY (recipient_id, team_id, letter_id)
) WITHOUT ROWID;
CREATE INDEX letters_by_task ON letters (task_id, team_id, created_at);
CREATE INDEX letters_by_session ON letters (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX letters_by_user ON letters (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE mailboxes (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  last_number INTEGER NOT NULL,
  PRIMARY KEY (recipient_id, team_id)
) WITHOUT ROWID;

CREATE TABLE inbox (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  letter_id TEXT NOT NULL,
  number INTEGER NOT NULL, -- the order of the mailbox
  task_id TEXT NOT NULL,
  state TEXT NOT NULL, -- ready, behind another of its task, held for other tasks, done, dead
  available_at INTEGER NOT NULL, -- until then somebody has it, or it waits to be tried again
  lease TEXT,
  attempts INTEGER NOT NULL,
  error_class TEXT,
  arrived_at INTEGER NOT NULL,
  ended_at INTEGER,
  PRIMARY KEY (recipient_id, team_id, letter_id)
) WITHOUT ROWID;
CREATE INDEX inbox_ready ON inbox (recipient_id, team_id, number, available_at) WHERE state = 'ready';
CREATE INDEX inbox_open ON inbox (recipient_id, team_id, task_id, number) WHERE ended_at IS NULL;

CREATE TABLE outbox (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  letter_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  task_id TEXT NOT NULL,
  state TEXT NOT NULL, -- ready, behind another of its task, held for other tasks
  available_at INTEGER NOT NULL, -- when it is to be sent, or sent again
  attempts INTEGER NOT NULL,
  put_at INTEGER NOT NULL,
  published_at INTEGER,
  broker_seq INTEGER, -- where the broker has it
  PRIMARY KEY (recipient_id, team_id, letter_id)
) WITHOUT ROWID;
CREATE INDEX outbox_ready ON outbox (available_at) WHERE state = 'ready';
CREATE INDEX outbox_tasks ON outbox (recipient_id, team_id, task_id, number);

CREATE TABLE dead_letters (
  recipient_id TEXT NOT NULL, -- '' where nobody can tell
  team_id TEXT NOT NULL,
  id TEXT NOT NULL,
  letter_id TEXT,
  sender_id TEXT,
  task_id TEXT,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  user_id TEXT,
  died_at INTEGER NOT NULL,
  resent_at INTEGER,
  key_id TEXT, -- of the key that the bytes are sealed with; NULL where they are the letter's own text, and readable
  raw BLOB,
  PRIMARY KEY (recipient_id, team_id, id)
) WITHOUT ROWID;

CREATE TABLE sealed_values (
  recipient_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  letter_id TEXT NOT NULL,
  input_id TEXT NOT NULL,
  key_id TEXT NOT NULL,
  sealed BLOB NOT NULL,
  PRIMARY KEY (recipient_id, team_id, letter_id, input_id)
) WITHOUT ROWID;

CREATE TABLE task_states (
  task_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  state TEXT NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (task_id, team_id)
) WITHOUT ROWID;

CREATE TABLE task_needs ( -- what letters are held for
  task_id TEXT NOT NULL,
  team_id TEXT NOT NULL,
  needed_id TEXT NOT NULL,
  recipient_id TEXT NOT NULL,
  letter_id TEXT NOT NULL,
  PRIMARY KEY (task_id, team_id, needed_id, recipient_id, letter_id)
) WITHOUT ROWID;
CREATE INDEX task_needs_by_need ON task_needs (needed_id, team_id);
CREATE INDEX task_needs_by_letter ON task_needs (recipient_id, team_id, letter_id);

CREATE TABLE mail_origins ( -- one row: what other stores know this one by
  number INTEGER PRIMARY KEY CHECK (number = 1),
  id TEXT NOT NULL
) WITHOUT ROWID;
