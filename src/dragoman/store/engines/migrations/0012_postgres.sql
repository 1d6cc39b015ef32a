ALTER TABLE evaluations ADD COLUMN metrics_json TEXT COLLATE "C"; -- what the task used, as its agent reported it
