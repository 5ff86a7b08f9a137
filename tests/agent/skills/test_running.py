"""Commands on this machine: bounded, killed whole, and told nothing that they need not know."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from weftline.agent.skills.content import ProcessRuns, Ran

LONG_S = 120.0
PATIENCE = (0.3, 3.0, 30.0)
"""Time limits to try in turn, until one is enough for the command to get as far as the test needs it to."""


async def run(command: str | list[str], *, cwd: Path | None = None, timeout_s: float = LONG_S, keep: int = 1000) -> Ran:
    return await ProcessRuns(max_output_bytes=keep).exec(
        command, cwd=None if cwd is None else str(cwd), timeout_s=timeout_s
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  nobody tells us when a process is gone
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not os.path.isdir("/proc/self")


async def test_line_goes_to_shell_and_list_to_none(tmp_path: Path) -> None:
    assert await run("echo a; echo b >&2; exit 7", cwd=tmp_path) == Ran(b"a\n", b"b\n", 7)
    assert await run(["/bin/echo", "$HOME;", "a b", "*"], cwd=tmp_path) == Ran(b"$HOME; a b *\n", b"", 0)
    assert (await run("pwd", cwd=tmp_path)).stdout == f"{tmp_path}\n".encode()
    assert (await run("kill -9 $$")).exit_code == 128 + signal.SIGKILL


async def test_unstartable_process_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await run([str(tmp_path / "nothing")])
    with pytest.raises(OSError):
        await run("true", cwd=tmp_path / "nothing")


async def test_secrets_of_this_process_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    names = {line.partition(b"=")[0] for line in (await run(["/usr/bin/env"])).stdout.splitlines()}
    assert b"PATH" in names and b"SOME_API_KEY" not in names


async def test_nothing_waits_for_input() -> None:
    assert await run("cat; echo done") == Ran(b"done\n", b"", 0)


async def test_end_of_long_output_is_kept_and_rest_counted() -> None:
    ran = await run("i=0; while [ $i -lt 3000 ]; do echo 0123456789abcdef$i; i=$((i+1)); done; echo END", keep=100)
    assert len(ran.stdout) == 100 and ran.stdout.endswith(b"\nEND\n") and ran.dropped_stdout > 50_000


async def test_a_command_that_prints_for_ever_is_stopped() -> None:
    for timeout_s in PATIENCE:
        ran = await run("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", timeout_s=timeout_s)
        assert ran.timed_out
        if len(ran.stdout) == 1000:
            break
    else:
        pytest.fail("it never printed much")


async def test_out_of_time_means_the_whole_group_is_killed(tmp_path: Path) -> None:
    line = "trap '' TERM INT HUP; sh -c 'trap \"\" TERM; echo $$ > child; sleep 1000' & echo so far; wait"
    for timeout_s in PATIENCE:
        ran = await run(line, cwd=tmp_path, timeout_s=timeout_s)
        assert ran.timed_out
        if ran.stdout == b"so far\n" and (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break
    else:
        pytest.fail("it never got that far")
    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_alive(child))


async def test_leftovers_of_a_finished_command_are_killed(tmp_path: Path) -> None:
    ran = await run("sleep 1000 & echo $! > child; echo done", cwd=tmp_path)
    assert ran == Ran(b"done\n", b"", 0)
    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_alive(child))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="what left the group is found on Linux only")
async def test_a_process_that_left_the_group_is_killed_too(tmp_path: Path) -> None:
    daemon = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "open('child', 'w').write(str(os.getpid()))\n"
        "import signal; signal.pause()\n"
    )
    ran = await run(f'python3 -c "{daemon}"; while ! [ -s child ]; do :; done; echo done', cwd=tmp_path)
    assert ran == Ran(b"done\n", b"", 0)
    assert not is_alive(int((tmp_path / "child").read_text()))


async def test_cancelling_kills_what_was_started(tmp_path: Path) -> None:
    task = asyncio.create_task(run("echo $$ > parent; sleep 1000 & echo $! > child; wait", cwd=tmp_path))
    await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith("\n"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for name in ("parent", "child"):
        pid = int((tmp_path / name).read_text())
        await until(lambda pid=pid: not is_alive(pid))


async def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path: Path) -> None:
    assert await run("exec >&- 2>&-; touch there; exit 4", cwd=tmp_path) == Ran(b"", b"", 4)
    assert (tmp_path / "there").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors can be listed on Linux only")
async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    await run("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run("echo x")
        with pytest.raises(OSError):
            await run([str(tmp_path / "nothing")])
    assert len(os.listdir("/proc/self/fd")) == before
