"""Reads for an engine about its runs: their open questions, which of them lack their agents, and their logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weftline.agent.engine.observing import FactsOf
from weftline.agent.running.asking import Await, to_await
from weftline.kernel.bodies import decode_created
from weftline.kernel.entries import AwaitKind
from weftline.plan import RunPlan, decode_plan, limits_of
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.store.rows import AwaitFilter, Item, RunFilter

_PAGE = 200
_UNFINISHED = ("queued", "running", "paused")
_MANY = 2**31 - 1


async def open_awaits(host: Engine, workspace: int, *, root: int | None, kinds: Sequence[AwaitKind]) -> list[Await]:
    found: list[Await] = []
    after = (0, "")
    while page := await host.stored.awaits(
        AwaitFilter(workspace=workspace, after=after, limit=_PAGE, root=root, kinds=tuple(kinds))
    ):
        after = page[-1].run, page[-1].id
        found += [to_await(one) for one in page]
    return found


async def unclaimed_runs(host: Engine, workspace: int, *, knows: Callable[[RunPlan], bool]) -> list[str]:
    """Returns the unfinished runs whose plans `knows` rejects, newest first."""
    found: list[str] = []
    before: int | None = None
    while rows := await host.stored.runs(
        RunFilter(workspace=workspace, statuses=_UNFINISHED, before=before, limit=_PAGE)
    ):
        before = rows[-1].key
        for row in rows:
            created = await host.stored.entry(row.key, 1)
            if created is None:
                continue
            plan = decode_plan(decode_created(created.body).plan, limits_of(created.head))
            if not knows(plan):
                found.append(ids.run_id(row.key, row.salt))
    return found


def facts_around(host: Engine, run_id: str, key: int) -> FactsOf:
    """Returns a function that reads the facts of this run, and of the runs below it, by kind."""

    async def facts_of(run: str, kinds: Sequence[str]) -> Sequence[Item]:
        found = key if run == run_id else ids.key_of(run)
        return await host.stored.newest_facts(found, kinds=kinds, limit=_MANY, max_bytes=_MANY)

    return facts_of
