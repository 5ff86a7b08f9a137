"""What runs and those below them bring each other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from weftline.kernel.entries import CancelRequested
from weftline.runtime import ids
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.fleet.task_set import TaskSet
from weftline.runtime.live import Draft


class StuckFleet:
    """Its first run cannot be read, however often that is tried."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Draft]] = []
        self.all_others = asyncio.Event()

    async def load_with_retry(self, key: int) -> int:
        if key == 1:
            await asyncio.Event().wait()
        return key

    def take(self, run: int, fact: Draft) -> None:
        self.taken.append((run, fact))
        if len(self.taken) == 2:
            self.all_others.set()


async def test_a_child_that_cannot_be_read_keeps_no_other_from_being_cancelled() -> None:
    fleet = StuckFleet()
    lineage = Lineage(cast(Any, None), cast(Any, fleet), cast(Any, fleet), TaskSet(""))
    children = [ids.run_id(key, "0" * 12) for key in (1, 2, 3)]
    cancelling = asyncio.create_task(lineage.cancel(children, by="key:ops"))
    await fleet.all_others.wait()
    cancelling.cancel()
    assert fleet.taken == [(key, Draft(CancelRequested("parent", "key:ops"))) for key in (2, 3)]
