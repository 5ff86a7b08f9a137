-- Who made a key or an app: what one person makes counts as that person. Empty if an operator made it.
ALTER TABLE api_keys ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
ALTER TABLE oauth_apps ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
