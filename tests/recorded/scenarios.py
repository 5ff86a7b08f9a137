"""The runs that are recorded: real runs of the embedded engine with the scripted model, one scenario each.

Together with those of `rare.py` they contain every kind of entry, and every type and field of heads and bodies. Those
in `CONTINUED` are left unfinished: later versions continue them, and all other scenarios' runs have ended. A scenario
that has been recorded keeps its name and its way on, as older recordings contain it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from weftline import Budget, RunFailed
from weftline.agent.run import Run
from weftline.runtime.thread_messages import Changes, NewMessage
from weftline.store.records.thread_messages import MessageFilter
from weftline.tools.base import ToolOutput

from . import cast, rare
from .stage import PATIENCE_S, Stage


async def plain_answer(stage: Stage) -> None:
    await (await stage.start("plain", "Hello.", labels={"team": "a"})).result()


async def searched_by_the_provider(stage: Stage) -> None:
    await (await stage.start("search")).result()


async def two_runs_of_a_thread(stage: Stage) -> None:
    await (await stage.start("talk", "One.", thread="talk")).result()
    await (await stage.start("talk", "Two.", thread="talk")).result()


async def edited_while_it_is_read(stage: Stage) -> None:
    await (await stage.start("talk", "One.", thread="edited")).result()
    run = await stage.start("outside", thread="edited")
    await stage.until(run, "call.opened", times=2)
    host, thread = await stage.engine.runtime(), await stage.engine.thread("edited").key()
    rows, _ = await host.messages.page(MessageFilter(thread=thread))
    await host.messages.inject(thread, NewMessage(text="Put."))
    await host.messages.update(thread, rows[2].name, Changes(text="Changed."))
    await host.messages.delete(thread, rows[2].name)
    for call in ("call_0_0", "call_0_1"):
        await host.answer(await stage.key(run), call, ToolOutput.of('"Rain."'))
    await run.result()
    await (await stage.start("talk", "Two.", thread="edited")).result()


async def forked(stage: Stage) -> None:
    run = await stage.start("thrifty", "Look.")
    await run.result()
    fork = await stage.engine.fork(run.id, turn=1, message="And now?")
    stage.runs.append(fork.id)
    await fork.result()


async def all_sorts_of_calls(stage: Stage) -> None:
    await (await stage.start("clerk", stream_arguments=True)).result()


async def loop_to_the_final_turn(stage: Stage) -> None:
    await (await stage.start("looper")).result()


async def answer_rejected_twice(stage: Stage) -> None:
    await (await stage.start("typist")).result()


async def calls_of_a_call(stage: Stage) -> None:
    await (await stage.start("coder")).result()


async def gates_and_approvals(stage: Stage) -> None:
    run = await stage.start("gated", requested_by="user:eve")
    wire = await stage.asked(run)
    await run.approve(wire, args={"payee": "cid"}, by="user:ann")
    again = await stage.asked(run, times=2)
    await run.approve(again, remember={"payee": "d*"}, by="user:ann")
    await run.result()


async def questions_to_people(stage: Stage) -> None:
    run = await stage.start("asker")
    await run.answer(await stage.asked(run), ["Lyon", "Today"], by="user:ann", labels={"from": "desk"})
    await run.answer(await stage.asked(run, times=2), "Lyon, of course.")
    await run.result()


async def leased_calls(stage: Stage) -> None:
    run = await stage.start("outside")
    await stage.until(run, "call.opened", times=2)
    host, key = await stage.engine.runtime(), await stage.key(run)
    first = await host.claim(key, "call_0_0", by="user:ann")
    await host.heartbeat(key, "call_0_0", first.token)
    await host.release(key, "call_0_0", first.token)
    second = await host.claim(key, "call_0_0", by="user:bob")
    await host.answer(key, "call_0_0", ToolOutput.of('"Rain."'), token=second.token)
    await host.answer(key, "call_0_1", ToolOutput.of('"Snow."'))
    await run.result()


async def family(stage: Stage) -> None:
    run = await stage.start("boss", labels={"team": "a"})
    started: Any = await stage.until(run, "call.started")
    child = run.below(started.child)
    await stage.until(run, "child.waits")
    await child.approve(await stage.asked(child))
    await run.result()
    second: Any = await stage.until(run, "call.started", times=2)
    stage.runs += [started.child, second.child]


async def steered_and_paused(stage: Stage) -> None:
    run = await stage.start("steered")
    await stage.until(run, "call.started")
    await run.pause("Lunch.", by="user:ann", labels={"why": "noon"})
    await run.follow_up("And then?", by="user:bob", labels={"from": "desk"})
    await stage.restart()
    run = stage.again(run)
    await run.steer("Be quick.", by="user:ann")
    await run.resume("Back.", by="user:ann", messages=["I am back."], labels={"why": "one o'clock"})
    await run.result()


async def cancelled(stage: Stage) -> None:
    run = await stage.start("steered")
    await stage.until(run, "call.started")
    await run.cancel("changed my mind", by="user:ann")


async def model_that_fails(stage: Stage) -> None:
    run = await stage.start("unlucky")
    try:
        await run.result()
    except RunFailed:
        return
    raise AssertionError("it should have failed")


async def summaries(stage: Stage) -> None:
    run = await stage.start("reader")
    await stage.until(run, "context.compacted")
    await run.restore_context(by="user:ann")
    await run.result()


async def budget_raised(stage: Stage) -> None:
    run = await stage.start("spender")
    await stage.asked(run)
    await run.set_budget(Budget(calls=5), by="user:ann")
    await run.result()


async def budget_used_up(stage: Stage) -> None:
    await (await stage.start("thrifty")).result()


async def policy_with_a_cap(stage: Stage) -> None:
    await (await stage.start("policed")).result()


async def cut_off_and_adopted(stage: Stage) -> None:
    run = await stage.start("interrupted")
    await stage.until(run, "call.started", times=2)
    await stage.restart()
    await stage.again(run).result()


async def continued_by_other_code(stage: Stage) -> None:
    run = await stage.start("deployed")
    id = await stage.asked(run)
    await stage.restart(deployed=True)
    run = stage.again(run)
    await run.approve(id)
    await run.result()
    await stage.restart()


# Of clients over HTTP


async def client_tools_over_http(stage: Stage) -> None:
    """A function, an MCP server and an A2A agent that only the client can reach."""
    client = await stage.client()
    run = await stage.created(client, "peers", tools=cast.CLIENT_TOOLS, metadata={"team": "a"})
    await stage.until(run, "call.opened", times=3)
    lease = await client.post(f"agent-runs/{run.id}/tool-leases", {"toolUseId": "call_0_1"})
    released = {"toolUseId": "call_0_1", "token": lease["token"]}
    await client.post(f"agent-runs/{run.id}/tool-leases/release", released)
    for call, result in (("call_0_0", "One."), ("call_0_1", "A."), ("call_0_2", "Done.")):
        body = {"toolUseId": call, "result": result}
        await client.post(f"agent-runs/{run.id}/tool-results", body, idempotency_key=f"key of {call}")
    await run.result()


async def tasks_over_a2a(stage: Stage) -> None:
    """The first is answered what it asks, the second is told something while it works."""
    client = await stage.client()
    spec = {"modelId": "scripted:lookup", "tools": cast.CLIENT_TOOLS[:1]}
    await client.post("agents", {"name": "Lookup", "spec": spec})
    asks = stage.watched((await client.send_message("lookup", "Go.", id="m-1"))["id"])
    await stage.until(asks, "call.opened")
    await client.send_message("lookup", "It is one.", id="m-2", taskId=asks.id)
    await asks.result()
    works = stage.watched((await client.send_message("steered", "Go.", id="m-3"))["id"])
    await stage.until(works, "call.started")
    await client.send_message("steered", "Be quick.", id="m-4", taskId=works.id)
    await client.post(f"agent-runs/{works.id}/messages", {"text": "And then?"}, idempotency_key="key of m-5")
    await stage.restart()
    await stage.again(works).result()


# Left open


async def waits_for_a_person(stage: Stage) -> None:
    await stage.asked(await stage.start("waiting"))


async def waits_for_a_client(stage: Stage) -> None:
    run = await stage.start("outside")
    await stage.until(run, "call.opened", times=2)
    host, key = await stage.engine.runtime(), await stage.key(run)
    await host.answer(key, "call_0_0", ToolOutput.of('"Rain."'))
    stage.tokens[run.id] = (await host.claim(key, "call_0_1", lease_us=600_000_000, by="user:ann")).token


async def waits_for_an_http_client(stage: Stage) -> None:
    client = await stage.client()
    run = await stage.created(client, "peers", tools=cast.CLIENT_TOOLS)
    await stage.until(run, "call.opened", times=3)
    await client.post(f"agent-runs/{run.id}/tool-results", {"toolUseId": "call_0_0", "result": "One."})
    claim = {"toolUseId": "call_0_1", "leaseMs": 600_000}
    stage.tokens[run.id] = (await client.post(f"agent-runs/{run.id}/tool-leases", claim))["token"]


async def waits_for_a_budget(stage: Stage) -> None:
    await stage.asked(await stage.start("spender"))


async def waits_for_a_child(stage: Stage) -> None:
    run = await stage.start("boss")
    started: Any = await stage.until(run, "call.started")
    await stage.until(run, "child.waits")
    stage.runs.append(started.child)


async def paused(stage: Stage) -> None:
    run = await stage.start("steered")
    await stage.until(run, "call.started")
    await run.pause("Over night.", by="user:ann")


async def cut_off(stage: Stage) -> None:
    """The last one, because the next process continues it by itself."""
    calls = await stage.start("interrupted")
    await stage.until(calls, "call.started", times=2)
    model = await stage.start("slow")
    async for _ in model.text():
        break


Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]

SCENARIOS: tuple[Scenario, ...] = (
    plain_answer,
    searched_by_the_provider,
    two_runs_of_a_thread,
    edited_while_it_is_read,
    forked,
    all_sorts_of_calls,
    loop_to_the_final_turn,
    answer_rejected_twice,
    calls_of_a_call,
    gates_and_approvals,
    questions_to_people,
    leased_calls,
    family,
    steered_and_paused,
    cancelled,
    model_that_fails,
    summaries,
    budget_raised,
    budget_used_up,
    policy_with_a_cap,
    cut_off_and_adopted,
    continued_by_other_code,
    client_tools_over_http,
    tasks_over_a2a,
    *rare.SCENARIOS,
    waits_for_a_person,
    waits_for_a_client,
    waits_for_an_http_client,
    waits_for_a_budget,
    waits_for_a_child,
    paused,
    cut_off,
)


async def play(stage: Stage) -> dict[str, list[str]]:
    """Plays all scenarios and returns the runs of each. The engine is still open then."""
    played: dict[str, list[str]] = {}
    await stage.open()
    for scenario in SCENARIOS:
        stage.runs = played[scenario.__name__] = []
        async with asyncio.timeout(PATIENCE_S):
            await scenario(stage)
    return played


# How later versions continue those that were left open: the results of the runs


async def _approved(stage: Stage, run: Run[Any], *_: Run[Any]) -> str:
    await run.approve(await stage.asked(run), by="user:ann")
    return (await run.result()).text


async def _answered(stage: Stage, run: Run[Any], *_: Run[Any]) -> str:
    host = await stage.engine.runtime()
    await host.answer(await stage.key(run), "call_0_1", ToolOutput.of('"Snow."'), token=stage.tokens[run.id])
    return (await run.result()).text


async def _answered_over_http(stage: Stage, run: Run[Any], *_: Run[Any]) -> str:
    """The client gives its call back, so that it is offered again, just as it was offered at first."""
    client = await stage.client()
    given_back = {"toolUseId": "call_0_1", "token": stage.tokens[run.id]}
    await client.post(f"agent-runs/{run.id}/tool-leases/release", given_back)
    first, again = [offer async for offer in stage.offers(run, "call_0_1")]
    assert first.keys() == again.keys() - {"attempt"} and {**again, **first} == again
    for call, result in (("call_0_1", "A."), ("call_0_2", "Done.")):
        await client.post(f"agent-runs/{run.id}/tool-results", {"toolUseId": call, "result": result})
    return (await run.result()).text


async def _raised(stage: Stage, run: Run[Any], *_: Run[Any]) -> str:
    await run.set_budget(Budget(calls=5), by="user:ann")
    return (await run.result()).text


async def _approved_below(stage: Stage, run: Run[Any], child: Run[Any]) -> str:
    await run.below(child.id).approve(await stage.asked(child), by="user:ann")
    return (await run.result()).text


async def _resumed(stage: Stage, run: Run[Any], *_: Run[Any]) -> str:
    await run.resume(by="user:ann")
    return (await run.result()).text


async def _by_itself(stage: Stage, run: Run[Any], other: Run[Any]) -> str:
    await other.cancel()  # its model would take minutes
    return (await run.result()).text


Continue: TypeAlias = Callable[..., Awaitable[str]]

CONTINUED: dict[str, tuple[Continue, str]] = {
    waits_for_a_person.__name__: (_approved, "Wired to ann."),
    waits_for_a_client.__name__: (_answered, "Rain."),
    waits_for_an_http_client.__name__: (_answered_over_http, "One. || A. || Done."),
    waits_for_a_budget.__name__: (_raised, "Seen twice."),
    waits_for_a_child.__name__: (_approved_below, "Thanks."),
    paused.__name__: (_resumed, "First."),
    cut_off.__name__: (_by_itself, "Went on."),
}
