"""Runs that went through crashes, deploys, cancels, steering and people come out of a replay as they were."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from campaigns.simulation import Build, Histories
from campaigns.simulation.disk import Disk

from weftline.plan import RunPlan
from weftline.replay.present_code import PresentCode
from weftline.replay.recorded import StoredRun
from weftline.replay.replaying import replay_run
from weftline.runtime.tool_calls.toolbox import RunName
from weftline.store.base import Store
from weftline.store.memory import MemoryStore

SEEDS = range(12)


class Kept(Build):
    """Keeps the disks of the histories."""

    def __init__(self) -> None:
        self.disks: dict[int, Disk] = {}

    def store(self, disk: Disk) -> Store:
        self.disks[id(disk)] = disk
        return super().store(disk)


class TakenAsTheyWere:
    """The tools of the simulation change with each deploy: what they made of arguments is not compared."""

    async def open(self, plan: RunPlan, run: RunName) -> PresentCode:
        return PresentCode(complete=False)


@pytest.mark.requirement("run.replay.offline")
def test_runs_of_simulated_histories_come_out_as_they_did() -> None:
    kept = Kept()
    histories = Histories(build=kept)
    for seed in SEEDS:
        histories.run(seed)
    kinds, ends = asyncio.run(_replay_all(list(kept.disks.values())))
    assert {"run.adopted", "cancel.requested", "await.closed", "timer.fired", "messages.taken"} <= kinds.keys()
    assert ends.keys() == {"succeeded", "failed", "cancelled"}


async def _replay_all(disks: list[Disk]) -> tuple[Counter[str], Counter[str]]:
    kinds, ends = Counter[str](), Counter[str]()
    for disk in disks:
        log = MemoryStore(disk.memory).log
        for key in range(1, await log.last_key() + 1):
            row = await log.run(key)
            if row is None:
                continue  # its creation was lost with its process
            recorded = StoredRun(log, row)
            done = await replay_run(recorded, TakenAsTheyWere())
            assert done.divergence is None and done.status == row.status, str(done)
            ends[done.status] += 1
            kinds.update([item.kind async for item in recorded.facts()])
    return kinds, ends
