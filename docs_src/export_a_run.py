"""A run is taken from one engine to another."""

import asyncio
from pathlib import Path

from weftline import Agent, Engine
from weftline.testing import ScriptedModel

agent = Agent(ScriptedModel(["Four."]), name="sums")


async def main() -> None:
    async with Engine() as engine:
        run = await engine.start(agent, "What is two and two?")
        await run.result()
        await engine.export(run.id, Path("run.jsonl"))

    async with Engine() as other:
        imported = await other.import_runs("run.jsonl")
        print(imported.created, (await other.attach(run.id).result()).text)


asyncio.run(main())
