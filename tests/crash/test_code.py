"""A process is killed while code that a model wrote calls tools: the code runs again, and what it called does not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from weftline.kernel.entries import CallAsked, CallClosed, CallStarted
from weftline.prompts.calls import in_doubt

from . import code_process
from .code_process import CALLS
from .log import check_carried_on, check_whole, read_accounts, read_logs
from .playing import play_apart, play_on

POINTS = [
    "call.asked:before",
    "call.asked:after",
    "call.closed:before#1",
    "call.closed:after#1",
    "call.closed:before#3",
]
"""The first two calls that close are those of the `once` tool, the third is that of the code itself."""


@pytest.mark.requirement("run.crash.ends", "run.crash.calls_once", "run.effect.once")
@pytest.mark.parametrize("point", POINTS)
def test_code_reads_from_log_what_it_called_before_kill_at(point: str, tmp_path: Path) -> None:
    killed = play_apart(code_process.__file__, str(tmp_path), point=point)
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    (before,) = read_logs(tmp_path / "data").values()
    read_accounts(tmp_path / "data")
    cut = {fact.index for fact in before.of(CallStarted) if fact.index and (fact.turn, fact.index) not in before.closed}
    # That a call was asked for and that it began may or may not be one commit.
    assert point == "call.asked:after" or cut == ({1} if point == "call.closed:before#1" else set())
    told = paid(tmp_path)

    done = play_on(code_process.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    text, _, result = done.stdout.partition(" | ")
    ann, bob = json.loads(result)
    assert (text, bob) == ("Done.", "Paid Bob.")
    assert ann == (f"ToolError: {in_doubt('pay')}" if cut else "Paid Ann.")
    assert paid(tmp_path) == [*(told[:1] if cut else ["Ann"]), "Bob"], "a `once` call that began is not made again"

    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    check_carried_on(before, log)
    assert [fact.call.id for fact in log.of(CallAsked)] == ["call_0_0.1", "call_0_0.2"], "asked for once"
    nested = [fact.how for fact in log.of(CallClosed) if fact.parent]
    (use,) = read_accounts(tmp_path / "data").values()
    assert (use.calls, use.held_calls) == (CALLS, 0)
    assert nested == ["in_doubt" if cut else "returned", "returned"]


def paid(folder: Path) -> list[str]:
    file = folder / "told.txt"
    return file.read_text().split() if file.exists() else []
