
CREATE TABLE store (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  id TEXT NOT NULL,               -- part of every idempotency key: another store is another timeline
  owner_epoch INTEGER NOT NULL,   -- raised by each owner at its start, checked in every write transaction
  clean INTEGER NOT NULL          -- 0 while an owner is up: an owner that finds 0 follows an unclean death
) STRICT;

CREATE TABLE workspaces (
  key INTEGER PRIMARY KEY,
  slug TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE api_keys (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  hash BLOB NOT NULL UNIQUE,      -- of the secret; the secret itself is stored nowhere
  prefix TEXT NOT NULL,           -- its first characters, to tell keys apart in a list
  name TEXT NOT NULL,
  usage TEXT NOT NULL,            -- developer_api, mcp or a2a
  agents TEXT NOT NULL,           -- JSON list: the agents this key may use, empty for all
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT;

CREATE TABLE threads (
  key INTEGER PRIMARY KEY,
  salt TEXT NOT NULL,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,
  agent TEXT,
  spec BLOB NOT NULL,
  metadata TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  ended_at INTEGER,
  active_run INTEGER,             -- the one run that may move; the others of the thread wait in line
  next_place INTEGER NOT NULL     -- the next place in the line
) STRICT;

CREATE INDEX threads_by_workspace ON threads (workspace, key);

CREATE TABLE thread_messages (
  thread INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  run INTEGER NOT NULL,
  message BLOB NOT NULL,
  PRIMARY KEY (thread, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
  key INTEGER PRIMARY KEY,
  salt TEXT NOT NULL,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  thread INTEGER,
  place INTEGER,                  -- in the thread's line, given at commit
  name TEXT NOT NULL,
  agent TEXT,
  metadata TEXT NOT NULL,
  status TEXT NOT NULL,           -- queued, running, paused, succeeded, failed, cancelled
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  next_seq INTEGER NOT NULL,
  version INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  due_at INTEGER,                 -- 0 now, a time, or null: the only wake-up
  rules INTEGER NOT NULL,
  state BLOB NOT NULL,            -- the fold of all facts up to here
  recovering INTEGER NOT NULL DEFAULT 0,  -- recoveries begun without progress since
  deaths INTEGER NOT NULL DEFAULT 0       -- unclean deaths of the server with this run in flight
) STRICT;

CREATE INDEX runs_due ON runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_by_thread ON runs (thread, place) WHERE thread IS NOT NULL;
CREATE INDEX runs_by_workspace ON runs (workspace, key);

CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  head BLOB NOT NULL,
  body BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX entries_by_seq ON entries (run, seq);

-- Streamed deltas: logically an entry each, physically one row for those of one kind in one commit.
CREATE TABLE deltas (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,           -- of the first
  count INTEGER NOT NULL,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  bodies BLOB NOT NULL            -- joined by newlines
) STRICT;

CREATE UNIQUE INDEX deltas_by_seq ON deltas (run, seq);

-- What waits for somebody outside: client calls now, awaits later. A function of the logs, kept for listing.
CREATE TABLE pending (
  run INTEGER NOT NULL,
  id TEXT NOT NULL,
  kind TEXT NOT NULL,
  deadline_at INTEGER,
  PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
  workspace INTEGER NOT NULL,
  route TEXT NOT NULL,
  key TEXT NOT NULL,
  digest BLOB NOT NULL,           -- of the body: another body under the same key is a conflict
  run INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (workspace, route, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_by_age ON idempotency (at);
