"""The examples do what they say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from forked import run_python

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.requirement("run.confirm.audit", "run.await.once")
def test_refund_waits_for_boss_through_kill_and_is_made_once(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEFTLINE_")}
    done = run_python(str(EXAMPLES / "refund.py"), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "waiting   Refund 250 € to Ben?" in lines
    assert "refused   support approves: The person who requested the run cannot approve its calls." in lines
    assert "ledger    Ann 40, Ben 250" in lines
    assert "grant     refund {'amount_eur': 250, 'customer': 'Ben'} by boss, began 1 call" in lines
    (asked,) = [line for line in lines if "  asked " in line]
    (approved,) = [line for line in lines if "  approved by key:" in line]
    assert "'amount_eur': 250" in asked
    digests = re.findall(r"digest (\S+)", f"{asked} {approved}")
    assert len(digests) == 2 and len(set(digests)) == 1


def test_desk_pays_once_although_it_is_killed_while_it_pays(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEFTLINE_")}
    done = run_python(str(EXAMPLES / "desk.py"), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "triage    Order 1001 is paid back. We are sorry about the tea." in done.stdout
    assert "bank      1 payment of 31.00 EUR for order 1001" in done.stdout
