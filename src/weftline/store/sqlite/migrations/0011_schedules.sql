-- Runs that begin by themselves: at a time, or again and again.
CREATE TABLE schedules (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,
  agent TEXT,                     -- whose runs they are; null for none
  spec BLOB NOT NULL,             -- JSON: the body that creates such a run, without secrets
  secrets BLOB,                   -- sealed: header values of the tools that the server dials
  at INTEGER,                     -- once, at this time; null for a cron expression
  cron TEXT NOT NULL,
  timezone TEXT NOT NULL,
  catch_up TEXT NOT NULL,         -- what becomes of times that were missed: skip, once or all
  enabled INTEGER NOT NULL,
  next_at INTEGER,                -- null if it is off or has no time left
  last_at INTEGER,                -- the time that it was last due for
  last_run TEXT,
  last_error TEXT NOT NULL,       -- why no run began then; empty if one did
  requested_by TEXT NOT NULL,     -- who said what it runs
  agents TEXT NOT NULL,           -- JSON list: the allow-list of that credential, empty for all
  digest BLOB NOT NULL,           -- of the body that it was created by, for a request that comes again
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX schedules_by_workspace ON schedules (workspace, key);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
