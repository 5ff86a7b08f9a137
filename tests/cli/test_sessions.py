"""`weftline sessions`: the same sessions, asked of a server or read beside it, and the threads of a script."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from commands import Done, weftline
from weftline import Agent, Engine
from weftline.client import Client
from weftline.testing import ScriptedModel, ServerProcess


class Where:
    def __init__(self, env: dict[str, str | None], options: tuple[str, ...]) -> None:
        self._env, self._options = env, options

    def __call__(self, *arguments: str) -> Done:
        return weftline("sessions", *arguments, *self._options, env=self._env)


@pytest.fixture(params=["server", "store"])
def where(request: pytest.FixtureRequest, env: dict[str, str | None], server: ServerProcess) -> Where:
    return Where(env, ()) if request.param == "server" else Where({}, ("--db", str(server.db)))


@pytest.fixture(scope="module")
def talks(env: dict[str, str | None]) -> tuple[str, str, str]:
    """A session that goes on, the run in it, and a session that has ended."""
    url, key = env["WEFTLINE_BASE_URL"], env["WEFTLINE_API_KEY"]
    with Client(base_url=url, api_key=key, workspace="acme") as client:
        over = client.create_session(model_id="scripted:hello", name="over")
        over.end()
        talk = client.create_session(model_id="scripted:system", system_prompt="Be brief.", name="talk")
        run = talk.send("Hi\x1b[31m!").run_id
        talk.close()
        return talk.id, run, over.id


def test_sessions_are_listed_as_columns_ids_or_json(where: Where, talks: tuple[str, str, str]) -> None:
    talk, _, over = talks
    names, *rows = [line.split("\t") for line in where("list", "--all").out.splitlines()]
    headings = ["SESSION", "STATUS", "NAME", "AGENT", "CREATED", "USED"]
    assert names == headings
    assert {tuple(row[:3]) for row in rows} >= {(talk, "active", "talk"), (over, "ended", "over")}
    ended = where("list", "-q", "--status", "ended").out.split()
    assert over in ended and talk not in ended
    (one,) = [one for one in json.loads(where("list", "--json", "--all").out) if one["id"] == talk]
    assert one["status"] == "active" and one["lastUsedAt"] >= one["createdAt"]
    short = where("list", "-q", "--limit", "1")
    assert len(short.out.split()) == 1 and "--all" in short.err
    assert where("list", "--agent", "nobody").out.rstrip("\n").split("\t") == headings


def test_a_session_is_shown_with_its_runs(where: Where, talks: tuple[str, str, str]) -> None:
    talk, run, _ = talks
    shown = where("show", talk)
    assert shown.code == 0 and "\x1b" not in shown.out
    said = ["talk", run, "user", "Hi[31m!", "assistant", "Be brief.|Hi[31m!"]
    places = [shown.out.find(word) for word in said]
    assert -1 not in places and places == sorted(places)
    whole = json.loads(where("show", talk, "--json").out)
    assert [(one["role"], one["runId"]) for one in whole["messages"]] == [("user", run), ("assistant", run)]
    assert all(one["id"] and one["createdAt"] for one in whole["messages"]) and whole["usage"]["runs"] == 1


def test_a_session_that_does_not_exist_is_an_error(where: Where, talks: tuple[str, str, str]) -> None:
    for unknown in (f"{talks[0]}0", "nobody"):
        assert where("show", unknown).code == 1


def test_threads_of_a_script_are_listed_and_shown(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Hello!"]), name="greeter")

    async def talk() -> str:
        async with Engine(tmp_path, agents=[agent]) as engine:
            return (await (await engine.start(agent, "Hi.", thread="customer-42")).result()).run_id

    run = asyncio.run(talk())
    (row,) = [line.split("\t") for line in weftline("sessions", "list", "--db", str(tmp_path)).out.splitlines()[1:]]
    assert row[2] == "customer-42"
    shown = weftline("sessions", "show", row[0], "--db", str(tmp_path)).out
    assert run in shown and "Hi." in shown and "Hello!" in shown
