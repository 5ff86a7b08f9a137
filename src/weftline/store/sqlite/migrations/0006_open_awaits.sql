-- What people are asked at the moment: a projection of the log, written in the transactions of its facts.
CREATE TABLE open_awaits (
  workspace INTEGER NOT NULL,
  run INTEGER NOT NULL,
  id TEXT NOT NULL,
  root INTEGER NOT NULL,          -- the run at the top, if it is one of a child
  kind TEXT NOT NULL,             -- confirm, question, plan or doubt
  opened_at INTEGER NOT NULL,
  deadline_at INTEGER,
  body BLOB NOT NULL,             -- as in the log
  PRIMARY KEY (workspace, run, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX open_awaits_by_root ON open_awaits (root);
