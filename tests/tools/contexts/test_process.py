"""Commands that do not want to end, and what holds for them all the same."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import pytest

from forked import run_python
from weftline.tools.contexts.base import ExecResult, Handle
from weftline.tools.contexts.process import ProcessContext
from weftline.tools.contexts.running import Execution, Program

WAIT_S = 60
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not give orphans to a chosen parent")


class Place:
    """A process context, and a handle in it."""

    def __init__(self, context: ProcessContext, handle: Handle) -> None:
        self.context = context
        self.handle = handle
        self.root = Path(handle.cwd)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    context = ProcessContext(max_output_bytes=100_000, stop_grace_s=0.1)
    handle = await context.spawn(cwd=tmp_path)
    async with asyncio.timeout(WAIT_S):
        yield Place(context, handle)
    await context.destroy(handle)


def is_running(pid: bytes | str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def ends(pid: int) -> bool:
    """Whether a process that is nobody's child here comes to its end."""
    poll = select.poll()
    process = os.pidfd_open(pid)
    try:
        poll.register(process, select.POLLIN)
        return bool(poll.poll(WAIT_S * 1000))
    finally:
        os.close(process)


@pytest.mark.requirement("tool.context.default")
async def test_commands_see_nothing_of_our_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    handle = await place.context.spawn(cwd=place.root, env={"GIVEN": "1"})
    result = await place.context.exec(handle, ["env"])
    seen = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert seen.keys() <= {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "GIVEN"}
    assert (seen["GIVEN"], seen["LANG"], seen["TERM"]) == ("1", "de_DE.UTF-8", "dumb")


async def test_a_background_process_does_not_outlive_its_command(place: Place) -> None:
    result = await place.context.exec(place.handle, "sleep 600 & echo $!")
    assert result.exit_code == 0
    assert not is_running(result.stdout)


ESCAPED = "setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; exec 3>&-; sleep 600; sleep 600' & "
UNTIL_ESCAPED = "while [ ! -s pid ]; do :; done; "


@ON_LINUX
async def test_process_with_its_own_session_does_not_outlive_its_command(place: Place) -> None:
    await place.context.exec(place.handle, f"({ESCAPED}); {UNTIL_ESCAPED} exit")
    assert not is_running((place.root / "pid").read_text())


async def cut_off(place: Place, command: str) -> ExecResult:
    """What becomes of a command that does not end; on a busy machine it may take a while to say that it has begun."""
    result = await place.context.exec(place.handle, command, timeout_s=1)
    if not result.stdout:
        result = await place.context.exec(place.handle, command, timeout_s=WAIT_S)
    return result


@pytest.mark.requirement("tool.context.timeout", "tool.shell.no_stdin")
async def test_a_shell_that_ignores_sigterm_is_killed_with_its_children(place: Place) -> None:
    command = f"trap '' TERM; {ESCAPED} echo begun; cat; {UNTIL_ESCAPED} while :; do sleep 600; done"
    result = await cut_off(place, command)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"begun\n")
    if sys.platform == "linux":
        assert not is_running((place.root / "pid").read_text())


@pytest.mark.requirement("tool.context.abort")
async def test_cancelling_kills_the_command_and_its_children_first(place: Place) -> None:
    os.mkfifo(place.root / "ready")
    command = f"{ESCAPED} {UNTIL_ESCAPED} echo $$ > own; echo > ready; sleep 600"
    task = asyncio.create_task(place.context.exec(place.handle, command))
    await place.context.exec(place.handle, ["cat", "ready"])
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running((place.root / "own").read_text())
    if sys.platform == "linux":
        assert not is_running((place.root / "pid").read_text())


@pytest.mark.requirement("tool.context.output_cap")
async def test_of_much_output_end_is_kept_and_rest_counted(place: Place) -> None:
    result = await place.context.exec(
        place.handle, "yes 12345678 | head -c 900000; yes | head -c 300000 >&2; printf end"
    )
    assert (len(result.stdout), result.dropped_stdout) == (100_000, 800_003)
    assert (len(result.stderr), result.dropped_stderr) == (100_000, 200_000)
    assert result.stdout.endswith(b"12345678\nend")
    assert set(result.stdout) == set(b"12345678\nend")


@pytest.mark.requirement("tool.context.output_cap")
async def test_endless_output_neither_blocks_nor_fills_memory(place: Place) -> None:
    result = await place.context.exec(place.handle, "yes & yes >&2 & sleep 0.05; exit 7")
    assert result.exit_code == 7
    assert len(result.stdout) <= 100_000 and len(result.stderr) <= 100_000


async def test_closed_outputs_are_not_the_end_of_a_command(place: Place) -> None:
    result = await place.context.exec(place.handle, "exec >&- 2>&-; sleep 0.05; echo x > done; exit 5")
    assert result.exit_code == 5
    assert (place.root / "done").exists()


async def test_output_is_bytes_whatever_they_are(place: Place) -> None:
    result = await place.context.exec(place.handle, r"printf '\377\376\0ok'")
    assert result.stdout == b"\xff\xfe\0ok"


async def test_a_command_ended_by_a_signal_says_by_which(place: Place) -> None:
    assert (await place.context.exec(place.handle, ["sh", "-c", "kill -USR1 $$"])).exit_code == 128 + signal.SIGUSR1
    # Python ignores SIGPIPE, and a child would inherit that.
    assert (await place.context.exec(place.handle, ["sh", "-c", "kill -PIPE $$"])).exit_code == 128 + signal.SIGPIPE


@pytest.mark.parametrize("command", ["x" * 3_000_000, "echo \0", ["/"], ["./none"]], ids=["long", "nul", "dir", "none"])
async def test_unstartable_command_is_a_result(place: Place, command: str | list[str]) -> None:
    result = await place.context.exec(place.handle, command)
    assert result.exit_code in (126, 127)
    assert result.stderr


async def test_a_directory_that_is_not_there_is_a_result(place: Place) -> None:
    result = await place.context.exec(place.handle, "pwd", cwd="none")
    assert (result.exit_code, result.stdout) == (127, b"")
    assert b"none" in result.stderr


@ON_LINUX
async def test_a_command_that_kills_its_supervisor_is_told_as_killed(place: Place) -> None:
    """What it started may live on: docs/builtin-tools.md says so."""
    result = await place.context.exec(place.handle, "sleep 600 & echo $!; kill -9 $PPID; sleep 600", timeout_s=WAIT_S)
    assert result.exit_code == 137
    assert not result.timed_out
    with suppress(ProcessLookupError):
        os.kill(int(result.stdout), signal.SIGKILL)


async def test_a_command_that_stops_its_supervisor_still_ends_in_time(place: Place) -> None:
    result = await cut_off(place, "echo begun; kill -STOP $PPID; sleep 600")
    assert (result.exit_code, result.stdout) == (124, b"begun\n")


async def test_a_command_that_cannot_be_executed_has_not_begun(tmp_path: Path) -> None:
    execution = Execution(Program(argv=[""], cwd=str(tmp_path), env={}, timeout_s=WAIT_S))
    result = await execution.result()
    assert (execution.began, result.exit_code) == (False, 126)
    assert b"Traceback" not in result.stderr


@ON_LINUX
async def test_a_command_is_known_before_it_can_harm_its_supervisor(tmp_path: Path) -> None:
    """Else it would have the time that a supervisor may take to start on top of its own, or live on."""
    argv = ["sh", "-c", "echo $$; kill -9 $PPID; exec sleep 600"]
    program = Program(argv=argv, cwd=str(tmp_path), env={"PATH": os.environ["PATH"]}, timeout_s=WAIT_S)
    commands = [Execution(program) for _ in range(12)]
    results = await asyncio.gather(*[command.result() for command in commands])
    assert [command.began for command in commands] == [True] * 12
    assert [result.exit_code for result in results] == [137] * 12
    for result in results:
        with suppress(ProcessLookupError):
            assert ends(int(result.stdout))


HOST = """
import asyncio, sys
from weftline.tools.contexts.process import ProcessContext

async def main():
    context = ProcessContext()
    handle = await context.spawn(cwd=sys.argv[1])
    command = "trap '' TERM; exec 4> gate; setsid sleep 600 & %s kill -9 %d; sleep 600"
    command %= sys.argv[2], __import__("os").getpid()
    await context.exec(handle, command)

asyncio.run(main())
"""


@ON_LINUX
@pytest.mark.parametrize("first", ["", "kill -STOP $PPID;"], ids=["", "with its supervisor stopped"])
async def test_nothing_of_command_is_left_when_our_process_is_killed(first: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    context = ProcessContext()
    handle = await context.spawn(cwd=tmp_path)
    # Ends when nobody holds the other end of the pipe.
    watch = asyncio.create_task(context.exec(handle, "cat gate; echo gone", timeout_s=WAIT_S))
    died = await asyncio.to_thread(run_python, "-c", HOST, str(tmp_path), first, cwd=tmp_path)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (await watch).stdout == b"gone\n"


@pytest.mark.requirement("tool.context.destroy")
async def test_destroying_removes_what_the_context_made_and_nothing_else(tmp_path: Path) -> None:
    context = ProcessContext()
    own, given = await context.spawn(), await context.spawn(cwd=tmp_path)
    await context.write_file(own, "a/b", b"")
    await context.destroy(own)
    await context.destroy(given)
    assert not os.access(own.cwd, os.F_OK)
    assert os.access(tmp_path, os.F_OK)
