CREATE INDEX messages_by_name ON messages ( -- by what a client calls them; a name is told by its beginning
  session_id,
  substr(CASE WHEN json_valid(metadata_json) THEN json_extract(metadata_json, '$.message_id') END, 1, 200),
  seq
) WHERE instr(metadata_json, '"message_id":') > 0;

CREATE TABLE attachment_refs ( -- the files that messages name
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  bucket TEXT NOT NULL,
  path TEXT NOT NULL,
  PRIMARY KEY (session_id, seq, bucket, path)
) WITHOUT ROWID;
CREATE INDEX attachment_refs_by_path ON attachment_refs (path, bucket);

INSERT INTO attachment_refs (session_id, seq, bucket, path)
SELECT DISTINCT told.session_id, told.seq, told.value ->> '$.bucket', told.value ->> '$.path'
FROM (
  SELECT m.session_id, m.seq, file.value
  FROM messages AS m, json_each(
    CASE WHEN json_valid(m.metadata_json) THEN
      CASE json_type(m.metadata_json, '$.user_message_attachments')
        WHEN 'array' THEN m.metadata_json -> '$.user_message_attachments'
        WHEN 'object' THEN '[' || (m.metadata_json -> '$.user_message_attachments') || ']'
        ELSE '[]'
      END
    ELSE '[]' END
  ) AS file
  WHERE instr(m.metadata_json, '"user_message_attachments":') > 0 AND file.type = 'object'
) AS told
WHERE length(told.value ->> '$.bucket') BETWEEN 1 AND 100 AND (told.value ->> '$.bucket') NOT GLOB '*[^ -~]*'
  AND length(told.value ->> '$.path') BETWEEN 1 AND 1024 AND (told.value ->> '$.path') NOT GLOB '*[^ -~]*';
