# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Runs that newer code has written: left alone by their number, whatever is new in them; the rest is damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.json import encode
from msgspec.structs import replace

from weftline.api.snapshots import snapshot_of
from weftline.errors import Conflict, StoreError
from weftline.kernel.entries import FORMAT, KIND, CallStarted, Limits, RunEnded, decode_fact
from weftline.plan import LocalRef
from weftline.runtime.deploys import unsupported
from weftline.runtime.fleet import fleet
from weftline.runtime.reads.calls import stored_receipt
from weftline.store.memory import MemoryDisk
from weftline.store.memory.disk import MemoryRun
from weftline.store.records import threads, workspaces
from weftline.store.rows import Item
from weftline.tools.base import ToolOutput

from .kit import MoodyStore, ended, engine_on, new_thread, plan, until

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "hello": {"turns": [{"text": "hi"}]},
    "slow": {"turns": [{"deltas": ["a", "b"], "delay_ms": 600_000}]},
}
CLOSED = b'{"type":"call.closed","turn":0,"index":0,"id":"call_0_0","name":"ask","how":"foretold"}'
FAILED = b'{"type":"attempt.failed","turn":0,"attempt":1,"cls":"x","reason":"preempted"}'
NEWS = {
    "a kind": ("mind.changed", b'{"type":"mind.changed"}'),
    "a field": ("run.paused", b'{"type":"run.paused","by":"x"}'),
    "a way to close": ("call.closed", CLOSED),
    "a reason to end": ("final.forced", b'{"type":"final.forced","reason":"budget"}'),
    "a mode": ("message.queued", b'{"type":"message.queued","id":"m","mode":"interrupt"}'),
    "a failure": ("attempt.failed", FAILED),
    "a wider type": ("timer.fired", b'{"type":"timer.fired","now":1.5}'),
}


async def waiting(disk: MemoryDisk) -> tuple[int, str, MemoryRun]:
    """A run that waits for its client, of an engine that has stopped: its workspace, its id, and what is stored."""
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as before:
        space = await before.workspace("acme")
        run_id = await before.create(space, plan("ask", LocalRef("ask")))
        await until(lambda: all(run.row.due_at for run in disk.runs.values()))
    (run,) = disk.runs.values()
    run.row.fold, run.row.due_at = 99, 0
    return space, run_id, run


def plant(run: MemoryRun, name: str) -> None:
    if name == "a part of a message":
        change(run, "turn.completed", b'"type":"tool_call"', b'"type":"audio_call"')
    elif name == "a part of the plan":
        change(run, "run.created", b'"type":"text"', b'"type":"audio"')
    else:
        add(run, *NEWS[name])


def add(run: MemoryRun, kind: str, head: bytes) -> None:
    row = run.row
    run.items.append(Item(1, kind, head, b'{"parts":[]}', seq=row.next_seq))
    row.next_seq, row.version = row.next_seq + 1, row.version + 1


def change(run: MemoryRun, kind: str, old: bytes, new: bytes) -> None:
    place = next(place for place, item in enumerate(run.items) if item.kind == kind)
    item = run.items[place]
    assert old in item.body
    run.items[place] = Item(item.at, item.kind, item.head, item.body.replace(old, new), seq=item.seq)


@pytest.mark.requirement("run.log.newer_entry")
@pytest.mark.parametrize("name", [*NEWS, "a part of a message", "a part of the plan"])
async def test_newer_entry_is_left_alone_by_its_number(name: str) -> None:
    disk = MemoryDisk()
    space, run_id, run = await waiting(disk)
    plant(run, name)
    run.row.format, log = FORMAT + 1, list(run.items)
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as older:
        row = await older.stored.find(run_id, workspace=space)
        assert (unsupported(row), row.ended_at) == (f"log format {FORMAT + 1}", None)
        page = await older.stored.logs.page(row.key, after=0, max_bytes=2**20)
        assert page is not None and page.items == log, "readers get it as it is stored"
        assert [call.name for call in await older.stored.calls(row)] == ["ask"]
        assert await older.stored.grants(row) == []
        receipt = await older.stored.receipt(row.key)
        assert receipt.stopped == receipt.finished == receipt.in_doubt == ()
        with pytest.raises(Conflict) as refused:
            await older.answer(row.key, "call_0_0", ToolOutput.of("42"))
        assert refused.value.code == "unsupported_run"
        assert (await ended(older, await older.create(space, plan("hello")), space)).status == "succeeded"
    assert run.items == log
    run.row.format = FORMAT
    async with engine_on(MoodyStore(disk), SCRIPTS)[0]:
        await until(lambda: run.row.ended_at)
    end = decode_fact.decode(run.items[-1].head)
    assert isinstance(end, RunEnded) and end.code == "worker_error"


async def test_receipt_omits_calls_that_only_newer_code_can_read() -> None:
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as before:
        space = await before.workspace("acme")
        runs = [await before.create(space, plan("ask", LocalRef("ask"))) for _ in range(2)]
        await until(lambda: all(run.row.due_at for run in disk.runs.values()))
        above, below = [disk.runs[await before.locate(run, workspace=space)] for run in runs]
    started = CallStarted(0, 0, 1, child=runs[1], id="call_0_0", name="ask")
    add(above, KIND[CallStarted], encode(started))
    add(below, *NEWS["a way to close"])
    add(below, "call.closed", CLOSED.replace(b"foretold", b"returned"))
    below.row.format = FORMAT + 1
    store = MoodyStore(disk)
    receipt = await stored_receipt(store.log, above.row.key, "cancelled")
    assert (receipt.stopped, receipt.in_doubt) == ((), ())
    assert [(call.id, call.run) for call in receipt.finished] == [("call_0_0", runs[1])]
    assert [child.run_id for child in (await snapshot_of(store.log, above.row, thread=None)).children] == [runs[1]]
    below.row.format = FORMAT
    with pytest.raises(StoreError, match=rf"^The log of run {runs[1]} is damaged: a fact cannot be read\.$") as damage:
        await stored_receipt(store.log, above.row.key, "cancelled")
    assert damage.value.code == "log_damaged"


async def test_session_that_newer_code_has_continued_is_left_to_it() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    space = await store.records.write(workspaces.ensure("acme", now=1))
    new = threads.NewThread(workspace=space, salt="salt", name="", agent=None, spec=b"{}", metadata="{}")
    thread = (await store.records.write(threads.insert(new, now=1))).key
    async with engine_on(store, SCRIPTS)[0] as before:
        await before.create(space, plan("ask", LocalRef("ask")), thread=thread)
        queued = await before.create(space, plan("hello"), thread=thread)
        await until(lambda: disk.runs[1].row.due_at)
    disk.records.execute("UPDATE threads SET format = ?", (FORMAT + 1,))
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as older:
        assert (
            unsupported(await older.stored.find(queued, workspace=space)) == f"log format {FORMAT + 1} of its session"
        )
        for asked in (older.cancel(2), older.create(space, plan("hello"), thread=thread)):
            with pytest.raises(Conflict) as refused:
                await asked
            assert refused.value.code == "unsupported_run"


async def test_session_run_of_newer_code_is_never_on_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not driven here, so a death of the process must not be charged to it."""
    disk = MemoryDisk()
    space, thread = await new_thread(MoodyStore(disk))
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    await dead.create(space, plan("slow"), thread=thread)
    await dead.create(space, plan("slow"))
    await until(lambda: len(disk.runs) == 2 and all(len(run.items) > 1 for run in disk.runs.values()))
    disk.records.execute("UPDATE threads SET format = ?", (FORMAT + 1,))
    store = MoodyStore(disk)
    tried: list[int] = []
    begin_trial = store.log.begin_trial

    async def noted(keys: Sequence[int]) -> None:
        tried.extend(keys)
        await begin_trial(keys)

    store.log.begin_trial = noted
    async with engine_on(store, SCRIPTS)[0] as older:
        await until(lambda: tried)
        assert tried == [2]
        await older.stop(drain_s=0)
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_thread_end_reaches_its_other_runs() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    space, thread = await new_thread(store)
    async with engine_on(store, SCRIPTS)[0] as before:
        for _ in range(3):
            await before.create(space, plan("ask", LocalRef("ask")), thread=thread)
        await until(lambda: disk.runs[1].row.due_at)
    disk.runs[3].row.format = FORMAT + 1
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as older:
        with pytest.raises(Conflict, match="newer version"):
            await older.end_thread(thread)
        assert [disk.runs[key].row.status for key in (1, 2, 3)] == ["cancelled", "cancelled", "queued"]


async def test_due_run_of_a_newer_version_is_not_claimed() -> None:
    """The process that knows it may be driving it, and reading all such runs at every alarm would take long."""
    disk = MemoryDisk()
    space, run_id, run = await waiting(disk)
    run.row.format = FORMAT + 1
    disk.set_due(run, 1_000)
    store = MoodyStore(disk)
    engine, _ = engine_on(store, SCRIPTS)
    async with engine:
        limits = Limits(local_timeout_us=1_000, on_local_timeout="report")
        timed = await engine.create(space, replace(plan("ask", LocalRef("ask")), limits=limits))
        assert (await ended(engine, timed, space)).status == "succeeded"  # so the alarm has rung
        with pytest.raises(Conflict, match="newer version"):
            await engine.cancel(await engine.locate(run_id, workspace=space))
        assert run.row.key not in store.log.claimed
