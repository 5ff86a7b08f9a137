-- Features that are switched off; a workspace has every feature that is not listed here.
CREATE TABLE features_off (
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  feature TEXT NOT NULL,          -- apiKeys or oauthApps
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
  workspace INTEGER NOT NULL REFERENCES workspaces (key),
  prefix TEXT NOT NULL,
  hash BLOB NOT NULL,             -- of the client secret
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  logo TEXT NOT NULL,
  visibility TEXT NOT NULL,       -- private: for the workspace's own users; public: for everybody
  redirect_uris TEXT NOT NULL,    -- JSON list
  scopes TEXT NOT NULL,           -- separated by blanks
  client_credentials INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX oauth_apps_by_workspace ON oauth_apps (workspace, key);

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
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX oauth_grants_by_prefix ON oauth_grants (prefix);
CREATE INDEX oauth_grants_by_user ON oauth_grants (user, key);
CREATE INDEX oauth_grants_by_app ON oauth_grants (app);

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
  expires_at INTEGER NOT NULL
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
