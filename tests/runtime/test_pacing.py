"""Large pieces of work take turns with everything else on the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weftline import Agent, tool
from weftline.runtime.tasks import LARGE_CHARS, LargeSteps
from weftline.testing import ScriptedModel, calls
from weftline.tools.function import FunctionTool


class Iterations:
    """Counts the iterations of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self._loop.call_soon(self._tick)


async def test_loop_iterations_have_at_most_one_large_step() -> None:
    large, iterations, taken = LargeSteps(), Iterations(), list[int]()

    async def step() -> None:
        await large.wait_for_slot()
        taken.append(iterations.count)

    await asyncio.gather(*[step() for _ in range(20)])
    assert len(set(taken)) == 20


async def test_whoever_gives_up_waiting_holds_up_nobody() -> None:
    large = LargeSteps()
    waiting = [asyncio.create_task(large.wait_for_slot()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait_for(waiting[2], 10)


def keeping(monkeypatch: pytest.MonkeyPatch) -> tuple[FunctionTool[..., str, Any], list[int]]:
    """A tool, and the iterations of the loop in which its arguments were prepared."""
    iterations, prepared = Iterations(), list[int]()

    @tool
    def keep(text: str) -> str:
        """Keeps a text."""
        return f"{len(text)} kept"

    real = keep.prepare

    async def prepare(args: str) -> bytes:
        prepared.append(iterations.count)
        return await real(args)

    monkeypatch.setattr(keep, "prepare", prepare)
    return keep, prepared


async def test_the_arguments_of_many_calls_are_prepared_in_several_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    keep, prepared = keeping(monkeypatch)
    asked = [("keep", {"text": "x" * 15_000}) for _ in range(20)]
    await Agent(ScriptedModel([calls(*asked), "Done."]), tools=[keep]).run("Keep them.")
    assert len(prepared) == 20
    assert len(set(prepared)) == 5


async def test_large_arguments_of_many_runs_are_prepared_in_different_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep, prepared = keeping(monkeypatch)
    agent = Agent(ScriptedModel([calls("keep", text="x" * LARGE_CHARS), "Done."]), tools=[keep])
    await asyncio.gather(*[agent.run("Keep it.") for _ in range(8)])
    assert len(prepared) == len(set(prepared)) == 8
