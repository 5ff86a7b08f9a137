"""`weftline budgets`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from commands import weftline
from weftline.testing import ServerProcess

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
    assert weftline("budgets", "clear", "--workspace", "acme", env=env).out == "workspace\n"
    assert weftline("budgets", "list", "--workspace", "acme", env=env).out == ""
    wrong = weftline("budgets", "set", "--workspace", "acme", env=env)
    assert wrong.code == 2 and "at least one of --usd" in wrong.err
