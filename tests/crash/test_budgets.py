"""Runs under the limits of a workspace, an agent and their own are killed wherever something is written.

What the accounts say is what the logs say, at the kill and at the end; nothing stays reserved, and no limit is passed.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from weftline.kernel.entries import RunCreated
from weftline.kernel.policy import BudgetRefused
from weftline.store.budgets import Sums

from . import budget_process
from .budget_process import CLERK_CALLS, RUN_CALLS, TOKENS, WORKSPACE_CALLS
from .log import check_carried_on, check_whole, read_accounts, read_logs
from .playing import play_apart, play_on

POINTS = ["budget.refused:before", "budget.refused:after"]
MOST = {"workspace": WORKSPACE_CALLS, "agent": CLERK_CALLS, "run": RUN_CALLS}
"""Calls, by level."""
REFUSED = [("agent", "calls"), ("run", "calls"), ("workspace", "calls")]


@pytest.mark.requirement("run.tree.crash", "run.crash.ends")
def test_accounts_match_the_logs_after_every_kill(tmp_path: Path) -> None:
    points: set[str] = set()
    kills = held_tokens = held_calls = 0
    while True:
        folder = tmp_path / str(kills)
        folder.mkdir()
        killed = play_apart(budget_process.__file__, str(folder), str(kills + 1))
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        kills += 1
        points.update((folder / "killed.txt").read_text().split())
        for use in check_accounts(folder, "at the kill").values():
            held_tokens, held_calls = max(held_tokens, use.held_tokens), max(held_calls, use.held_calls)
        check_ends_within_its_limits(folder)
    assert held_tokens and held_calls, "no call of a model or of a tool was cut off"
    begun = ("attempt.started:after", "turn.completed:before", "call.started:after", "call.closed:before")
    assert points >= {*POINTS, *begun, "run.ended:after", "child.ended:before"}


def check_ends_within_its_limits(folder: Path) -> None:
    where = (folder / "killed.txt").read_text()
    before = read_logs(folder / "data")
    done = play_on(budget_process.__file__, str(folder))
    assert (done.returncode, done.stdout) == (0, "Done. | returned returned cap\nbudget_exceeded\n"), (where, done)
    logs = read_logs(folder / "data")
    for key, log in logs.items():
        check_whole(log)
        if key in before:
            check_carried_on(before[key], log)
    assert sorted((fact.level, fact.unit) for log in logs.values() for fact in log.of(BudgetRefused)) == REFUSED, where
    accounts = check_accounts(folder, where)
    assert all(not (use.held_nusd or use.held_tokens or use.held_calls) for use in accounts.values()), where
    assert {account.partition(":")[0]: use.calls for account, use in accounts.items() if use.calls} == MOST, where
    roots = [log.end.usage for log in logs.values() if log.of(RunCreated)[0].parent is None]
    used = sum([usage.input + usage.output for usage in roots])
    (everything,) = [use for account, use in accounts.items() if account.startswith("workspace:")]
    assert everything.tokens == used, where
    paid = Counter((folder / "told.txt").read_text().splitlines())
    assert len(paid) == 2 and max(paid.values()) <= 2, "the same calls, one of them perhaps cut off and made again"


def check_accounts(folder: Path, where: str) -> dict[str, Sums]:
    """What is booked, by account: as much as the logs say, and no more than there is."""
    accounts = read_accounts(folder / "data")
    for account, use in accounts.items():
        assert use.calls + use.held_calls <= MOST[account.partition(":")[0]], (where, account, use)
        assert use.tokens + use.held_tokens <= TOKENS, (where, account, use)
    return accounts
