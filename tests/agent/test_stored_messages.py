"""The messages of a run, while it goes on and afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weftline import Agent, Engine, RunFailed, tool
from weftline.messages import User
from weftline.runs import SavedMessage
from weftline.testing import ScriptedModel, calls

from .test_engine import catalog


def roles(messages: list[SavedMessage]) -> list[str]:
    return [one.role for one in messages]


class Held:
    """A tool that is under way until it is told to return."""

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()

        @tool  # begins when what led to it is stored
        async def hold() -> str:
            """Holds."""
            self.begun.set()
            await self.release.wait()
            return "held"

        self.tool = hold


@pytest.mark.requirement("loop.thread.saved")
@pytest.mark.parametrize("durable", [False, True])
async def test_message_can_be_read_when_its_turn_ends(tmp_path: Path, durable: bool) -> None:
    held = Held()
    model = ScriptedModel([calls("hold"), "Done."])
    agent = Agent("lab:script", name="holding", tools=[held.tool])
    async with Engine(tmp_path if durable else None, models=catalog(model)) as engine:
        run = await engine.start(agent, "Go.", thread="t")
        await held.begun.wait()
        early = await engine.attach(run.id).messages()
        assert roles(early) == ["user", "assistant"]
        assert await run.status() == "running"
        held.release.set()
        result = await run.result()
        late = await run.messages()
        assert late[:2] == early
        assert (roles(late), await run.status()) == (["user", "assistant", "tool", "assistant"], "succeeded")
        assert tuple(one.content for one in late) == result.new_messages
        assert len({one.id for one in late}) == 4 and {one.run_id for one in late} == {run.id}
        assert [one.created_at for one in late] == sorted(one.created_at for one in late)
        assert [one.usage is not None for one in late] == [False, True, False, True]
        again = await engine.start(agent, "Once more.", thread="t")
        await again.result()
        assert (await again.messages())[0].content == User.of("Once more."), "its own, not those of the run before"


@pytest.mark.requirement("loop.thread.saved")
async def test_run_is_recorded_as_begun_and_then_as_it_ended() -> None:
    held = Held()
    agent = Agent(ScriptedModel([calls("hold"), "Done."]), tools=[held.tool])
    async with Engine() as engine:
        broken = await engine.start(agent, "Go.", model=ScriptedModel([{"error": {"class": "auth", "message": "No."}}]))
        with pytest.raises(RunFailed):
            await broken.result()
        assert await broken.status() == "failed"
        run = await engine.start(agent, "Go.", messages=[User.of("Before.")])
        await held.begun.wait()
        await run.cancel()
        assert await run.status() == "cancelled"
        assert roles(await run.messages())[:2] == ["user", "assistant"], "what came before is not its own"


def test_code_without_a_loop_reads_them_too() -> None:
    with Agent(ScriptedModel(["Done."])).stream_sync("Go.") as run:
        run.result()
        assert (roles(run.messages()), run.status()) == (["user", "assistant"], "succeeded")
