"""A call that a crash cut off, and a person who says what became of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec.json import decode
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, facts, plan, until
from weftline import tool
from weftline.api.views import run_summary
from weftline.errors import StoreError
from weftline.kernel.bodies import decode_await
from weftline.kernel.entries import FORMAT, KIND, AwaitClosed, CallClosed, CallStarted, Effect, Limits
from weftline.messages import ToolResults
from weftline.plan import ServerRef
from weftline.runtime import ids
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.reads import calls
from weftline.runtime.reads.calls import asked_doubts
from weftline.spec.plan import plan_from_spec
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter, Item, RunFilter
from weftline.tools.base import ToolContext, Unknown
from weftline.tools.workers import shared_workers
from weftline.work.turns import on_behalf_of

_PAY = {"name": "pay", "args": {"amount": 5}}
SCRIPTS: dict[str, Any] = {
    "pay": {"turns": [{"tool_calls": [_PAY]}, {"text": "{{all_tool_results}}"}]},
    "pay twice": {"turns": [{"tool_calls": [_PAY, _PAY]}, {"text": "{{all_tool_results}}"}]},
}


class Till:
    def __init__(self, disk: MemoryDisk, *, of_tool: bool) -> None:
        self.began = asyncio.Event()
        self.keys: list[str] = []

        @tool(in_doubt="ask" if of_tool else None)
        async def pay(context: ToolContext, amount: int) -> str:
            """Pays."""
            self.keys.append(context.idempotency_key)
            self.began.set()
            if context.attempt == 1:
                await asyncio.Event().wait()
            return "paid at last"

        self.engine, self.provider = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": pay})


@pytest.mark.requirement("run.effect.ask")
@pytest.mark.parametrize("of_tool", [True, False], ids=["the tool's policy", "the run's policy"])
@pytest.mark.parametrize(
    ("answer", "how", "read"),
    [
        (AwaitAnswer(outcome="answered", value="paid"), "returned", "paid"),
        (AwaitAnswer(outcome="approved"), "returned", "paid at last"),
        (AwaitAnswer(outcome="denied", reason="no idea"), "in_doubt", "not known whether it took effect"),
    ],
    ids=["it happened", "it did not", "nobody knows"],
)
async def test_a_person_says_what_became_of_a_call(of_tool: bool, answer: AwaitAnswer, how: str, read: str) -> None:
    disk = MemoryDisk()
    before = Till(disk, of_tool=of_tool)
    await before.engine.start()
    began_us = before.engine.clock.now_us()
    space = await before.engine.workspace("acme")
    limits = Limits(in_doubt="report" if of_tool else "ask")
    run = await before.engine.create(space, replace(plan("pay", ServerRef("pay")), limits=limits))
    await before.began.wait()
    await before.engine.stop(drain_s=0)
    after = Till(disk, of_tool=of_tool)
    async with after.engine as engine:
        question = await asked(engine, space)
        body = decode_await(question.body)
        assert (question.kind, body.name, decode(body.args)) == ("doubt", "pay", {"amount": 5})
        assert [body.key] == before.keys
        assert began_us <= body.called_at <= question.opened_at
        key = await engine.locate(run, workspace=space)
        await engine.answer_await(key, question.id, answer, by="key:ann", person_of=as_named)
        assert (await ended(engine, run, space)).status == "succeeded"
        found = await facts(engine, run, space)
        (closed,) = [one for one in found if isinstance(one, AwaitClosed)]
        assert (closed.outcome, closed.by) == (answer.outcome, "key:ann")
        assert [one.how for one in found if isinstance(one, CallClosed)] == [how]
        again = before.keys if answer.outcome == "approved" else []
        assert after.keys == again, "it ran although it had happened, or with another key"
        assert len([one for one in found if isinstance(one, CallStarted)]) == 1 + len(again)
    results = [one for one in after.provider.requests[-1].messages if isinstance(one, ToolResults)]
    assert read in results[-1].results[0].text


async def asked(engine: EmbeddedEngine, space: int) -> Any:
    async with asyncio.timeout(60):
        while not (found := await engine.stored.awaits(AwaitFilter(workspace=space))):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    return found[0]


async def test_every_call_that_people_are_asked_about_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PAGE", 1)
    disk = MemoryDisk()
    before = Till(disk, of_tool=True)
    await before.engine.start()
    space = await before.engine.workspace("acme")
    runs = [await before.engine.create(space, plan("pay", ServerRef("pay"))) for _ in range(3)]
    await until(lambda: len(before.keys) == len(runs))
    await before.engine.stop(drain_s=0)
    async with Till(disk, of_tool=True).engine as engine:
        async with asyncio.timeout(60):
            while len(await engine.stored.awaits(AwaitFilter(workspace=space))) < len(runs):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        page = await engine.stored.calls_in_doubt(space, before=None, limit=10)
        assert sorted([call.run_id for call in page.calls]) == sorted(runs)
        asked = {call.run_id: [(call.id, "pay")] for call in page.calls}
        assert await doubts_listed(engine, space) == asked, "lists of runs and of calls disagree"
        for one in await engine.stored.awaits(AwaitFilter(workspace=space)):
            outcome = AwaitAnswer(outcome="answered", value="paid") if one.run == 1 else AwaitAnswer(outcome="denied")
            await engine.answer_await(one.run, one.id, outcome, by="key:ann", person_of=as_named)
        for run in runs:
            await ended(engine, run, space)
        paid = await engine.stored.row(1)
        assert paid is not None
        assert await doubts_listed(engine, space) == {**asked, ids.run_id(1, paid.salt): []}


async def test_doubts_beside_newer_entries_are_listed() -> None:
    disk = MemoryDisk()
    before = Till(disk, of_tool=True)
    await before.engine.start()
    space = await before.engine.workspace("acme")
    run = await before.engine.create(space, plan("pay", ServerRef("pay")))
    await before.began.wait()
    await before.engine.stop(drain_s=0)
    async with Till(disk, of_tool=True).engine as engine:
        await asked(engine, space)
    (stored,) = disk.runs.values()
    stored.items.append(
        Item(1, "await.opened", b'{"type":"await.opened","urgent":true}', b"{}", seq=stored.row.next_seq)
    )
    stored.row.next_seq, stored.row.format = stored.row.next_seq + 1, FORMAT + 1
    log = MoodyStore(disk).log
    assert [call.name for call in await asked_doubts(log, stored.row)] == ["pay"]
    stored.row.format = FORMAT
    with pytest.raises(StoreError, match=rf"^The log of run {run} is damaged: a fact cannot be read\.$") as damage:
        await asked_doubts(log, stored.row)
    assert damage.value.code == "log_damaged"


async def doubts_listed(engine: EmbeddedEngine, space: int) -> dict[str, list[tuple[str, str]]]:
    """The calls in doubt that a list of runs shows."""
    rows = await engine.stored.logs.runs(RunFilter(workspace=space))
    views = [await run_summary(engine.stored, row) for row in rows]
    return {view.id: [(call.tool_use_id, call.name) for call in view.in_doubt] for view in views}


def test_a_run_sets_it_over_the_wire() -> None:
    assert plan_from_spec(b'{"prompt": "x", "budgets": {"inDoubt": "ask"}}').limits.in_doubt == "ask"
    assert plan_from_spec(b'{"prompt": "x"}').limits.in_doubt == "report"


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="in_doubt is 'report' or 'ask'"):

        @tool(in_doubt="guess")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        def pay() -> str:  # pyright: ignore[reportUnusedFunction]
            """Pays."""
            return ""


@pytest.mark.parametrize("effect", ["once", "reconcile", "idempotent", "read"])
@pytest.mark.parametrize("twice", [False, True], ids=["alone", "side by side"])
async def test_call_waiting_for_a_thread_is_not_in_doubt(
    effect: Effect, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made after the restart if its tool may be repeated; otherwise the model reads that nothing was done."""
    monkeypatch.setattr(shared_workers(), "max_per_workspace", 1)
    disk, paid, may_end = MemoryDisk(), list[int](), threading.Event()

    def happened(amount: int) -> Unknown:
        return Unknown()

    @tool(effect=effect, reconcile=happened if effect == "reconcile" else None, concurrent=True)
    def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return "paid"

    async def occupy(workspace: int) -> None:
        on_behalf_of.set(workspace)
        await shared_workers().run(may_end.wait)

    before, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": pay})
    await before.start()
    space = await before.workspace("acme")
    occupying = asyncio.create_task(occupy(space))
    await asyncio.sleep(0)
    run = await before.create(space, plan("pay twice" if twice else "pay", ServerRef("pay")))
    key = await before.locate(run, workspace=space)
    await until(lambda: [item.kind for item in disk.runs[key].items].count("call.started") == 1 + twice)
    await before.stop(drain_s=0)
    may_end.set()
    await occupying
    assert paid == []
    async with engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": pay})[0] as after:
        heads = await facts(after, run, space)
    closed = [head.how for head in heads if isinstance(head, CallClosed)]
    repeated = effect in ("idempotent", "read")
    assert closed == ["returned" if repeated else "not_run"] * (1 + twice)
    assert paid == ([5] * (1 + twice) if repeated else [])


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_call_whose_start_was_not_stored_is_not_in_doubt(effect: Effect) -> None:
    disk, paid = MemoryDisk(), list[int]()
    store = MoodyStore(disk)

    @tool(effect=effect)
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return "paid"

    before, _ = engine_on(store, SCRIPTS, tools={"pay": pay})
    await before.start()
    space = await before.workspace("acme")
    store.log.holds = KIND[CallStarted]
    store.log.gate.clear()
    run = await before.create(space, plan("pay", ServerRef("pay")))
    await until(lambda: store.log.waited)
    await before.drain(0)
    aborting = asyncio.create_task(before.abort())
    await asyncio.sleep(0)  # it cancels the call
    store.log.gate.set()
    assert await aborting
    await before.stop()
    assert paid == []
    async with engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": pay})[0] as after:
        (how,) = [head.how for head in await facts(after, run, space) if isinstance(head, CallClosed)]
    assert (how, paid) == (("not_run", []) if effect == "once" else ("returned", [5]))
