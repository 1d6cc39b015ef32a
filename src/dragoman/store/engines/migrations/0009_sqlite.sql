-- expires_at, alive_until and available_at are readings of lease_now(), not of the wall clock; beside them stands how long
-- they were given for.
ALTER TABLE leases ADD COLUMN length_us INTEGER NOT NULL DEFAULT 30000000;
ALTER TABLE runs ADD COLUMN alive_us INTEGER NOT NULL DEFAULT 20000000;
ALTER TABLE inbox ADD COLUMN wait_us INTEGER NOT NULL DEFAULT 60000000;
CREATE TABLE lease_clock ( -- one row in a file: the start of the machine whose clock the readings are of
  number INTEGER PRIMARY KEY CHECK (number = 1),
  id TEXT NOT NULL
) WITHOUT ROWID;
