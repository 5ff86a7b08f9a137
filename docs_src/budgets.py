"""What a workspace and a run may spend: limits are set, runs keep to them, and what is left can be read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from weftline.client import BudgetLimit, Client
from weftline.testing import ServerProcess

WORK = {"tool_calls": [{"name": "calculator", "args": {"expression": "6 * 7"}}]}
SCRIPTS = {"work": {"turns": [{**WORK, "loop": True}], "finalize": {"text": "This is as far as I came."}}}
CALCULATOR = {"kind": "server", "name": "calculator"}


def limits(client: Client) -> None:
    client.budgets.set(
        "workspace",
        limits=[
            BudgetLimit("tokens", 2_000_000, period="month"),
            BudgetLimit("calls", 1_000, period="day", on_exceeded="stop"),
        ],
    )
    run = client.run("Work.", model_id="scripted:work", tools=[CALCULATOR], loop_detection=False, budget={"calls": 3})
    print(run.text)
    for budget in client.budgets.of_run(run.run_id):
        for limit in budget.limits:
            print(budget.level, limit.unit, limit.period, f"{limit.spent:g} of {limit.limit:g}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            limits(client)


if __name__ == "__main__":
    main()
