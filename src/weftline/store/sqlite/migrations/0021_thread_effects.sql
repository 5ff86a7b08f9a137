-- Effects of threads: what is to run later, and what became of it.
CREATE TABLE thread_effects (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  thread INTEGER NOT NULL,
  name TEXT NOT NULL,
  args BLOB NOT NULL,             -- JSON
  status TEXT NOT NULL,           -- pending, running, executed, canceled or failed
  due_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  settled_at INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,  -- how often it has begun
  deaths INTEGER NOT NULL DEFAULT 0,    -- how often the process died while it ran, and it may be why
  on_trial INTEGER NOT NULL DEFAULT 0,  -- 1: it runs, and if the process dies now, it is why
  origin BLOB,                    -- made of what has scheduled it: the same again finds this row
  error TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX thread_effects_due ON thread_effects (due_at, workspace) WHERE status = 'pending';
CREATE INDEX thread_effects_next ON thread_effects (workspace, due_at, key) WHERE status = 'pending';
CREATE INDEX thread_effects_running ON thread_effects (key) WHERE status = 'running';
CREATE INDEX thread_effects_suspected ON thread_effects (key) WHERE status = 'pending' AND deaths > 0;
CREATE INDEX thread_effects_of ON thread_effects (thread, key);
CREATE INDEX thread_effects_pending ON thread_effects (thread) WHERE status = 'pending';
CREATE UNIQUE INDEX thread_effects_origin ON thread_effects (thread, origin) WHERE origin IS NOT NULL;
