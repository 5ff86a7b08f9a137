"""Readers beside many appenders see each log grow in order, and never anything late (S1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from weftline.store.base import Written
from weftline.store.sqlite.store import SqliteStore, open_for_reading
from weftline.testing.store import Chain, check_log

from .kit import TIMEOUT_S, owned

RUNS = 4
APPENDS = 60


def append(store: SqliteStore, chain: Chain) -> None:
    """Hands over every write of a run without waiting, then waits for all of them."""
    told: SimpleQueue[list[Written]] = SimpleQueue()
    store.flush([chain.create(body=b"0")], lambda _, results: told.put(results))
    for number in range(1, APPENDS):
        write = chain.append(b"%d" % number, deltas=[b"a", b"b"][: number % 3])
        store.flush([write], lambda _, results: told.put(results))
    for _ in range(APPENDS):
        assert [result.outcome for result in told.get(timeout=TIMEOUT_S)] == ["ok"]


def follow(path: Path, key: int, written: Event) -> list[int]:
    """The seqs of a run in the order in which they were seen, each look going on from the last seq."""
    reader = open_for_reading(path)
    seen: list[int] = []
    finished = False
    while not finished:
        finished = written.is_set()
        last = seen[-1] if seen else 0
        row = reader.run(key)
        upto = row.next_seq - 1 if row else 0
        found = [fact[0] for fact in reader.entries(key, after=last, upto=upto, limit=1_000)]
        for first, count, *_ in reader.deltas(key, after=last, upto=upto, limit=1_000):
            found += range(first, first + count)
        seen += sorted(found)
    reader.close()
    return seen


@pytest.mark.requirement("run.log.seq")
def test_no_entry_appears_at_or_below_a_seq_that_a_reader_has_passed(tmp_path: Path) -> None:
    """S1: many appenders at once, a reader of each run that goes on from where it is."""
    path = tmp_path / "store"
    written = Event()
    with owned(path) as store, ThreadPoolExecutor(2 * RUNS) as pool:
        chains = [Chain(key, store.workspace) for key in range(1, RUNS + 1)]
        readers = [pool.submit(follow, path, chain.key, written) for chain in chains]
        try:
            for appender in [pool.submit(append, store.store, chain) for chain in chains]:
                appender.result(TIMEOUT_S)
        finally:
            written.set()
        for chain, reader in zip(chains, readers, strict=True):
            assert reader.result(TIMEOUT_S) == list(range(1, chain.seq))
            assert check_log(store.store.read, chain.key) == [b"%d" % number for number in range(APPENDS)]
