ALTER TABLE evaluations ADD COLUMN metrics_json TEXT; -- what the task used, as its agent reported it
