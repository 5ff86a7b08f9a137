"""A process with effects of a thread: `python effect_process.py FOLDER`.

It makes the thread if there is none, schedules two effects for one call, runs them, and prints how often each ran and
what became of all.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from weftline.providers.catalog import Catalog
from weftline.runtime.new_engine import new_engine
from weftline.store import open_store
from weftline.store.records.thread_effects import EffectFilter, EffectRow
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey
from weftline.threads import Registry, SideConfig, ThreadState, define_agent, define_effect, define_prompt
from weftline.threads.effects import EffectAlarm
from weftline.threads.serving import Folder
from weftline.workspace import thread_effects, threads, workspaces
from weftline.workspace.context import Change, Workspaces

NOON_US = 1_800_000_000_000_000


class Clock(Struct):
    us: int = NOON_US

    def now_us(self) -> int:
        return self.us


class Desk(Struct):
    """A served folder with one thread, whose effect `note` adds a line to a file."""

    at: Workspaces
    folder: Folder
    alarm: EffectAlarm
    thread: ThreadRow
    clock: Clock
    notes: Path
    running: asyncio.Task[None]

    async def schedule(self, *texts: str, call: str = "call", delay_ms: int = 0) -> list[str]:
        with self.folder.thread(self.at, self.alarm.engine, self.thread, call) as state:
            return [await state.schedule_effect("note", {"text": one}, delay_ms=delay_ms) for one in texts]

    async def rows(self) -> list[EffectRow]:
        found = await thread_effects.page(self.at, EffectFilter(thread=self.thread.key))
        return found[::-1]

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    async def until_settled(self) -> None:
        async with asyncio.timeout(120):
            while any(row.status in ("pending", "running") for row in await self.rows()):
                await asyncio.wait({self.running}, timeout=0.01)


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Desk]:
    notes, clock = path / "notes", Clock()

    @define_effect
    async def note(state: ThreadState, text: str) -> None:
        """Notes a text."""
        with notes.open("a") as file:
            file.write(f"{text}\n")

    prompt = define_prompt(name="desk", model="m", tool_description="x", prompt="x")
    agent = define_agent(name="desk", side_a=SideConfig(prompt="desk"))
    folder = Folder(Registry.of(prompts=[prompt], agents=[agent], effects=[note]))
    store = open_store(path / "store")
    alarms: list[EffectAlarm] = []

    async def changed(change: Change) -> None:
        for alarm in alarms:
            alarm.changed()

    at = Workspaces(store.records, store.vault, clock, changed)
    async with new_engine(store, models=Catalog(), clock=clock) as engine:
        space = await workspaces.ensure(at, "acme")
        draft = threads.ThreadDraft(name="", agent="desk", spec=b"{}", keeps="all")
        thread = await threads.create(at, space, draft, idempotency=IdempotencyKey("threads", "one", b""))
        alarms.append(EffectAlarm(at, engine, lambda: folder))
        running = asyncio.create_task(alarms[0].run())
        try:
            yield Desk(at, folder, alarms[0], thread, clock, notes, running)
        finally:
            running.cancel()
            await asyncio.wait({running})
    await store.close()


async def main(path: Path) -> None:
    async with opened(path) as desk:
        await desk.schedule("a", "b")
        await desk.until_settled()
        counts = [desk.noted().count(text) for text in "ab"]
        print(*counts, *[row.status for row in await desk.rows()])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
