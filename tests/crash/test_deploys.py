"""A process with new code is killed when it takes over what the old one left: the run adopts the new code once."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from weftline.kernel.control import DeployAdopted

from . import deploy_process
from .log import check_carried_on, check_whole, read_logs
from .playing import play_apart, play_on

POINTS = ["deploy.adopted:before", "deploy.adopted:after"]


@pytest.mark.requirement("run.crash.ends")
@pytest.mark.parametrize("point", POINTS)
def test_a_run_adopts_new_code_once_after_a_kill_at(point: str, tmp_path: Path) -> None:
    for version, death in (("one", "call.closed:before"), ("two", point)):
        killed = play(tmp_path, version, point=death)
        assert killed.returncode == -signal.SIGKILL, f"nothing died at {death}: {killed.stderr}"
    (before,) = read_logs(tmp_path / "data").values()
    assert len(before.of(DeployAdopted)) == point.endswith(":after")
    done = play_on(deploy_process.__file__, str(tmp_path), "two")
    assert (done.returncode, done.stdout) == (0, "Done. | returned:Paid 5 by two.\n"), done.stderr
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    check_carried_on(before, log)
    (adopted,) = log.of(DeployAdopted)
    assert adopted.changed.keys() == {"prompt", "code"}
    told = (tmp_path / "told.txt").read_text().splitlines()
    assert told[:2] == ["one: asked Pay as in one.", "one: paid 5"]
    assert told[-2:] == ["two: paid 5", "two: asked Pay as in two."]


def play(folder: Path, version: str, *, point: str = "") -> subprocess.CompletedProcess[str]:
    return play_apart(deploy_process.__file__, str(folder), version, point=point)
