-- A body may have megabytes, and in a table without row ids every search reads whole rows on its way. The name of the
-- tool is a column, so that no body is parsed to find the calls of one.
ALTER TABLE open_awaits RENAME TO former_awaits;

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

INSERT INTO open_awaits (workspace, run, id, root, kind, tool, opened_at, deadline_at, body)
  SELECT workspace, run, id, root, kind,
    CASE json_valid(CAST(body AS TEXT))
      WHEN 1 THEN coalesce(CAST(json_extract(CAST(body AS TEXT), '$.name') AS TEXT), '') ELSE '' END,
    opened_at, deadline_at, body
  FROM former_awaits;

DROP TABLE former_awaits;
CREATE UNIQUE INDEX open_awaits_by_run ON open_awaits (workspace, run, id);
CREATE INDEX open_awaits_by_root ON open_awaits (root);
