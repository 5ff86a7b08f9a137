"""The budget tree: limits of workspaces, agents, threads and runs hold for every call, wherever it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, facts, new_thread, plan, until
from weftline.agent.engine.replaying import NoAgents
from weftline.errors import InvalidRequest
from weftline.kernel.bodies import decode_await
from weftline.kernel.context import CompactionRule, CompactionStarted
from weftline.kernel.control import OF_RUN
from weftline.kernel.entries import (
    KIND,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallOpened,
    FinalForced,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import BudgetRefused, BudgetRule
from weftline.kernel.state import Decision, New, State
from weftline.messages import Sampling
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.prompts.compaction import SUMMARIZE
from weftline.providers.catalog import Catalog
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.replay.recorded import StoredRun
from weftline.replay.replaying import replay_run
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.budgets.reserving import settled_if_raised
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import fleet
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.budgets import (
    Limit,
    SetLimit,
    agent_account,
    day_of,
    run_account,
    thread_account,
    workspace_account,
)
from weftline.store.memory import MemoryDisk
from weftline.store.records import budgets
from weftline.store.rows import AwaitFilter, OpenAwait
from weftline.testing.budgets import unlike
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

NUSD = 1_000_000_000
PRICE = Price(input_per_1m_usd=1_000.0, output_per_1m_usd=1_000.0)
"""A tenth of a cent for each token."""
USED = {"usage": {"input": 100, "output": 100}}
DAY_US = 86_400_000_000


def _work(turns: int) -> dict[str, Any]:
    asked = [{"tool_calls": [{"name": "work", "args": {"n": n}}], **USED} for n in range(turns)]
    return {"turns": [*asked, {"text": "done", **USED}], "finalize": {"text": "as far as I came", **USED}}


SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hello", **USED}], "finalize": {"text": "bye", **USED}},
    "work": _work(8),
    "two": {"turns": [{"tool_calls": [{"name": "work", "args": {"n": n}} for n in (1, 2)], **USED}, {"text": "done"}]},
    "fails": {"turns": [{"error": {"class": "invalid_request", "message": "no"}}]},
    "slow": {"turns": [{"deltas": ["a"] * 100, "delay_ms": 1_000}], "finalize": {"text": "as far as I came"}},
    "waits": {"turns": [{"tool_calls": [{"name": "wait", "args": {}}]}] * 9, "finalize": {"text": "as far as I came"}},
    "unpriced": {"turns": [{"text": "free", **USED}]},
}


class Clock:
    def __init__(self) -> None:
        self.us = 100 * DAY_US

    def now_us(self) -> int:
        return self.us


@tool(effect="idempotent", concurrent=True)
async def work(n: int) -> str:
    """Works."""
    return f"worked {n}"


@tool(effect="read")
async def wait() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return ""


def _engine(store: MoodyStore, clock: Clock | None = None) -> tuple[EmbeddedEngine, ScriptedProvider]:
    provider = ScriptedProvider(parse_scripts(encode(SCRIPTS)), record=True)
    priced = [PriceOverride("scripted", model, PRICE) for model in SCRIPTS if model != "unpriced"]
    models = Catalog(prices=Prices(priced))
    models.add(provider)
    return EmbeddedEngine(store, models=models, tools={"work": work, "wait": wait}, clock=clock), provider


def _plan(model: str, budget: BudgetRule | None = None, **changes: Any) -> RunPlan:
    made = plan(model, ServerRef("work"))
    made = replace(made, sampling=replace(made.sampling, max_output_tokens=1_000), **changes)
    return replace(made, limits=replace(made.limits, budget=budget, loop_soft=0))


async def _limit(engine: EmbeddedEngine, store: MoodyStore, account: str, *limits: Limit, workspace: int) -> None:
    await store.records.write(budgets.set_limits(account, limits, workspace=workspace, by="ann", now=1))
    await engine.budgets_changed(workspace, by="ann")


def _refusals(found: Sequence[Any]) -> list[BudgetRefused]:
    return [head for head in found if isinstance(head, BudgetRefused)]


@pytest.mark.requirement("run.tree.stop", "run.tree.reserve")
async def test_call_that_does_not_fit_ends_run_with_numbers() -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        rule = BudgetRule(nusd=3 * NUSD, on_exceeded="stop")
        run = await engine.create(space, _plan("work", rule))
        found = await facts(engine, run, space)
        last = found[-1]
        assert isinstance(last, RunEnded)
        assert (last.status, last.code, last.reason) == ("failed", "budget_exceeded", "budget")
        [refused] = _refusals(found)
        assert (refused.level, refused.unit, refused.limit) == ("run", "usd", 3 * NUSD)
        turns = [head for head in found if isinstance(head, TurnCompleted)]
        assert refused.spent == sum([head.cost_nusd or 0 for head in turns]) == len(turns) * NUSD // 5
        assert refused.spent + refused.asked > refused.limit and not refused.reserved
        opened = {head.id for head in found if isinstance(head, CallOpened)}
        assert {head.id for head in found if isinstance(head, CallClosed)} == opened
        assert len(provider.requests) == len(turns)
        entry = await engine.stored.logs.entry(1, 1_000) or await engine.stored.logs.entry(1, len(found))
        for begun in [head for head in found if isinstance(head, AttemptStarted)]:
            assert begun.held is not None and begun.held.nusd >= 2 * NUSD // 1_000 and begun.held.output == 1_000
        assert entry is None or b"3 USD" in entry.body
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.final_turn")
async def test_the_final_turn_is_held_back_from_the_start() -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        run = await engine.create(space, _plan("work", BudgetRule(nusd=5 * NUSD)))
        found = await facts(engine, run, space)
        last = found[-1]
        assert isinstance(last, RunEnded) and (last.status, last.reason) == ("succeeded", "budget")
        [forced] = [head for head in found if isinstance(head, FinalForced)]
        assert (forced.reason, forced.level, forced.unit) == ("budget", "run", "usd")
        assert provider.requests[-1].tools_disabled and 2 < len(provider.requests) < 9
        held = [head.held.nusd for head in found if isinstance(head, AttemptStarted) and head.held is not None]
        assert last.cost_nusd is not None and last.cost_nusd + max(held) <= 5 * NUSD + held[0]
        assert last.cost_nusd <= 5 * NUSD
        tight = await engine.create(space, _plan("work", BudgetRule(nusd=NUSD)))
        none = await facts(engine, tight, space)
        assert isinstance(none[-1], RunEnded) and none[-1].code == "budget_exceeded"
        assert [refused.final for refused in _refusals(none)] == [False, True]
        assert not any(isinstance(head, AttemptStarted) for head in none)
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.levels")
@pytest.mark.parametrize("level", ["workspace", "agent", "thread", "run"])
@pytest.mark.parametrize(
    ("unit", "most"),
    [
        ("usd", 3 * NUSD),
        ("tokens", 3_000),
        ("calls", 2),
        ("seconds", 1),
        ("usd", 0),
        ("seconds", 0),
        ("tokens", 0),
        ("calls", 0),
    ],
)
async def test_every_level_has_limits_in_every_unit(level: str, unit: Any, most: int) -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space, thread = await new_thread(store)
        account = {
            "workspace": workspace_account(space),
            "agent": agent_account(space, "agt_1"),
            "thread": thread_account(thread),
        }
        rule = None
        if level == "run":
            names = {"usd": "nusd", "seconds": "active_us"}
            given: dict[str, Any] = {names.get(str(unit), str(unit)): most}
            rule = BudgetRule(**given, on_exceeded="stop")
        else:
            await _limit(engine, store, account[level], Limit(unit, most, "total", "stop"), workspace=space)
        run = await engine.create(space, _plan("work", rule, agent_id="agt_1"), thread=thread)
        found = await facts(engine, run, space)
        assert isinstance(found[-1], RunEnded) and found[-1].code == "budget_exceeded"
        [refused] = _refusals(found)
        assert (refused.level, refused.unit, refused.limit) == (level, unit, most)
        assert refused.spent + refused.reserved <= most or unit == "seconds"
        assert bool(refused.spent) == bool(most)
        if level != "run":  # whatever is not below it is not counted
            other = await engine.create(await engine.workspace("other"), _plan("hello", agent_id="agt_1"))
            assert (await ended(engine, other, await engine.workspace("other"))).status == "succeeded"
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.levels")
@pytest.mark.parametrize("period", ["day", "month"])
async def test_a_limit_per_day_or_month_begins_anew(period: Any) -> None:
    store, clock = MoodyStore(MemoryDisk()), Clock()
    engine, _ = _engine(store, clock)
    async with engine:
        space = await engine.workspace("acme")
        limit = Limit("tokens", 1_400, period, "stop")
        await _limit(engine, store, workspace_account(space), limit, workspace=space)

        async def status() -> str:
            return (await ended(engine, await engine.create(space, _plan("hello")), space)).status

        assert [await status() for _ in range(3)] == ["succeeded", "succeeded", "failed"]
        clock.us += 5 * DAY_US
        assert await status() == ("succeeded" if period == "day" else "failed")
        clock.us += 31 * DAY_US
        assert await status() == "succeeded"
        assert await unlike(store.log, store.records) == []


async def test_concurrent_runs_never_exceed_their_limit() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        most = 30_000
        await _limit(engine, store, workspace_account(space), Limit("tokens", most, "total", "stop"), workspace=space)
        highest = 0
        ledger = engine._ledger  # pyright: ignore[reportPrivateUsage]
        add = ledger.add

        def watched(bookings: Any) -> None:
            nonlocal highest
            add(bookings)
            sums = ledger._of(workspace_account(space)).total  # pyright: ignore[reportPrivateUsage]
            highest = max(highest, sums.tokens + sums.held_tokens)
            assert sums.tokens + sums.held_tokens <= most

        ledger.add = watched  # pyright: ignore[reportAttributeAccessIssue]
        places = [(await new_thread(store))[1] for _ in range(8)]
        # Many on their own and, in each thread, several one after the other.
        runs = [await engine.create(space, _plan("work"), thread=place) for place in [None, *places] * 4]
        ends = [await ended(engine, run, space) for run in runs]
        assert highest > most - 2_000
        assert {end.code for end in ends if end.status == "failed"} == {"budget_exceeded"}
        [use] = await store.records.read(budgets.use(workspace_account(space)))
        assert (use.held_tokens, use.held_nusd, use.held_calls) == (0, 0, 0)
        small = replace(_plan("hello"), sampling=Sampling(max_output_tokens=1))
        assert (await ended(engine, await engine.create(space, small), space)).status == "succeeded"
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.reserve")
async def test_failed_and_cancelled_runs_are_settled_too() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        await _limit(engine, store, workspace_account(space), Limit("calls", 10), workspace=space)
        failed = await engine.create(space, _plan("fails"))
        assert (await ended(engine, failed, space)).status == "failed"
        waits = replace(_plan("two"), tools=(LocalRef("work"),))
        run = await engine.create(space, waits)
        key = await engine.locate(run, workspace=space)
        await _until_opened(store, 2)
        [use] = await store.records.read(budgets.use(workspace_account(space)))
        assert (use.calls, use.held_calls) == (0, 2)
        first, _ = await _opened(store, key)
        await engine.answer(key, first, ToolOutput.of("done"))
        await engine.cancel(key)
        [use] = await store.records.read(budgets.use(workspace_account(space)))
        assert (use.calls, use.held_calls) == (2, 0)
        assert await unlike(store.log, store.records) == []


async def _until_opened(store: MoodyStore, calls: int) -> None:
    """Returns when the calls of the newest run are offered."""
    run = list(store.disk.runs.values())[-1]
    await until(lambda: sum(item.kind == "call.opened" for item in run.items) == calls)


async def _opened(store: MoodyStore, key: int) -> list[str]:
    heads = [decode_fact.decode(fact.head) for fact in await store.log.facts(key, kinds=["call.opened"])]
    return [head.id for head in heads if isinstance(head, CallOpened)]


@pytest.mark.requirement("run.tree.unpriced")
async def test_model_without_price_is_refused_under_limit_in_money() -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        rule = BudgetRule(nusd=NUSD * 100)
        with pytest.raises(InvalidRequest, match="scripted:unpriced") as caught:
            await engine.create(space, _plan("unpriced", rule))
        assert (caught.value.code, caught.value.details["model"]) == ("unpriced_model", "scripted:unpriced")
        fallback = _plan("fails", rule, fallbacks=("scripted:unpriced",))
        fallback = replace(fallback, limits=replace(fallback.limits, fallbacks=1))
        found = await facts(engine, await engine.create(space, fallback), space)
        assert isinstance(found[-1], RunEnded) and found[-1].code == "unpriced_model"
        assert len(provider.requests) == 1
        fallback = _plan("fails", rule, fallbacks=("scripted:unpriced", "scripted:hello"))
        fallback = replace(fallback, limits=replace(fallback.limits, fallbacks=2))
        run = await engine.create(space, fallback)
        found = await facts(engine, run, space)
        assert isinstance(found[-1], RunEnded) and found[-1].status == "succeeded"
        begun = [(head.choice, head.model.id) for head in found if isinstance(head, AttemptStarted)]
        assert begun == [(0, "scripted:fails"), (2, "scripted:hello")]
        row = await engine.stored.row(ids.key_of(run))
        assert row is not None
        assert (await replay_run(StoredRun(store.log, row), NoAgents({"work": work}))).divergence is None
        tokens = await engine.create(space, _plan("unpriced", BudgetRule(tokens=100_000)))
        assert (await ended(engine, tokens, space)).status == "succeeded"
        await _limit(engine, store, workspace_account(space), Limit("usd", NUSD), workspace=space)
        with pytest.raises(InvalidRequest):
            await engine.create(space, _plan("unpriced"))


@pytest.mark.requirement("run.tree.report")
async def test_changed_limit_holds_for_next_call_of_live_run() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        run = await engine.create(space, replace(_plan("two"), tools=(LocalRef("work"),)))
        key = await engine.locate(run, workspace=space)
        await _until_opened(store, 2)
        await _limit(engine, store, workspace_account(space), Limit("tokens", 5, "total", "stop"), workspace=space)
        for call in await _opened(store, key):
            await engine.answer(key, call, ToolOutput.of("done"))
        end = await ended(engine, run, space)
        assert (end.status, end.code) == ("failed", "budget_exceeded")


async def test_sums_are_those_of_logs_after_process_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    dead, _ = _engine(store)
    await dead.start()
    space = await dead.workspace("acme")
    await _limit(dead, store, workspace_account(space), Limit("tokens", 10**6), workspace=space)
    store.log.holds = "call.closed"
    store.log.gate.clear()
    run = await dead.create(space, _plan("work", BudgetRule(nusd=100 * NUSD)))
    await until(lambda: store.log.waited)
    [use] = await store.records.read(budgets.use(workspace_account(space)))
    assert (use.held_calls, use.held_tokens, use.calls) == (1, 0, 0)
    again = MoodyStore(disk)  # the process before is dead, and what it held was never written
    engine, _ = _engine(again)
    async with engine:
        end = await ended(engine, run, space)
        assert end.status == "succeeded"
        assert await unlike(again.log, again.records) == []
        [use] = await again.records.read(budgets.use(workspace_account(space)))
        assert use.held_tokens == use.held_calls == 0 and use.tokens == end.usage.input + end.usage.output
        assert use.calls == 8
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    store.log.gate.set()
    await dead.stop(drain_s=0)


async def _asking(engine: EmbeddedEngine, space: int, count: int) -> list[OpenAwait]:
    """What runs ask about budgets, once so many do."""
    found: list[OpenAwait] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found = await engine.stored.awaits(AwaitFilter(workspace=space, kinds=("budget",)))
            await asyncio.sleep(0.001)
    return found


@pytest.mark.requirement("run.tree.ask")
async def test_run_asks_before_exceeding_and_a_raise_wakes_all() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        limit = Limit("calls", 2, "total", "ask")
        await _limit(engine, store, workspace_account(space), limit, workspace=space)
        runs = [await engine.create(space, _plan("work")) for _ in range(3)]
        waiting = await _asking(engine, space, 3)
        shown = decode(decode_await(waiting[0].body).args)
        assert (shown["level"], shown["unit"], shown["limit"], shown["asked"]) == ("workspace", "calls", 2, 1)
        assert shown["spent"] + shown["reserved"] == 2
        rows = [await engine.stored.row(one.run) for one in waiting]
        assert {row.status for row in rows if row is not None} == {"paused"}
        await _limit(engine, store, workspace_account(space), replace(limit, amount=1), workspace=space)
        assert len(await _asking(engine, space, 3)) == 3  # a limit that was lowered wakes nobody
    again = MoodyStore(disk)
    await again.records.write(
        budgets.set_limits(workspace_account(space), (replace(limit, amount=10),), workspace=space, by="ann", now=2)
    )
    engine, provider = _engine(again)  # raised by a process that told nobody
    async with engine:
        asked = await _asking(engine, space, 3)
        first = asked[0]
        key, turns = first.run, len(provider.requests)
        await engine.answer_await(key, first.id, AwaitAnswer(outcome="denied"), by="bob", person_of=as_named)
        end = await ended(engine, next(run for run in runs if ids.key_of(run) == key), space)
        assert (end.status, end.reason) == ("succeeded", "budget")
        assert provider.requests[turns].tools_disabled
        closed = [decode_fact.decode(one.head) for one in await again.log.facts(key, kinds=["await.closed"])]
        assert [(one.outcome, one.by) for one in closed if isinstance(one, AwaitClosed)] == [
            ("approved", "ann"),
            ("denied", "bob"),
        ]
        await _limit(engine, again, workspace_account(space), replace(limit, amount=100), workspace=space)
        for run in runs:
            assert (await ended(engine, run, space)).status == "succeeded"
        assert await unlike(again.log, again.records) == []


@pytest.mark.requirement("run.tree.ask")
async def test_run_ends_where_nobody_can_be_asked() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        made = _plan("work", BudgetRule(calls=1, on_exceeded="ask"))
        for change in ({"nobody_to_ask": True}, {"interrupts_allowed": False}):
            run = await engine.create(space, replace(made, limits=replace(made.limits, **change)))
            assert (await ended(engine, run, space)).reason == "budget"


@pytest.mark.requirement("run.tree.reserve")
async def test_seconds_bound_the_call() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        run = await engine.create(space, replace(_plan("slow", BudgetRule(active_us=50_000, on_exceeded="stop"))))
        end = await ended(engine, run, space)
        assert (end.status, end.code) == ("failed", "budget_exceeded")
        [use] = await store.records.read(budgets.use(run_account(ids.key_of(run))))
        assert 0 < use.active_us < 10_000_000
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.final_turn")
async def test_a_final_turn_is_made_of_whatever_fits_it_alone() -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        for tokens, answer in ((20_000, 16_384), (9_000, 8_192), (3_000, 2_048), (1_000, 0)):
            made = replace(_plan("hello", BudgetRule(tokens=tokens)), sampling=Sampling())
            before = len(provider.requests)
            end = await ended(engine, await engine.create(space, made), space)
            asked = [(one.max_output_tokens, one.tools_disabled) for one in provider.requests[before:]]
            assert asked == ([(answer, True)] if answer else [])
            assert (end.status, end.reason) == ("succeeded" if answer else "failed", "budget")
        assert await unlike(store.log, store.records) == []


@pytest.mark.requirement("run.tree.final_turn")
@pytest.mark.parametrize("model", ["slow", "waits"])
async def test_time_is_kept_for_the_final_turn(model: str) -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        made = replace(_plan(model, BudgetRule(active_us=800_000)), tools=(ServerRef("wait"),))
        end = await ended(engine, await engine.create(space, made), space)
        assert (end.status, end.reason) == ("succeeded", "budget")
        assert [one.tools_disabled for one in provider.requests] == [False, True]
        assert await unlike(store.log, store.records) == []


async def test_a_run_under_no_limit_books_nothing() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        await ended(engine, await engine.create(space, _plan("work")), space)
        assert await store.records.read(budgets.open_use()) == []


def test_days_are_those_of_utc() -> None:
    assert day_of(0) == 0 and day_of(DAY_US - 1) == 0 and day_of(DAY_US) == 1


@pytest.mark.requirement("run.tree.reserve")
async def test_summary_is_requested_once_its_cost_is_reserved() -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        made = _plan("work", BudgetRule(nusd=900 * NUSD, active_us=50_000_000))
        made = replace(made, limits=replace(made.limits, compaction=CompactionRule(at_turns=2, keep_turns=1)))
        store.log.holds = KIND[CompactionStarted]
        store.log.gate.clear()
        run = await engine.create(space, made)
        await until(lambda: store.log.waited)
        for _ in range(20):
            await asyncio.sleep(0)  # whoever does not wait would have asked by now
        before = len(provider.requests)
        assert not [one for one in provider.requests if one.system == SUMMARIZE]
        store.log.gate.set()
        found = await facts(engine, run, space)
    asked = provider.requests[before]
    [first, *_] = [head for head in found if isinstance(head, CompactionStarted)]
    assert asked.system == SUMMARIZE and first.held is not None
    assert asked.max_output_tokens == first.held.output == 16_384
    assert asked.timeout_s is not None and asked.timeout_s < 60


@pytest.mark.requirement("run.tree.ask")
async def test_limit_raised_before_its_run_waits_wakes_it() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        limit = Limit("calls", 1, "total", "ask")
        await _limit(engine, store, workspace_account(space), limit, workspace=space)
        store.log.holds = "await.opened"
        store.log.gate.clear()
        run = await engine.create(space, _plan("work"))
        await until(lambda: store.log.waited)
        assert await engine.stored.awaits(AwaitFilter(workspace=space)) == []
        raised = asyncio.create_task(
            _limit(engine, store, workspace_account(space), replace(limit, amount=9), workspace=space)
        )
        live = engine._fleet.loader.resident(await engine.locate(run, workspace=space))  # pyright: ignore[reportPrivateUsage]
        assert live is not None
        await until(lambda: raised.done() or live.state.budget.refused is None)
        store.log.gate.set()
        await raised
        assert (await ended(engine, run, space)).status == "succeeded"
        closed = [head for head in await facts(engine, run, space) if isinstance(head, AwaitClosed)]
        assert [(one.outcome, one.by) for one in closed] == [("approved", "ann")]
        assert await unlike(store.log, store.records) == []


@pytest.mark.parametrize(("amount", "by"), [(1, None), (2, "ann"), (0, "runtime")], ids=["same", "raised", "removed"])
def test_run_asking_about_a_raised_limit_has_its_answer(amount: int, by: str | None) -> None:
    """It asks once nothing is under way any more, which may be long after its call did not fit."""
    ledger, on = Ledger(), workspace_account(1)
    if amount:
        ledger.limits_set = {on: (SetLimit("calls", amount, account=on, workspace=1, set_by="ann"),)}
    account = Account(ledger, key=1, workspace=1, thread=None, plan=_plan("work"), parent=None)
    refused = BudgetRefused("workspace", "calls", 1, 1, 0, 1, on, outcome="ask")
    state = State(budget=replace(State().budget, refused=refused))
    asks = Decision((New(AwaitOpened(0, OF_RUN, "budget_1", "budget", "")),))
    answers = [new.head for new in settled_if_raised(asks, state, account).append[1:]]
    assert answers == ([] if by is None else [AwaitClosed(0, OF_RUN, "budget_1", "approved", by)])


@pytest.mark.requirement("run.tree.ask")
async def test_limit_removed_between_processes_lets_a_run_continue() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    engine, _ = _engine(store)
    async with engine:
        space = await engine.workspace("acme")
        limit = Limit("calls", 1, "total", "ask")
        await _limit(engine, store, workspace_account(space), limit, workspace=space)
        run = await engine.create(space, _plan("work"))
        await _asking(engine, space, 1)
    again = MoodyStore(disk)
    await again.records.write(budgets.set_limits(workspace_account(space), (), workspace=space, by="ann", now=2))
    engine, _ = _engine(again)
    async with engine:
        assert (await ended(engine, run, space)).status == "succeeded"
