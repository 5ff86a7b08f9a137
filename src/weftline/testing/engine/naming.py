"""Runs whose ids clients choose: the ids are used unchanged, and are unique in a workspace, even if several start at
once.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from weftline.errors import WeftlineError
from weftline.kernel.entries import CallOpened, RunCreated
from weftline.store.rows import IdempotencyKey, RunFilter
from weftline.testing.engine.bench import Bench, Check, Run, facts, plan_of, refusal
from weftline.tools.base import ToolOutput

_IMPOSSIBLE = ("", " ", "a b", "a.b", "a/b", "a:b", "é", "a\n", "=a", "x" * 129)


async def a_given_id_is_used_as_it_is(bench: Bench) -> None:
    workspace = await bench.workspace()
    names = ("nightly-2026_11", "0", "-", "run_", "RUN_1", "x" * 128, "run_1" + 12 * "0")
    for name in names:
        assert await bench.engine.create(workspace, plan_of("hello"), run_id=name) == name
    others = [await bench.engine.create(workspace, plan_of("hello")) for _ in range(3)]
    assert len({*names, *others}) == len(names) + 3
    for name in (*names, *others):
        key = await bench.engine.locate(name, workspace=workspace)
        assert (await bench.engine.stored.find(name, workspace=workspace)).key == key
        assert await bench.answer_text(Run(key, name, workspace)) == "hello world"


async def an_id_that_no_run_can_have_is_refused(bench: Bench) -> None:
    workspace = await bench.workspace()
    for name in _IMPOSSIBLE:
        assert await refusal(bench.engine.create(workspace, plan_of("hello"), run_id=name)) == "invalid_request"
        for look in (bench.engine.stored.find, bench.engine.locate):
            assert await refusal(look(name, workspace=workspace)) == "not_found"
    assert await bench.engine.stored.logs.runs(RunFilter(workspace=workspace)) == []


async def an_id_that_exists_is_refused_and_its_run_is_unchanged(bench: Bench) -> None:
    run = await _named(bench, "ask", "mine")
    (call,) = await bench.offers(run)
    ours = await bench.run("hello")
    await bench.ended(ours)
    before = await bench.row(run)
    for taken in (run.id, ours.id):
        assert await refusal(bench.engine.create(run.workspace, plan_of("hello"), run_id=taken)) == "run_exists"
    assert await bench.row(run) == before
    await bench.subject.restart()
    assert await refusal(bench.engine.create(run.workspace, plan_of("hello"), run_id=run.id)) == "run_exists"
    assert await bench.engine.answer(run.key, call, ToolOutput.of("yes"))
    await bench.ended(run)
    assert await refusal(bench.engine.create(run.workspace, plan_of("hello"), run_id=run.id)) == "run_exists"
    lines = await bench.lines(run)
    assert (len(facts(lines, RunCreated)), len(facts(lines, CallOpened))) == (1, 1)
    assert len(await bench.engine.stored.logs.runs(RunFilter(workspace=run.workspace))) == 2


async def of_starts_that_race_for_an_id_one_wins(bench: Bench) -> None:
    workspace = await bench.workspace()

    for round in range(3):
        names = [f"r{round}"] * 5 + [None] * 3
        outcomes = await asyncio.gather(*[_outcome(bench, workspace, name) for name in names])
        assert Counter(outcomes[:5]) == {"started": 1, "run_exists": 4}
        assert outcomes[5:] == ["started"] * 3
    rows = await bench.engine.stored.logs.runs(RunFilter(workspace=workspace))
    assert len(rows) == 3 * (1 + 3)
    for row in rows:
        assert await bench.engine.stored.logs.entry(row.key, 1) is not None


async def a_start_that_is_refused_leaves_its_id_to_others(bench: Bench) -> None:
    workspace = await bench.workspace()
    assert await refusal(bench.engine.create(workspace, plan_of("nobody"), run_id="n")) == "invalid_model"
    for turns in range(4):
        impatient = asyncio.create_task(bench.engine.create(workspace, plan_of("hello"), run_id=f"i{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        last = await _outcome(bench, workspace, f"i{turns}")
        assert last in ("started", "run_exists")
        assert (await bench.engine.stored.find(f"i{turns}", workspace=workspace)).workspace == workspace
    assert await _outcome(bench, workspace, "n") == "started"


async def workspaces_do_not_share_ids(bench: Bench) -> None:
    acme, others = await bench.workspace(), await bench.workspace("others")
    await bench.engine.create(acme, plan_of("hello"), run_id="mine")
    assert await refusal(bench.engine.stored.find("mine", workspace=others)) == "not_found"
    assert await refusal(bench.engine.locate("mine", workspace=others)) == "not_found"
    assert await bench.engine.create(others, plan_of("hello"), run_id="mine") == "mine"
    keys = [await bench.engine.locate("mine", workspace=workspace) for workspace in (acme, others)]
    assert keys[0] != keys[1]


async def the_same_calls_of_runs_with_the_same_id_are_different_effects(bench: Bench) -> None:
    keys: list[str] = []
    for slug in ("acme", "others"):
        workspace = await bench.workspace(slug)
        await bench.engine.create(workspace, plan_of("ask"), run_id="mine")
        run = Run(await bench.engine.locate("mine", workspace=workspace), "mine", workspace)
        await bench.offers(run)
        keys += [call.key for call in await bench.engine.stored.calls(await bench.row(run))]
    assert len(keys) == len(set(keys)) == 2


async def a_repeated_create_with_its_key_returns_the_run_of_that_id(bench: Bench) -> None:
    workspace = await bench.workspace()

    async def create(key: str = "k", digest: bytes = b"d") -> str:
        once = IdempotencyKey("runs", key, digest)
        return await bench.engine.create(workspace, plan_of("hello"), idempotency=once, run_id="mine")

    assert set(await asyncio.gather(create(), create(), create())) == {"mine"}
    await bench.subject.restart()
    assert await create() == "mine"
    assert await refusal(create(key="another")) == "run_exists"
    assert await refusal(create(digest=b"another")) == "idempotency_conflict"
    assert len(await bench.engine.stored.logs.runs(RunFilter(workspace=workspace))) == 1


async def _named(bench: Bench, model: str, run_id: str) -> Run:
    workspace = await bench.workspace()
    await bench.engine.create(workspace, plan_of(model), run_id=run_id)
    return Run(await bench.engine.locate(run_id, workspace=workspace), run_id, workspace)


async def _outcome(bench: Bench, workspace: int, run_id: str | None) -> str:
    try:
        await bench.engine.create(workspace, plan_of("hello"), run_id=run_id)
        return "started"
    except WeftlineError as error:
        return error.code


CHECKS: tuple[Check, ...] = (
    a_given_id_is_used_as_it_is,
    an_id_that_no_run_can_have_is_refused,
    an_id_that_exists_is_refused_and_its_run_is_unchanged,
    of_starts_that_race_for_an_id_one_wins,
    a_start_that_is_refused_leaves_its_id_to_others,
    workspaces_do_not_share_ids,
    the_same_calls_of_runs_with_the_same_id_are_different_effects,
    a_repeated_create_with_its_key_returns_the_run_of_that_id,
)
