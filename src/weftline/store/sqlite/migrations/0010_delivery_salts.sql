-- The random part of a delivery's id, as runs and sessions have one. Those from before keep the ids they were sent with.
ALTER TABLE deliveries ADD COLUMN salt TEXT NOT NULL DEFAULT '';
