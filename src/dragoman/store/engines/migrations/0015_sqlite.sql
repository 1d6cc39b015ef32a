-- Where the transcript of a gateway call ended in a stored session, by the hash of the transcript.
CREATE TABLE gateway_transcripts (
  hash BLOB PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL, -- of its last message; 0 for the session itself
  system_hash BLOB, -- of the system prompt
  calls_json TEXT -- the ids of the calls of its last answer, as they are stored
) WITHOUT ROWID;
CREATE INDEX gateway_transcripts_by_session ON gateway_transcripts (session_id);

-- Responses and conversations of the Responses API.
CREATE TABLE gateway_objects (
  owner TEXT NOT NULL, -- a digest of user and team
  id TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL, -- the message after which a request continues
  created_at INTEGER NOT NULL,
  body_json TEXT NOT NULL,
  input_json TEXT, -- the input items of a response
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX gateway_objects_by_session ON gateway_objects (session_id);
