"""Runs are created once, durably, or not at all."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from msgspec import Raw
from msgspec.structs import replace

from weftline.errors import InvalidRequest, RateLimited
from weftline.kernel.bodies import Origin, decode_created
from weftline.kernel.entries import RunCreated
from weftline.messages import Blob
from weftline.plan import ServerRef
from weftline.runtime import ids
from weftline.store.rows import IdempotencyKey, Item, NewRun, RunFilter, Write
from weftline.testing.engine.bench import Bench, Check, Run, facts, plan_of, refusal, refused_with
from weftline.tools.base import ToolOutput


async def a_run_answers(bench: Bench) -> None:
    run = await bench.run("hello")
    assert await bench.answer_text(run) == "hello world"
    row = await bench.row(run)
    assert (row.status, row.ended_at is not None) == ("succeeded", True)
    assert len(facts(await bench.lines(run), RunCreated)) == 1


async def a_run_keeps_all_that_it_was_created_with(bench: Bench) -> None:
    workspace = await bench.workspace()
    blob, origin = Blob(sha256(b"content").hexdigest(), b"content"), Origin("run_1", 2)
    run_id = await bench.engine.create(
        workspace,
        plan_of("ask"),
        sent=b'{"sent":1}',
        metadata='{"team":"red"}',
        secrets=b"sealed",
        blobs=[blob],
        origin=origin,
    )
    run = Run(await bench.engine.locate(run_id, workspace=workspace), run_id, workspace)
    (call,) = await bench.offers(run)
    await bench.subject.restart()
    log = bench.subject.store.log
    first = await log.entry(run.key, 1)
    assert first is not None
    created = decode_created(first.body)
    assert (created.sent, created.origin) == (Raw(b'{"sent":1}'), origin)
    assert (await bench.row(run)).metadata == '{"team":"red"}'
    assert await log.blob(workspace, blob.id) == b"content"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.ended(run)
    assert {*bench.world.secrets} == {b"sealed"}


async def a_created_run_is_found_at_once_and_listed_newest_first(bench: Bench) -> None:
    first, second = await bench.run("ask"), await bench.run("hello")
    found = await bench.engine.stored.find(second.id, workspace=second.workspace)
    assert found.key == second.key
    listed = await bench.engine.stored.logs.runs(RunFilter(workspace=first.workspace))
    assert [row.key for row in listed] == [second.key, first.key]


async def a_run_is_not_found_under_another_workspace_or_id(bench: Bench) -> None:
    run = await bench.run("hello")
    other = await bench.workspace("others")
    for run_id, workspace in ((run.id, other), (run.id[:-1] + "!", run.workspace), ("run_", run.workspace)):
        for look in (bench.engine.stored.find, bench.engine.locate):
            assert await refusal(look(run_id, workspace=workspace)) == "not_found"


async def a_plan_with_an_unknown_model_is_refused(bench: Bench) -> None:
    workspace = await bench.workspace()
    assert await refusal(bench.engine.create(workspace, plan_of("nobody"))) == "invalid_model"
    assert await bench.engine.stored.logs.runs(RunFilter(workspace=workspace)) == []


async def a_create_with_a_key_makes_one_run(bench: Bench) -> None:
    workspace = await bench.workspace()

    async def create() -> str:
        return await bench.engine.create(
            workspace, plan_of("hello"), idempotency=IdempotencyKey("runs", "k", b"digest")
        )

    created = await asyncio.gather(create(), create(), create())
    assert len({*created, await create()}) == 1
    await bench.subject.restart()
    assert await create() == created[0]
    assert len(await bench.engine.stored.logs.runs(RunFilter(workspace=workspace))) == 1


async def a_key_that_was_used_for_another_request_is_refused(bench: Bench) -> None:
    workspace = await bench.workspace()
    await bench.engine.create(workspace, plan_of("hello"), idempotency=IdempotencyKey("runs", "k", b"one"))
    again = bench.engine.create(workspace, plan_of("hello"), idempotency=IdempotencyKey("runs", "k", b"another"))
    assert await refusal(again) == "idempotency_conflict"
    others = await bench.workspace("others")
    await bench.engine.create(others, plan_of("hello"), idempotency=IdempotencyKey("runs", "k", b"another"))


async def an_earlier_create_is_found_by_its_key(bench: Bench) -> None:
    workspace, others = await bench.workspace(), await bench.workspace("others")
    key = IdempotencyKey("runs", "k", b"digest")
    assert await bench.engine.created_before(workspace, key) is None
    created = await bench.engine.create(workspace, plan_of("hello"), idempotency=key)
    assert await bench.engine.created_before(workspace, key) == created
    assert await bench.engine.created_before(others, key) is None
    other = bench.engine.created_before(workspace, IdempotencyKey("runs", "k", b"another"))
    assert await refusal(other) == "idempotency_conflict"
    await bench.subject.restart()
    assert await bench.engine.created_before(workspace, key) == created


async def a_plan_can_be_checked_without_creating_a_run(bench: Bench) -> None:
    workspace = await bench.workspace()
    good = plan_of("hello")
    await bench.engine.check(good, workspace=workspace)
    assert await refusal(bench.engine.check(plan_of("nobody"), workspace=workspace)) == "invalid_model"
    unknown = replace(good, tools=(ServerRef("nothing"),))
    assert await refusal(bench.engine.check(unknown, workspace=workspace)) == "invalid_plugin"
    assert await bench.engine.stored.logs.runs(RunFilter(workspace=workspace)) == []


async def a_plan_without_a_model_can_be_stored_but_not_run_without_a_default(bench: Bench) -> None:
    workspace, plan = await bench.workspace(), replace(plan_of("hello"), model=None)
    try:
        await bench.engine.check(plan, workspace=workspace, runs_now=False)
    except InvalidRequest as error:
        raise AssertionError("a plan that does not run now needs no default model") from error
    assert await refusal(bench.engine.check(plan, workspace=workspace, runs_now=True)) == "invalid_model"
    assert await refusal(bench.engine.check(plan, workspace=workspace)) == "invalid_model"


async def entries_have_the_time_of_the_engines_clock(bench: Bench) -> None:
    before = bench.engine.clock.now_us()
    run = await bench.run("hello")
    await bench.ended(run)
    row = await bench.row(run)
    times = [before, row.created_at, row.started_at or 0, row.ended_at or 0, bench.engine.clock.now_us()]
    assert times == sorted(times)


async def a_run_that_ran_elsewhere_can_be_added(bench: Bench) -> None:
    run = await bench.run("hello")
    whole, row = await bench.lines(run), await bench.row(run)
    stored = await bench.subject.store.log.facts(run.key)
    added = Run(500, ids.run_id(500, "added0added0"), run.workspace)
    write = Write(
        added.key,
        epoch=0,
        base_seq=1,
        base_version=0,
        items=[Item(one.at, one.kind, one.head, one.body) for one in stored],
        version=row.version,
        status=row.status,
        due_at=None,
        format=row.format,
        ended_at=row.ended_at,
        new=NewRun("added0added0", run.workspace, "", "{}", row.created_at, row.rules),
        imported=True,
    )
    assert (await bench.engine.add_ended(write, last_key=700)).outcome == "ok"
    assert (await bench.row(added)).status == "succeeded"
    assert [line.fact for line in await bench.lines(added)] == [line.fact for line in whole if line.fact]
    assert (await bench.run("hello")).key > 700


async def a_workspace_has_so_many_runs_queued_and_no_more(bench: Bench) -> None:
    thread, many = await bench.thread(), bench.world.limits.max_queued_runs_per_workspace
    await bench.offers(await bench.run("ask", thread=thread))
    workspace = await bench.workspace()
    key = IdempotencyKey("runs", "k", b"digest")
    first = await bench.engine.create(workspace, plan_of("ask"), thread=thread, idempotency=key)
    queued = [await bench.run("ask", thread=thread) for _ in range(many - 1)]

    async def create() -> str:
        return await bench.engine.create(workspace, plan_of("ask"), thread=thread)

    error = await refused_with(create())
    assert isinstance(error, RateLimited) and error.code == "too_many_runs"
    again = bench.engine.create(workspace, plan_of("ask"), thread=thread, idempotency=key)
    assert await again == first, "a run that was created before is not created now"
    others = await bench.workspace("others")
    assert await bench.engine.create(others, plan_of("hello"))
    assert len(await bench.engine.stored.logs.runs(RunFilter(workspace=workspace))) == many + 1
    await bench.engine.cancel(queued[-1].key)
    assert await create()


async def a_create_whose_caller_disconnects_is_all_or_nothing(bench: Bench) -> None:
    workspace = await bench.workspace()

    async def create() -> str:
        return await bench.engine.create(
            workspace, plan_of("hello"), idempotency=IdempotencyKey("runs", "k", b"digest")
        )

    for turns in range(4):
        impatient = asyncio.create_task(create())
        for _ in range(turns):
            await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
    await create()
    assert len(await bench.engine.stored.logs.runs(RunFilter(workspace=workspace))) == 1


CHECKS: tuple[Check, ...] = (
    a_run_answers,
    a_run_keeps_all_that_it_was_created_with,
    a_created_run_is_found_at_once_and_listed_newest_first,
    a_run_is_not_found_under_another_workspace_or_id,
    a_plan_with_an_unknown_model_is_refused,
    a_create_with_a_key_makes_one_run,
    a_key_that_was_used_for_another_request_is_refused,
    an_earlier_create_is_found_by_its_key,
    a_plan_can_be_checked_without_creating_a_run,
    a_plan_without_a_model_can_be_stored_but_not_run_without_a_default,
    entries_have_the_time_of_the_engines_clock,
    a_run_that_ran_elsewhere_can_be_added,
    a_workspace_has_so_many_runs_queued_and_no_more,
    a_create_whose_caller_disconnects_is_all_or_nothing,
)
