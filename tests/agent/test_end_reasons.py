"""What brought a run to its end: on its terminal entry, its outcome and its snapshot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.kit import workspace_of
from weftline import Agent, Budget, Engine, Limits, RunFailed, ToolFailed, tool
from weftline.agent.run import Run
from weftline.kernel.entries import Limits as StoredLimits
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan
from weftline.policies import Policy, PolicyDecision, PolicyTurn
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60


@tool(effect="read")
def look(n: int = 0) -> str:
    """Looks."""
    if n > 90:
        raise ToolFailed("It is dark.", recovery="finish" if n == 99 else "replan")
    return "Seen."


@tool(effect="read")
async def hang() -> str:
    """Hangs."""
    await asyncio.Event().wait()
    return ""


def disabling(turn: PolicyTurn) -> PolicyDecision:
    return PolicyDecision(disable_tools=True)


LOOKS = [calls("look", n=n) for n in range(3)]
ENDS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "time_budget": ([calls("hang")], {"policy": Policy(time_budget_s=0.03)}),
    "tool_cap": (LOOKS, {"policy": Policy(max_tool_calls=1)}),
    "failure_cap": ([calls("look", n=91)], {"policy": Policy(max_consecutive_failed_tool_calls=1)}),
    "tool_failure": ([calls("look", n=99)], {}),
    "loop_detected": ([calls("look")] * 9, {"limits": Limits(loop_soft=2, loop_hard=3)}),
    "max_turns": (LOOKS, {"limits": Limits(max_turns=1)}),
    "budget": (LOOKS, {"budget": Budget(calls=1)}),
    "policy": (LOOKS, {"policy_engine": disabling}),
    "": ([LOOKS[0]], {"policy": Policy(max_tool_calls=9, time_budget_s=60), "limits": Limits(max_turns=9)}),
}


async def begun_for_client(engine: Engine) -> Run[Any]:
    """A limit that only runs of clients have."""
    limits = StoredLimits(max_tool_turns=0, on_max_tool_turns="finalize")
    plan = RunPlan(messages=(User.of("Go."),), model="lab:script", tools=(LocalRef("look"),), limits=limits)
    return engine.attach(await (await engine.runtime()).create(await workspace_of(engine), plan))


@pytest.mark.requirement("run.end.reason")
async def test_run_ended_by_a_limit_says_which_one() -> None:
    found: dict[str, tuple[Any, str, str]] = {}
    models = Catalog()
    models.add(ScriptedModel([*LOOKS, "Done."]), name="lab")
    async with asyncio.timeout(PATIENCE_S), Engine(models=models) as engine:
        runs = {"max_tool_turns": await begun_for_client(engine)}
        for reason, (turns, options) in ENDS.items():
            agent = Agent(ScriptedModel([*turns, "Done."]), tools=[look, hang], **options)
            runs[reason] = await engine.start(agent, "Go.")
        for reason, run in runs.items():
            try:
                result = await run.result()
            except RunFailed as failed:
                result = failed.result
            last = (await run.entries(limit=1000)).entries[-1]
            assert last.kind == "run.ended" and last.head is not None
            found[reason] = last.head.get("reason", ""), result.reason, (await run.snapshot()).reason
    assert found == {reason: (reason,) * 3 for reason in runs}
