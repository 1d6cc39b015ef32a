-- Long parts of the requests of gateway calls, such as tools: each once in a session. Answers refer to them by the hash.
CREATE TABLE request_parts (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  sha256 TEXT NOT NULL,
  seq INTEGER NOT NULL, -- of the first answer that refers to it
  content BLOB NOT NULL, -- compressed JSON
  PRIMARY KEY (session_id, sha256)
);
