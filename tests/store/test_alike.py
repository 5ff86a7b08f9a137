"""Whatever is done to them, the store on SQLite and the store in memory tell and hold the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, to_builtins

from weftline.store.rows import LEAVE_DUE, IdempotencyKey, Progress, Write, Written
from weftline.testing.store import Chain, Subject, read_log
from weftline.testing.store.subject import active_run, end_thread, new_thread, new_workspace

from .subjects import MemorySubject, SqliteSubject

KEYS = range(1, 5)
KINDS = ("call.closed",)
LONG = b"word " * 4_000


class Flush(Struct, frozen=True, tag=True):
    """One write each for some runs: create it, append to it or end it, resting on what is so or on something else."""

    members: tuple[Member, ...]


class Member(Struct, frozen=True):
    run: int
    facts: int
    deltas: int
    ends: bool
    progress: Progress
    due_at: int | None
    off: int
    """By how much what it rests on is wrong."""
    long: bool
    """Whether its facts have a long string."""


class Claim(Struct, frozen=True, tag=True):
    run: int
    release: bool


class Reopen(Struct, frozen=True, tag=True):
    cleanly: bool
    charge: bool


class Mark(Struct, frozen=True, tag=True):
    """A trial of these runs begins or is over."""

    runs: tuple[int, ...]
    over: bool


class Look(Struct, frozen=True, tag=True):
    run: int
    after: int
    max_bytes: int


class Trim(Struct, frozen=True, tag=True):
    before: int


class EndThread(Struct, frozen=True, tag=True):
    pass


Act = Flush | Claim | Reopen | Mark | Look | Trim | EndThread

runs = st.sampled_from(KEYS)
members = st.builds(
    Member,
    run=runs,
    facts=st.integers(0, 3),
    deltas=st.integers(0, 3),
    ends=st.integers(0, 4).map(lambda roll: roll == 0),
    progress=st.sampled_from(Progress),
    due_at=st.sampled_from([0, None, 50, 90, -1]),
    off=st.sampled_from([0, 0, 0, 0, 1]),
    long=st.booleans(),
)
flushes = st.builds(
    Flush, members=st.lists(members, min_size=1, max_size=4, unique_by=lambda member: member.run).map(tuple)
)
acts: st.SearchStrategy[Act] = st.one_of(
    flushes,
    flushes,
    st.builds(Claim, run=runs, release=st.booleans()),
    st.builds(Reopen, cleanly=st.booleans(), charge=st.booleans()),
    st.builds(Mark, runs=st.lists(runs, max_size=3).map(tuple), over=st.booleans()),
    st.builds(Look, run=runs, after=st.integers(0, 20), max_bytes=st.integers(1, 600)),
    st.builds(Trim, before=st.sampled_from([0, 9_001, 9_003, 9_999])),
    st.just(EndThread()),
)


class Story:
    """Carries acts out on one store and writes down all that it tells. Runs 1 and 2 share a thread."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.told: list[object] = []
        self._epochs: dict[int, int] = {}

    async def begin(self) -> None:
        self._workspace = await new_workspace(self.subject)
        self._thread = await new_thread(self.subject, self._workspace)

    async def act(self, act: Act) -> None:
        log = self.subject.store.log
        match act:
            case Flush():
                writes = [await self._write(member) for member in act.members]
                self.told.append(_plain(await log.flush(writes)))
            case Claim():
                loaded = await log.claim(act.run, kinds=KINDS)
                self.told.append(loaded and to_builtins(loaded))
                if loaded is not None:
                    self._epochs[act.run] = loaded.epoch
                    if act.release:
                        log.release(act.run, loaded.epoch)
            case Reopen():
                await self.subject.reopen(cleanly=act.cleanly)
                self.told.append(self.subject.store.log.unclean)
                if act.charge:
                    await self.subject.store.log.charge_death()
            case Mark():
                await (log.survived(act.runs) if act.over else log.begin_trial(act.runs))
            case Look():
                self.told.append(await log.page(act.run, after=act.after, max_bytes=act.max_bytes))
                self.told.append(await log.entry(act.run, act.after))
            case Trim():
                self.told.append(await log.trim(before=act.before, after=0, workspace=None))
            case EndThread():
                await self.subject.store.records.write(end_thread(self._thread))
        self.told.append(await self._everything())

    async def _write(self, member: Member) -> Write:
        log = self.subject.store.log
        row = await log.run(member.run)
        epoch = self._epochs.setdefault(member.run, log.next_epoch())
        chain = Chain(member.run, self._workspace, epoch=epoch, thread=self._thread if member.run in (1, 2) else None)
        if row is None:
            write = chain.create(idempotency=IdempotencyKey("runs", f"k{member.run % 3}", b"d"))
        else:
            chain.seq, chain.version = row.next_seq, row.version
            words = LONG if member.long else b""
            facts = [b'{"fact":%d,"words":"%s"}' % (n, words) for n in range(member.facts)]
            deltas = [b"d%d" % n for n in range(member.deltas)]
            if member.ends and row.ended_at is None:
                write = chain.end(messages=facts, ended_at=9_000 + member.run)
            else:
                due_at = LEAVE_DUE if row.queued else member.due_at
                write = chain.append(*facts, deltas=deltas, due_at=due_at, progress=member.progress)
        write.base_version += member.off
        return write

    async def _everything(self) -> list[object]:
        log = self.subject.store.log
        return [
            [await log.run(key) for key in KEYS],
            [await read_log(log, key) for key in KEYS],
            await log.due_now(after=0, limit=9),
            [
                await log.due(80, after=(0, 0), limit=9),
                await log.due(80, after=(30, 2), limit=9),
                await log.next_due(0),
                await log.next_due(60),
            ],
            await log.thread_messages(self._thread),
            [await log.ends_of_thread(self._thread), await log.unfinished_of_thread(self._thread)],
            [await log.ended_threads_with_runs(), await log.unfinished(), await log.last_key()],
            await log.queued_behind(),
            await self.subject.store.records.read(active_run(self._thread)),
        ]


def _plain(results: list[Written]) -> object:
    """Members of a flush that does not fit as a whole may be written one by one: another run may be promoted then,
    which is the same in the end."""
    together = all(result.outcome == "ok" for result in results)
    return [
        (result.outcome, result.error and result.error.code) + ((result.queued, result.promoted) if together else ())
        for result in results
    ]


async def compare(story: list[Act], path: Path) -> None:
    on_sqlite, in_memory = Story(SqliteSubject(path)), Story(MemorySubject())
    try:
        for one in (on_sqlite, in_memory):
            await one.begin()
        for act in story:
            for one in (on_sqlite, in_memory):
                await one.act(act)
            assert on_sqlite.told == in_memory.told, act
            on_sqlite.told, in_memory.told = [], []
    finally:
        await on_sqlite.subject.store.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(story=st.lists(acts, max_size=20))
def test_both_stores_tell_and_hold_the_same(story: list[Act]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(compare(story, Path(folder) / "store"))
