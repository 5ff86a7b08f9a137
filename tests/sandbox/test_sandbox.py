"""What is around the engines: the queue, the cap, what is refused at the call, and what is left at the end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from sandbox.engines import StandIn
from weftline.sandbox import Sandbox, SandboxUnavailable, conversation, process
from weftline.sandbox.base import HostFunction, OutputFull
from weftline.sandbox.deno import DenoEngine
from weftline.sandbox.execution import MAX_LOGS, MAX_REPORTS, Served
from weftline.sandbox.monty import MontyEngine
from weftline.sandbox.process import Pool, Program


async def cancelled() -> None:
    raise asyncio.CancelledError("elsewhere")


@pytest.mark.requirement("sandbox.limit.safety_cap")
async def test_code_that_nobody_ends_is_ended_at_the_cap() -> None:
    async with Sandbox(engines=[StandIn()], safety_cap_s=0.01) as sandbox:
        result = await sandbox.run_code("")
    assert result.status == "terminated"
    assert result.error is not None and "safety cap of 0.01 seconds" in result.error.message


@pytest.mark.requirement("sandbox.limit.safety_cap")
async def test_there_is_no_timeout_to_pass() -> None:
    async with Sandbox(engines=[StandIn()]) as sandbox:
        with pytest.raises(TypeError):
            sandbox.run_code("", timeout_s=1)  # pyright: ignore


async def test_cap_does_not_run_while_code_waits_for_its_turn() -> None:
    engine = StandIn()
    async with Sandbox(engines=[engine], max_running=1, safety_cap_s=0.05) as sandbox:
        first, second = sandbox.run_code("1"), sandbox.run_code("2")
        assert (await first).status == "terminated"
        assert second.running
        engine.let.set()
        assert (await second).status == "success"


async def test_turns_go_round_over_owners_and_in_order_within_one() -> None:
    engine = StandIn()
    async with Sandbox(engines=[engine], max_running=1) as sandbox:
        flood = [sandbox.run_code(f"flood {n}", owner="flood") for n in range(4)]
        other = [sandbox.run_code(f"other {n}", owner="other") for n in range(2)]
        await asyncio.sleep(0)  # all of them stand in the queue
        engine.let.set()
        await asyncio.gather(*flood, *other)
    assert engine.began == ["flood 0", "flood 1", "other 0", "flood 2", "other 1", "flood 3"]


async def test_code_that_is_terminated_while_it_waits_never_starts() -> None:
    engine = StandIn()
    async with Sandbox(engines=[engine], max_running=1) as sandbox:
        first, second, third = (sandbox.run_code(str(n)) for n in range(3))
        second.terminate("No longer needed.")
        assert (await second).status == "terminated"
        engine.let.set()
        assert [(await one).status for one in (first, third)] == ["success", "success"]
    assert engine.began == ["0", "2"]


@pytest.mark.requirement("sandbox.handle.cleanup")
async def test_closing_ends_what_runs_and_what_waits() -> None:
    engine = StandIn()
    sandbox = Sandbox(engines=[engine], max_running=1)
    running, waiting = sandbox.run_code("1"), sandbox.run_code("2")
    await asyncio.sleep(0)
    await sandbox.close()
    assert [(await one).status for one in (running, waiting)] == ["terminated", "terminated"]
    assert (engine.began, engine.left, engine.closed) == (["1"], ["1"], True)
    with pytest.raises(RuntimeError):
        sandbox.run_code("3")


@pytest.mark.requirement("sandbox.lang.unavailable")
async def test_an_unknown_language_is_refused_at_the_call() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(ValueError, match="typescript"):
            sandbox.run_code("", language="typescrip")


@pytest.mark.requirement("sandbox.lang.unavailable")
@pytest.mark.parametrize(("language", "module"), [("typescript", "deno"), ("python", "pydantic_monty")])
async def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch, language: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    async with Sandbox() as sandbox:
        with pytest.raises(SandboxUnavailable, match=r"\.\[sandbox\]") as raised:
            sandbox.run_code("", language=language)
    assert (raised.value.code, raised.value.status) == ("sandbox_unavailable", 503)


@pytest.mark.requirement("sandbox.isolate.fail_closed")
@pytest.mark.parametrize(("engine", "language"), [(DenoEngine, "typescript"), (MontyEngine, "python")])
async def test_isolation_that_is_required_and_not_there_refuses_the_code(
    monkeypatch: pytest.MonkeyPatch, engine: type[DenoEngine] | type[MontyEngine], language: str
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    async with Sandbox(engines=[engine(isolation="required")]) as sandbox:
        with pytest.raises(SandboxUnavailable, match="bubblewrap"):
            sandbox.run_code("", language=language)


@pytest.mark.parametrize(
    "given",
    [
        {"globals": {"no-name": 1}},
        {"globals": {"class": 1}},
        {"globals": {"undefined": 1}},
        {"imports": {"./relative": {}}},
        {"imports": {"": {}}},
        {"modules": {"../outside.js": ""}},
        {"modules": {"a.js": "", "./a.js": ""}},
        {"modules": {"main.ts": ""}, "filename": "main.ts"},
        {"memory_limit_bytes": 1000},
        {"memory_limit_bytes": 0},
        {"memory_limit_bytes": 2e8},
        {"modules": {"/rooted.js": ""}},
        {"modules": {"a.js": 5}},
        {"modules": ["a.js"]},
        {"imports": {"https://x.example/a.js": {}}},
        {"imports": {"node:fs": {}}},
        {"imports": {"a": 1}},
        {"imports": {"a": {1: 2}}},
        {"imports": [1]},
        {"globals": {1: 2}},
        {"source": None},
        {"source": b"export default 1"},
        {"fn": 5},
        {"args": "abc"},
        {"args": {"a": 1}},
        {"filename": 5},
        {"language": 5},
        {"owner": []},
        {"report": 5},
        {"report": cancelled},
    ],
)
async def test_impossible_argument_is_refused_at_the_call(given: Mapping[str, Mapping[str, object]]) -> None:
    async with Sandbox(engines=[StandIn()]) as sandbox:
        with pytest.raises(ValueError):
            sandbox.run_code(**{"source": "", **given})  # pyright: ignore


@pytest.mark.parametrize(
    "given",
    [
        {"max_running": 0},
        {"max_running": -1},
        {"max_running": 1.5},
        {"safety_cap_s": 0},
        {"safety_cap_s": float("nan")},
        {"safety_cap_s": float("inf")},
        {"memory_limit_bytes": 1},
    ],
)
def test_a_sandbox_that_cannot_be_is_refused(given: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        Sandbox(**given)  # pyright: ignore


@pytest.mark.parametrize(
    "given", [{"globals": {"__weftline_x": 1}}, {"imports": {"a": {"__weftline_x": 1}}}, {"globals": {"console": 1}}]
)
async def test_value_python_cannot_receive_is_refused_at_the_call(given: Mapping[str, Mapping[str, object]]) -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(ValueError):
            sandbox.run_code("default = 1", language="python", **given)  # pyright: ignore


def served(functions: Sequence[HostFunction] = ()) -> Served:
    return Served(functions, lambda _: None)


def test_a_flood_of_logs_is_cut_and_counted() -> None:
    host = served()
    for n in range(MAX_LOGS + 5):
        host.log("log", [n])
    assert len(host.all_logs()) == MAX_LOGS + 1
    assert host.all_logs()[-1].args == ("5 more were left out.",)


def test_a_flood_of_reports_ends_the_code() -> None:
    host = served()
    for n in range(MAX_REPORTS):
        host.report(n)
    with pytest.raises(OutputFull):
        host.report("one more")


async def test_input_after_the_end_has_no_effect() -> None:
    called: list[object] = []
    host = served([HostFunction(0, called.append)])
    host.closed = True
    host.report(1)
    host.log("log", [1])
    with pytest.raises(LookupError):
        await host.call(0, [1])
    assert (host.reports, host.logs, called) == ([], [], [])


def test_engines_work_on_the_loop_of_the_server() -> None:
    async def run() -> list[str]:
        async with Sandbox() as sandbox:
            endless = sandbox.run_code("while True:\n    pass\ndefault = 1", language="python")
            done = await sandbox.run_code("export default 1")
            endless.terminate()
            return [done.status, (await endless).status]

    assert uvloop.run(run()) == ["success", "terminated"]


async def test_processes_do_not_wait_for_ever(tmp_path: Path) -> None:
    fake = tmp_path / "engine"
    fake.write_text("#!/bin/sh\necho ready\nread line\n")
    fake.chmod(0o755)
    pool = Pool(lambda _: Program(args=[str(fake)], readable=[]), warm=1, isolation="off", idle_s=0.01)
    taken = await pool.take()
    first = await pool.take()
    await pool.release(first)
    async with asyncio.timeout(60):
        await first.ended()
        # Nobody was there any more when this one comes back: it does not stay for ever either.
        second = await pool.take()
        await asyncio.sleep(0.05)
        await pool.release(second)
        await second.ended()
    assert taken.alive
    await taken.kill()
    await pool.close()


async def test_a_sink_that_fails_does_not_harm_the_code(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("full")

    host = Served([], fail)
    host.report(1)
    host.report(2)
    assert host.reports == [1, 2]
    assert "report callback" in caplog.text


async def test_call_that_ignores_cancellation_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CALLS_END_S", 0.01)
    called, let, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await let.wait()
            ended.set()

    async with Sandbox() as sandbox:
        source = "async def default():\n    await stubborn()"
        execution = sandbox.run_code(source, language="python", globals={"stubborn": stubborn})
        async with asyncio.timeout(60):
            await called.wait()
            execution.terminate("Enough.")
            assert (await execution).status == "terminated"
            let.set()
            await ended.wait()


async def test_code_runs_without_broken_bubblewrap_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="weftline.sandbox")
    wrapper = tmp_path / "bwrap"
    wrapper.write_text("#!/bin/sh\nexit 1\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake = tmp_path / "engine"
    fake.write_text("#!/bin/sh\necho ready\nread line\n")
    fake.chmod(0o755)
    program = Program(args=[str(fake)], readable=[])
    preferred, required = (Pool(lambda _: program, warm=1, isolation=one) for one in ("preferred", "required"))
    for engine in await asyncio.gather(*(preferred.take() for _ in range(3))):
        assert engine.alive
        await engine.kill()
    assert len(caplog.records) == 1
    with pytest.raises(SandboxUnavailable, match="bubblewrap"):
        await required.take()
    await preferred.close()
    await required.close()


def test_folders_of_hosts_that_were_killed_are_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    of_the_dead, mine = tmp_path / "weftline-sandbox-999999999-x", tmp_path / f"weftline-sandbox-{os.getpid()}-x"
    (of_the_dead / ".cache" / "deno").mkdir(parents=True)
    (of_the_dead / ".cache" / "deno" / "dep_analysis_cache_v2").write_bytes(b"cached")
    mine.mkdir()
    made = Path(process.own_directory())
    assert sorted(tmp_path.iterdir()) == sorted([mine, made])


async def test_engine_writes_no_file_that_its_limits_would_kill_it_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with Sandbox(engines=[DenoEngine(warm=1)]) as sandbox:
        assert (await sandbox.run_code("export default 1", language="javascript")).status == "success"
        (own,) = everything_below(tmp_path)
        assert own.name.startswith(f"weftline-sandbox-{os.getpid()}-")


def everything_below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def unspeakable() -> None:
    raise Unspeakable


async def exits() -> None:
    raise SystemExit("over")


ANSWERS: dict[str, tuple[Callable[[], object], str]] = {
    "CancelledError": (cancelled, "elsewhere"),
    "Unspeakable": (unspeakable, ""),
    "SystemExit": (exits, "over"),
    "text": (lambda: "x" * (9 << 20), "the answer: more than 8 MiB cannot be passed into or out of the sandbox"),
    "parts": (
        lambda: [0] * 200_001,
        "the answer: a value of more than 200,000 parts cannot be passed into or out of the sandbox",
    ),
    "digits": (
        lambda: [10**4000],
        "the answer[0]: an integer of more than 4,000 digits cannot be passed into or out of the sandbox",
    ),
}
CATCHES = {
    "javascript": "let r; try { await f() } catch (e) { r = [e.name, e.message] }\nexport default r",
    "python": "try:\n    await f()\nexcept BaseException as e:\n    default = ['', str(e)]",
}


@pytest.mark.parametrize("language", CATCHES)
async def test_every_call_is_answered_whatever_its_function_does(language: str) -> None:
    async with Sandbox() as sandbox:
        for name, (function, words) in ANSWERS.items():
            result = await sandbox.run_code(CATCHES[language], language=language, globals={"f": function})
            told = result.result
            assert isinstance(told, list) and isinstance(told[1], str), (name, result)
            assert told[1].endswith(words) and (language == "python" or told[0] in (name, "TypeError")), (name, told)
            assert "Traceback" not in told[1]


@pytest.mark.parametrize(
    ("language", "source"), [("javascript", "f(1); export default 1"), ("python", "f(1)\ndefault = 1")]
)
async def test_result_names_calls_that_were_open_at_end(language: str, source: str) -> None:
    async def never(n: int) -> None:
        await asyncio.Event().wait()

    async with Sandbox() as sandbox:
        result = await sandbox.run_code(source, language=language, globals={"f": never})
    assert (result.result, result.open_calls) == (1, (1,))


async def test_integers_that_are_too_long_are_refused_with_path() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(ValueError, match=r"args\[0\]\.n: an integer of more than 4,000 digits"):
            sandbox.run_code("export default 1", args=[{"n": -(10**4000)}])


def test_processes_end_with_their_loop_though_nobody_closes_the_sandbox() -> None:
    sandbox = Sandbox(engines=[DenoEngine(warm=1), MontyEngine()])
    left: list[int] = []
    others, threads = set(children()), set(threading.enumerate())  # of tests before this one

    async def leave(running: str) -> None:
        assert (await sandbox.run_code("export default 1")).result == 1
        assert (await sandbox.run_code("default = 1", language="python")).result == 1
        begun = asyncio.Event()
        sandbox.run_code(running, language="python", globals={"begun": begun.set})
        await begun.wait()
        left.extend(set(children()) - others)

    for _ in range(2):  # and the next loop is served too
        asyncio.run(leave("begun()\nwhile True:\n    pass\ndefault = 1"))
        assert len(left) >= 2
        assert not set(left) & set(children())
    asyncio.run(sandbox.close())
    for thread in set(threading.enumerate()) - threads:
        thread.join()  # asyncio waits for each process in one, which holds on to what was left open
    with warnings.catch_warnings():  # what was left open is collected here, and not in another test
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def children() -> list[int]:
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # its thread has just ended
            found += map(int, path.read_text().split())
    return found


@pytest.fixture
def reaper() -> Iterator[None]:
    """Whoever loses a parent becomes a child of this process, as it would of the first one in a container."""
    set_subreaper(True)
    yield
    set_subreaper(False)


def set_subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(36, int(on), 0, 0, 0)


@pytest.mark.usefixtures("reaper")
async def test_processes_inside_bubblewrap_leave_no_zombies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one that makes no namespaces: a parent of its own name, as bubblewrap is."""
    wrapper = tmp_path / "bwrap"
    wrapper.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\n"$@"\nexit $?\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = set(children())
    async with Sandbox(engines=[DenoEngine(warm=0), MontyEngine(warm=0)]) as sandbox:
        for _ in range(3):
            assert (await sandbox.run_code("export default 1")).result == 1
        assert (await sandbox.run_code("default = 1", language="python")).result == 1
    assert set(children()) <= before


def bubblewrap_works() -> bool:
    program = shutil.which("bwrap")
    seen = ["--ro-bind", "/", "/", "true"]
    return program is not None and subprocess.run([program, "--unshare-all", *seen], check=False).returncode == 0


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap (bwrap), and leave to make namespaces")
@pytest.mark.parametrize(
    ("language", "source"), [("typescript", "await f(); export default 1"), ("python", "await f()\ndefault = 1")]
)
async def test_code_runs_inside_bubblewrap(language: str, source: str) -> None:
    parents: list[str] = []

    def look() -> None:
        parents.extend([Path(f"/proc/{pid}/comm").read_text() for pid in children()])

    engines = [DenoEngine(isolation="required", warm=1), MontyEngine(isolation="required")]
    async with Sandbox(engines=engines) as sandbox:
        assert (await sandbox.run_code(source, language=language, globals={"f": look})).result == 1
    assert "bwrap\n" in parents
