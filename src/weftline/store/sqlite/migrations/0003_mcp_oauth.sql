-- Clients that register themselves belong to no workspace and may have no secret; tokens can be for one resource.
-- SQLite cannot loosen a column, so the tables are made anew.

CREATE TEMP TABLE kept AS SELECT * FROM oauth_apps;
DROP TABLE oauth_apps;

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
  used_at INTEGER                 -- when a user last approved it
) STRICT;

CREATE INDEX oauth_apps_by_workspace ON oauth_apps (workspace, key);
CREATE INDEX oauth_apps_registered ON oauth_apps (created_at) WHERE registered = 1;

INSERT INTO oauth_apps (key, client_id, workspace, prefix, hash, name, description, logo, visibility, redirect_uris, scopes, client_credentials, created_at, public, registered, used_at)
  SELECT key, client_id, workspace, prefix, hash, name, description, logo, visibility, redirect_uris, scopes, client_credentials, created_at, 0, 0, NULL FROM kept;
DROP TABLE kept;

CREATE TEMP TABLE kept AS SELECT * FROM oauth_codes;
DROP TABLE oauth_codes;

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

INSERT INTO oauth_codes (key, prefix, hash, app, user, workspace, scopes, agents, redirect_uri, challenge, expires_at, spent_on, resource)
  SELECT key, prefix, hash, app, user, workspace, scopes, agents, redirect_uri, challenge, expires_at, spent_on, '' FROM kept;
DROP TABLE kept;

CREATE TEMP TABLE kept AS SELECT * FROM oauth_grants;
DROP TABLE oauth_grants;

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

INSERT INTO oauth_grants (key, id, prefix, hash, app, user, workspace, scopes, agents, created_at, resource, spent_prefix, spent_hash)
  SELECT key, id, prefix, hash, app, user, workspace, scopes, agents, created_at, '', NULL, NULL FROM kept;
DROP TABLE kept;

CREATE TEMP TABLE kept AS SELECT * FROM oauth_tokens;
DROP TABLE oauth_tokens;

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

INSERT INTO oauth_tokens (key, prefix, hash, app, grant_key, workspace, scopes, agents, created_at, expires_at, resource)
  SELECT key, prefix, hash, app, grant_key, workspace, scopes, agents, created_at, expires_at, '' FROM kept;
DROP TABLE kept;

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
