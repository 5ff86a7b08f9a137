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
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.providers.transport import AiohttpTransport
from weftline.runtime.embedded import Engine
from weftline.tools.base import ToolOutput

STEPS = ("created", "steered", "followed_up", "paused", "resumed", "answered", "ended")
RUN = 1
SPEC = {"modelId": "scripted:steered", "prompt": "Go.", "tools": [{"kind": "local", "name": "ask"}]}


async def main(store: Path, scripts: Path, done: set[str]) -> None:
    transport = AiohttpTransport()
    models = Config().catalog(transport=transport, scripted=ScriptedProvider(load_scripts(scripts)))
    engine = await Engine(store, models=models).start()
    for step in STEPS:
        if step not in done:
            await take(engine, step)
            print(step, flush=True)
    await engine.stop()
    await models.aclose()
    await transport.aclose()


async def take(engine: Engine, step: str) -> None:
    match step:
        case "created":
            if engine.read.run(RUN) is None:
                await engine.create(1, encode(SPEC))
        case "steered" | "followed_up":
            await seen(engine, b"local_tool_call")
            queued = [row[4] for row in engine.read.of_kinds(RUN, ("message.queued",))]
            if not any(step.encode() in body for body in queued):
                await (engine.steer if step == "steered" else engine.follow_up)(RUN, step)
        case "paused":
            if not engine.read.of_kinds(RUN, ("run.paused",)):
                await engine.pause(RUN, requested_by="the test")
        case "resumed":
            if not engine.read.of_kinds(RUN, ("run.resumed",)):
                await engine.resume(RUN)
        case "answered":
            (opened,) = engine.read.pending(RUN) or [None]
            if opened is not None:
                await engine.answer(RUN, opened[0], ToolOutput.of("yes"))
        case _:
            await seen(engine, b"event: result")


async def seen(engine: Engine, what: bytes) -> None:
    """Returns when the run's stream has shown `what`."""
    subscription = engine.follow(RUN, "run_of_this_process")
    try:
        async with asyncio.timeout(60):
            while (data := subscription.take()) is not None:
                if what in data:
                    return
                if not data:
                    await subscription.wait()
    finally:
        subscription.close()
    raise Conflict(f"the run ended without {what.decode()}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3].split(","))))
