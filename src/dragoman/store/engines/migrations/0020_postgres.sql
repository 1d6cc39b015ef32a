-- Long parts of the requests of gateway calls, such as tools: each once in a session. Answers refer to them by the hash.
CREATE TABLE request_parts (
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  sha256 TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL, -- of the first answer that refers to it
  content BYTEA NOT NULL, -- compressed JSON
  PRIMARY KEY (session_id, sha256)
);
