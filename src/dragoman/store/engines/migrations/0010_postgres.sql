-- The index that the format's specification names (section 9.1): the messages of a session by their time.
CREATE INDEX IF NOT EXISTS idx_messages_session_created ON messages (session_id, created_at);
