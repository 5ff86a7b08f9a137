-- Files of threads. Their contents are stored once in a workspace, in pieces, and go with the last file that names them.
CREATE TABLE contents (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  sha256 BLOB,                    -- null while it is being written, and when nothing names it any more
  size INTEGER NOT NULL           -- of what is stored of it
) STRICT;

CREATE UNIQUE INDEX contents_by_digest ON contents (workspace, sha256) WHERE sha256 IS NOT NULL;
CREATE INDEX contents_unnamed ON contents (key) WHERE sha256 IS NULL;

CREATE TABLE content_chunks (
  content INTEGER NOT NULL,
  n INTEGER NOT NULL,             -- from 0; all but the last are equally long
  data BLOB NOT NULL,
  PRIMARY KEY (content, n)
) STRICT;

-- A folder has neither a content nor a location.
CREATE TABLE thread_files (
  thread INTEGER NOT NULL,
  folder TEXT NOT NULL,           -- `/` or `/a/b`
  name TEXT NOT NULL,
  content INTEGER,
  size INTEGER NOT NULL,
  mime_type TEXT NOT NULL,
  metadata BLOB NOT NULL,         -- JSON
  width INTEGER,
  height INTEGER,
  thumbnail INTEGER,              -- a content
  location BLOB,                  -- sealed: where the content is, if not here
  shown_location TEXT NOT NULL,   -- the same as it may be shown
  created_at INTEGER NOT NULL,
  PRIMARY KEY (thread, folder, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX thread_files_by_content ON thread_files (content) WHERE content IS NOT NULL;
CREATE INDEX thread_files_by_thumbnail ON thread_files (thumbnail) WHERE thumbnail IS NOT NULL;

-- What the quotas of files are checked against: of a thread what its files name, of a workspace (thread 0) what is stored.
CREATE TABLE file_use (
  workspace INTEGER NOT NULL,
  thread INTEGER NOT NULL,
  files INTEGER NOT NULL,         -- folders count too
  bytes INTEGER NOT NULL,
  PRIMARY KEY (workspace, thread)
) STRICT, WITHOUT ROWID;
