"""Requests that wait until the tools of their run are open: how such a wait ends. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from campaigns.simulation.server import WallClock

from runtime.kit import MoodyStore, engine_on, plan
from runtime.test_parked import on_virtual_time
from weftline.errors import Conflict, StoreError, Unavailable
from weftline.kernel.calls import external_id
from weftline.kernel.control import MAX_LEASE_US
from weftline.plan import RunPlan, ServerRef
from weftline.runtime.opening import OPEN_S
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.tool_calls.provided import Provided
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.server.http import Disconnect
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool
from weftline.work.turns import current_caller

SCRIPTS: dict[str, Any] = {
    name: {"turns": [{"tool_calls": [{"name": name, "args": {"n": 5}}]}, {"text": "done"}]} for name in ("pay", "look")
}


@tool(effect="once", confirm="Pay?", blocking=False)
def pay(n: int) -> str:
    """Pays."""
    return f"Paid {n}."


@tool(external=True)
def look(n: int) -> str:
    """Looks."""
    raise AssertionError("it is carried out outside")


class Tools(ServerTools):
    """Open as long as `gate` says."""

    def __init__(self) -> None:
        super().__init__({"pay": pay, "look": look})
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun, self.given_up = 0, 0
        self.error: BaseException | None = None

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.error is not None:
            raise self.error
        return await super().open(plan, run=run, secrets=secrets)


class Stage:
    """An engine with runs whose tools do not open again."""

    def __init__(self, clock: WallClock, tools: Tools | None = None) -> None:
        self.store, self.tools = MoodyStore(MemoryDisk()), tools or Tools()
        self.engine, _ = engine_on(self.store, SCRIPTS, tools=self.tools, clock=clock)

    async def run(self, model: str) -> int:
        space = await self.engine.workspace("acme")
        self.tools.gate.set()
        key = await self.engine.locate(await self.engine.create(space, plan(model, ServerRef(model))), workspace=space)
        await asyncio.sleep(60)
        assert key in self.store.log.released, "it is not in memory"
        self.tools.gate.clear()
        self.tools.begun = self.tools.given_up = 0
        return key

    async def approve(self, key: int, n: int = 4) -> str:
        answer = AwaitAnswer(outcome="approved", args={"n": n})
        return await self.engine.answer_await(key, "await_0_0_1", answer, by="ann", person_of=as_named)


async def wait_for(*requests: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(request) for request in requests]
    await asyncio.sleep(1)
    assert not any(task.done() for task in tasks)
    return tasks


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def playing(clock: WallClock) -> None:
        stage = Stage(clock)
        async with stage.engine:
            await scenario(stage)
            stage.tools.gate.set()

    on_virtual_time(playing)


def test_all_who_wait_share_one_opening() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        waiting = await wait_for(*[stage.approve(key, n) for n in range(5)])
        stage.tools.gate.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert outcomes[0] == "approved" and {type(one) for one in outcomes[1:]} == {Conflict}
        assert (stage.tools.begun, stage.tools.given_up) == (1, 0)

    play(scenario)


def results(stage: Stage, key: int) -> list[Coroutine[Any, Any, Any]]:
    provided = [Provided(call_id="call_0_0", result="seen")]
    return [
        stage.engine.answer(key, "call_0_0", ToolOutput.of("seen")),
        stage.engine.provide(key, external_id(0), provided),
    ]


def test_it_ends_with_the_run() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        (waiting,) = await wait_for(stage.approve(key))
        await stage.engine.cancel(key)
        with pytest.raises(Conflict) as refused:
            await waiting
        with pytest.raises(Conflict) as refused_later:
            await stage.approve(key)
        assert refused.value.code == refused_later.value.code == "await_closed"
        assert (stage.tools.begun, stage.tools.given_up) == (1, 1)
        key = await stage.run("look")
        leased = await stage.engine.claim(key, "call_0_0", lease_us=MAX_LEASE_US)
        release = stage.engine.release(key, "call_0_0", leased.token)
        both = await wait_for(*results(stage, key), release)
        await stage.engine.cancel(key)
        assert (await both[0], await both[1]) == (False, False), "as results that come after a cancel"
        with pytest.raises(Conflict, match="ended"):
            await both[2]
        assert (stage.tools.begun, stage.tools.given_up) == (1, 1)

    play(scenario)


def test_it_ends_when_the_engine_stops() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        waiting = await wait_for(stage.approve(key), stage.approve(key))
        await stage.engine.drain(0)
        await stage.engine.abort()
        for one in (*waiting, stage.approve(key)):
            with pytest.raises(Unavailable, match="stopping"):
                await one
        assert (stage.tools.begun, stage.tools.given_up) == (1, 1)

    play(scenario)


def test_it_ends_after_while_and_later_request_opens_tools() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as refused:
            await stage.approve(key)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(OPEN_S)
        assert refused.value.details["retry_after_s"]
        await asyncio.sleep(1)
        assert (stage.tools.begun, stage.tools.given_up) == (1, 1)
        (earlier,) = await wait_for(stage.approve(key))
        await asyncio.sleep(OPEN_S / 2)
        (later,) = await wait_for(stage.approve(key))
        with pytest.raises(Unavailable):
            await earlier
        assert (stage.tools.begun, stage.tools.given_up) == (2, 1), "the second one still waits for it"
        stage.tools.gate.set()
        assert await later == "approved"

    play(scenario)


def test_it_ends_when_caller_goes_away_and_others_keep_waiting() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        clients = [Disconnect() for _ in range(3)]

        async def ask(client: Disconnect) -> str:
            current_caller.set(client)
            return await stage.approve(key)

        tasks = len(asyncio.all_tasks())
        waiting = await wait_for(*[ask(client) for client in clients])
        for client, one in zip(clients[:2], waiting, strict=False):
            client.notify()
            with pytest.raises(ConnectionResetError):
                await one
        assert (stage.tools.begun, stage.tools.given_up) == (1, 0)
        clients[2].notify()
        with pytest.raises(ConnectionResetError):
            await waiting[2]
        with pytest.raises(ConnectionResetError):
            await asyncio.create_task(ask(clients[2]))
        await asyncio.sleep(1)
        assert stage.tools.given_up == 1 and len(asyncio.all_tasks()) == tasks
        stage.tools.gate.set()
        assert await stage.approve(key) == "approved"

    play(scenario)


def test_tools_open_although_nobody_can_tell_whether_run_has_ended() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")

        async def unreadable(*args: Any, **options: Any) -> Any:
            raise StoreError("The store could not be read.")

        stage.store.log.page = unreadable
        (waiting,) = await wait_for(stage.approve(key))
        stage.tools.gate.set()
        assert await waiting == "approved"

    play(scenario)


def test_a_run_does_not_depend_on_whoever_woke_it() -> None:
    callers: list[object] = []

    class Noting(Tools):
        async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
            callers.append(current_caller.get())
            return await super().open(plan, run=run, secrets=secrets)

    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock, Noting())
        async with stage.engine:
            key = await stage.run("pay")
            callers.clear()
            stage.tools.gate.set()
            current_caller.set(Disconnect())
            answer = AwaitAnswer(outcome="approved")
            await stage.engine.answer_await(key, "await_0_0_1", answer, by="ann", person_of=as_named)
            await asyncio.sleep(1)
            assert callers == [None]

    on_virtual_time(scenario)


def test_toolless_answer_is_accepted_although_its_caller_left() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        client = Disconnect()
        client.notify()
        current_caller.set(client)
        answer = AwaitAnswer(outcome="denied")
        assert await stage.engine.answer_await(key, "await_0_0_1", answer, by="ann", person_of=as_named) == "denied"

    play(scenario)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no"), ValueError),
        (TimeoutError("its own"), TimeoutError),
        (ConnectionResetError("not the caller's"), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
def test_all_who_wait_learn_of_an_opening_that_fails(error: BaseException, told: type[Exception]) -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("pay")
        waiting = await wait_for(stage.approve(key), stage.approve(key))
        stage.tools.error = error
        stage.tools.gate.set()
        for one in waiting:
            with pytest.raises(told):
                await one
        assert stage.tools.begun == 1
        stage.tools.error = None
        assert await stage.approve(key) == "approved"

    play(scenario)
