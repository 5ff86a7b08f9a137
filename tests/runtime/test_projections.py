"""The log is the truth: what else is stored of runs can be deleted and made anew from it, after every single commit.

Each commit is a place at which the process may be killed; that a commit is whole or not there at all is shown where
stores are (`tests/store/test_power_loss.py`, `tests/store/test_faults.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from campaigns.simulation.conversation import naive_exchange
from msgspec import Struct
from msgspec.structs import replace

from runtime.kit import ended, engine_on, plan
from weftline.events.snapshot import KINDS_OF_USAGE as KINDS
from weftline.events.snapshot import usage_by_model
from weftline.kernel.bodies import decode_created, encode
from weftline.kernel.entries import (
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    Fact,
    RunCreated,
    RunEnded,
    decode_fact,
)
from weftline.kernel.evolve import fold
from weftline.kernel.state import State, decode_state
from weftline.messages import Usage
from weftline.plan import LocalRef, RunPlan, ServerRef, decode_content
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.live import RunLog
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.reads.calls import entries
from weftline.store import open_store
from weftline.store.base import LogReader, Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.records import threads
from weftline.store.rows import AwaitFilter, Item, RunFilter, RunRow, Write, Written
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

ASK: dict[str, Any] = {"tool_calls": [{"name": "ask", "args": {}}]}
SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "You said: {{user_messages}}"}]},
    "ask": {"turns": [ASK, {"text": "thanks"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "thanks"}]},
    "fails": {"turns": [{"error": {"class": "auth", "message": "no"}}]},
}
STATUSES = ("queued", "running", "paused", "succeeded", "failed", "cancelled")


@tool(effect="once", confirm="Pay?", blocking=False)
def pay() -> str:
    """Pays."""
    return "Paid."


class Projected(Struct):
    """What is stored of a run besides its log."""

    name: str
    agent: str | None
    thread: int | None
    status: str
    created_at: int
    started_at: int | None
    ended_at: int | None
    next_seq: int
    version: int
    awaits: set[str]
    said: list[bytes]
    """What it has left in its thread."""
    usage: Usage
    """That of its end, once it has ended."""


def rebuilt(log: Sequence[Item]) -> Projected:
    """From the log alone."""
    facts: list[tuple[Fact, bytes]] = [(decode_fact.decode(item.head), item.body) for item in log if item.head]
    times = [item.at for item in log if item.head]
    state = fold(State(), [(at, head) for at, (head, _) in zip(times, facts, strict=True)])
    created = facts[0][0]
    assert isinstance(created, RunCreated)
    asks = decode_content(decode_created(facts[0][1]).plan)
    opened = {head.id for head, _ in facts if isinstance(head, AwaitOpened)}
    closed = {head.id for head, _ in facts if isinstance(head, AwaitClosed)}
    began = [at for at, (head, _) in zip(times, facts, strict=True) if isinstance(head, AttemptStarted)]
    done = [at for at, (head, _) in zip(times, facts, strict=True) if isinstance(head, RunEnded)]
    seen_as = RunLog(0)
    seen_as.state = state
    keeps = state.status == "succeeded" and created.thread is not None
    return Projected(
        name=asks.name,
        agent=asks.agent_id,
        thread=created.thread,
        status=seen_as.status,
        created_at=times[0],
        started_at=began[0] if began else None,
        ended_at=done[0] if done else None,
        next_seq=log[-1].last_seq + 1,
        version=state.version,
        awaits=set() if done else opened - closed,
        said=[encode(message) for message in (*asks.messages, *naive_exchange(facts))] if keeps else [],
        usage=sum(
            usage_by_model([decode_fact.decode(item.head) for item in log if item.kind in KINDS]).values(),
            Usage(),
        ),
    )


class Checked:
    """Passes everything on to a log, and compares what is stored with what it should be, after each commit."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.commits = 0
        self.faults: list[BaseException] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        written = await self._inner.flush(writes)
        self.commits += 1
        try:
            await compare(self._inner)
        except Exception as fault:
            self.faults.append(fault)
        return written


class CheckedStore:
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.log: Any = Checked(inner.log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def compare(log: LogReader) -> dict[int, Projected]:
    rows = await log.runs(RunFilter(limit=100))
    found: dict[int, Projected] = {}
    for row in sorted(rows, key=lambda one: one.key):
        items = [item async for item in entries(log, row.key)]
        want = found[row.key] = rebuilt(items)
        assert shown(row) == shown_of(want), f"the row of run {row.key}"
        if row.state:
            facts = [(item.at, decode_fact.decode(item.head)) for item in items if item.head]
            until_then = [
                fact
                for fact, item in zip(facts, [one for one in items if one.head], strict=True)
                if item.seq <= row.state_seq
            ]
            assert decode_state(row.state) == fold(State(), until_then)
        asked = await log.awaits(AwaitFilter(workspace=row.workspace, run=row.key))
        assert {one.id for one in asked} == want.awaits
        last = decode_fact.decode(items[-1].head) if items[-1].head else None
        if isinstance(last, RunEnded):
            assert last.usage == want.usage
    for status in STATUSES:
        listed = {row.key for row in await log.runs(RunFilter(statuses=(status,), limit=100))}
        assert listed == {key for key, run in found.items() if run.status == status}
    for thread in {run.thread for run in found.values() if run.thread is not None}:
        done = [run for run in found.values() if run.thread == thread and run.ended_at is not None]
        said = [message for run in sorted(done, key=lambda one: one.ended_at or 0) for message in run.said]
        assert await log.thread_messages(thread) == said
    return found


def shown(row: RunRow) -> tuple[Any, ...]:
    times = (row.created_at, row.started_at, row.ended_at)
    return (row.name, row.agent, row.thread, row.status, *times, row.next_seq, row.version)


def shown_of(run: Projected) -> tuple[Any, ...]:
    times = (run.created_at, run.started_at, run.ended_at)
    return (run.name, run.agent, run.thread, run.status, *times, run.next_seq, run.version)


async def live(it: EmbeddedEngine, store: Any) -> None:
    """Some of everything: ends of every kind, waits of every kind, and a thread."""
    space = await it.workspace("acme")
    new = threads.NewThread(workspace=space, salt="salt", name="", agent=None, spec=b"{}", metadata="{}")
    thread = (await store.records.write(threads.insert(new, now=1))).key
    asks = replace(plan("ask", LocalRef("ask")), name="asks")

    async def begin(given: RunPlan, *, in_thread: bool = False) -> tuple[int, str]:
        run_id = await it.create(space, given, thread=thread if in_thread else None)
        return await it.locate(run_id, workspace=space), run_id

    for given, in_thread in (
        (plan("hello"), False),
        (plan("hello"), True),
        (plan("fails"), True),
        (plan("hello"), True),
    ):
        await ended(it, (await begin(given, in_thread=in_thread))[1], space)
    waits, first = await begin(asks, in_thread=True)
    _, second = await begin(plan("hello"), in_thread=True)
    stopped, third = await begin(asks)
    paying, fourth = await begin(plan("pay", ServerRef("pay")))
    await begin(asks)
    await begin(plan("pay", ServerRef("pay")))

    async def parked() -> bool:
        rows = [await store.log.run(key) for key in (waits, stopped)]
        return all(row.due_at for row in rows) and len(await it.stored.awaits(AwaitFilter(workspace=space))) == 2

    async with asyncio.timeout(60):
        while not await parked():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    await it.pause(waits)
    await it.steer(waits, "Hurry.")
    await it.resume(waits)
    await it.answer(waits, "call_0_0", ToolOutput.of("42"))
    await it.cancel(stopped)
    [one] = await it.stored.awaits(AwaitFilter(workspace=space, run=paying))
    await it.answer_await(paying, one.id, AwaitAnswer(outcome="approved"), by="ann", person_of=as_named)
    for run_id in (first, second, third, fourth):
        await ended(it, run_id, space)


def in_memory(folder: Path) -> Callable[[], Store]:
    disk = MemoryDisk()
    return lambda: MemoryStore(disk)


def on_sqlite(folder: Path) -> Callable[[], Store]:
    return lambda: open_store(folder / "store")


@pytest.mark.requirement("run.log.projections")
@pytest.mark.parametrize("opening", [in_memory, on_sqlite], ids=["memory", "sqlite"])
async def test_stored_records_match_the_logs_after_every_commit(
    opening: Callable[[Path], Callable[[], Store]], tmp_path: Path
) -> None:
    open_again = opening(tmp_path)
    store: Any = CheckedStore(open_again())
    async with engine_on(store, SCRIPTS, tools={"pay": pay})[0] as it:
        await live(it, store)
        before = await compare(store.log)
    assert store.log.faults == []
    assert store.log.commits > 10
    found = {run.status for run in before.values()}
    assert found == {"succeeded", "failed", "cancelled", "running", "paused"}, "those that wait are there, too"
    again: Any = CheckedStore(open_again())
    async with engine_on(again, SCRIPTS, tools={"pay": pay})[0]:
        assert await compare(again.log) == before
    assert again.log.faults == []
