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
