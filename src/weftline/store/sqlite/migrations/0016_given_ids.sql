-- A run may be given its id by whoever starts it. The id stands in `salt`, behind a mark that no salt has.
CREATE UNIQUE INDEX runs_by_given_id ON runs (salt, workspace) WHERE substr(salt, 1, 1) = '=';
