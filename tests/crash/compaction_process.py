"""A process with an agent that has to sum up what it read: `python compaction_process.py FOLDER ends|fails|undone`.

Each time a model is asked for a summary, a line is added to `told.txt`. It may fail to write one, or the summary may be
taken back while a tool runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from weftline import Agent, Engine, tool
from weftline.behaviors import Behavior, Compaction
from weftline.events import CallOpened
from weftline.messages import ToolResults
from weftline.prompts.compaction import SUMMARIZE
from weftline.providers.base import Chunk, ModelRequest, ProviderError
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER, HOW = (Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else (Path(), "ends")
restored = asyncio.Event()


@tool(effect="read")
def read(page: int) -> str:
    """Reads a page."""
    return f"Page {page}. " + "It was a dark and stormy night. " * 60


@tool(effect="read")
async def think() -> str:
    """Waits until the summary is taken back."""
    await restored.wait()
    return "Hm."


class Telling(ScriptedModel):
    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if request.system == SUMMARIZE:
            with (FOLDER / "told.txt").open("a") as file:
                file.write("summary\n")
            if HOW == "fails":
                raise ProviderError("server", "no summaries today", retryable=False)
        return super().stream(request)


agent = Agent(
    "lab:script",
    name="reader",
    tools=[read, think],
    behavior=Behavior(compaction=Compaction(at_tokens=700, keep_turns=1)),
)


async def main() -> None:
    between = {"ends": ["Weather."], "fails": [], "undone": ["Weather.", calls("think")]}[HOW]
    model = Telling([calls("read", page=1), calls("read", page=2), *between, "A novel."])
    models = Catalog()
    models.add(model, name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        run = await engine.start(agent, "What is it?", key="once")
        if HOW == "undone":
            async for event in run:
                if isinstance(event, CallOpened) and event.name == "think":
                    await run.restore_context()
                    restored.set()
        result = await run.result()
        results = [
            one
            for message in model.requests[-1].messages
            if isinstance(message, ToolResults)
            for one in message.results
        ]
        print(result.text, "|", *[one.text[:6] for one in results], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
