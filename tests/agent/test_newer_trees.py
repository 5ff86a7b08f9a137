# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Trees of runs that newer code has written in part: the runs below those are left alone too, and the runs above them
refuse what they would have to pass on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import apsw
import pytest

from weftline import Agent, Engine, Run, ask_user, tool
from weftline.errors import Conflict
from weftline.kernel.entries import FORMAT
from weftline.runtime import ids
from weftline.runtime.deploys import left_alone
from weftline.store.sqlite import store
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60
NEWER = {"format": (FORMAT, FORMAT + 1, f"log format {FORMAT + 1}"), "rules": (1, 99, "rules 99")}
TOP, MID, LEAF = 1, 2, 3


@tool(effect="read")
async def look() -> str:
    """Looks."""
    await asyncio.sleep(0.5)
    return "seen"


OTHER = Agent(ScriptedModel([calls("look"), "{{tool_results.0}}"] * 4), name="other", tools=[look])


def team(*, leaves: int = 1) -> Agent:
    """Three levels; the lowest asks a person, so that all of them wait."""
    leaf = Agent(
        ScriptedModel([calls("ask_user", question="Which colour?"), "{{tool_results.0}}"] * leaves),
        name="leaf",
        tools=[ask_user],
    )
    below = calls(*[("leaf", {"task": f"Ask {number}."}) for number in range(leaves)])
    mid = Agent(ScriptedModel([below, "{{all_tool_results}}"]), name="mid", tools=[leaf.as_tool("Asks.")])
    top = ScriptedModel([calls("mid", task="Ask."), "{{tool_results.0}}"])
    return Agent(top, name="top", tools=[mid.as_tool("Knows.")])


def change(folder: Path, statement: str, *values: object) -> None:
    db = apsw.Connection(str(folder / "weftline.db"))
    db.execute(statement, values)  # pyright: ignore[reportArgumentType]
    db.close()


async def waiting(folder: Path, *, leaves: int = 1) -> list[str]:
    """The runs of an engine that has stopped: the topmost, the one below it, and the lowest, which ask a person."""
    agent = team(leaves=leaves)
    async with Engine(folder, agents=[agent]) as engine:
        await engine.start(agent, "Go.")
        await until_asked(engine, leaves)
        found = [await (await engine.runtime()).stored.row(key) for key in range(1, 3 + leaves)]
    return [ids.run_id(row.key, row.salt) for row in found if row is not None]


async def until_asked(engine: Engine, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await engine.awaits()) < count:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def left(engine: Engine) -> dict[int, str]:
    """Why runs are left alone, by key, for those that are."""
    logs = (await engine.runtime()).stored.logs
    rows = [row for key in range(1, await logs.last_key() + 1) if (row := await logs.run(key)) is not None]
    return {row.key: why for row in rows if row.ended_at is None and (why := await left_alone(logs, row))}


async def lengths(engine: Engine) -> list[int]:
    """How long the logs of all runs are."""
    logs = (await engine.runtime()).stored.logs
    return [row.next_seq for key in range(1, await logs.last_key() + 1) if (row := await logs.run(key)) is not None]


async def refusal(asked: Awaitable[object]) -> str:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Conflict) as refused:
            await asked
    assert refused.value.code == "unsupported_run"
    return refused.value.message


async def other_runs_go_on(engine: Engine) -> None:
    """Returns after more than the time that it took to give a run up."""
    for _ in range(2):
        run = await engine.start(OTHER, "Go on.")
        assert (await run.result()).text == "seen"


@pytest.mark.requirement("run.log.newer_entry")
@pytest.mark.parametrize("column", NEWER)
async def test_runs_below_newer_code_are_left_alone(tmp_path: Path, column: str) -> None:
    top, mid, leaf = await waiting(tmp_path)
    known, newer, why = NEWER[column]
    change(tmp_path, f"UPDATE runs SET due_at = 0, fold = 99, {column} = ? WHERE key = {TOP}", newer)
    change(tmp_path, f"UPDATE runs SET due_at = 0, fold = 99 WHERE key > {TOP}")
    agent = team()
    async with Engine(tmp_path, agents=[agent, OTHER]) as engine:
        before = await lengths(engine)
        above = f"{why} of its ancestor {top}"
        assert await left(engine) == {TOP: why, MID: above, LEAF: above}
        (question,) = await engine.awaits()
        for run_id in (mid, leaf):
            run = engine.attach(run_id)
            message = await refusal(run.cancel())
            assert message == f"This run needs a newer version of Weftline ({above})."
            for asked in (run.pause(), run.resume(), run.steer("Hi.")):
                await refusal(asked)
            assert await run.status() in ("running", "paused")
            assert (await run.snapshot()).run_id == run_id
        await refusal(engine.attach(leaf).answer(question.id, "red"))
        await refusal(engine.attach(top).answer(f"{leaf}:{question.id}", "red"))
        await other_runs_go_on(engine)
        assert (await lengths(engine))[:3] == before
        assert await left(engine) == {TOP: why, MID: above, LEAF: above}
    change(tmp_path, f"UPDATE runs SET {column} = ?", known)
    async with Engine(tmp_path, agents=[agent]) as engine:
        await engine.attach(leaf).answer(question.id, "red")
        assert "red" in (await engine.attach(top).result()).text


CHANGES: dict[str, Callable[[Run[str]], Awaitable[object]]] = {
    "cancel": lambda run: run.cancel(),
    "pause": lambda run: run.pause(),
}


@pytest.mark.parametrize("asked", CHANGES)
@pytest.mark.parametrize("above", [TOP, MID])
async def test_run_above_newer_code_refuses_what_it_must_forward(tmp_path: Path, asked: str, above: int) -> None:
    runs = await waiting(tmp_path)
    change(tmp_path, "UPDATE runs SET format = ? WHERE key = ?", FORMAT + 1, LEAF)
    agent = team()
    async with Engine(tmp_path, agents=[agent]) as engine:
        before, run = await lengths(engine), engine.attach(runs[above - 1])
        waits = f"This run waits for {runs[LEAF - 1]}, which needs a newer version of Weftline."
        assert await refusal(CHANGES[asked](run)) == waits
        assert await lengths(engine) == before, "nothing is half done"
        (question,) = await engine.awaits()
        await refusal(run.answer(f"{runs[LEAF - 1]}:{question.id}", "red"))
        await run.steer("Hurry.")
        assert await left(engine) == {LEAF: NEWER["format"][2]}
    change(tmp_path, "UPDATE runs SET format = ?", FORMAT)
    async with Engine(tmp_path, agents=[agent]) as engine:
        await CHANGES[asked](engine.attach(runs[TOP - 1]))
        assert await engine.attach(runs[TOP - 1]).status() == ("cancelled" if asked == "cancel" else "paused")


async def test_paused_run_is_not_resumed_without_one_below_it(tmp_path: Path) -> None:
    runs = await waiting(tmp_path)
    agent = team()
    async with Engine(tmp_path, agents=[agent]) as engine:
        await engine.attach(runs[0]).pause()
    change(tmp_path, "UPDATE runs SET format = ? WHERE key = ?", FORMAT + 1, LEAF)
    async with Engine(tmp_path, agents=[agent]) as engine:
        before = await lengths(engine)
        await refusal(engine.attach(runs[0]).resume())
        assert await lengths(engine) == before


async def test_recorded_cancel_is_refused_if_it_cannot_be_executed(tmp_path: Path) -> None:
    runs = await waiting(tmp_path)
    cancel = b'{"type":"cancel.requested","reason":"user"}'
    insert = (
        "INSERT INTO entries (run, seq, at, kind, head, body) SELECT key, next_seq, created_at, ?, ?, x'' FROM runs"
    )
    change(tmp_path, f"{insert} WHERE key = {TOP}", "cancel.requested", cancel)
    change(tmp_path, f"UPDATE runs SET next_seq = next_seq + 1, version = version + 1, due_at = 0 WHERE key = {TOP}")
    change(tmp_path, "UPDATE runs SET format = ? WHERE key = ?", FORMAT + 1, MID)
    async with Engine(tmp_path, agents=[team()]) as engine:
        run = engine.attach(runs[0])
        for asked in (run.cancel(), run.pause(), run.steer("Hi.")):
            assert runs[MID - 1] in await refusal(asked)


async def test_run_with_a_newer_child_is_left_alone(tmp_path: Path) -> None:
    _, mid, ended, leaf = await waiting(tmp_path, leaves=2)
    agent, sibling = team(leaves=2), LEAF + 1
    change(
        tmp_path,
        "UPDATE runs SET format = ?, status = 'succeeded', ended_at = created_at, due_at = NULL WHERE key = ?",
        FORMAT + 1,
        LEAF,
    )
    change(tmp_path, f"UPDATE runs SET due_at = 0 WHERE key IN ({MID}, {sibling})")
    async with Engine(tmp_path, agents=[agent, OTHER]) as engine:
        before, why = await lengths(engine), f"{NEWER['format'][2]} of its child {ended}"
        assert await left(engine) == {MID: why, sibling: why}
        for run_id in (mid, leaf):
            await refusal(engine.attach(run_id).cancel())
        await other_runs_go_on(engine)
        assert (await lengths(engine))[:4] == before
    change(tmp_path, "UPDATE runs SET format = ?, status = 'running', ended_at = NULL WHERE key = ?", FORMAT, LEAF)
    async with Engine(tmp_path, agents=[agent]) as engine:
        assert (await engine.attach(mid).cancel()).status == "cancelled"


async def test_result_ended_by_newer_code_is_refused_unless_readable(tmp_path: Path) -> None:
    async with Engine(tmp_path, agents=[OTHER]) as engine:
        run = await engine.start(OTHER, "Go.")
        await run.result()
    change(tmp_path, "UPDATE runs SET format = ?", FORMAT + 1)
    async with Engine(tmp_path, agents=[OTHER]) as engine:
        assert (await engine.attach(run.id).result()).text == "seen"
    change(tmp_path, "UPDATE entries SET head = ? WHERE kind = 'run.ended'", b'{"type":"run.novel"}')
    async with Engine(tmp_path, agents=[OTHER]) as engine:
        attached = engine.attach(run.id)
        assert await attached.status() == "succeeded"
        await refusal(attached.result())
        row = await (await engine.runtime()).stored.row(1)
        assert row is not None
        await refusal(anext(attached.events(after=row.next_seq - 2)))


@pytest.mark.parametrize("newer", [True, False])
async def test_run_below_one_of_newer_code_is_not_on_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    await waiting(tmp_path)
    change(tmp_path, f"UPDATE runs SET due_at = 0 WHERE key > {TOP}")
    change(tmp_path, "UPDATE store SET clean = 0")
    if newer:
        change(tmp_path, "UPDATE runs SET rules = 99 WHERE key = ?", TOP)
    tried: list[int] = []

    def note(db: apsw.Connection, keys: Sequence[int], *, owner_epoch: int) -> None:
        tried.extend(keys)

    monkeypatch.setattr(store, "begin_trial", note)
    async with Engine(tmp_path, agents=[team()]):
        assert tried == ([] if newer else [MID, LEAF])
