-- Choices of a user, such as the settings of new conversations.
CREATE TABLE preferences (
  user_id TEXT NOT NULL,
  team_id TEXT NOT NULL, -- empty without a team
  name TEXT NOT NULL,
  value_json TEXT NOT NULL,
  PRIMARY KEY (user_id, team_id, name)
) WITHOUT ROWID;
