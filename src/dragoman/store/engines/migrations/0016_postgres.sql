-- Choices of a user, such as the settings of new conversations.
CREATE TABLE preferences (
  user_id TEXT COLLATE "C" NOT NULL,
  team_id TEXT COLLATE "C" NOT NULL, -- empty without a team
  name TEXT COLLATE "C" NOT NULL,
  value_json TEXT NOT NULL,
  PRIMARY KEY (user_id, team_id, name)
);
