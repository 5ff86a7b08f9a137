"""In the runs that carry out calls of other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from campaigns.simulation.store import SimulatedLog
from msgspec.structs import replace

from simulation.planted.bug import AGENTS, AGENTS_UNDER_BUDGETS, CALM, KILLS, MANY_KILLS, Bug, Flushes
from weftline.kernel.bodies import encode
from weftline.kernel.entries import ChildEnded, RunCreated, decode_fact
from weftline.kernel.state import Command, FinishChild, State
from weftline.messages import Usage
from weftline.runtime.driver import CarryOut
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.live import Draft, LiveRun, WorkingSet
from weftline.runtime.services import Outcome, Services, Sink
from weftline.store.rows import Item, Write, Written


class BeginsChildrenApart(SimulatedLog):
    """A child is created in one transaction, and its parent hears of it in the next."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        if children := [child for write in writes for child in write.children]:
            super().flush(children)
        return super().flush([replace(write, children=()) for write in writes])


class WakesNoParents(Flushes):
    """A parent is told by whoever has it in memory, and by nobody after a crash."""

    def spoil(self, write: Write) -> None:
        write.wakes = None


class CountsNothingBelow(EmbeddedEngine):
    """What children use is their own affair."""

    async def start(self) -> Self:
        await super().start()
        dispatcher = self._fleet.dispatcher
        take = dispatcher.take

        def planted(run: LiveRun, fact: Draft) -> None:
            alone = isinstance(fact.head, ChildEnded)
            take(run, replace(fact, head=replace(fact.head, usage=Usage())) if alone else fact)

        dispatcher.take = planted
        return self


class LiftsBudgetsBelow(Flushes):
    """A child spends what it likes of what its parent may spend."""

    def spoil(self, write: Write) -> None:
        for child in write.children:
            head = decode_fact.decode(child.items[0].head)
            assert isinstance(head, RunCreated) and head.parent is not None
            free = replace(head, parent=replace(head.parent, above=(), budgets={}))
            child.items[0] = Item(child.items[0].at, child.items[0].kind, encode(free), child.items[0].body)


def mixes_up_children(carry_out: CarryOut) -> CarryOut:
    """Every call of a turn gets what the first child of the turn came to."""

    async def planted(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, FinishChild):
            children = work.conversation.turn.children
            children[command.index] = next(iter(children.values()))
        return await carry_out(command, state, work, services, sink)

    return planted


class LeavesChildrenAlone(EmbeddedEngine):
    """Whoever cancels a run waits for its children to come to their end."""

    async def start(self) -> Self:
        await super().start()
        lineage = self._fleet.lineage

        async def planted(children: Sequence[str], *, by: str = "") -> None: ...

        lineage.cancel = planted
        return self


BUGS = (
    Bug("begins_children_apart", "H1 C1 C4 C6 C9", log=BeginsChildrenApart, among=AGENTS, odds=MANY_KILLS, first=47),
    Bug("wakes_no_parents", "C6", log=WakesNoParents, among=AGENTS, odds=KILLS),
    Bug("counts_nothing_below", "H3", engine=CountsNothingBelow, among=AGENTS),
    Bug("lifts_budgets_below", "B3", log=LiftsBudgetsBelow, among=AGENTS_UNDER_BUDGETS),
    Bug("mixes_up_children", "H2", carry_out=mixes_up_children, among=AGENTS),
    Bug("leaves_children_alone", "C6 C9", engine=LeavesChildrenAlone, among=AGENTS, odds=CALM, first=103),
)
