-- The records' half of the schema; the rest is in `schema_log.sql`, with what holds for both.
-- The transactions of the log write here too: to the queues and messages of threads, to `deliveries` and `budget_use`.

CREATE TABLE workspaces (
  key INTEGER PRIMARY KEY,
  slug TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE api_keys (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  hash BLOB NOT NULL UNIQUE,      -- of the secret; the secret itself is stored nowhere
  prefix TEXT NOT NULL,           -- its first characters, to tell keys apart in a list
  name TEXT NOT NULL,
  usage TEXT NOT NULL,            -- developer_api, mcp or a2a
  agents TEXT NOT NULL,           -- JSON list: the agents this key may use, empty for all
  created_at INTEGER NOT NULL,
  revoked_at INTEGER,
  made_by TEXT NOT NULL DEFAULT ''  -- the person whose key it counts as; empty if an operator made it
) STRICT;

CREATE TABLE threads (
  key INTEGER PRIMARY KEY,
  salt TEXT NOT NULL,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,
  agent TEXT,
  spec BLOB NOT NULL,
  metadata TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  ended_at INTEGER,
  active_run INTEGER,             -- the one run that may move; the others of the thread are queued
  next_place INTEGER NOT NULL,    -- the next place in the queue
  secrets BLOB,                   -- sealed: header values of the tools that the server dials
  format INTEGER NOT NULL DEFAULT 0,  -- the number of the vocabulary of its messages
  uuid TEXT,                      -- its id; `ses_…`, made of key and salt, is another name of the same thread
  user_id TEXT,                   -- whose account it has environment values from
  parent INTEGER,                 -- the thread that created it
  depth INTEGER NOT NULL DEFAULT 0,  -- how many threads there are above it
  seat_agent TEXT,                -- the agent that speaks since a hand-off, if not the one it was created with
  keeps TEXT NOT NULL DEFAULT 'exchange', -- of a run: `exchange` (question and answer, on success) or `all` messages
  revision INTEGER NOT NULL DEFAULT 0,  -- how often its messages were edited
  edited_upto INTEGER,            -- how many messages from the first no edit has changed since its latest run began; null: all
  due_at INTEGER,                 -- something is queued and no run is there to take it
  hooks_due INTEGER NOT NULL DEFAULT 0  -- 1: the hooks of its creation have not run
) STRICT;

CREATE INDEX threads_by_workspace ON threads (workspace, key);
CREATE UNIQUE INDEX threads_by_uuid ON threads (uuid);
CREATE INDEX threads_by_user ON threads (workspace, user_id, key) WHERE user_id IS NOT NULL;
CREATE INDEX threads_by_parent ON threads (parent) WHERE parent IS NOT NULL;
CREATE INDEX threads_due ON threads (due_at) WHERE due_at IS NOT NULL;

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

-- Effects of threads: what is to run later, and what became of it.
CREATE TABLE thread_effects (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  thread INTEGER NOT NULL,
  name TEXT NOT NULL,
  args BLOB NOT NULL,             -- JSON
  status TEXT NOT NULL,           -- pending, running, executed, canceled or failed
  due_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  settled_at INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,  -- how often it has begun
  deaths INTEGER NOT NULL DEFAULT 0,    -- how often the process died while it ran, and it may be why
  on_trial INTEGER NOT NULL DEFAULT 0,  -- 1: it runs, and if the process dies now, it is why
  origin BLOB,                    -- made of what has scheduled it: the same again finds this row
  error TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX thread_effects_due ON thread_effects (due_at, workspace) WHERE status = 'pending';
CREATE INDEX thread_effects_next ON thread_effects (workspace, due_at, key) WHERE status = 'pending';
CREATE INDEX thread_effects_running ON thread_effects (key) WHERE status = 'running';
CREATE INDEX thread_effects_suspected ON thread_effects (key) WHERE status = 'pending' AND deaths > 0;
CREATE INDEX thread_effects_of ON thread_effects (thread, key);
CREATE INDEX thread_effects_pending ON thread_effects (thread) WHERE status = 'pending';
CREATE UNIQUE INDEX thread_effects_origin ON thread_effects (thread, origin) WHERE origin IS NOT NULL;

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

CREATE TABLE thread_messages (
  thread INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  run INTEGER NOT NULL,
  message BLOB NOT NULL,
  size INTEGER,                   -- as in `entries`
  id TEXT,                        -- null: made of its run and position
  role TEXT,                      -- null for what the run of a client's session has left
  side TEXT,                      -- of a thread with two sides: who said it
  depth INTEGER NOT NULL DEFAULT 0,     -- above 0: said within a call of the message `parent`
  parent TEXT,
  silent INTEGER NOT NULL DEFAULT 0,    -- 1: models read it, people do not
  status TEXT NOT NULL DEFAULT 'completed',  -- or failed: an answer that was cut off, which no model reads
  tool_status TEXT,               -- of a result: success or error
  metadata TEXT NOT NULL DEFAULT '{}',
  created_at INTEGER,
  sent_at INTEGER,                -- of an answer: when the model was asked
  calls INTEGER NOT NULL DEFAULT 0,     -- of an answer: how many results follow
  asked_by TEXT,                  -- of a result: the answer that asked for the call
  place INTEGER NOT NULL DEFAULT 0,     -- of a result: the call's place in that answer
  revision INTEGER NOT NULL DEFAULT 0,  -- of the thread, with its latest edit
  deleted INTEGER NOT NULL DEFAULT 0,   -- 1: only the place is left
  origin TEXT,                    -- of what code added: the same however often the code is run for one call
  PRIMARY KEY (thread, pos)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX thread_messages_by_id ON thread_messages (thread, id) WHERE id IS NOT NULL;
CREATE UNIQUE INDEX thread_messages_by_origin ON thread_messages (thread, origin) WHERE origin IS NOT NULL;

-- What messages were before they were edited, for the run that reads them so; removed when that has ended.
CREATE TABLE thread_revisions (
  thread INTEGER NOT NULL,
  pos INTEGER NOT NULL,
  upto INTEGER NOT NULL,          -- the last revision of the thread at which the message was this
  run INTEGER NOT NULL,
  message BLOB NOT NULL,
  size INTEGER,                   -- as in `entries`
  PRIMARY KEY (thread, pos, upto)
) STRICT, WITHOUT ROWID;

-- Messages that the next turn takes.
CREATE TABLE thread_queue (
  key INTEGER PRIMARY KEY,        -- the order of arrival
  thread INTEGER NOT NULL,
  id TEXT NOT NULL,               -- that of the message that it becomes
  message BLOB NOT NULL,
  silent INTEGER NOT NULL,
  metadata TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  origin TEXT,                    -- as in `thread_messages`
  digest BLOB NOT NULL            -- of the message as it was sent
) STRICT;

CREATE UNIQUE INDEX thread_queue_by_id ON thread_queue (thread, id);

-- Features that are switched off; a workspace has every feature that is not listed here.
CREATE TABLE features_off (
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  feature TEXT NOT NULL,          -- api_keys or oauth_apps
  PRIMARY KEY (workspace, feature)
) STRICT, WITHOUT ROWID;

-- People, who sign in to give OAuth apps access to their workspaces.
CREATE TABLE users (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  email TEXT NOT NULL UNIQUE,     -- in lower case
  password TEXT NOT NULL,         -- argon2id, with its own salt and cost
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE memberships (
  user INTEGER NOT NULL REFERENCES users (key),
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  PRIMARY KEY (user, workspace)
) STRICT, WITHOUT ROWID;

-- All `hash` columns from here on are HMAC-SHA-256 under the key in the file beside the database; `prefix` is the
-- first 12 characters of the secret's random part, by which its row is found.
CREATE TABLE user_sessions (
  key INTEGER PRIMARY KEY,
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,
  user INTEGER NOT NULL REFERENCES users (key),
  expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX user_sessions_by_prefix ON user_sessions (prefix);

CREATE TABLE oauth_apps (
  key INTEGER PRIMARY KEY,
  client_id TEXT NOT NULL UNIQUE,
  workspace INTEGER REFERENCES workspaces (key),  -- null for a client that registered itself
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,             -- of the client secret; empty for a client that has none
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  logo TEXT NOT NULL,
  visibility TEXT NOT NULL,       -- private: for the workspace's own users; public: for everybody
  redirect_uris TEXT NOT NULL,    -- JSON list
  scopes TEXT NOT NULL,           -- separated by blanks
  client_credentials INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  public INTEGER NOT NULL,        -- 1: it cannot keep a secret and has none
  registered INTEGER NOT NULL,    -- 1: it registered itself
  used_at INTEGER,                -- when a user last approved it
  made_by TEXT NOT NULL DEFAULT ''  -- the person that it counts as; empty if an operator made it
) STRICT;

CREATE INDEX oauth_apps_by_workspace ON oauth_apps (workspace, key);
CREATE INDEX oauth_apps_registered ON oauth_apps (created_at) WHERE registered = 1;

CREATE TABLE oauth_codes (
  key INTEGER PRIMARY KEY,
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,
  app INTEGER NOT NULL REFERENCES oauth_apps (key),
  user INTEGER NOT NULL REFERENCES users (key),
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  scopes TEXT NOT NULL,
  agents TEXT NOT NULL,           -- JSON list, empty for all
  redirect_uri TEXT NOT NULL,
  challenge TEXT NOT NULL,        -- PKCE, S256
  resource TEXT NOT NULL,         -- the path that its tokens are for; empty for the whole server
  expires_at INTEGER NOT NULL,
  spent_on INTEGER                -- the grant it was exchanged for
) STRICT;

CREATE INDEX oauth_codes_by_prefix ON oauth_codes (prefix);

-- What a user allowed an app to do in one workspace, with the refresh token that stands for it.
CREATE TABLE oauth_grants (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,             -- of the refresh token
  app INTEGER NOT NULL REFERENCES oauth_apps (key),
  user INTEGER NOT NULL REFERENCES users (key),
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  scopes TEXT NOT NULL,
  agents TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  resource TEXT NOT NULL,
  spent_prefix TEXT,              -- of the refresh token before this one, if they change
  spent_hash BLOB
) STRICT;

CREATE INDEX oauth_grants_by_prefix ON oauth_grants (prefix);
CREATE INDEX oauth_grants_by_user ON oauth_grants (user, key);
CREATE INDEX oauth_grants_by_app ON oauth_grants (app);
CREATE INDEX oauth_grants_by_spent ON oauth_grants (spent_prefix) WHERE spent_prefix IS NOT NULL;

CREATE TABLE oauth_tokens (
  key INTEGER PRIMARY KEY,
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,             -- of the access token
  app INTEGER NOT NULL REFERENCES oauth_apps (key),
  grant_key INTEGER,              -- null for client credentials: the app acts for itself
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  scopes TEXT NOT NULL,
  agents TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  resource TEXT NOT NULL
) STRICT;

CREATE INDEX oauth_tokens_by_prefix ON oauth_tokens (prefix);
CREATE INDEX oauth_tokens_by_grant ON oauth_tokens (grant_key) WHERE grant_key IS NOT NULL;
CREATE INDEX oauth_tokens_by_app ON oauth_tokens (app);
CREATE INDEX oauth_tokens_by_age ON oauth_tokens (expires_at);

-- One-time tokens of consent pages that were used, until they expire by themselves.
CREATE TABLE oauth_spent (
  nonce TEXT PRIMARY KEY,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

-- The metadata of threads once more, by value, for the lists. Written with its thread.
CREATE TABLE thread_metadata (
  workspace INTEGER NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  thread INTEGER NOT NULL,
  PRIMARY KEY (workspace, name, value, thread)
) STRICT, WITHOUT ROWID;

-- The idempotency keys that threads were created under; those of runs are with the log.
CREATE TABLE thread_keys (
  workspace INTEGER NOT NULL,
  key TEXT NOT NULL,
  digest BLOB NOT NULL,           -- of the body: another body under the same key is a conflict
  thread INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;

-- Who is to be told about the ends of a workspace's runs, and about what they ask people.
CREATE TABLE webhooks (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  url TEXT NOT NULL,
  events TEXT NOT NULL,           -- JSON list: waiting, or a final status: succeeded, failed, cancelled
  secret BLOB NOT NULL,           -- sealed: what deliveries are signed with
  enabled INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX webhooks_by_workspace ON webhooks (workspace, key);

-- What is to be delivered: a row is written in the transaction that ends its run, or that asks people. The body is made
-- from the log.
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
  last_error TEXT NOT NULL,
  about TEXT NOT NULL DEFAULT '', -- the id of an await; empty for the end of the run
  salt TEXT NOT NULL DEFAULT ''   -- the random part of its id
) STRICT;

CREATE UNIQUE INDEX deliveries_by_webhook ON deliveries (webhook, run, about);
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE due_at IS NOT NULL;

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

-- The logins of workspaces at MCP servers that they dial.
CREATE TABLE mcp_logins (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  digest TEXT NOT NULL,           -- of the server's whole address
  url TEXT NOT NULL,              -- the same as it may be shown
  secrets BLOB NOT NULL,          -- sealed: tokens, and how to renew them
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX mcp_logins_by_address ON mcp_logins (workspace, digest);

-- Runs that begin by themselves: at a time, or again and again.
CREATE TABLE schedules (
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  name TEXT NOT NULL,
  agent TEXT,                     -- whose runs they are; null for none
  spec BLOB NOT NULL,             -- JSON: the body that creates such a run, without secrets
  secrets BLOB,                   -- sealed: header values of the tools that the server dials
  at INTEGER,                     -- once, at this time; null for a cron expression
  cron TEXT NOT NULL,
  timezone TEXT NOT NULL,
  catch_up TEXT NOT NULL,         -- what becomes of times that were missed: skip, once or all
  enabled INTEGER NOT NULL,
  next_at INTEGER,                -- null if it is off or has no time left
  last_at INTEGER,                -- the time that it was last due for
  last_run TEXT,
  last_error TEXT NOT NULL,       -- why no run began then; empty if one did
  requested_by TEXT NOT NULL,     -- who said what it runs
  agents TEXT NOT NULL,           -- JSON list: the allow-list of that credential, empty for all
  digest BLOB NOT NULL,           -- of the body that it was created by, for a request that comes again
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX schedules_by_workspace ON schedules (workspace, key);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;

-- What may be spent, and what was: an account is `workspace:…`, `agent:…`, `thread:…` or `run:…`.
CREATE TABLE budget_limits (
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  account TEXT NOT NULL,
  unit TEXT NOT NULL,             -- usd, tokens, seconds or calls
  period TEXT NOT NULL,           -- total, day or month
  amount INTEGER NOT NULL,        -- billionths of a dollar, tokens, microseconds, calls
  on_exceeded TEXT NOT NULL,      -- stop or final_turn
  set_by TEXT NOT NULL,
  set_at INTEGER NOT NULL,
  PRIMARY KEY (account, unit, period)
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_limits_by_workspace ON budget_limits (workspace);

-- Kept in the transactions of the log: the sum of what its facts say.
CREATE TABLE budget_use (
  workspace INTEGER NOT NULL,
  account TEXT NOT NULL,
  day INTEGER NOT NULL,           -- of UTC, since the epoch
  nusd INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  active_us INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  held_nusd INTEGER NOT NULL,     -- reserved for what is under way
  held_tokens INTEGER NOT NULL,
  held_calls INTEGER NOT NULL,
  closed INTEGER NOT NULL DEFAULT 0, -- the run has ended: nothing is booked here any more
  PRIMARY KEY (account, day)
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_use_open ON budget_use (account) WHERE closed = 0;

-- What prompts of agents say instead, for a thread, for labels or for all. The newest of a scope counts; all are kept.
CREATE TABLE prompt_overrides (
  key INTEGER PRIMARY KEY,
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  prompt TEXT NOT NULL,
  thread TEXT NOT NULL,           -- the thread's public id; empty for every thread
  labels TEXT NOT NULL,           -- JSON: the labels that a run must have, strings by name
  template TEXT NOT NULL,
  version TEXT NOT NULL,
  set_by TEXT NOT NULL,
  set_at INTEGER NOT NULL
) STRICT;

CREATE INDEX prompt_overrides_by_workspace ON prompt_overrides (workspace, key);
