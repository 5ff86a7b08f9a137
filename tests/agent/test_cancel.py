"""Cancel: with a receipt over the runs below, which end first, and nothing left open."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.kit import workspace_of
from weftline import Agent, Engine, code, shell, skills, tool
from weftline.errors import Conflict
from weftline.events import AwaitOpened, CallOpened, RunEnded
from weftline.kernel.entries import CancelRequested, decode_fact
from weftline.kernel.entries import RunEnded as Ended
from weftline.messages import Assistant, ToolResults, User
from weftline.plan import LocalRef, RunPlan
from weftline.providers.catalog import Catalog
from weftline.runtime import ids
from weftline.runtime.reads.calls import CancelReceipt, entries
from weftline.testing import ScriptedModel, calls

from .skills.house import write_skill


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "nothing"


@tool
async def hold() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


@tool(effect="read", name="peek")
async def peek() -> str:
    """Never returns either."""
    await asyncio.Event().wait()
    return ""


@tool(confirm="Pay?")
def pay() -> str:
    """Pays."""
    return "paid"


def family(*last: Any) -> Agent[Any, Any]:
    helper = Agent(ScriptedModel([calls("look"), *last, "Done."]), name="helper", tools=[look, hold, peek, pay])
    turns = [calls("look"), calls("ask_helper", task="Help."), "Done."]
    return Agent(ScriptedModel(turns), name="boss", tools=[look, helper.as_tool("Helps.", name="ask_helper")])


async def heads_of(engine: Engine, run_id: str) -> list[Any]:
    log = engine.store.log
    return [decode_fact.decode(item.head) async for item in entries(log, ids.key_of(run_id)) if item.head]


@pytest.mark.requirement("run.cancel.children")
async def test_receipt_has_calls_of_runs_below_which_end_first(tmp_path: Path) -> None:
    agent = family(calls(("hold", {}), ("peek", {}), ("look", {})))
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        child = ""
        async for event in run.events(children=True):
            if isinstance(event, CallOpened) and event.name == "hold":
                child = event.run_id
                break
        receipt = await run.cancel()
        assert receipt.status == "cancelled" and child not in ("", run.id)
        [above] = [call for call in receipt.finished if not call.run]
        [below] = [call for call in receipt.finished if call.run]
        assert (above.name, below.name, below.run) == ("look", "look", child)
        assert [(call.name, call.run) for call in receipt.in_doubt] == [("hold", child)]
        assert [(call.name, call.run) for call in receipt.stopped] == [
            ("ask_helper", ""),
            ("peek", child),
            ("look", child),
        ]
        assert await run.cancel() == receipt
        mine, theirs = await heads_of(engine, run.id), await heads_of(engine, child)
        assert isinstance(mine[-1], Ended) and (mine[-1].status, mine[-1].reason) == ("cancelled", "user")
        assert isinstance(theirs[-1], Ended) and (theirs[-1].status, theirs[-1].reason) == ("cancelled", "parent")
        kinds = [type(head).__name__ for head in mine]
        assert kinds.index("CancelRequested") < kinds.index("ChildEnded") < kinds.index("RunEnded")
        [asked] = [head for head in theirs if isinstance(head, CancelRequested)]
        assert asked.reason == "parent"
    async with Engine(tmp_path, agents=[agent]) as engine:
        assert await engine.attach(run.id).cancel() == receipt


@pytest.mark.requirement("run.cancel.receipt")
async def test_receipt_lists_every_call_of_the_run_tree_once(
    tmp_path: Path,
) -> None:
    agent, models = family(calls(("hold", {}), ("peek", {}), ("look", {}))), Catalog()
    models.add(ScriptedModel([calls("ask_client"), "Done."]), name="lab")

    def all_of(receipt: CancelReceipt) -> dict[str, list[tuple[str, str, str]]]:
        lists = {"stopped": receipt.stopped, "finished": receipt.finished, "in_doubt": receipt.in_doubt}
        return {name: [(call.name, call.run, call.id) for call in found] for name, found in lists.items()}

    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Go.")
        opened: list[CallOpened] = []
        async for event in run.events(children=True):
            if isinstance(event, CallOpened):
                opened.append(event)
                if event.name == "hold":
                    break
        receipt = await run.cancel()
        child = opened[-1].run_id
        lists = all_of(receipt)
        named = {name: [(tool, of) for tool, of, _ in found] for name, found in lists.items()}
        assert named == {
            "stopped": [("ask_helper", ""), ("peek", child), ("look", child)],  # carried on below, `read`, not begun
            "finished": [("look", ""), ("look", child)],
            "in_doubt": [("hold", child)],
        }
        listed = [(of or run.id, id) for found in lists.values() for _, of, id in found]
        logged = [(of, call.id) for of in (run.id, child) for call in await engine.calls(of)]
        assert sorted(listed) == sorted(logged) and len(set(listed)) == len(listed)
        plan = RunPlan(messages=(User.of("Go."),), model="lab:script", tools=(LocalRef("ask_client"),))
        offered = engine.attach(await (await engine.runtime()).create(await workspace_of(engine), plan))
        async for event in offered:
            if isinstance(event, CallOpened):
                break
        of_client = await offered.cancel()
        assert [call.name for call in of_client.in_doubt] == ["ask_client"] and not of_client.stopped
        done = await engine.start(Agent(ScriptedModel([calls("look"), "Done."]), name="done", tools=[look]), "Go.")
        await done.result()
        before = await heads_of(engine, done.id)
        ended = await done.cancel()
        assert (ended.status, [call.name for call in ended.finished]) == ("succeeded", ["look"])
        assert await heads_of(engine, done.id) == before
        assert (await run.cancel(), await offered.cancel()) == (receipt, of_client)
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        assert await engine.attach(run.id).cancel() == receipt
        assert await engine.attach(offered.id).cancel() == of_client
        assert await engine.attach(done.id).cancel() == ended


async def test_cancelling_an_ended_run_changes_nothing() -> None:
    async with Engine() as engine:
        run = await engine.start(Agent(ScriptedModel([calls("look"), "Done."]), tools=[look]), "Go.")
        await run.result()
        before = await heads_of(engine, run.id)
        receipt = await run.cancel()
        assert receipt.status == "succeeded" and [call.name for call in receipt.finished] == ["look"]
        assert receipt.stopped == receipt.in_doubt == () and await heads_of(engine, run.id) == before


async def test_cancel_closes_what_is_open_and_late_answer_is_refused() -> None:
    agent = Agent(ScriptedModel([calls(("pay", {}), ("look", {})), "Done."]), tools=[pay, look])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.", thread="customer")
        seen: list[object] = []
        async for event in run.events():
            seen.append(event)
            if isinstance(event, AwaitOpened):
                await run.cancel()
        assert isinstance(seen[-1], RunEnded) and await engine.awaits() == []
        [question] = [head for head in await heads_of(engine, run.id) if type(head).__name__ == "AwaitClosed"]
        assert question.outcome == "withdrawn"
        with pytest.raises(Conflict):
            await run.approve(question.id)
        asked = [head.id for head in await heads_of(engine, run.id) if type(head).__name__ == "CallOpened"]
        closed = [head.id for head in await heads_of(engine, run.id) if type(head).__name__ == "CallClosed"]
        assert len(asked) == 2 and sorted(asked) == sorted(closed)
        model = ScriptedModel(["Hello."])
        again = await engine.start(Agent(model), "Hi.", thread="customer")
        assert (await again.result()).text == "Hello."
        said = model.requests[0].messages
        made = [call.id for message in said if isinstance(message, Assistant) for call in message.calls]
        got = [result.id for message in said if isinstance(message, ToolResults) for result in message.results]
        assert made == got


COMMAND = (
    "sleep 1000 & echo $! >> pids; (sleep 1000 & echo $! >> pids; wait) & echo $! >> pids;"
    " setsid sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; wait"
)
STARTED = 5


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def busy_below() -> set[int]:
    """The processes below this one that are computing."""
    parents: dict[int, tuple[str, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            parents[int(stat.parent.name)] = state, int(parent)
    below, wave = set[int](), {os.getpid()}
    while wave:
        wave = {pid for pid, (_, parent) in parents.items() if parent in wave}
        below |= wave
    return {pid for pid in below if parents[pid][0] == "R"}


async def until_started(*files: Path) -> list[int]:
    async with asyncio.timeout(60):
        while any(not one.exists() or len(one.read_text().split()) < STARTED for one in files):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [int(pid) for one in files for pid in one.read_text().split()]


async def until_only_one_computes() -> set[int]:
    """The process that a loop without an end keeps busy, when those that were starting have started."""
    seen, same = set[int](), 0
    async with asyncio.timeout(60):
        while len(seen) != 1 or same < 10:
            await asyncio.sleep(0.02)
            now = busy_below()
            seen, same = now, same + 1 if now == seen else 0
    return seen


LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes can be looked at on Linux only")


@LINUX
async def test_processes_of_calls_are_gone_at_the_cancelled_entry(tmp_path: Path) -> None:
    worker = Agent(
        ScriptedModel([calls("shell", command=COMMAND), "Done."]), name="worker", tools=[shell(root=tmp_path)]
    )
    async with Engine() as engine:
        run = await engine.start(worker, "Go.")
        started = await until_started(tmp_path / "pids")
        assert all(is_running(pid) for pid in started)
        receipt = await run.cancel()
        assert not [pid for pid in started if is_running(pid)]
        assert [call.name for call in receipt.in_doubt] == ["shell"]


@LINUX
@pytest.mark.requirement("run.cancel.processes")
async def test_nor_is_one_of_runs_below_it_whatever_started_it(tmp_path: Path) -> None:
    script = write_skill(tmp_path, "busy", files={"go.sh": f"#!/bin/sh\n{COMMAND}\n"}) / "go.sh"
    await asyncio.to_thread(script.chmod, 0o755)
    turns: dict[str, tuple[Any, Any]] = {
        "sheller": (shell(root=tmp_path), [calls("shell", command=COMMAND)]),
        "scripter": (
            skills(tmp_path),
            [calls("skills_use", name="busy"), calls("skills_run_script", name="busy", script="go.sh")],
        ),
        "coder": (code(), [calls("code", code="while (true) {}")]),
    }
    below = [
        Agent(ScriptedModel([*steps, "Done."]), name=name, tools=[has]).as_tool("Works.", name=name)
        for name, (has, steps) in turns.items()
    ]
    asks = calls(*[(name, {"task": "Go."}) for name in turns])
    async with Engine() as engine:
        run = await engine.start(Agent(ScriptedModel([asks, "Done."]), name="boss", tools=below), "Go.")
        started = await until_started(tmp_path / "pids", tmp_path / "busy" / "pids")
        computing = await until_only_one_computes()
        receipt = await run.cancel()
        assert not [pid for pid in (*started, *computing) if is_running(pid)]
        assert {call.name for call in receipt.in_doubt} >= {"shell", "skills_run_script"}
