"""A short torture holds, and its comparison finds what it is there to find."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns.torture import Evidence, Scene, volume
from campaigns.torture.ledger import Asked
from campaigns.torture.volume import INSIDE
from hypothesis import settings
from msgspec.structs import replace

from forked import run_python
from weftline.kernel.entries import RunEnded


@pytest.mark.requirement("run.crash.ends")
def test_killed_server_without_disk_space_loses_and_repeats_nothing() -> None:
    # As if it were in a namespace of its own: it mounts here, if it may, and its servers are forked like all others.
    env = {**os.environ} if settings.get_current_profile_name() == "deep" else {**os.environ, INSIDE: "1"}
    done = run_python("-m", "campaigns.torture", "--seconds", "1", "--seed", "1", "--load", "6", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2  mishap: kill\n" in done.stdout and "1  mishap: full disk\n" in done.stdout


MOUNTING = """
import runpy, sys
from pathlib import Path

volume = runpy.run_path(sys.argv[1])
volume["enter_namespace"](sys.argv)
print(volume["Volume"](Path(sys.argv[2])).kind)
"""


def test_test_disk_is_mounted_where_nobody_else_sees_it(tmp_path: Path) -> None:
    program = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    possible = shutil.which("unshare") and subprocess.run(program, capture_output=True, check=False).returncode == 0
    script, folder = tmp_path / "mounting.py", tmp_path / "disk"
    script.write_text(MOUNTING)
    folder.mkdir()
    done = run_python(str(script), volume.__file__, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a file system of" if possible else "limits on the size of files")
    assert not os.path.ismount(folder)


Plant = Callable[[Evidence], None]


def lost_run(evidence: Evidence) -> None:
    evidence.logs.pop()


def missed_frame(evidence: Evidence) -> None:
    frames = evidence.ledger.views[0].frames
    del frames[list(frames)[1]]


def other_frame(evidence: Evidence) -> None:
    frames = evidence.ledger.views[0].frames
    frames[list(frames)[1]] += b" "


def asked_with_results(evidence: Evidence) -> Asked:
    return next(asked for asked in evidence.ledger.asked if any(line[0] == "tool" for line in asked.messages))


def wrong_result(evidence: Evidence) -> None:
    asked = asked_with_results(evidence)
    asked.messages = tuple((*line[:1], "5", *line[2:]) if line[0] == "tool" else line for line in asked.messages)


def missing_result(evidence: Evidence) -> None:
    asked = asked_with_results(evidence)
    position = next(place for place, line in enumerate(asked.messages) if line[0] == "tool")
    asked.messages = asked.messages[:position] + asked.messages[position + 1 :]


def foreign_history(evidence: Evidence) -> None:
    first, second = evidence.ledger.asked[0], asked_with_results(evidence)
    second.messages = first.messages + second.messages


def request_unknown_to_the_log(evidence: Evidence) -> None:
    evidence.ledger.asked.append(copy.copy(evidence.ledger.asked[0]))


def once_tool_that_ran_twice(evidence: Evidence) -> None:
    evidence.executions.append(next(one for one in evidence.executions if one.tool == "pay"))


def finished_call_that_ran_again(evidence: Evidence) -> None:
    one = next(one for one in evidence.executions if one.tool == "look")
    evidence.executions.append(replace(one, at_us=one.at_us + 3_600_000_000))


def changed_key(evidence: Evidence) -> None:
    one = next(one for one in evidence.executions if one.tool == "look")
    evidence.executions.append(replace(one, key="another"))


def result_from_nowhere(evidence: Evidence) -> None:
    del evidence.executions[0]


def two_accepted_answers(evidence: Evidence) -> None:
    next(iter(evidence.ledger.answered.values())).add("another")


def cancel_that_was_forgotten(evidence: Evidence) -> None:
    evidence.ledger.cancelled[next(log.run for log in evidence.logs if log.row.status == "succeeded")] = "cancelled"


def run_created_twice(evidence: Evidence) -> None:
    next(iter(evidence.ledger.created.values())).add("run_another")


def innocent_that_was_given_up(evidence: Evidence) -> None:
    log = evidence.logs[0]
    log.entries[-1] = replace(log.entries[-1], fact=RunEnded("failed", "worker_error"))


def entry_after_the_end(evidence: Evidence) -> None:
    log = evidence.logs[0]
    log.entries.append(log.entries[-1])


def webhook_that_was_never_delivered(evidence: Evidence) -> None:
    run = evidence.logs[0].run
    evidence.ledger.deliveries[:] = [one for one in evidence.ledger.deliveries if one.run != run]


def webhook_under_two_ids(evidence: Evidence) -> None:
    evidence.ledger.deliveries.append(replace(evidence.ledger.deliveries[0], id="dlv_another"))


def session_in_another_order(evidence: Evidence) -> None:
    next(orders for orders in evidence.ledger.sessions.values() if len(orders) > 1).reverse()


PLANTS: tuple[Plant, ...] = (
    lost_run,
    missed_frame,
    other_frame,
    wrong_result,
    missing_result,
    foreign_history,
    request_unknown_to_the_log,
    once_tool_that_ran_twice,
    finished_call_that_ran_again,
    changed_key,
    result_from_nowhere,
    two_accepted_answers,
    cancel_that_was_forgotten,
    run_created_twice,
    innocent_that_was_given_up,
    entry_after_the_end,
    webhook_that_was_never_delivered,
    webhook_under_two_ids,
    session_in_another_order,
)


async def test_the_comparison_finds_every_planted_fault(tmp_path: Path) -> None:
    evidence = await Scene(tmp_path, seed=8, load=4).play(seconds=0, mishaps=0)
    assert list(evidence.faults()) == []
    for plant in PLANTS:
        doctored = copy.deepcopy(evidence)
        plant(doctored)
        assert list(doctored.faults()), f"nobody has noticed: {plant.__name__}"
