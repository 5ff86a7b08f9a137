# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The write-ahead log stays small however much is written and read (S10, E9)."""

from __future__ import annotations

from pathlib import Path

from weftline.store.base import LogReader
from weftline.store.sqlite.connection import connect

from .kit import Owned, owned

BODY = 40_000
COMMITS = 300
BOUND = 5_500_000
"""1,000 pages and the largest commit, with room; the writes come to 12 MB."""


async def read_a_little(log: LogReader, *, next_seq: int) -> None:
    row = await log.run(1)
    assert row is not None and row.next_seq == next_seq
    page = await log.page(1, after=row.next_seq - 3, max_bytes=1)
    assert page is not None and len(page.items) == 1
    assert await log.due_now(after=0, limit=1) and await log.entry(1, row.next_seq - 1)


def write_and_read(store: Owned, path: Path) -> int:
    """Many commits with a read after each; returns the largest size of the log."""
    chain = store.chain()
    store.commit(chain.create())
    largest = 0
    for number in range(COMMITS):
        assert store.outcomes(chain.append(b"%d" % number * (BODY // len(str(number))))) == ["ok"]
        store.run(read_a_little(store.store.log, next_seq=chain.seq))
        largest = max(largest, (path / "weftline.db-wal").stat().st_size)
    return largest


def test_the_log_file_stays_small_while_it_is_read(tmp_path: Path) -> None:
    """S10."""
    with owned(tmp_path / "store") as store:
        assert write_and_read(store, tmp_path / "store") < BOUND


def test_a_reader_that_leaves_a_statement_open_would_be_noticed(tmp_path: Path) -> None:
    """E9: an unfinished read keeps the log from ever starting again."""
    with owned(tmp_path / "store") as store:
        store.commit(store.chain(7).create(), store.chain(8).create())
        reader = connect(tmp_path / "store" / "weftline.db", read_only=True)
        unfinished = reader.execute("SELECT key FROM runs")
        assert unfinished.fetchone() == (7,)
        assert write_and_read(store, tmp_path / "store") > 2 * BOUND
        unfinished.close()
        reader.close()
