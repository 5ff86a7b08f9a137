# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The write-ahead log stays small however much is written and read (S10, E9)."""

from __future__ import annotations

from pathlib import Path

from weftline.store.sqlite.connection import connect
from weftline.testing.store import Chain

from .kit import Owned, owned

BODY = 40_000
COMMITS = 300
BOUND = 5_500_000
"""1,000 pages and the largest commit, with room; the writes come to 12 MB."""


def write_and_read(store: Owned, path: Path) -> int:
    """Many commits with a read after each; returns the largest size of the log."""
    chain = Chain(1, store.workspace)
    store.commit(chain.create())
    largest = 0
    for number in range(COMMITS):
        assert store.outcomes(chain.append(b"%d" % number * (BODY // len(str(number))))) == ["ok"]
        read = store.store.read
        row = read.run(1)
        assert row is not None and row.next_seq == chain.seq
        assert len(read.entries(1, after=row.next_seq - 3, upto=row.next_seq, limit=1)) == 1
        assert read.under_way(limit=1) and read.entry(1, row.next_seq - 1)
        largest = max(largest, (path / "weftline.db-wal").stat().st_size)
    return largest


def test_the_log_file_stays_small_while_it_is_read(tmp_path: Path) -> None:
    """S10."""
    with owned(tmp_path / "store") as store:
        assert write_and_read(store, tmp_path / "store") < BOUND


def test_a_reader_that_leaves_a_statement_open_would_be_noticed(tmp_path: Path) -> None:
    """E9: an unfinished read keeps the log from ever starting again."""
    with owned(tmp_path / "store") as store:
        store.commit(Chain(7, store.workspace).create(), Chain(8, store.workspace).create())
        reader = connect(tmp_path / "store" / "weftline.db", read_only=True)
        unfinished = reader.execute("SELECT key FROM runs")
        assert unfinished.fetchone() == (7,)
        assert write_and_read(store, tmp_path / "store") > 2 * BOUND
        unfinished.close()
        reader.close()
