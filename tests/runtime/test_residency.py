"""The phases of a run in memory are those that `Residency` draws."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import weftline
from weftline.plan import RunPlan
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import LiveRun, Residency, RunLog, WorkingSet


def parked() -> LiveRun:
    work = WorkingSet("run_1", RunPlan(messages=()), Conversation([]))
    return LiveRun(1, workspace=1, thread=None, log=RunLog(1), work=work)


def test_a_run_that_is_gone_stays_gone() -> None:
    run = parked()
    for to in (Residency.SCHEDULED, Residency.DRIVEN, Residency.PARKED, Residency.GONE, Residency.GONE):
        run.move(to)
    with pytest.raises(RuntimeError, match="from gone to parked"):
        run.move(Residency.PARKED)


@pytest.mark.parametrize("to", [Residency.DRIVEN, Residency.BEHIND, Residency.PARKED])
def test_a_parked_run_is_scheduled_before_anything_else(to: Residency) -> None:
    with pytest.raises(RuntimeError, match="from parked"):
        parked().move(to)


def test_nobody_else_changes_the_phase_of_a_run() -> None:
    package = Path(weftline.__file__).parent / "runtime"
    writers = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "residency" and isinstance(node.ctx, ast.Store)
    }
    assert writers == {"live.py"}
