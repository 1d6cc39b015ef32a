ALTER TABLE evaluations ADD COLUMN team_id TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX evaluations_by_team ON evaluations (team_id, created_at);
