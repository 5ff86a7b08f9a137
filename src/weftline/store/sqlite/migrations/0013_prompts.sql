-- What prompts of agents say instead, for a thread, for labels or for all. The newest of a scope counts; all are kept.
CREATE TABLE prompt_overrides (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  prompt TEXT NOT NULL,
  thread TEXT NOT NULL,           -- the thread's public id; empty for every thread
  labels TEXT NOT NULL,           -- JSON: the labels that a run must have, strings by name
  template TEXT NOT NULL,
  version TEXT NOT NULL,
  set_by TEXT NOT NULL,
  set_at INTEGER NOT NULL
) STRICT;

CREATE INDEX prompt_overrides_by_workspace ON prompt_overrides (workspace, key);
