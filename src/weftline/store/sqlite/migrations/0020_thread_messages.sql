-- Messages of threads have ids, can be edited, and can be queued for the next turn.
ALTER TABLE thread_messages ADD COLUMN id TEXT;
ALTER TABLE thread_messages ADD COLUMN role TEXT;
ALTER TABLE thread_messages ADD COLUMN side TEXT;
ALTER TABLE thread_messages ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN parent TEXT;
ALTER TABLE thread_messages ADD COLUMN silent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN status TEXT NOT NULL DEFAULT 'completed';
ALTER TABLE thread_messages ADD COLUMN tool_status TEXT;
ALTER TABLE thread_messages ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';
ALTER TABLE thread_messages ADD COLUMN created_at INTEGER;
ALTER TABLE thread_messages ADD COLUMN sent_at INTEGER;
ALTER TABLE thread_messages ADD COLUMN calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN asked_by TEXT;
ALTER TABLE thread_messages ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE thread_messages ADD COLUMN origin TEXT;
CREATE UNIQUE INDEX thread_messages_by_id ON thread_messages (thread, id) WHERE id IS NOT NULL;
CREATE UNIQUE INDEX thread_messages_by_origin ON thread_messages (thread, origin) WHERE origin IS NOT NULL;

CREATE TABLE thread_revisions (
  thread INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  upto INTEGER NOT NULL,          -- the last revision of the thread at which the message was this
  run INTEGER NOT NULL,
  message BLOB NOT NULL,
  size INTEGER,                   -- as in `entries`
  PRIMARY KEY (thread, pos, upto)
) STRICT, WITHOUT ROWID;

CREATE TABLE thread_queue (
  key INTEGER PRIMARY KEY,        -- the order of arrival
  thread INTEGER NOT NULL,
  id TEXT NOT NULL,               -- that of the message that it becomes
  message BLOB NOT NULL,
  silent INTEGER NOT NULL,
  metadata TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  origin TEXT,                    -- of what code queued: the same however often the code is run for one call
  digest BLOB NOT NULL            -- of the message as it was sent
) STRICT;

CREATE UNIQUE INDEX thread_queue_by_id ON thread_queue (thread, id);

ALTER TABLE threads ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN edited_upto INTEGER;
ALTER TABLE threads ADD COLUMN due_at INTEGER;
ALTER TABLE threads ADD COLUMN hooks_due INTEGER NOT NULL DEFAULT 0;
CREATE INDEX threads_due ON threads (due_at) WHERE due_at IS NOT NULL;
UPDATE threads SET keeps = 'all' WHERE agent IS NULL AND key IN (SELECT thread FROM thread_keys WHERE key LIKE 'library:%');
