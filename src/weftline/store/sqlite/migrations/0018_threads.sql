-- Threads have an id of their own, a user and a parent. They keep values, and environment values as accounts and
-- workspaces do.
ALTER TABLE threads ADD COLUMN uuid TEXT;
ALTER TABLE threads ADD COLUMN user_id TEXT;
ALTER TABLE threads ADD COLUMN parent INTEGER;
ALTER TABLE threads ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN seat_agent TEXT;
ALTER TABLE threads ADD COLUMN keeps TEXT NOT NULL DEFAULT 'exchange';
UPDATE threads SET uuid = lower(
  hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
  || substr('89AB', 1 + abs(random() % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))
);
CREATE UNIQUE INDEX threads_by_uuid ON threads (uuid);
CREATE INDEX threads_by_user ON threads (workspace, user_id, key) WHERE user_id IS NOT NULL;
CREATE INDEX threads_by_parent ON threads (parent) WHERE parent IS NOT NULL;

CREATE TABLE thread_values (
  thread INTEGER NOT NULL,
  key TEXT NOT NULL,
  value BLOB NOT NULL,            -- JSON
  PRIMARY KEY (thread, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE env_values (
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  owner TEXT NOT NULL,            -- thread:<key>, account:<user> or workspace
  name TEXT NOT NULL,
  type TEXT NOT NULL,             -- text or secret
  sealed BLOB NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (workspace, owner, name)
) STRICT, WITHOUT ROWID;
