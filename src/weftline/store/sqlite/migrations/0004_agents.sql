-- Agents that a workspace has stored, to be named by runs, sessions, A2A and MCP callers.
CREATE TABLE agents (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  slug TEXT NOT NULL,             -- its name in addresses
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  spec BLOB NOT NULL,             -- JSON of the shape of a run's spec, without input and without secrets
  secrets BLOB,                   -- sealed: header values of the tools that the server dials
  metadata TEXT NOT NULL,
  system INTEGER NOT NULL,        -- 1: only for credentials that name it in their allow-list
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX agents_by_slug ON agents (workspace, slug);

-- The metadata of runs and threads once more, by value, for the lists. Written with its run or thread.
CREATE TABLE run_metadata (
  workspace INTEGER NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  run INTEGER NOT NULL,
  PRIMARY KEY (workspace, name, value, run)
) STRICT, WITHOUT ROWID;

CREATE TABLE thread_metadata (
  workspace INTEGER NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  thread INTEGER NOT NULL,
  PRIMARY KEY (workspace, name, value, thread)
) STRICT, WITHOUT ROWID;

-- Who is to be told about the ends of a workspace's runs.
CREATE TABLE webhooks (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  url TEXT NOT NULL,
  events TEXT NOT NULL,           -- JSON list of statuses: succeeded, failed, cancelled
  secret BLOB NOT NULL,           -- sealed: what deliveries are signed with
  enabled INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX webhooks_by_workspace ON webhooks (workspace, key);

-- What is to be delivered: a row is written in the transaction that ends its run. The body is made from the log.
CREATE TABLE deliveries (
  key INTEGER PRIMARY KEY,
  webhook INTEGER NOT NULL REFERENCES webhooks (key),
  run INTEGER NOT NULL,
  status TEXT NOT NULL,           -- pending, delivered or failed
  attempts INTEGER NOT NULL,
  due_at INTEGER,                 -- null once it is delivered or given up
  created_at INTEGER NOT NULL,
  last_at INTEGER,
  last_status INTEGER,            -- HTTP, null when no answer came
  last_error TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX deliveries_by_webhook ON deliveries (webhook, run);
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE due_at IS NOT NULL;

INSERT INTO run_metadata (workspace, name, value, run)
  SELECT runs.workspace, item.key, item.value, runs.key FROM runs, json_each(runs.metadata) AS item
  WHERE runs.metadata != '{}';
INSERT INTO thread_metadata (workspace, name, value, thread)
  SELECT threads.workspace, item.key, item.value, threads.key FROM threads, json_each(threads.metadata) AS item
  WHERE threads.metadata != '{}';
