# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""A store from before the lists: what it holds is found by them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from weftline.store.records import threads
from weftline.store.records.threads import ThreadFilter
from weftline.store.sqlite import lists
from weftline.store.sqlite.connection import connect, migrate, migrations
from weftline.store.sqlite.database import run_query
from weftline.store.sqlite.lists import Filter


def test_metadata_from_before_is_found_after_the_migration(tmp_path: Path) -> None:
    database = tmp_path / "weftline.db"
    with closing(connect(database)) as db:
        migrate(db, path=tmp_path, steps=[step for step in migrations() if step[0] < 4])
        db.execute("INSERT INTO workspaces (slug, name, created_at) VALUES ('acme', 'acme', 1)")
        for key, metadata in ((1, '{"env":"prod","team":"a"}'), (2, "{}"), (3, '{"env":"prod"}')):
            db.execute(
                "INSERT INTO runs (key, salt, workspace, name, metadata, status, created_at, next_seq, version, epoch,"
                " rules, state) VALUES (?, 'x', 1, 'n', ?, 'queued', 1, 2, 1, 1, 1, x'00')",
                (key, metadata),
            )
            db.execute(
                "INSERT INTO threads (key, salt, workspace, name, spec, metadata, created_at, last_used_at, next_place)"
                " VALUES (?, 'x', 1, 'n', x'7b7d', ?, 1, 1, 1)",
                (key, metadata),
            )
        migrate(db, path=tmp_path)
    prod = (("env", "prod"),)
    for metadata, found in ((prod, [3, 1]), ((*prod, ("team", "a")), [1])):
        assert [row.key for row in lists.runs(database, Filter(workspace=1, metadata=metadata))] == found
        with closing(connect(database)) as db:
            page = run_query(db, threads.page(ThreadFilter(workspace=1, metadata=metadata)))
        assert [row.key for row in page] == found
