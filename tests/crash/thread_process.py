"""A process with an agent whose tool puts a message into its thread: `python thread_process.py FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from weftline import Agent, Engine, ToolContext, tool
from weftline.messages import User
from weftline.providers.catalog import Catalog
from weftline.runtime.thread_messages import Changes, NewMessage
from weftline.store.records.thread_messages import MessageFilter
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
engines: list[Engine] = []


@tool(effect="idempotent")
async def note(context: ToolContext) -> str:
    """Notes something, and changes the question."""
    while not engines:  # noqa: ASYNC110  a run goes on while its engine still opens
        await asyncio.sleep(0.001)
    host, thread = await engines[-1].runtime(), await engines[-1].thread("t").key()
    await host.messages.inject(thread, NewMessage(text="Noted.", origin=context.idempotency_key))
    rows, _ = await host.messages.page(MessageFilter(thread=thread))
    await host.messages.update(thread, rows[0].name, Changes(text="Changed."))
    return "done"


model = ScriptedModel([calls("note"), "Done."])
agent = Agent("lab:script", name="notes", tools=[note])


async def main() -> None:
    models = Catalog()
    models.add(model, name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        engines.append(engine)
        run = await engine.start(agent, "Note it.", thread="t", key="once")
        await run.result()
        said = [one.text for one in await engine.thread("t").messages() if isinstance(one, User)]
        asked = [one.text for one in model.requests[-1].messages if isinstance(one, User)] if model.requests else said
        print(said == asked, " | ".join(said))


if __name__ == "__main__":
    asyncio.run(main())
