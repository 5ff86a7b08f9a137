-- Tools that a workspace has stored. `secrets` columns hold what only the server may read, sealed under the key of
-- `WEFTLINE_SECRET_KEY` or of the file beside the database.
CREATE TABLE tools (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,             -- what a model calls it
  kind TEXT NOT NULL,             -- http
  spec BLOB NOT NULL,             -- JSON, without secrets
  secrets BLOB,                   -- sealed: values by name
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX tools_by_name ON tools (workspace, name);

ALTER TABLE threads ADD COLUMN secrets BLOB;  -- sealed: header values of the tools that the server dials
ALTER TABLE runs ADD COLUMN secrets BLOB;     -- the same, until the run has ended
