"""A run of one model, to its end."""

from __future__ import annotations

import asyncio

from weftline.messages import User
from weftline.plan import RunPlan
from weftline.runtime.engine import OwnedEngine
from weftline.store.rows import RunRow


async def played(engine: OwnedEngine, workspace: int, model: str) -> RunRow:
    run = await engine.create(workspace, RunPlan(messages=(User.of("hi"),), model=model))
    key = await engine.locate(run, workspace=workspace)
    follower = engine.follow(key, run)
    async with asyncio.timeout(120):
        while await follower.next() is not None:
            pass
    follower.close()
    return await engine.stored.find(run, workspace=workspace)
