"""What is large is read beside the loop, in turns; what is small on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from weftline.store.sqlite import database
from weftline.store.sqlite.database import ReaderThreads
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store.subject import chain_of, commit, new_thread, new_workspace
from weftline.work.turns import on_behalf_of

from .kit import TIMEOUT_S
from .subjects import SqliteSubject

MB = 1024 * 1024


def readers() -> int:
    """How many threads read. They are made for the first read that is too long for the loop."""
    return sum(thread.name.startswith("weftline-reader") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("messages", "beside"),
    [
        ([b"q", b"a"], False),
        ([b"q", b"x" * (2 * MB)], True),
        ([b"x" * (MB // 8)] * 3, True),
        ([b"%d" % number for number in range(300)], True),
    ],
    ids=["small", "one large", "several", "many"],
)
async def test_a_threads_messages_are_read_where_they_hold_up_nobody(
    tmp_path: Path, messages: list[bytes], beside: bool
) -> None:
    subject = SqliteSubject(tmp_path / "store")
    store = subject.store
    assert isinstance(store, SqliteStore)
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chain = chain_of(store.log, 1, workspace, thread=thread)
    await commit(store.log, chain.create())
    await commit(store.log, chain.end(messages=messages))
    before = readers()
    assert await store.log.thread_messages(thread) == messages
    assert (readers() > before) is beside
    assert await store.log.thread_size(thread) == sum(map(len, messages))
    await store.close()


@pytest.mark.parametrize(("calls", "size", "beside"), [(3, 2 * MB, False), (300, 1, True)])
async def test_the_heads_of_calls_are_read_without_their_results(
    tmp_path: Path, calls: int, size: int, beside: bool
) -> None:
    subject = SqliteSubject(tmp_path / "store")
    log = subject.store.log
    chain = chain_of(log, 1, await new_workspace(subject))
    await commit(log, chain.create())
    await commit(log, chain.append(*[b"x" * size] * calls))
    before = readers()
    assert await log.heads(1, kinds=("call.closed",)) == [b"{}"] * calls
    assert (readers() > before) is beside
    await log.facts(1)
    assert readers() > before
    await subject.store.close()


async def test_readers_of_a_long_log_do_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_THREADS", 1)
    subject = SqliteSubject(tmp_path / "store")
    await subject.store.close()
    threads = ReaderThreads(tmp_path / "store" / "weftline.db")
    begun, opened = threading.Event(), threading.Event()
    done: list[str] = []

    def read(what: str) -> Callable[[object], None]:
        def job(db: object) -> None:
            begun.set()
            opened.wait(TIMEOUT_S)
            done.append(what)

        return job

    flood = [asyncio.create_task(threads.read(read("flood"), run=1)) for _ in range(100)]
    await asyncio.to_thread(begun.wait, TIMEOUT_S)  # the thread is busy: what follows waits for its turn
    gone = asyncio.create_task(threads.read(read("gone"), run=2))
    others = [asyncio.create_task(threads.read(read("other"), run=run)) for run in (None, 3)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    opened.set()
    await asyncio.gather(*flood, *others)
    assert "gone" not in done and max(at for at, what in enumerate(done) if what == "other") < 10
    threads.close()


async def test_reads_do_not_delay_other_workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs and lists they are about."""
    monkeypatch.setattr(database, "_THREADS", 1)  # of two, either may be slow to begin what it took
    subject = SqliteSubject(tmp_path / "store")
    await subject.store.close()
    threads = ReaderThreads(tmp_path / "store" / "weftline.db")
    opened = threading.Event()
    done: list[int] = []

    async def read(workspace: int, run: int | None) -> None:
        def job(db: object) -> None:
            opened.wait(TIMEOUT_S)
            done.append(workspace)

        on_behalf_of.set(workspace)
        await threads.read(job, run=run)

    flood = [asyncio.create_task(read(1, run)) for run in [None] * 50 + list(range(50))]
    await asyncio.sleep(0)
    others = [asyncio.create_task(read(2, run)) for run in (None, None, 7)]
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(*flood, *others)
    assert max(at for at, workspace in enumerate(done) if workspace == 2) < 12
    threads.close()
