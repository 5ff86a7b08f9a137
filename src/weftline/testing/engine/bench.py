"""The parts of a check: an engine, the world of its runs, and the few steps that most checks share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weftline.errors import WeftlineError
from weftline.kernel.bodies import decode_ended
from weftline.kernel.entries import KIND, CallOpened, Fact, Limits, RunEnded
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan, ServerRef, ToolRef
from weftline.runtime.engine import EntryBatch, Follower, OwnedEngine
from weftline.store.base import Store
from weftline.store.records import threads, workspaces
from weftline.store.rows import RunRow
from weftline.testing.engine.world import World
from weftline.testing.lines import Line, lines_of

TIMEOUT_S = 60
TOOLS: tuple[ToolRef, ...] = (
    LocalRef("ask"),
    LocalRef("ask_once", effect="once"),
    ServerRef("hold"),
    ServerRef("pay"),
    ServerRef("note"),
    ServerRef("refund"),
    ServerRef("linger"),
    ServerRef("delegate"),
)

T = TypeVar("T", bound=Fact)
V = TypeVar("V")


class Subject(Protocol):
    """An engine on a store that began empty."""

    @property
    def engine(self) -> OwnedEngine: ...

    @property
    def store(self) -> Store: ...

    async def restart(self, change: Callable[[Store], Awaitable[None]] | None = None) -> None:
        """Ends the engine without waiting for running work, unless it has crashed or been stopped, and starts another
        on the same store.

        `change` is called in between, while only the caller has the store open.
        """
        ...

    def crash(self) -> None:
        """Kills the engine at this moment: what it has not made durable is lost, and nothing that it still does reaches
        the store or anybody else. `restart` must follow.
        """
        ...

    def refuse_writes(self, refuse: bool) -> None:
        """Makes the store refuse all writes, as a full disk does, or accept them again."""
        ...

    async def restore(self) -> None:
        """Ends the engine, and starts another on a store that was restored from a backup of its own."""
        ...


class Run(Struct, frozen=True):
    key: int
    id: str
    workspace: int


class Bench:
    def __init__(self, subject: Subject, world: World, *, patience_s: float = TIMEOUT_S) -> None:
        """`patience_s` is how long to wait for what an engine does at once if it is in order."""
        self.subject = subject
        self.world = world
        self._patience_s = patience_s

    @property
    def engine(self) -> OwnedEngine:
        return self.subject.engine

    async def workspace(self, slug: str = "acme") -> int:
        return await self.subject.store.records.write(workspaces.ensure(slug, now=1))

    async def thread(self) -> int:
        workspace = await self.workspace()
        new = threads.NewThread(workspace=workspace, salt="salt", name="", agent=None, spec=b"{}", metadata="{}")
        return (await self.subject.store.records.write(threads.insert(new, now=1))).key

    async def run(
        self,
        model: str,
        *,
        limits: Limits | None = None,
        thread: int | None = None,
        text: str = "x",
        requested_by: str = "",
    ) -> Run:
        workspace = await self.workspace()
        plan = replace(plan_of(model, limits=limits, text=text), requested_by=requested_by)
        async with asyncio.timeout(TIMEOUT_S):
            run_id = await self.engine.create(workspace, plan, thread=thread)
            return Run(await self.engine.locate(run_id, workspace=workspace), run_id, workspace)

    async def row(self, run: Run) -> RunRow:
        row = await self.engine.stored.row(run.key)
        assert row is not None, f"{run.id} is not there"
        return row

    async def lines(self, run: Run, *, after: int = 0) -> list[Line]:
        """Returns the lines that a follower sees from that cursor until the run has ended."""
        lines: list[Line] = []
        follower = self.engine.follow(run.key, run.id, after=after)
        async with asyncio.timeout(TIMEOUT_S):
            while (batches := await follower.next()) is not None:
                for batch in batches:
                    lines += lines_of(batch.items, after=batch.after)
        follower.close()
        return lines

    async def until(self, run: Run, kind: type[T], *, count: int = 1) -> list[T]:
        """Returns the first `count` facts of a kind, as soon as a follower has seen them."""
        found: list[T] = []
        follower = self.engine.follow(run.key, run.id)
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < count and (batches := await follower.next()) is not None:
                for batch in batches:
                    heads = [line.fact for line in lines_of(batch.items, after=batch.after)]
                    found += [head for head in heads if isinstance(head, kind)]
        follower.close()
        assert len(found) >= count, f"{run.id} has ended with {len(found)} of {count} {kind.__name__}"
        return found

    async def offers(self, run: Run, count: int = 1) -> list[str]:
        """The ids of the calls that clients must answer, once there are `count` of them."""
        return [opened.id for opened in await self.until(run, CallOpened, count=count) if opened.client is not None]

    async def ended(self, run: Run) -> RunEnded:
        (end,) = await self.until(run, RunEnded)
        return end

    async def answer_text(self, run: Run) -> str:
        """The final text of a run, once it has ended."""
        lines = await self.lines(run)
        assert isinstance(lines[-1].fact, RunEnded), f"{run.id} has ended with {lines[-1]}"
        return decode_ended(lines[-1].body).text

    async def crash(self) -> None:
        """Kills the engine at this moment, and starts another."""
        self.subject.crash()
        await self.subject.restart()

    async def run_until_crash(self, model: str, moment: str) -> Run:
        """Creates a run, kills the engine at the very moment at which the run gets there (see `World.reached`), and
        starts another.
        """
        crashed = asyncio.Event()

        def crash() -> None:
            self.subject.crash()
            crashed.set()

        self.world.moments[moment] = crash
        self.world.opens.clear()
        run = await self.run(model)
        self.world.opens.set()
        async with asyncio.timeout(TIMEOUT_S):
            await crashed.wait()
        await self.subject.restart()
        return run

    async def soon(self, awaited: Awaitable[V], otherwise: str) -> V:
        """Returns what an engine in order returns at once; `otherwise` says what is wrong with one that does not."""
        try:
            async with asyncio.timeout(self._patience_s):
                return await awaited
        except TimeoutError:
            raise AssertionError(otherwise) from None

    async def received(self, follower: Follower) -> Sequence[EntryBatch]:
        """Returns the batches that are due for a follower, at once: at least one."""
        batches = await self.soon(follower.next(), "a follower receives nothing, though there is something to read")
        assert batches, "a follower is told that there is nothing to read, or nothing any more"
        return batches

    async def count(self, run: Run, kind: type[Fact]) -> int:
        """Returns how many facts of a kind the store has by now."""
        return len(await self.engine.stored.logs.newest_facts(run.key, kinds=(KIND[kind],), limit=99, max_bytes=2**20))

    async def began(self) -> None:
        """Returns when a waiting tool has been called."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.world.began.wait()


Check: TypeAlias = Callable[[Bench], Awaitable[None]]


def plan_of(model: str, *, limits: Limits | None = None, text: str = "x") -> RunPlan:
    return RunPlan(messages=(User.of(text),), model=f"scripted:{model}", tools=TOOLS, limits=limits or Limits())


async def refusal(asked: Awaitable[object]) -> str:
    """The error code with which a request is rejected."""
    return (await refused_with(asked)).code


async def refused_with(asked: Awaitable[object]) -> WeftlineError:
    """The error with which a request is rejected."""
    try:
        got = await asked
    except WeftlineError as error:
        return error
    raise AssertionError(f"a request that does not fit was answered with {got!r}")


def facts(lines: list[Line], kind: type[T]) -> list[T]:
    return [head for line in lines if isinstance(head := line.fact, kind)]
