"""`weftline awaits`, `approve`, `deny` and `answer`: at a server, and through the one that has the store open."""

from __future__ import annotations

import getpass
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from commands import weftline
from weftline.testing import ServerProcess

Env = Mapping[str, str | None]


@pytest.fixture(params=["server", "store"])
def somewhere(request: pytest.FixtureRequest, env: Env, server: ServerProcess) -> Env:
    """Of somebody who asks the server, or who may open its store."""
    if request.param == "server":
        return env
    return {"WEFTLINE_API_KEY": None, "WEFTLINE_BASE_URL": None, "WEFTLINE_DB": str(server.db)}


def called(env: Env, method: str, path: str, body: Any = None) -> Any:
    url = f"{env['WEFTLINE_BASE_URL']}/api/v1/workspaces/acme/{path}"
    headers = {"Authorization": f"Bearer {env['WEFTLINE_API_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=120) as reply:
        return json.load(reply)


def asking(env: Env, script: str, count: int = 1) -> str:
    """A run that waits for people."""
    tools = [{"kind": "server", "name": name} for name in ("ask_user", "present_plan")]
    spec = {"modelId": f"scripted:{script}", "prompt": "hi", "tools": tools}
    run = called(env, "POST", "agent-runs", spec)["runId"]
    while len(called(env, "GET", f"agent-runs/{run}/awaits")["awaits"]) < count:
        pass
    return run


def ended(env: Env, run: str) -> str:
    return weftline("runs", "follow", run, env=env).out


def test_a_plan_is_listed_and_approved_by_its_run(env: Env, somewhere: Env) -> None:
    run = asking(env, "plan")
    (ref,) = weftline("awaits", "-q", "--run", run, env=somewhere).out.split()
    assert ref.startswith(f"{run}/")
    (listed,) = json.loads(weftline("awaits", "list", "--kind", "plan", "--run", run, "--json", env=somewhere).out)
    assert (listed["ref"], listed["question"], listed["name"]) == (ref, "1. Go.", "present_plan")
    assert (
        weftline("awaits", "--kind", "doubt", "--run", run, env=somewhere).out == "AWAIT\tKIND\tTOOL\tSINCE\tQUESTION\n"
    )
    refused = weftline("answer", ref, "", env=somewhere)
    assert refused.code == 1 and "the answer is missing" in refused.err
    done = json.loads(weftline("approve", run, "--json", env=somewhere).out)
    by = "key:" if somewhere["WEFTLINE_API_KEY"] else f"operator:{getpass.getuser()}"
    assert done["outcome"] == "approved" and done["by"].startswith(by)
    assert "approved" in ended(env, run)
    late = weftline("deny", ref, "No.", env=somewhere)
    assert late.code == 1 and f"This was approved by {by}" in late.err


def test_a_waiting_run_shows_what_it_asks_and_the_call(env: Env, somewhere: Env) -> None:
    run = asking(env, "plan")
    (asked,) = json.loads(weftline("runs", "show", run, "--json", env=somewhere).out)["awaits"]
    assert (asked["runId"], asked["name"], asked["question"]) == (run, "present_plan", "1. Go.")
    told = weftline("runs", "show", run, env=somewhere).out
    assert "It asks a person: 1. Go." in told and f"weftline approve {run}/{asked['id']} --" in told
    (call,) = json.loads(weftline("calls", run, "--json", env=somewhere).out)
    assert (call["toolUseId"], call["state"], call["args"]) == (asked["toolUseId"], "awaiting", {"plan": "1. Go."})
    assert weftline("deny", run, "No.", env=somewhere).code == 0
    ended(env, run)
    (call,) = json.loads(weftline("calls", run, "--json", env=somewhere).out)
    assert call["state"] == "closed" and "No." in call["result"]


def test_of_several_one_is_named(env: Env, somewhere: Env) -> None:
    run = asking(env, "ask_twice", count=2)
    which, why = weftline("awaits", "-q", "--run", run, env=somewhere).out.split()
    several = weftline("answer", run, "blue", env=somewhere)
    assert several.code == 1 and which in several.err and why in several.err
    wrong = weftline("answer", which, "green", env=somewhere)
    assert wrong.code == 1 and "must be one of 'red', 'blue'" in wrong.err
    assert weftline("answer", which, "blue", env=somewhere).out == "answered\n"
    assert weftline("deny", run, "None of your business.", env=somewhere).out == "denied\n"
    assert "blue" in (text := ended(env, run)) and "None of your business." in text
    nothing = weftline("approve", run, env=somewhere)
    assert nothing.code == 1 and "has no open questions" in nothing.err


def test_arguments_that_are_not_an_object_are_wrong_usage(env: Env) -> None:
    for text in ("{", "[]"):
        done = weftline("approve", "run_1/await_0_0", "--args", text, env=env)
        assert done.code == 2 and "--args" in done.err


def test_a_run_is_paused_resumed_and_spoken_to(env: Env, somewhere: Env) -> None:
    run = asking(env, "plan")
    by = "key:" if somewhere["WEFTLINE_API_KEY"] else f"operator:{getpass.getuser()}"
    early = weftline("runs", "resume", run, env=somewhere)
    assert early.code == 1 and "The run is not paused." in early.err
    assert weftline("runs", "pause", run, "--reason", "lunch", env=somewhere).out == "paused\n"
    assert "lunch" in weftline("runs", "show", run, env=somewhere).out
    for told in (("follow-up", "And then?"), ("steer", "Forget it.")):
        assert weftline("runs", told[0], run, told[1], env=somewhere).out.startswith("msg_")
    said = weftline("runs", "resume", run, "--message", "Be quick.", "--label", "ticket=7", "--json", env=somewhere)
    assert json.loads(said.out)["by"].startswith(by)
    frames = [json.loads(line) for line in weftline("runs", "follow", run, "--json", env=env).out.splitlines()]
    (resumed,) = [frame["data"] for frame in frames if frame["type"] == "run_resumed"]
    assert resumed["labels"] == {"ticket": "7"} and resumed["requestedBy"].startswith(by)
    texts = [text for frame in frames if frame["type"] == "messages_taken" for text in frame["data"]["texts"]]
    assert texts == ["Forget it.", "Be quick.", "And then?"]
    wrong = weftline("runs", "steer", run, "Hi.", "--label", "ticket", env=somewhere)
    assert wrong.code == 2 and "'ticket' is not NAME=VALUE" in wrong.err
