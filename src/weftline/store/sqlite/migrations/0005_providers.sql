-- Model providers that a workspace brought, with keys of its own.
CREATE TABLE providers (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,             -- the prefix of its models' ids
  spec BLOB NOT NULL,             -- JSON, without secrets
  secrets BLOB,                   -- sealed: the API key and header values
  version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX providers_by_name ON providers (workspace, name);
