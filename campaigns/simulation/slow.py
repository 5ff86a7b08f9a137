"""A server whose tools are slow to open and whose agents have slow watchers; every promise holds there too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from campaigns.simulation.model import catalog
from campaigns.simulation.server import LIMITS, Build, WallClock
from campaigns.simulation.store import SimulatedStore
from campaigns.simulation.subagents import SimAgent, SimTools
from campaigns.simulation.world import Life
from weftline.kernel.entries import Fact
from weftline.messages import Message
from weftline.plan import RunPlan
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.runtime.tool_calls.toolbox import RunName, Toolbox

OPENING_S = (0.0, 0.1, 3.0, 12.0)
WATCHING_S = (0.0, 0.05, 2.0, 7.0)


class SlowBuild(Build):
    held_s = 120.0

    def engine(self, store: SimulatedStore, life: Life, clock: WallClock) -> OwnedEngine:
        return new_engine(
            store, models=catalog(life), tools=SlowTools(life), clock=clock, limits=LIMITS, carry_out=life.carry_out
        )


class SlowTools(SimTools):
    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        rng = Random(f"{plan.name} {self.life.number}")
        await asyncio.sleep(rng.choice(OPENING_S))
        toolbox = await super().open(plan, run=run, secrets=secrets)
        return Toolbox(toolbox.tools, code=SlowWatcher(self.life, plan, rng))


class SlowWatcher(SimAgent):
    watches = True

    def __init__(self, life: Life, plan: RunPlan, rng: Random) -> None:
        super().__init__(life, plan)
        self._rng = rng
        self.may_be_overtaken = rng.random() < 0.8

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        await asyncio.sleep(self._rng.choice(WATCHING_S))
