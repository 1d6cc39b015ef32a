-- The hash of a tool call covers its whole row. A row that was written before has none until it changes.
UPDATE tool_calls SET hash = NULL WHERE hash IS NOT NULL;
