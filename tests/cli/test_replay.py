"""`weftline replay`: what it prints, how it exits, and the tests that it writes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from commands import weftline
from forked import run_python
from weftline import Engine
from weftline.agent.loader import load_agents
from weftline.client import Client
from weftline.testing import ServerProcess

APP = '''
from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls


@tool
def look(place: str) -> str:
    """Looks."""
    return f"nothing in the {place}"


helper = Agent(ScriptedModel([calls("look", place="shed"), "Not there."]), instructions="Be brief.", tools=[look])
'''


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def run_id(app: Path, tmp_path: Path) -> str:
    async def start() -> str:
        [agent] = load_agents(app).agents.values()
        async with Engine(tmp_path / "data", agents=[agent]) as engine:
            run = await engine.start(agent, "Where?")
            await run.result()
            return run.id

    return asyncio.run(start())


@pytest.mark.requirement("run.replay.offline", "run.replay.divergence", "run.replay.refused")
def test_replay_says_what_was_compared_or_where_it_leads_elsewhere(run_id: str, app: Path, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "data"))
    same = weftline("replay", run_id[:-3], "--agents", str(app), *db)
    assert (same.code, same.err) == (0, "") and "succeeded, turns 2, calls 1" in same.out, same
    without = weftline("replay", run_id, "--json", *db)
    assert without.code == 0 and "--agents" in without.err
    assert json.loads(without.out)["turns"] == 2
    app.write_text(APP.replace("Be brief.", "Be very brief."))
    other = weftline("replay", run_id, "--agents", str(app), *db)
    assert other.code == 1 and 'system: the log has "Be brief."' in other.out and "turn 0" in other.out, other
    told = json.loads(weftline("replay", run_id, "--agents", str(app), "--json", *db).out)["divergence"]
    assert told["turn"] == 0 and told["differences"][0]["field"] == "system"
    unknown = weftline("replay", "run_1000", *db)
    assert unknown.code == 2 and "run_1000" in unknown.err


def test_file_in_folder_that_there_is_not_is_refused(run_id: str, tmp_path: Path) -> None:
    db, missing = ("--db", str(tmp_path / "data")), tmp_path / "missing"
    for command, option, name in (("export", "-o", "run.jsonl"), ("replay", "--pytest", "test_run.py")):
        refused = weftline(command, run_id, option, str(missing / name), *db)
        assert refused.code == 2 and f"{name} cannot be written: there is no folder {missing}" in refused.err, refused


def test_a_file_without_the_agent_of_the_run_is_refused(run_id: str, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(APP.replace("helper = ", "somebody = "))
    refused = weftline("replay", run_id, "--agents", str(other), "--db", str(tmp_path / "data"))
    assert refused.code == 2 and "does not have the agent" in refused.err and refused.out == "", refused


@pytest.mark.requirement("run.replay.offline", "run.replay.divergence")
def test_server_tools_are_as_recorded_unless_given(app: Path, tmp_path: Path) -> None:
    scripts = {"look": {"turns": [{"tool_calls": [{"name": "look", "args": {"place": "shed"}}]}, {"text": "No."}]}}
    with ServerProcess(tmp_path, scripts=scripts, tools=APP) as server:
        with Client(api_key=server.create_key("acme"), workspace="acme", base_url=server.url) as client:
            tools = [{"kind": "server", "name": "look"}]
            ran = client.run("Where?", model_id="scripted:look", tools=tools).run_id
        at = ("--db", str(server.db), "--workspace", "acme")
    without = weftline("replay", ran, *at)
    assert without.code == 0 and "taken as recorded: look" in without.err, without
    given = weftline("replay", ran, "--tools", str(app), *at)
    assert (given.code, given.err) == (0, ""), given
    app.write_text(APP.replace("place: str)", "place: str, depth: int = 2)"))
    assert weftline("replay", ran, "--tools", str(app), *at).code == 1


@pytest.mark.requirement("run.replay.pytest")
def test_run_becomes_test_that_passes_offline_until_agent_changes(run_id: str, app: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.py"
    later.write_text(APP)
    for agents in (app, later):
        test = str(tmp_path / f"test_{agents.stem}.py")
        write = ("replay", run_id, "--agents", str(agents), "--pytest", test, "--db", str(tmp_path / "data"))
        assert weftline(*write).code == 0
        assert weftline(*write).code == 2 and weftline(*write, "--force").code == 0
    (tmp_path / "data").rename(tmp_path / "gone")
    later.write_text(APP.replace('"""Looks."""', '"""Peers."""'))
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of this project take longer than the tests
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), env=env, cwd=tmp_path)
    assert "1 failed, 1 passed" in done.stdout and "test_later_comes_out_as_it_did" in done.stdout, done.stdout
    assert "tools.look.description" in done.stdout and "Peers." in done.stdout
