# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`weftline doctor`: what a deploy would do to the runs of a store, and what needs a person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from agent.kit import workspace_of
from commands import weftline
from weftline import Agent, Engine, Limits, tool
from weftline.kernel.entries import FORMAT
from weftline.providers.catalog import Catalog
from weftline.runtime import ids
from weftline.store.records import schedules, webhooks
from weftline.store.records.schedules import ScheduleColumns
from weftline.testing import ScriptedModel, calls

APP = """
from weftline import Agent, Limits, tool

@tool(effect="once", confirm="Pay {{amount}}?")
def pay(amount: int) -> str:
    \"\"\"Pays.\"\"\"
    return "Paid."

same = Agent("lab:script", name="same", tools=[pay], instructions="Pay.")
changed = Agent("lab:script", name="changed", tools=[pay], instructions={prompt!r})
pinned = Agent("lab:script", name="pinned", tools=[pay], instructions={prompt!r}, limits=Limits(on_deploy="pin"))
tools = [{tools}]
cut = Agent("lab:script", name="cut", tools=tools, instructions="Pay.")
{more}
"""


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return "Paid."


def doctor(db: Path, app: Path | None = None, *more: str) -> tuple[int, list[dict[str, Any]]]:
    done = weftline("doctor", *([] if app is None else [str(app)]), "--json", "--db", str(db), *more)
    assert not done.err, done
    return done.code, json.loads(done.out)


@contextmanager
def rows_of(db: Path) -> Generator[apsw.Connection]:
    connection = apsw.Connection(str(db / "weftline.db"))
    try:
        yield connection
    finally:
        connection.close()


async def waiting_runs(db: Path, names: list[str]) -> dict[str, str]:
    """Runs that wait for a person's word on a call of `pay`, by their agents."""
    model = ScriptedModel([calls("pay", amount=5) for _ in names])
    models = Catalog()
    models.add(model, name="lab")
    agents = [
        Agent(
            "lab:script", name=name, tools=[pay], instructions="Pay.",
            limits=Limits(on_deploy="pin" if name == "pinned" else "adopt", await_timeout_s=3600),
        )
        for name in names
    ]  # fmt: skip
    found: dict[str, str] = {}
    async with Engine(db, agents=agents, models=models) as engine:
        for agent in agents:
            run = await engine.start(agent, "Go.")
            found[str(agent.name)] = run.id
            async for event in run.events():
                if type(event).__name__ == "AwaitOpened":
                    break
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    db = tmp_path_factory.mktemp("doctor") / "data"
    return db, asyncio.run(waiting_runs(db, ["same", "changed", "pinned", "cut", "gone"]))


def app_file(folder: Path, *, prompt: str = "Pay at once.", tools: str = "", more: str = "") -> Path:
    path = folder / "app.py"
    path.write_text(APP.format(prompt=prompt, tools=tools, more=more))
    return path


@pytest.mark.requirement("run.deploy.doctor")
def test_doctor_lists_runs_affected_by_a_deploy(store: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    db, runs = store
    app = app_file(tmp_path)
    before = (db / "weftline.db").read_bytes()
    code, found = doctor(db, app)
    assert code == 1
    by_run = {one["runId"]: one for one in found if one["kind"] != "tool_gone"}
    assert by_run.keys() == {runs[name] for name in ("changed", "pinned", "cut", "gone")}, (
        "not the one that is as it was"
    )
    changed, pinned = by_run[runs["changed"]], by_run[runs["pinned"]]
    assert (changed["kind"], changed["agent"], changed["policy"]) == ("deploy", "changed", "adopt")
    assert changed["changed"].keys() == {"prompt"} and changed["changed"]["prompt"].keys() == {"before", "after"}
    assert (
        changed["what"] == "Its prompt has changed: it continues with the new version." and not changed["needsPerson"]
    )
    assert pinned["policy"] == "pin" and pinned["needsPerson"]
    assert pinned["what"] == "Its prompt has changed: it waits for the code that it started with."
    assert by_run[runs["cut"]]["changed"].keys() == {"tools", "code"}
    (gone,) = [one for one in found if one["kind"] == "tool_gone"]
    assert gone["runId"] == runs["cut"] and "pay" in gone["what"] and gone["needsPerson"]
    assert by_run[runs["gone"]]["kind"] == "agent_gone" and by_run[runs["gone"]]["needsPerson"]
    said = weftline("doctor", str(app), "--db", str(db))
    assert said.code == 1 and len(said.out.splitlines()) == 1 + len(found)
    assert f"-\t{runs['changed']}\tchanged\tIts prompt has changed: it continues with the new version." in said.out
    assert (db / "weftline.db").read_bytes() == before, "nothing is changed"


@pytest.mark.requirement("run.deploy.doctor")
def test_it_exits_with_0_if_nothing_needs_a_decision(store: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    db, runs = store
    more = 'gone = Agent("lab:script", name="gone", tools=[pay], instructions="Pay.")'
    code, found = doctor(db, app_file(tmp_path, prompt="Pay.", tools="pay", more=more))
    assert (code, found) == (0, [])
    more = more.replace("Pay.", "Pay soon.")
    code, found = doctor(db, app_file(tmp_path, prompt="Pay.", tools="pay", more=more))
    assert code == 0 and [one["runId"] for one in found] == [runs["gone"]], "what settles itself is no decision"


@pytest.mark.requirement("run.deploy.doctor")
def test_it_lists_whatever_else_needs_a_person(tmp_path: Path) -> None:
    db = tmp_path / "data"
    runs = asyncio.run(_trouble(db))
    app = tmp_path / "app.py"
    app.write_text(
        "from weftline import Agent, tool\n\n@tool(effect='once', confirm='Pay {amount}?')\n"
        "def pay(amount: int) -> str:\n"
        '    """Pays."""\n    return "Paid."\n\n'
        + "\n".join(f"{name} = Agent('lab:script', tools=[pay], instructions='Pay.')" for name in runs)
    )
    code, found = doctor(db, app, "--workspace", "default")
    assert code == 1
    kinds = {(one["kind"], one.get("runId", one.get("about"))) for one in found}
    assert kinds == {
        ("newer", runs["newer"]),
        ("suspect", runs["suspect"]),
        ("damaged", runs["damaged"]),
        ("await", runs["late"]),
        ("in_doubt", runs["doubtful"]),
        ("schedule", "sch_1"),
        ("webhook", "wh_1"),
    }
    texts = {one["kind"]: one["what"] for one in found}
    assert f"log format {FORMAT + 1}" in texts["newer"]
    assert texts["schedule"].endswith("The agent is gone.") and "'410'" in texts["webhook"]
    unknown = weftline("doctor", "--db", str(db), "--workspace", "nobody")
    assert unknown.code == 1 and "nobody" in unknown.err
    missing = weftline("doctor", "--db", str(tmp_path / "none"))
    assert missing.code == 1 and "none" in missing.err


async def _trouble(db: Path) -> dict[str, str]:
    runs = await waiting_runs(db, ["newer", "suspect", "damaged", "late", "doubtful"])
    keys = {name: ids.key_of(run_id) for name, run_id in runs.items()}
    async with Engine(db) as engine:
        records = engine.store.records
        columns = ScheduleColumns(
            name="nightly", agent=None, at=None, cron="0 0 * * *", timezone="UTC", catch_up="skip", enabled=True,
            next_at=None, requested_by="", agents=(), spec=b"{}", secrets=None,
        )  # fmt: skip
        space = await workspace_of(engine)
        row = await records.write(schedules.insert("sch_1", columns, workspace=space, digest=b"", now=1))
        await records.write(schedules.fired(row.key, at=1, run=None, error="The agent is gone."))
        hook = webhooks.insert("wh_1", workspace=space, url="http://x", events=["succeeded"], secret=b"", now=1)
        hook_key = (await records.write(hook)).key
    with rows_of(db) as rows:
        rows.execute("UPDATE runs SET format = ? WHERE key = ?", (FORMAT + 1, keys["newer"]))
        rows.execute("UPDATE runs SET suspect = 2 WHERE key = ?", (keys["suspect"],))
        rows.execute("UPDATE runs SET name = CAST(X'ff' AS TEXT) WHERE key = ?", (keys["damaged"],))
        rows.execute("UPDATE open_awaits SET deadline_at = 5 WHERE run = ?", (keys["late"],))
        rows.execute("UPDATE open_awaits SET kind = 'doubt' WHERE run = ?", (keys["doubtful"],))
        rows.execute(
            "INSERT INTO deliveries (webhook, run, status, attempts, created_at, last_at, last_error, about, salt)"
            " VALUES (?, ?, 'failed', 8, 1, 2, '410', '', '')",
            (hook_key, keys["late"]),
        )
    return runs
