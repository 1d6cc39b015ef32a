CREATE INDEX messages_by_name ON messages ( -- by what a client calls them; a name is told by its beginning
  session_id,
  left(coalesce(metadata, dragoman_jsonb(replace(metadata_json, '\u0000', '\u2400'))) ->> 'message_id', 200),
  seq
) WHERE strpos(metadata_json, '"message_id":') > 0;

CREATE TABLE attachment_refs ( -- the files that messages name
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  seq BIGINT NOT NULL,
  bucket TEXT COLLATE "C" NOT NULL,
  path TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (session_id, seq, bucket, path)
);
CREATE INDEX attachment_refs_by_path ON attachment_refs (path, bucket);

INSERT INTO attachment_refs (session_id, seq, bucket, path)
SELECT DISTINCT told.session_id, told.seq, told.file ->> 'bucket', told.file ->> 'path'
FROM (
  SELECT m.session_id, m.seq, jsonb_array_elements(
    CASE jsonb_typeof(m.said -> 'user_message_attachments')
      WHEN 'array' THEN m.said -> 'user_message_attachments'
      WHEN 'object' THEN jsonb_build_array(m.said -> 'user_message_attachments')
      ELSE '[]'::jsonb
    END
  ) AS file
  FROM (
    SELECT session_id, seq, coalesce(metadata, dragoman_jsonb(replace(metadata_json, '\u0000', '\u2400'))) AS said
    FROM messages WHERE strpos(metadata_json, '"user_message_attachments":') > 0
  ) AS m
) AS told
WHERE length(told.file ->> 'bucket') BETWEEN 1 AND 100 AND (told.file ->> 'bucket') ~ '^[ -~]+$'
  AND length(told.file ->> 'path') BETWEEN 1 AND 1024 AND (told.file ->> 'path') ~ '^[ -~]+$';
