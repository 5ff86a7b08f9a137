-- The log's half of the schema, as the numbered migrations leave it (a test compares them with this file and with
-- `schema_records.sql`).
-- All times are integer microseconds since the epoch, UTC. All `key` columns are ours and small; ids on the wire are
-- made of them and of `salt`. A run may be given its id: then `salt` is that, behind a `=`.

CREATE TABLE store (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  id TEXT NOT NULL,               -- part of every idempotency key: another store is another timeline
  owner_epoch INTEGER NOT NULL,   -- raised by each owner at its start, checked in every write transaction
  clean INTEGER NOT NULL,         -- 0 while an owner is up: an owner that finds 0 follows an unclean death
  died INTEGER,                   -- the epoch of the last owner that died uncleanly, until that is charged to somebody
  held INTEGER NOT NULL           -- 1 in a backup: nothing of it is driven before somebody says so
) STRICT;

CREATE TABLE runs (
  key INTEGER PRIMARY KEY,
  salt TEXT NOT NULL,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  thread INTEGER,
  place INTEGER,                  -- in the thread's queue, given at commit
  name TEXT NOT NULL,
  agent TEXT,
  metadata TEXT NOT NULL,
  status TEXT NOT NULL,           -- queued, running, paused, succeeded, failed, cancelled
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  next_seq INTEGER NOT NULL,
  version INTEGER NOT NULL,
  epoch INTEGER NOT NULL,         -- of the claim that wrote last
  due_at INTEGER,                 -- 0 now, a time, or null: the only wake-up
  rules INTEGER NOT NULL,
  suspect INTEGER NOT NULL DEFAULT 0,  -- how many were on trial with it when the process last died, without progress since
  alone INTEGER NOT NULL DEFAULT 0,    -- unclean deaths while it was recovered alone, without progress since
  deaths INTEGER NOT NULL DEFAULT 0,   -- the same, whatever the progress
  trial INTEGER NOT NULL DEFAULT 0,    -- the owner epoch in which its recovery began, negative once it has survived for a while
  fold INTEGER NOT NULL,          -- the version of the fold that made `state`
  state_seq INTEGER NOT NULL,     -- the last seq that `state` has folded
  state BLOB NOT NULL,
  secrets BLOB,                   -- sealed: header values of the tools that the server dials, until the run has ended
  format INTEGER NOT NULL DEFAULT 0,  -- the number of the vocabulary of its latest entries
  family INTEGER                  -- of a child run: the thread that the topmost run above it is on
) STRICT;

CREATE INDEX runs_due ON runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_by_thread ON runs (thread, place) WHERE thread IS NOT NULL;
CREATE INDEX runs_by_workspace ON runs (workspace, key);
CREATE INDEX runs_by_family ON runs (family, key) WHERE family IS NOT NULL;
CREATE INDEX runs_on_trial ON runs (trial) WHERE trial != 0;
CREATE UNIQUE INDEX runs_by_given_id ON runs (salt, workspace) WHERE substr(salt, 1, 1) = '=';

CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  head BLOB NOT NULL,
  body BLOB NOT NULL,
  size INTEGER                    -- of the whole body, if its long strings are in `blobs`; they have marks in it
) STRICT;

CREATE UNIQUE INDEX entries_by_seq ON entries (run, seq);

-- Observations (streamed deltas, notes): logically an entry each, physically one row for those of one kind in one commit.
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

-- The metadata of runs once more, by value, for the lists. Written with its run.
CREATE TABLE run_metadata (
  workspace INTEGER NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  run INTEGER NOT NULL,
  PRIMARY KEY (workspace, name, value, run)
) STRICT, WITHOUT ROWID;

-- Attachments and long strings, each once in a workspace: logs and threads name them by id. Written in the transaction of
-- the first row that does.
CREATE TABLE blobs (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  id TEXT NOT NULL,               -- SHA-256 of the content, in hex
  data BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX blobs_by_id ON blobs (workspace, id);

-- Which runs name them; a blob goes with the last row that names it.
CREATE TABLE run_blobs (
  run INTEGER NOT NULL,
  workspace INTEGER NOT NULL,
  blob TEXT NOT NULL,
  PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_blobs_by_blob ON run_blobs (workspace, blob);

-- What people are asked at the moment: a projection of the log, written in the transactions of its facts.
CREATE TABLE open_awaits (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL,
  run INTEGER NOT NULL,
  id TEXT NOT NULL,
  root INTEGER NOT NULL,          -- the run at the top, if it is one of a child
  kind TEXT NOT NULL,             -- confirm, question, plan or doubt
  tool TEXT NOT NULL,
  opened_at INTEGER NOT NULL,
  deadline_at INTEGER,
  body BLOB NOT NULL              -- as in the log
) STRICT;

CREATE UNIQUE INDEX open_awaits_by_run ON open_awaits (workspace, run, id);
CREATE INDEX open_awaits_by_root ON open_awaits (root);
