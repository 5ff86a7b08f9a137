# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A disk that is full in the middle of a group commit (S3, S4, F10, E1), and the careless writer that it catches."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from weftline.store.rows import Write, Written
from weftline.store.sqlite.connection import Moved, connect, failure
from weftline.store.sqlite.database import run_query
from weftline.store.sqlite.transaction import write_batch

from .kit import Ledger, Owned, limit_pages, owned

PLENTY = 1_000_000


class Careless(Owned):
    """The planted bug of E1: a savepoint per member, and no look at the transaction after an error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db = connect(path / "weftline.db")

    def commit(self, *writes: Write) -> list[Written]:
        results: list[Written] = []
        self._db.execute("BEGIN IMMEDIATE")
        for write in writes:
            try:
                self._db.execute("SAVEPOINT member")
                results += write_batch(self._db, [write])
                self._db.execute("RELEASE member")
            except (apsw.Error, Moved) as error:
                results.append(failure(error))
                with suppress(apsw.Error):
                    self._db.execute("ROLLBACK TO member")
                    self._db.execute("RELEASE member")
        with suppress(apsw.Error):
            self._db.execute("COMMIT")
        return results

    def limit(self, pages: int) -> None:
        run_query(self._db, limit_pages(pages))

    def close(self) -> None:
        self._db.close()
        super().close()


class Careful(Owned):
    def limit(self, pages: int) -> None:
        self.write(limit_pages(pages))


def fill_the_disk(store: Careful | Careless) -> list[str]:
    """Five runs append in one flush, the third more than fits; returns what they were told after checking it."""
    chains = [store.chain(key) for key in range(1, 6)]
    ledger = Ledger()
    created = [chain.create(body=b"created %d" % chain.key) for chain in chains]
    ledger.told(created, store.commit(*created))
    store.limit(10)
    sizes = (10, 10, 400_000, 10, 10)
    writes = [chain.append(b"%d" % chain.key * size) for chain, size in zip(chains, sizes, strict=True)]
    results = store.commit(*writes)
    ledger.told(writes, results)
    store.run(ledger.check(store.store.log))
    store.limit(PLENTY)
    chains[2].take_back(writes[2])
    again = [chains[2].append(b"again"), chains[4].append(b"more")]
    ledger.told(again, store.commit(*again))
    store.run(ledger.check(store.store.log))
    return [result.outcome for result in results or ()]


def test_unfitting_write_is_refused_and_its_neighbours_written(tmp_path: Path) -> None:
    """S3, S4: SQLite rolls the whole transaction back by itself; the members run again alone."""
    store = Careful(tmp_path / "store")
    assert fill_the_disk(store) == ["ok", "ok", "refused", "ok", "ok"]
    assert store.fatal is None
    store.close()


def test_going_on_after_the_transaction_is_gone_would_be_noticed(tmp_path: Path) -> None:
    """Planted bug "autocommit after FULL": members that were told ok vanish, later ones commit by themselves."""
    store = Careless(tmp_path / "store")
    with pytest.raises(AssertionError, match=r"run 1 holds 1, told 2"):
        fill_the_disk(store)
    store.close()


def test_full_disk_refuses_with_error_that_says_to_try_again(tmp_path: Path) -> None:
    """S3, F77: `refused` means that nothing was written and that the same write may succeed later."""
    with owned(tmp_path / "store") as store:
        chain = store.chain()
        store.commit(chain.create())
        store.write(limit_pages(0))
        write = chain.append(b"x" * 50_000)
        refused = (store.commit(write) or [])[0]
        assert refused.outcome == "refused"
        assert refused.error is not None and refused.error.code == "unavailable" and refused.error.retryable
        store.write(limit_pages(PLENTY))
        assert store.outcomes(write) == ["ok"]


def test_locked_store_refuses_all_members_and_recovers_later(tmp_path: Path) -> None:
    """F77: BUSY at BEGIN is the same for everybody, so nobody waits for it one by one."""
    with owned(tmp_path / "store") as store:
        chains = [store.chain(key) for key in range(1, 101)]
        store.commit(*[chain.create() for chain in chains])
        writes = [chain.append(b"a") for chain in chains]
        other = connect(tmp_path / "store" / "weftline.db")
        other.execute("BEGIN IMMEDIATE")
        assert store.outcomes(*writes) == ["refused"] * 100
        other.execute("ROLLBACK")
        other.close()
        assert store.outcomes(*writes) == ["ok"] * 100
