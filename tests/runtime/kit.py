"""An engine on a store in memory that does what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.json import encode

from weftline.errors import StoreError
from weftline.kernel.entries import Fact, RunEnded, decode_fact
from weftline.messages import User
from weftline.plan import RunPlan, ToolRef
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime import carry_out as carrying
from weftline.runtime import step as stepping
from weftline.runtime.clock import Clock
from weftline.runtime.driver import CarryOut, TakeStep
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.recovery import MAX_RECOVERIES
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.memory.store import MemoryLog
from weftline.store.records import threads, workspaces
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.rows import Copied, History, Loaded, Write, Written
from weftline.tools.base import Tool

TIMEOUT_S = 60


class MoodyLog:
    """Passes everything on to a log in memory, unless it was told otherwise."""

    def __init__(self, inner: MemoryLog) -> None:
        self._inner = inner
        self.refusals = 0
        """How many of the next flushes are refused."""
        self.failures = 0
        """How many of the next flushes fail for good."""
        self.next_ends: Literal["as usual", "written", "unwritten"] = "as usual"
        """Whether the next flush ends in an error that does not say what was written, and what was."""
        self.unreadable = 0
        """How many of the next reads of a thread fail."""
        self.unreadable_blobs = 0
        self.unclaimable = 0
        """How many of the next claims fail."""
        self.damaged: set[int] = set()
        """Runs that cannot be read, now or later."""
        self.claimed: list[int] = []
        """The runs that were claimed, in order."""
        self.claims_gate = asyncio.Event()
        """Runs are claimed while it is set."""
        self.claims_gate.set()
        self.flushes = 0
        """How many have been given so far."""
        self.gate = asyncio.Event()
        """Flushes are committed while it is set: all of them, or those with an entry of the kind `holds`."""
        self.gate.set()
        self.holds = ""
        self.waited = 0
        """How many flushes have had to wait for it."""
        self.told_gate = asyncio.Event()
        """The engine is told of flushes that are committed while it is set."""
        self.told_gate.set()
        self.timers_gate = asyncio.Event()
        """The next due time is told while it is set."""
        self.timers_gate.set()
        self.timers_asked = 0
        self.state_bytes = 0
        """Of all states that were flushed."""
        self.released: set[int] = set()
        """The runs that the engine had in memory and let go of."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        self.flushes += 1
        self.state_bytes += sum(len(write.state or b"") for write in writes)
        if not self.holds or any(item.kind == self.holds for write in writes for item in write.items):
            self.waited += not self.gate.is_set()
            await self.gate.wait()
        if self.refusals:
            self.refusals -= 1
            return [Written("refused", error=StoreError("The disk is full.")) for _ in writes]
        if self.failures:
            self.failures -= 1
            return [Written("failed", error=StoreError("The write failed.")) for _ in writes]
        ends, self.next_ends = self.next_ends, "as usual"
        if ends == "unwritten":
            raise ConnectionResetError
        results = await self._inner.flush(writes)
        if ends == "written":
            raise ConnectionResetError
        await self.told_gate.wait()
        return results

    async def next_due(self, after: int) -> int | None:
        found = await self._inner.next_due(after)
        self.timers_asked += 1
        await self.timers_gate.wait()
        return found

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        self.claimed.append(key)
        if self.unclaimable or key in self.damaged:
            self.unclaimable = max(self.unclaimable - 1, 0)
            raise StoreError("The store could not be read.")
        await self.claims_gate.wait()
        return await self._inner.claim(key, kinds=kinds)

    def release(self, key: int, epoch: int) -> None:
        self.released.add(key)
        self._inner.release(key, epoch)

    async def thread_messages(self, thread: int) -> list[bytes]:
        return await self._inner.thread_messages(thread)

    async def thread_pinned(self, thread: int, *, through: int, revision: int) -> list[bytes] | None:
        return await self._inner.thread_pinned(thread, through=through, revision=revision)

    async def thread_rows(self, wanted: MessageFilter) -> tuple[list[MessageRow], int]:
        return await self._inner.thread_rows(wanted)

    async def thread_history(self, thread: int) -> History:
        if self.unreadable:
            self.unreadable -= 1
            raise StoreError("The store could not be read.")
        return await self._inner.thread_history(thread)

    async def blob(self, workspace: int, id: str) -> bytes | None:
        if self.unreadable_blobs:
            self.unreadable_blobs -= 1
            raise StoreError("The store could not be read.")
        return await self._inner.blob(workspace, id)


class MoodyStore:
    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self._inner = MemoryStore(disk)
        self.log: Any = MoodyLog(self._inner.log)
        self.records = self._inner.records
        self.vault = self._inner.vault
        self.folder = None
        self.outlives_process = False

    def announce(self, *, socket: str) -> None: ...

    async def back_up(self, to: Path) -> Copied:
        return await self._inner.back_up(to)

    async def shrink(self) -> int:
        return await self._inner.shrink()

    async def close(self) -> None:
        await self._inner.close()


def engine_on(
    store: Store,
    scripts: Mapping[str, Any],
    *,
    tools: ToolSource | Mapping[str, Tool] | None = None,
    step: TakeStep = stepping.step,
    carry_out: CarryOut = carrying.carry_out,
    clock: Clock | None = None,
    limits: WorkspaceLimits | None = None,
    max_recoveries: int = MAX_RECOVERIES,
) -> tuple[EmbeddedEngine, ScriptedProvider]:
    provider = ScriptedProvider(parse_scripts(encode(scripts)), record=True)
    models = Catalog()
    models.add(provider)
    engine = EmbeddedEngine(
        store,
        models=models,
        tools=tools,
        step=step,
        carry_out=carry_out,
        clock=clock,
        limits=limits,
        max_recoveries=max_recoveries,
    )
    return engine, provider


def plan(model: str, *tools: ToolRef) -> RunPlan:
    return RunPlan(messages=(User.of("x"),), model=f"scripted:{model}", tools=tools)


async def facts(engine: EmbeddedEngine, run_id: str, workspace: int) -> list[Fact]:
    """All facts of a run, once it has ended."""
    key = await engine.locate(run_id, workspace=workspace)
    follower = engine.follow(key, run_id)
    found: list[Fact] = []
    async with asyncio.timeout(TIMEOUT_S):
        while (batches := await follower.next()) is not None:
            found += [decode_fact.decode(item.head) for batch in batches for item in batch.items if item.head]
    follower.close()
    return found


async def ended(engine: EmbeddedEngine, run_id: str, workspace: int) -> RunEnded:
    last = (await facts(engine, run_id, workspace))[-1]
    assert isinstance(last, RunEnded)
    return last


async def new_thread(store: MoodyStore) -> tuple[int, int]:
    """A workspace and a thread in it."""
    space = await store.records.write(workspaces.ensure("acme", now=1))
    new = threads.NewThread(workspace=space, salt="salt", name="", agent=None, spec=b"{}", metadata="{}")
    return space, (await store.records.write(threads.insert(new, now=1))).key


async def until(condition: Callable[[], Any]) -> None:
    """Returns when the condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
