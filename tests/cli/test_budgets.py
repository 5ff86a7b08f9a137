"""`weftline budgets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from commands import weftline
from weftline.testing import ServerProcess

from .conftest import started

Env = Mapping[str, str | None]


def test_limits_are_set_listed_and_cleared(env: Env, server: ServerProcess) -> None:
    env = {**env, "WEFTLINE_DB": str(server.db)}
    made = weftline("budgets", "set", "--workspace", "acme", "--tokens", "500", "--calls", "7", "--per", "day", env=env)
    assert made.out == "workspace\n"
    found = weftline("budgets", "list", "--workspace", "acme", "--json", env=env)
    [budget] = json.loads(found.out)
    assert {limit["unit"]: (limit["limit"], limit["period"]) for limit in budget["limits"]} == {
        "tokens": (500, "day"),
        "calls": (7, "day"),
    }
    assert all(limit["setBy"].startswith("operator:") for limit in budget["limits"])
    assert weftline("budgets", "list", "-q", "--workspace", "acme", env=env).out == "workspace\n"
    head, *lines = weftline("budgets", "list", "--workspace", "acme", env=env).out.splitlines()
    assert head.split("\t")[:4] == ["ID", "LEVEL", "UNIT", "PERIOD"] and len(lines) == 2
    assert weftline("budgets", "clear", "--workspace", "acme", env=env).out == "workspace\n"
    assert weftline("budgets", "list", "--workspace", "acme", env=env).out == "ID\n"
    wrong = weftline("budgets", "set", "--workspace", "acme", env=env)
    assert wrong.code == 2 and "at least one of --usd" in wrong.err
    for option, amount, words in [
        ("--usd", "1e308", "must be at most 1,000,000"),
        ("--usd", "1e-12", "must be 0, or at least 0.000000001"),
        ("--usd", "nan", "limits[0].limit"),
        ("--calls", str(10**30), "must be at most 1,000,000,000,000,000"),
    ]:
        wrong = weftline("budgets", "set", "--workspace", "acme", option, amount, env=env)
        assert wrong.code == 1 and words in wrong.err, wrong.err


def test_a_quiet_list_has_the_id_of_each_budget_once(env: Env, server: ServerProcess, tmp_path: Path) -> None:
    env = {**env, "WEFTLINE_DB": str(server.db)}
    definition = tmp_path / "agent.json"
    definition.write_text('{"name": "Tight", "spec": {"modelId": "scripted:hello"}}')
    agent = weftline("agents", "create", "--workspace", "acme", "--file", str(definition), env=env).out.strip()
    for limits in (["--tokens", "5", "--calls", "7", "--agent", agent], ["--calls", "9"]):
        assert weftline("budgets", "set", "--workspace", "acme", *limits, env=env).code == 0
    assert weftline("budgets", "list", "-q", "--workspace", "acme", env=env).out.split() == [agent, "workspace"]
    for level in (["--agent", agent], []):
        assert weftline("budgets", "clear", "--workspace", "acme", *level, env=env).code == 0


def test_run_that_asks_goes_on_when_its_limit_is_raised(env: Env, server: ServerProcess) -> None:
    here = {**env, "WEFTLINE_DB": str(server.db)}
    run = started(env, "hello", budget={"tokens": 1, "onExceeded": "ask"})
    raised = weftline("budgets", "set", "--workspace", "acme", "--run", run, "--tokens", "100000", env=here)
    assert raised.out == f"{run}\n"
    followed = weftline("runs", "follow", run, env=env)
    assert followed.code == 0 and "Hello" in followed.out
    both = weftline("budgets", "set", "--workspace", "acme", "--run", run, "--agent", "x", "--calls", "1", env=here)
    assert both.code == 2 and "one of --agent, --session and --run" in both.err
    over = weftline("budgets", "clear", "--workspace", "acme", "--run", run, env=here)
    assert over.code == 1 and "The run has ended" in over.err
    unknown = weftline("budgets", "list", "--workspace", "acme", "--run", "run_1abcdefabcdef", env=here)
    assert unknown.code == 1 and "There is no run" in unknown.err
    assert weftline("awaits", "--kind", "budget", "--run", run, "-q", env=env).out == ""
