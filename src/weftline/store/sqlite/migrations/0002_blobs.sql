-- Attachments, each once in a workspace: the log names them by id. Written with the run that brings them.
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
