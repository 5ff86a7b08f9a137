"""A server is killed at every durable write in turn; the next process carries everything on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from weftline.testing.crash import POINTS

from . import scenarios
from .conftest import Template
from .crashing import CrashingServer
from .test_agent import POINTS as AGENT_POINTS
from .test_asking import POINTS as ASKING_POINTS
from .test_budgets import POINTS as BUDGET_POINTS
from .test_children import POINTS as CHILD_POINTS
from .test_children import WAITS as CHILD_WAITS
from .test_code import POINTS as CODE_POINTS
from .test_compaction import POINTS as COMPACTION_POINTS
from .test_deploys import POINTS as DEPLOY_POINTS
from .test_effects import POINTS as EFFECT_POINTS
from .test_engine import POINTS as ENGINE_POINTS
from .test_graceful import CLOSING
from .test_policies import POINTS as POLICY_POINTS
from .test_seats import POINTS as SEAT_POINTS
from .test_threads import POINTS as THREAD_POINTS


class Case(NamedTuple):
    scenario: Callable[[CrashingServer], None]
    plan: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scenario.__name__}-{'-then-'.join(self.plan)}"


def both(write: str, *hits: int) -> list[str]:
    return [f"{write}:{side}#{hit}" for hit in hits or (1,) for side in ("before", "after")]


KILLS: dict[Callable[[CrashingServer], None], list[str]] = {
    scenarios.tools: [
        *both("run.created"),
        *both("attempt.started"),
        *both("deltas"),
        *both("turn.completed", 2),
        *both("attempt.failed"),
        *both("timer.fired"),
        *both("call.started", 1, 2, 3, 4),
        *both("call.closed", 1, 2, 3),
        *both("run.ended"),
    ],
    scenarios.ask: [*both("call.opened"), *both("call.closed")],
    scenarios.leases: [*both("call.claimed"), *both("call.unclaimed")],
    scenarios.doubtful: ["call.closed:before"],
    scenarios.session: [
        *both("thread.created"),
        *both("run.created", 2),
        *both("history.pinned", 2),
        *both("run.ended"),
    ],
    scenarios.cancel: both("cancel.requested"),
    scenarios.guards: [*both("budget.exceeded"), *both("loop.detected"), *both("final.forced")],
    scenarios.output: both("output.rejected"),
    scenarios.ended_session: both("thread.ended"),
    scenarios.thread_state: [*both("value.set", 1, 2), *both("env.set", 2)],
    scenarios.files: [*both("file.chunk", 1, 2, 3), *both("file.linked", 1, 2)],
    scenarios.new_key: [*both("key.created"), *both("job")],
}
DURING_RECOVERY = [
    ("call.closed:before#2", "recovery.marked:before"),
    ("call.closed:before#2", "recovery.marked:after"),
    ("call.closed:before#2", "store.opened:before"),
    ("call.closed:before#2", "store.opened:after"),
    ("call.closed:before#2", "run.adopted:before"),
    ("call.closed:before#2", "run.adopted:after"),
    ("deltas:after", "attempt.failed:before", "attempt.started:after"),
    ("call.closed:before#3", "run.adopted:after", "call.closed:before"),
    ("call.started:after#1", "run.adopted:before", "recovery.marked:after"),
    ("run.ended:before", "run.ended:before", "run.ended:after"),
    ("call.closed:before#1", "call.closed:before", "call.closed:before"),
]
"""Of the scenario `tools`: several deaths in a row. Its second call is of the `once` tool, its third to reconcile."""
CASES = [
    *[Case(scenario, (point,)) for scenario, points in KILLS.items() for point in points],
    *[Case(scenarios.tools, plan) for plan in DURING_RECOVERY],
]


@pytest.mark.requirement(
    "run.crash.ends", "run.crash.calls_once", "run.crash.turns_once", "run.crash.turn_cut", "run.crash.terminal_once"
)
@pytest.mark.requirement("wire.sse.durable_first", "run.effect.rerun", "run.effect.once", "run.effect.reconcile")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_is_carried_on_after_a_kill_at(case: Case, template: Template, tmp_path: Path) -> None:
    with CrashingServer(tmp_path, template=template.store, key=template.key, plan=case.plan) as server:
        case.scenario(server)


@pytest.mark.requirement("run.crash.points")
def test_a_test_kills_at_every_point_there_is() -> None:
    planned = [
        *(point for case in CASES for point in case.plan),
        *ENGINE_POINTS,
        *AGENT_POINTS,
        *ASKING_POINTS,
        *BUDGET_POINTS,
        *CHILD_POINTS,
        *CHILD_WAITS,
        *CODE_POINTS,
        *COMPACTION_POINTS,
        *DEPLOY_POINTS,
        *EFFECT_POINTS,
        *POLICY_POINTS,
        *SEAT_POINTS,
        *THREAD_POINTS,
        *CLOSING,
    ]
    assert sorted({point.partition("#")[0] for point in planned}) == sorted(POINTS)


@pytest.mark.requirement("run.crash.points")
def test_nothing_but_writer_and_opening_of_store_writes(project_root: Path) -> None:
    """The writer hits a point for each of its transactions, so a write that has none would have to pass it by."""
    package = project_root / "src" / "weftline"
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    ours = {name: text for name, text in sources.items() if name.startswith("store/")}
    transactions = {name for name, text in ours.items() if re.search(r"\bBEGIN\b|with db:", text)}
    # The records of a store that is gone with its process, and copies that are nobody's store yet.
    elsewhere = {"store/sqlite/database.py", "store/sqlite/backup.py", "store/sqlite/salvaging.py"}
    assert transactions == {"store/sqlite/writer.py", "store/sqlite/connection.py"} | elsewhere
    opened = {name for name, text in ours.items() if re.search(r"(?<!def )\bconnect\((?![^)]*read_only=True)", text)}
    assert opened == {"store/sqlite/store.py"}
