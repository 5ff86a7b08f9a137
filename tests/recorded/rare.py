"""Scenarios for the fields that ordinary runs lack; their agents are in `rare_cast.py`. All of their runs end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any, TypeAlias

from weftline import Budget, RunFailed
from weftline.agent.run import Run
from weftline.messages import File, Image

from .cast import CLIENT_TOOLS
from .stage import Stage

FOUND = {"type": "object", "properties": {"found": {"type": "string"}}}
Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]


async def _fails(run: Run[Any]) -> None:
    try:
        await run.result()
    except RunFailed:
        return
    raise AssertionError(f"{run.id} should have failed")


async def rich_answers(stage: Stage) -> None:
    """Priced, signed and with data of the provider's own; the prompt has attachments."""
    files = [
        Image("image/png", data="aGVsbG8=", name="a.png"),
        File("application/pdf", data="aGVsbG8=", name="a.pdf"),
        File("application/pdf", url="https://example.com/a.pdf"),
    ]
    await (await stage.start("rich", files=files)).result()
    await (await stage.start("sampled")).result()


async def broken_models(stage: Stage) -> None:
    """They fail in the middle, with all that a provider can report, or are cut short."""
    await _fails(await stage.start("broken"))
    await (await stage.start("changed_model")).result()
    await _fails(await stage.start("cut_short"))
    stopped = await stage.start("slow")
    async for _ in stopped.text():
        break
    await stopped.follow_up("And then?")
    await stopped.cancel()


async def uncounted_answers(stage: Stage) -> None:
    """And those of a child that fails."""
    for name in ("uncounted_caller", "failed_by_child"):
        run = await stage.start(name)
        await run.result()
        started: Any = await stage.until(run, "call.started")
        stage.runs.append(started.child)


async def steered_by_budgets(stage: Stage) -> None:
    await (await stage.start("steered_budget")).result()
    await (await stage.start("answers_pages")).result()


async def seats_that_change(stage: Stage) -> None:
    """Two sides that take turns until code stops them, and an agent that hands over to another."""
    await (await stage.start("debate")).result()
    await (await stage.start("desk")).result()


async def call_in_doubt(stage: Stage) -> None:
    run = await stage.start("doubtful")
    await stage.until(run, "call.started", times=2)
    await stage.restart()
    run = stage.again(run)
    await run.answer(await stage.asked(run), "It was sent.", by="user:ann")
    await run.result()


async def approvals_of_later_calls(stage: Stage) -> None:
    run = await stage.start("confirmed")
    first = await stage.asked(run)
    await run.approve(first, args={"to": "ann", "text": "mail"}, remember={"to": "ann"}, by="user:ann")
    await run.deny(await stage.asked(run, times=2), "Not to Bob.", by="user:ann")
    await run.approve(await stage.asked(run, times=3), remember={"to": "ann"}, by="user:ann")
    await run.answer(await stage.asked(run, times=4), ["One"], by="user:ann")
    await run.answer(await stage.asked(run, times=5), ["One", "Two"], by="user:ann")
    await run.result()
    again = await stage.start("remembering")
    await again.approve(await stage.asked(again), remember={"to": "ann"}, by="user:ann")
    await again.result()


async def effect_that_became_stricter(stage: Stage) -> None:
    run = await stage.start("stricter")
    id = await stage.asked(run)
    await stage.restart(deployed=True)
    run = stage.again(run)
    await run.approve(id)
    await run.result()
    await stage.restart()


async def summaries_in_a_thread(stage: Stage) -> None:
    """The second run takes over what the first has left; the third is too long for its model."""
    await (await stage.start("held_reader", thread="reading")).result()
    await (await stage.start("held_reader", thread="reading")).result()
    await (await stage.start("full")).result()


async def decisions_of_policies(stage: Stage) -> None:
    for name in ("capped", "disabled", "misjudged"):
        await (await stage.start(name)).result()


async def in_circles(stage: Stage) -> None:
    await _fails(await stage.start("in_circles"))


async def family_with_a_given_id(stage: Stage) -> None:
    run = await stage.start("grandparent", run_id=f"given_{token_hex(4)}")
    await run.result()
    parent: Any = await stage.until(run, "call.started")
    below = stage.watched(parent.child)
    for number in (1, 2):
        started: Any = await stage.until(below, "call.started", times=number)
        stage.runs.append(started.child)


async def prompts_of_a_thread(stage: Stage) -> None:
    await stage.engine.override_prompt("manner", "Write well to {who}.", labels={"team": "b"}, by="user:ann")
    await (await stage.start("writer", labels={"team": "b"}, stream_arguments=True)).result()
    run = await stage.start("writer", thread="letters")
    await run.result()
    await stage.engine.override_prompt("manner", "Write again to {who}.", thread="letters", by="user:ann")
    await (await stage.start("writer", thread="letters")).result()


async def budgets_of_a_day(stage: Stage) -> None:
    await stage.engine.set_budget(per_day=Budget(calls=0), agent=stage.agent("sampled"))
    await (await stage.start("sampled")).result()
    await stage.engine.set_budget(agent=stage.agent("sampled"))
    await _fails(await stage.start("capped", budget=Budget(tokens=1)))


async def forks_of_what_went_wrong(stage: Stage) -> None:
    """Their plans have the results of failed calls, and messages of the runtime's."""
    for name, turn in (("clerk", 2), ("looper", 3)):
        run = await stage.start(name)
        await run.result()
        fork = await stage.engine.fork(run.id, turn=turn, message="And now?")
        stage.runs.append(fork.id)
        await fork.result()


async def leases_over_http(stage: Stage) -> None:
    """A tool of the server takes over from a client that is gone; the result of another is stored in another form."""
    client = await stage.client()
    lookup = {**CLIENT_TOOLS[0], "longRunning": True, "tags": ["slow"], "effect": "read", "outputSchema": FOUND}
    server = {"kind": "server", "name": "current_time"}
    budgets = {"onLeaseLost": "fallback", "leaseFallbacks": {"lookup": "current_time"}}
    run = await stage.created(client, "lookup", tools=[lookup, server], budgets=budgets)
    await stage.until(run, "call.opened")
    await client.post(f"agent-runs/{run.id}/tool-leases", {"toolUseId": "call_0_0", "leaseMs": 1000})
    await stage.until(run, "call.unclaimed")
    await run.result()
    reply = await client.post("agent-runs", {"agentId": "stamped", "systemPrompt": "Be brief.", "prompt": "Go."})
    stamped = stage.watched(reply["runId"])
    await stage.until(stamped, "call.opened")
    body = {"toolUseId": "call_0_0", "result": "Rain."}
    await client.post(f"agent-runs/{stamped.id}/tool-results", body, idempotency_key="key of call_0_0")
    await stamped.result()


SCENARIOS: tuple[Scenario, ...] = (
    rich_answers,
    broken_models,
    uncounted_answers,
    steered_by_budgets,
    call_in_doubt,
    approvals_of_later_calls,
    effect_that_became_stricter,
    summaries_in_a_thread,
    decisions_of_policies,
    in_circles,
    family_with_a_given_id,
    prompts_of_a_thread,
    budgets_of_a_day,
    forks_of_what_went_wrong,
    leases_over_http,
    seats_that_change,
)
