-- Child runs are listed under the thread of the run above them all.
ALTER TABLE runs ADD COLUMN family INTEGER;  -- of a child run: the thread that the topmost run above it is on

CREATE INDEX runs_by_family ON runs (family, key) WHERE family IS NOT NULL;
