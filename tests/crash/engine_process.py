"""A process with an engine of its own, for what the HTTP API has no route for: steering, pausing, resuming.

    python engine_process.py STORE SCRIPTS DONE

Carries one run through STEPS, prints each step when it is acknowledged, and leaves out those named in DONE (joined by
commas) and those that the log shows to have taken effect although nobody was told.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from msgspec.json import encode

from weftline.config import Config
from weftline.errors import Conflict
from weftline.kernel.entries import CallOpened, decode_fact
from weftline.net.transport import AiohttpTransport
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.spec.plan import plan_from_spec
from weftline.store import open_store
from weftline.store.base import LogReader
from weftline.tools.base import ToolOutput

STEPS = ("created", "steered", "followed_up", "paused", "resumed", "answered", "ended")
RUN = 1
SPEC = {"modelId": "scripted:steered", "prompt": "Go.", "tools": [{"kind": "local", "name": "ask"}]}


async def main(store: Path, scripts: Path, done: set[str]) -> None:
    transport = AiohttpTransport()
    models = Config().catalog(transport=transport, scripted=ScriptedProvider(load_scripts(scripts)))
    opened = open_store(store)
    engine = await new_engine(opened, models=models).start()
    for step in STEPS:
        if step not in done:
            await take(engine, opened.log, step)
            print(step, flush=True)
    await engine.stop()
    await models.aclose()
    await transport.aclose()


async def take(engine: OwnedEngine, log: LogReader, step: str) -> None:
    match step:
        case "created":
            if await log.run(RUN) is None:
                await engine.create(1, plan_from_spec(encode(SPEC)))
        case "steered" | "followed_up":
            await seen(engine, "call.opened")
            queued = await log.facts(RUN, kinds=("message.queued",))
            if not any(step.encode() in fact.body for fact in queued):
                await (engine.steer if step == "steered" else engine.follow_up)(RUN, step)
        case "paused":
            if not await log.facts(RUN, kinds=("run.paused",)):
                await engine.pause(RUN, requested_by="the test")
        case "resumed":
            if not await log.facts(RUN, kinds=("run.resumed",)):
                await engine.resume(RUN)
        case "answered":
            opened, closed = [await log.facts(RUN, kinds=(kind,)) for kind in ("call.opened", "call.closed")]
            if len(opened) > len(closed):
                call = decode_fact.decode(opened[-1].head)
                assert isinstance(call, CallOpened)
                await engine.answer(RUN, call.id, ToolOutput.of("yes"))
        case _:
            await seen(engine, "run.ended")


async def seen(engine: OwnedEngine, kind: str) -> None:
    """Returns when the run's log has shown an entry of that kind."""
    follower = engine.follow(RUN, "run_of_this_process")
    try:
        async with asyncio.timeout(120):
            while (batches := await follower.next()) is not None:
                if any(item.kind == kind for batch in batches for item in batch.items):
                    return
    finally:
        follower.close()
    raise Conflict(f"the run ended without {kind}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3].split(","))))
