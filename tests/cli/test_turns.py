"""What a model was sent, what it answered and what that cost, as commands show it: at a server and in a store."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from commands import weftline
from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel, ServerProcess

from .conftest import Terminal, started

LOOKUP = {
    "kind": "local",
    "name": "lookup",
    "description": "Looks something up in the catalogue.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
NOTES = "A long story about the town. " * 300


@tool(effect="read")
def read_notes(about: str) -> str:
    """Reads the notes."""
    return NOTES


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def called(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A store with a run of an agent in code, and the run's id."""
    folder = tmp_path_factory.mktemp("turns") / "data"

    async def lead() -> str:
        script = [
            {"tool_calls": [called("add", a=2, b=3), called("read_notes", about="Oslo")], "text": "Let me see."},
            "Five.",
        ]
        agent = Agent(ScriptedModel(script), name="sums", instructions="Be brief.", tools=[add, read_notes])
        async with Engine(folder, agents=[agent]) as engine:
            return (await agent.run("Two and three?", engine=engine)).run_id

    return str(folder), asyncio.run(lead())


def shown(*arguments: str, **options: Any) -> Any:
    done = weftline(*arguments, "--json", **options)
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_turn_says_what_was_sent_and_answered(store: tuple[str, str]) -> None:
    db, run = store
    first = shown("runs", "show", run[:-2], "--turn", "0", "--db", db)
    assert (first["runId"], first["turn"], first["lastTurn"]) == (run, 0, 1)
    assert first["request"]["systemPrompt"] == "Be brief." and first["request"]["toolsOfAgent"] is None
    described = {
        one["name"]: (one["description"], [*one["parameters"]["properties"]]) for one in first["request"]["tools"]
    }
    assert described == {"add": ("Adds two numbers.", ["a", "b"]), "read_notes": ("Reads the notes.", ["about"])}
    assert first["request"]["messages"] == [{"role": "user", "text": "Two and three?"}]
    message = first["answer"]["message"]
    assert (message["text"], first["answer"]["finishReason"]) == ("Let me see.", "tool_use")
    calls = [(one["name"], one["args"], one["how"], one["ok"], one["result"]) for one in message["calls"]]
    assert calls == [
        ("add", {"a": 2, "b": 3}, "returned", True, "5"),
        ("read_notes", {"about": "Oslo"}, "returned", True, NOTES),
    ]
    (attempt,) = first["attempts"]
    assert attempt["model"]["id"] == "agent-sums:script" and attempt["endedAt"] >= attempt["startedAt"]
    assert first["tokens"] == attempt["tokens"] and first["tokens"]["outputTokens"] > 0 and first["costUsd"] is None

    told = weftline("runs", "show", run, "--turn", "0", "--db", db).out.splitlines()
    assert "instructions Be brief." in told and "tools        add, read_notes" in told

    last = shown("runs", "show", run, "--request", "--db", db)
    assert last["request"]["tools"] == first["request"]["tools"]
    assert last["turn"] == 1 and last["request"]["earlier"] == 1
    assert [one["role"] for one in last["request"]["messages"]] == ["user", "assistant", "tool"]
    results = last["request"]["messages"][2]["results"]
    assert [(one["name"], one["ok"], one["text"]) for one in results] == [
        ("add", True, "5"),
        ("read_notes", True, NOTES),
    ]
    conversation = shown("runs", "show", run, "--messages", "--db", db)
    assert conversation == [*last["request"]["messages"], {"role": "assistant", "text": "Five."}]


def test_a_turn_that_is_not_there_says_which_are(store: tuple[str, str]) -> None:
    db, run = store
    done = weftline("runs", "show", run, "--turn", "2", "--db", db)
    assert done.code == 1 and "its turns are 0 to 1" in done.err
    both = weftline("runs", "show", run, "--messages", "--request", "--db", db)
    assert both.code == 2 and "not both" in both.err


def test_a_server_shows_the_same_as_its_store(env: dict[str, str | None], server: ServerProcess) -> None:
    run = started(env, "plan", tools=[LOOKUP, {"kind": "server", "name": "present_plan"}], systemPrompt="Be brief.")
    weftline("runs", "follow", run, "--db", str(server.db))
    there = shown("runs", "show", run, "--turn", "0", env=env)
    assert there == shown("runs", "show", run, "--turn", "0", "--db", str(server.db))
    assert there["request"]["systemPrompt"] == "Be brief."
    described = {one["name"]: one.get("parameters") for one in there["request"]["tools"]}
    assert described["lookup"] == LOOKUP["parameters"] and "plan" in described["present_plan"]["properties"]
    assert weftline("runs", "show", run, "--turn", "9", env=env).code == 1
    assert weftline("runs", "cancel", run, env=env).code == 0


def test_calls_have_arguments_and_results(
    store: tuple[str, str], env: dict[str, str | None], server: ServerProcess
) -> None:
    db, run = store
    calls = shown("calls", run, "--db", db)
    assert [(one["args"], one["result"], one["ok"]) for one in calls] == [
        ({"a": 2, "b": 3}, "5", True),
        ({"about": "Oslo"}, NOTES, True),
    ]
    served = started(env, "add", tools=[{"kind": "local", "name": "add", "description": "Adds."}])
    with Terminal("runs", "follow", served, env=env) as terminal:
        terminal.until("· add")
    for options in ((), ("--db", str(server.db))):
        (open_call,) = shown("calls", served, *options, env=env)
        assert open_call["args"] == {"a": 2, "b": 3} and open_call["result"] is None
    assert weftline("runs", "cancel", served, env=env).code == 0


@pytest.mark.parametrize("columns", [80, 120])
def test_a_person_can_read_it_at_a_usual_width(store: tuple[str, str], columns: int) -> None:
    db, run = store
    for asked in (["runs", "show", run, "--turn", "0"], ["runs", "show", run, "--request"], ["calls", run]):
        with Terminal(*asked, "--db", db, env={"COLUMNS": str(columns)}) as terminal:
            assert terminal.end() == 0
        lines = re.sub(r"\x1b\[\d*m", "", terminal.text).splitlines()
        assert max(map(len, lines)) <= columns, lines
        assert any("add" in line for line in lines) and any('{"a": 2, "b": 3}' in line for line in lines), lines
        if asked[0] == "runs":
            assert any("more characters; --json has them" in line for line in lines)


def test_a_result_names_the_call_it_belongs_to(store: tuple[str, str]) -> None:
    db, run = store
    with Terminal("runs", "follow", run, "--db", db, env={}) as terminal:
        assert terminal.end() == 0
    lines = re.sub(r"\x1b\[\d*m", "", terminal.text).splitlines()
    assert '→ add {"a": 2, "b": 3}: 5' in lines
    assert any(line.startswith('→ read_notes {"about": "Oslo"}: A long story') for line in lines), lines


def test_a_turn_has_the_history_of_its_session(env: dict[str, str | None], tmp_path: Path) -> None:
    async def lead() -> list[str]:
        agent = Agent(ScriptedModel(["One.", "Two."]), name="counts")
        async with Engine(tmp_path / "data", agents=[agent]) as engine:
            return [(await agent.run(text, thread="t", engine=engine)).run_id for text in ("first", "second")]

    *_, second = asyncio.run(lead())
    turn = shown("runs", "show", second, "--turn", "0", "--db", str(tmp_path / "data"))
    assert [one["text"] for one in turn["request"]["messages"]] == ["first", "One.", "second"]


def test_attempts_that_failed_are_listed(env: dict[str, str | None], server: ServerProcess) -> None:
    run = started(env, "refused")
    assert weftline("runs", "follow", run, env=env).code == 3
    turn = shown("runs", "show", run, "--turn", "0", env=env)
    assert turn["answer"] is None and [one["errorClass"] for one in turn["attempts"]] == ["auth"]
    text = weftline("runs", "show", run, "--turn", "0", env=env).out
    assert "attempt 1 failed: auth" in text and "no attempt has completed the turn" in text
