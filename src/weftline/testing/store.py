"""A conformance suite for stores: shows that a store keeps the promises of `store/base.py`.

It needs a `Subject` around a new, empty store, and runs on any of them:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_conforms(check):
        subject = await MySubject.create()
        try:
            await check(subject)
        finally:
            await subject.close()

Every broken promise is an `AssertionError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from weftline.store.base import DeltaRow, EntryRow, NewRun, OnFlushed, RunWrite, ThreadEnd, Written
from weftline.store.sqlite.reads import RunRow, ThreadRow

TIMEOUT_S = 30


class StoreReads(Protocol):
    """What the suite reads."""

    def run(self, key: int) -> RunRow | None: ...
    def under_way(self, *, limit: int, after: int = 0) -> list[tuple[int, int, int]]: ...
    def due(self, now: int, *, limit: int) -> list[int]: ...
    def next_due(self, after: int) -> int | None: ...
    def entries(self, run: int, *, after: int, upto: int, limit: int) -> list[EntryRow]: ...
    def deltas(self, run: int, *, after: int, upto: int, limit: int) -> list[DeltaRow]: ...
    def facts(self, run: int, *, after: int = 0) -> list[EntryRow]: ...
    def thread(self, key: int) -> ThreadRow | None: ...
    def thread_messages(self, thread: int, *, upto: int | None = None) -> list[bytes]: ...
    def unfinished_of_thread(self, thread: int) -> list[int]: ...
    def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None: ...
    def pending(self, run: int) -> list[tuple[str, str, int | None]]: ...


class Store(Protocol):
    @property
    def read(self) -> StoreReads: ...
    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None: ...


class Subject(Protocol):
    """A new, empty store and what the suite cannot do through `flush`."""

    @property
    def store(self) -> Store: ...
    async def create_workspace(self) -> int: ...
    async def create_thread(self, workspace: int) -> int: ...
    async def end_thread(self, thread: int) -> None: ...
    async def reopen(self) -> None:
        """Closes the store and opens it again; `store` may be another object afterwards."""
        ...


Check: TypeAlias = Callable[[Subject], Awaitable[None]]


class Chain:
    """The writes of one run in order, each resting on the one before, as a driver would make them."""

    def __init__(self, key: int, workspace: int, *, thread: int | None = None) -> None:
        self.key = key
        self.seq = 1
        self.version = 0
        self._workspace = workspace
        self._thread = thread

    def create(
        self, *, name: str = "", body: bytes = b"{}", idempotency: tuple[str, str, bytes] | None = None
    ) -> RunWrite:
        """The first write of the run: its row and its first entry."""
        write = self.append(body, kind="run.created", status="queued", due_at=0)
        write.new = NewRun(
            salt="salt",
            workspace=self._workspace,
            name=name,
            metadata="{}",
            created_at=1_000 + self.key,
            rules=1,
            thread=self._thread,
            idempotency=idempotency,
        )
        return write

    def append(
        self,
        *bodies: bytes,
        kind: str = "call.closed",
        deltas: Sequence[bytes] = (),
        status: str = "running",
        due_at: int | None = 0,
        opened: Iterable[tuple[str, str, int | None]] = (),
        answered: Iterable[str] = (),
    ) -> RunWrite:
        """One entry for each of `bodies` and then one row of `deltas`."""
        base_seq, base_version = self.seq, self.version
        entries: list[EntryRow] = [(base_seq + n, 5_000, kind, b"{}", body) for n, body in enumerate(bodies)]
        self.seq += len(entries)
        rows: list[DeltaRow] = [(self.seq, len(deltas), 5_000, "text", b"\n".join(deltas))] if deltas else []
        self.seq += len(deltas)
        self.version += len(entries)
        return RunWrite(
            self.key,
            base_seq,
            base_version,
            self.seq,
            self.version,
            1,
            due_at,
            status,
            b"state %d" % self.version if entries else None,
            entries=entries,
            deltas=rows,
            opened=list(opened),
            answered=list(answered),
        )

    def end(self, *, messages: Sequence[bytes] = (), ended_at: int = 9_000) -> RunWrite:
        """The last write: the run has succeeded and leaves its thread, if it has one."""
        write = self.append(b"{}", kind="run.ended", status="succeeded", due_at=None)
        write.ended_at = ended_at
        if self._thread is not None:
            write.thread_end = ThreadEnd(self._thread, list(messages))
        return write

    def take_back(self, write: RunWrite) -> None:
        """After a refusal: the next write rests on what `write` rested on."""
        self.seq, self.version = write.base_seq, write.base_version


async def commit(store: Store, *writes: RunWrite) -> list[Written]:
    """Flushes `writes` and returns what became of each."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[list[Written]] = loop.create_future()

    def done(_: list[RunWrite], results: list[Written]) -> None:
        loop.call_soon_threadsafe(told.set_result, results)

    store.flush(list(writes), done)
    async with asyncio.timeout(TIMEOUT_S):
        return await told


def check_log(read: StoreReads, key: int) -> list[bytes]:
    """Asserts that the run's log is whole (every seq from 1 to the last once) and returns the bodies of its facts."""
    row = read.run(key)
    facts = read.facts(key)
    deltas = read.deltas(key, after=0, upto=2**62, limit=2**31)
    seqs = [fact[0] for fact in facts]
    for first, count, _, _, bodies in deltas:
        assert bodies.count(b"\n") == count - 1
        seqs += range(first, first + count)
    if row is None:
        assert seqs == [], f"run {key} has entries and no row"
        return []
    assert sorted(seqs) == list(range(1, row.next_seq)), f"the log of run {key} has a hole or a seq twice: {seqs}"
    assert row.version == len(facts), f"the row of run {key} and its log do not belong together"
    return [fact[4] for fact in facts]


def _outcomes(results: Sequence[Written]) -> list[str]:
    return [result.outcome for result in results]


def _code(result: Written) -> str | None:
    return result.error.code if result.error else None


async def entries_are_read_as_they_were_written(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    read = subject.store.read
    assert _outcomes(await commit(subject.store, chain.create(body=b"first"))) == ["ok"]
    await commit(subject.store, chain.append(b"second", deltas=[b"d3", b"d4", b"d5"]))
    await commit(subject.store, chain.append(b"\x00\xff"))
    assert check_log(read, 1) == [b"first", b"second", b"\x00\xff"]
    assert read.entries(1, after=1, upto=5, limit=9) == [(2, 5_000, "call.closed", b"{}", b"second")]
    whole: DeltaRow = (3, 3, 5_000, "text", b"d3\nd4\nd5")
    assert [read.deltas(1, after=n, upto=9, limit=9) for n in (2, 3, 4)] == [[whole]] * 3
    assert read.deltas(1, after=5, upto=9, limit=9) == [] == read.deltas(1, after=0, upto=2, limit=9)


async def a_write_that_rests_on_what_is_not_so_changes_nothing(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    await commit(subject.store, chain.create(), chain.append(b"a"))
    before = subject.store.read.run(1)
    for field, by in [("base_seq", -1), ("base_seq", 1), ("base_version", -1), ("base_version", 1)]:
        write = chain.append(b"stale", opened=[("1.0", "client", None)])
        setattr(write, field, getattr(write, field) + by)
        (result,) = await commit(subject.store, write)
        assert (result.outcome, _code(result)) == ("failed", "conflict")
        chain.seq, chain.version = 3, 2
    assert subject.store.read.run(1) == before
    assert check_log(subject.store.read, 1) == [b"{}", b"a"]
    assert subject.store.read.pending(1) == []


async def a_write_to_a_run_that_does_not_exist_fails(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    chain.create()
    assert _outcomes(await commit(subject.store, chain.append(b"a"))) == ["failed"]
    assert check_log(subject.store.read, 1) == []


async def a_seq_is_taken_once(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    await commit(subject.store, chain.create(), chain.append(b"a"))
    write = chain.append(b"b")
    write.entries = [(2, 5_000, "call.closed", b"{}", b"again")]
    (result,) = await commit(subject.store, write)
    assert (result.outcome, _code(result)) == ("failed", "conflict")
    assert check_log(subject.store.read, 1) == [b"{}", b"a"]


async def a_run_is_created_once(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    first, second = Chain(1, workspace).create(body=b"first"), Chain(1, workspace).create(body=b"second")
    assert _outcomes(await commit(subject.store, first, second)) == ["ok", "failed"]
    assert check_log(subject.store.read, 1) == [b"first"]


async def a_member_that_fails_changes_nothing_for_its_neighbours(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    chains = [Chain(key, workspace) for key in range(1, 6)]
    await commit(subject.store, *[chain.create() for chain in chains])
    writes = [chain.append(b"a", deltas=[b"b"], opened=[("1.0", "client", None)]) for chain in chains]
    writes[2].base_version += 1
    assert _outcomes(await commit(subject.store, *writes)) == ["ok", "ok", "failed", "ok", "ok"]
    assert [len(check_log(subject.store.read, key)) for key in range(1, 6)] == [2, 2, 1, 2, 2]
    assert [len(subject.store.read.pending(key)) for key in range(1, 6)] == [1, 1, 0, 1, 1]


async def what_cannot_be_encoded_fails_alone(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    writes = [
        Chain(1, workspace).create(),
        Chain(2, workspace).create(name="\ud800"),
        Chain(3, workspace).create(),
        Chain(4, workspace).create(),
    ]
    writes[2].due_at = 2**63
    assert _outcomes(await commit(subject.store, *writes)) == ["ok", "failed", "failed", "ok"]
    assert [subject.store.read.run(key) is not None for key in range(1, 5)] == [True, False, False, True]


async def flushes_take_effect_in_the_order_in_which_they_were_given(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    bodies = [b"%d" % n for n in range(50)]
    told = await asyncio.gather(
        commit(subject.store, chain.create(body=b"0")),
        *[commit(subject.store, chain.append(body)) for body in bodies[1:]],
    )
    assert [result.outcome for results in told for result in results] == ["ok"] * 50
    assert check_log(subject.store.read, 1) == bodies


async def a_chain_fails_from_its_first_failure_on(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    await commit(subject.store, chain.create())
    writes = [chain.append(b"%d" % n) for n in range(4)]
    writes[1].base_version += 7
    told = await asyncio.gather(*[commit(subject.store, write) for write in writes])
    assert [result.outcome for results in told for result in results] == ["ok", "failed", "failed", "failed"]
    assert check_log(subject.store.read, 1) == [b"{}", b"0"]


async def a_run_row_holds_what_the_last_write_said(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    store = subject.store
    await commit(store, chain.create())
    started = chain.append(b"a", due_at=77)
    started.started_at = 1_234
    await commit(store, started)
    row = store.read.run(1)
    assert row is not None
    assert (row.next_seq, row.version, row.epoch, row.due_at, row.status) == (3, 2, 1, 77, "running")
    assert (row.state, row.started_at, row.ended_at) == (b"state 2", 1_234, None)
    await commit(store, chain.append(deltas=[b"x", b"y"], due_at=77))
    row = store.read.run(1)
    assert row is not None
    assert (row.next_seq, row.version, row.state, row.started_at) == (5, 2, b"state 2", 1_234)
    await commit(store, chain.end(ended_at=4_321))
    row = store.read.run(1)
    assert row is not None
    assert (row.status, row.due_at, row.started_at, row.ended_at) == ("succeeded", None, 1_234, 4_321)


async def due_runs_are_those_whose_time_has_come(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    chains = [Chain(key, workspace) for key in range(1, 5)]
    await commit(subject.store, *[chain.create() for chain in chains])
    due = [0, 100, None, 200]
    await commit(subject.store, *[chain.append(b"a", due_at=at) for chain, at in zip(chains, due, strict=True)])
    read = subject.store.read
    assert [row[0] for row in read.under_way(limit=9)] == [1] and read.under_way(limit=9, after=1) == []
    assert [read.due(now, limit=9) for now in (99, 100, 200)] == [[], [2], [2, 4]]
    assert (read.next_due(0), read.next_due(100), read.next_due(200)) == (100, 200, None)


async def an_idempotency_key_is_used_once(subject: Subject) -> None:
    workspace, other = await subject.create_workspace(), await subject.create_workspace()
    first = Chain(1, workspace).create(idempotency=("runs", "k", b"digest 1"))
    same = Chain(2, workspace).create(idempotency=("runs", "k", b"digest 2"))
    route = Chain(3, workspace).create(idempotency=("sessions", "k", b"digest 3"))
    tenant = Chain(4, other).create(idempotency=("runs", "k", b"digest 4"))
    results = await commit(subject.store, first, same, route, tenant)
    assert _outcomes(results) == ["ok", "failed", "ok", "ok"]
    assert _code(results[1]) == "conflict"
    read = subject.store.read
    assert read.idempotent(workspace, "runs", "k") == (b"digest 1", 1)
    assert read.idempotent(other, "runs", "k") == (b"digest 4", 4)
    assert read.run(2) is None and read.facts(2) == []


async def pending_rows_follow_what_was_opened_and_answered(subject: Subject) -> None:
    chain = Chain(1, await subject.create_workspace())
    await commit(subject.store, chain.create())
    await commit(subject.store, chain.append(b"a", opened=[("1.0", "client", 500), ("1.1", "client", None)]))
    assert subject.store.read.pending(1) == [("1.0", "client", 500), ("1.1", "client", None)]
    await commit(subject.store, chain.append(b"b", answered=["1.0"], opened=[("2.0", "client", None)]))
    assert subject.store.read.pending(1) == [("1.1", "client", None), ("2.0", "client", None)]
    await commit(subject.store, chain.append(b"c", answered=["1.1", "2.0"]))
    assert subject.store.read.pending(1) == []


async def runs_of_a_thread_move_one_after_another(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    store, read = subject.store, subject.store.read
    chains = [Chain(key, workspace, thread=thread) for key in (1, 2, 3)]
    results = await commit(store, *[chain.create() for chain in chains])
    assert [result.queued for result in results] == [False, True, True]
    assert _due(read, 1, 2, 3) == [0, None, None]
    (result,) = await commit(store, chains[0].end(messages=[b"q1", b"a1"]))
    assert (result.outcome, result.promoted) == ("ok", 2)
    assert _due(read, 1, 2, 3) == [None, 0, None]
    assert read.thread_messages(thread) == [b"q1", b"a1"]
    assert read.unfinished_of_thread(thread) == [2, 3]
    results = await commit(store, chains[1].end(messages=[b"q2"]), chains[2].append(b"x", status="queued", due_at=None))
    assert (_outcomes(results), results[0].promoted) == (["ok", "ok"], 3)
    assert _due(read, 3) == [0]
    (result,) = await commit(store, chains[2].end())
    row = read.thread(thread)
    assert result.promoted is None and row is not None and row.active_run is None
    assert read.thread_messages(thread) == [b"q1", b"a1", b"q2"]
    (result,) = await commit(store, Chain(4, workspace, thread=thread).create())
    assert not result.queued and _due(read, 4) == [0]


async def an_end_that_fails_releases_nothing(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    first, second = Chain(1, workspace, thread=thread), Chain(2, workspace, thread=thread)
    await commit(subject.store, first.create(), second.create())
    end = first.end(messages=[b"never"])
    end.base_version += 1
    (result,) = await commit(subject.store, end)
    read = subject.store.read
    row = read.thread(thread)
    assert (result.outcome, result.promoted) == ("failed", None)
    assert row is not None and row.active_run == 1
    assert read.thread_messages(thread) == [] and _due(read, 2) == [None]


async def a_run_that_leaves_the_line_promotes_nobody(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    chains = [Chain(key, workspace, thread=thread) for key in (1, 2, 3)]
    await commit(subject.store, *[chain.create() for chain in chains])
    (left,) = await commit(subject.store, chains[1].end())
    assert left.promoted is None and _due(subject.store.read, 3) == [None]
    (ended,) = await commit(subject.store, chains[0].end())
    assert ended.promoted == 3


async def a_run_created_as_the_one_before_it_ends_is_not_forgotten(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    first, second = Chain(1, workspace, thread=thread), Chain(2, workspace, thread=thread)
    await commit(subject.store, first.create())
    ended, created = await commit(subject.store, first.end(), second.create())
    row = subject.store.read.thread(thread)
    assert (ended.outcome, created.outcome, ended.promoted) == ("ok", "ok", 2)
    assert row is not None and row.active_run == 2 and _due(subject.store.read, 2) == [0]


async def a_thread_that_has_ended_takes_no_runs(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    await subject.end_thread(thread)
    late, free = Chain(1, workspace, thread=thread).create(), Chain(2, workspace).create()
    results = await commit(subject.store, late, free)
    assert [(result.outcome, _code(result)) for result in results] == [("failed", "session_ended"), ("ok", None)]
    assert check_log(subject.store.read, 1) == [] and check_log(subject.store.read, 2) == [b"{}"]


async def everything_is_there_after_the_store_was_opened_again(subject: Subject) -> None:
    workspace = await subject.create_workspace()
    thread = await subject.create_thread(workspace)
    chains = [Chain(key, workspace, thread=thread) for key in (1, 2)]
    await commit(subject.store, *[chain.create(idempotency=("runs", f"k{chain.key}", b"d")) for chain in chains])
    await commit(subject.store, chains[0].append(b"a", deltas=[b"b"], opened=[("1.0", "client", 5)]))
    read = subject.store.read
    before = [read.run(1), read.run(2), read.facts(1), read.pending(1), read.thread(thread)]
    await subject.reopen()
    read = subject.store.read
    assert [read.run(1), read.run(2), read.facts(1), read.pending(1), read.thread(thread)] == before
    (result,) = await commit(subject.store, chains[0].end(messages=[b"m"]))
    assert result.promoted == 2 and read.idempotent(workspace, "runs", "k1") == (b"d", 1)


def _due(read: StoreReads, *keys: int) -> list[int | None]:
    rows = [read.run(key) for key in keys]
    return [row.due_at for row in rows if row is not None]


CHECKS: tuple[Check, ...] = (
    entries_are_read_as_they_were_written,
    a_write_that_rests_on_what_is_not_so_changes_nothing,
    a_write_to_a_run_that_does_not_exist_fails,
    a_seq_is_taken_once,
    a_run_is_created_once,
    a_member_that_fails_changes_nothing_for_its_neighbours,
    what_cannot_be_encoded_fails_alone,
    flushes_take_effect_in_the_order_in_which_they_were_given,
    a_chain_fails_from_its_first_failure_on,
    a_run_row_holds_what_the_last_write_said,
    due_runs_are_those_whose_time_has_come,
    an_idempotency_key_is_used_once,
    pending_rows_follow_what_was_opened_and_answered,
    runs_of_a_thread_move_one_after_another,
    an_end_that_fails_releases_nothing,
    a_run_that_leaves_the_line_promotes_nobody,
    a_run_created_as_the_one_before_it_ends_is_not_forgotten,
    a_thread_that_has_ended_takes_no_runs,
    everything_is_there_after_the_store_was_opened_again,
)
"""Every promise, each to be shown on a new store."""
