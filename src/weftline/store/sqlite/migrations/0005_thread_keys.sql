-- The idempotency keys that threads were created under; those of runs are with the log.
CREATE TABLE thread_keys (
  workspace INTEGER NOT NULL,
  key TEXT NOT NULL,
  digest BLOB NOT NULL,           -- of the body: another body under the same key is a conflict
  thread INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;
