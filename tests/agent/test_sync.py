"""Agents in code without an event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

from weftline import Agent, ToolContext, tool
from weftline.agent import sync
from weftline.details import PhaseChanged
from weftline.events import TextDelta
from weftline.testing import ScriptedModel, calls
from weftline.work import loop_thread
from weftline.work.loop_thread import LoopThread

who: ContextVar[str] = ContextVar("who", default="nobody")


@tool
async def caller(context: ToolContext) -> str:
    """Who called."""
    return who.get()


def test_a_blocking_run() -> None:
    agent = Agent(ScriptedModel(["Hello."]))
    assert agent.run_sync("Hi.").text == "Hello."
    assert agent.run_sync("Hi.").text == "Hello."


def test_a_blocking_stream() -> None:
    agent = Agent(ScriptedModel([{"deltas": ["Hel", "lo."]}]))
    with agent.stream_sync("Hi.") as run:
        assert list(run.text()) == ["Hel", "lo."]
        assert [event.text for event in run if isinstance(event, TextDelta)] == ["Hel", "lo."]
        assert run.result().text == "Hello."


def test_blocking_run_has_the_log_usage_and_receipt() -> None:
    agent = Agent(ScriptedModel([{"deltas": ["Hel", "lo."]}]))
    with agent.stream_sync("Hi.") as run:
        assert list(run.partials()) == ["Hel", "Hello."]
        assert any(isinstance(event, PhaseChanged) for event in run.events(profile="all"))
        assert run.entries(limit=1).entries[0].seq == 1
        assert [usage.output > 0 for usage in run.usage().values()] == [True]
        assert run.snapshot().status == "succeeded"
        assert run.cancel("late", by="ann").status == "succeeded"


def test_leaving_blocking_events_early_ends_their_generator() -> None:
    agent = Agent(ScriptedModel([{"deltas": ["Hel", "lo."]}]))
    with agent.stream_sync("Hi.") as run:
        events = run.events()
        next(events)
        events.close()
        assert list(events) == []
        assert run.result().text == "Hello."


def test_the_callers_context_variables_are_there() -> None:
    who.set("Ann")
    agent = Agent(ScriptedModel([calls("caller"), "Done."]), tools=[caller])
    assert agent.run_sync("Who?").calls[0].result == "Ann"


def test_an_overridden_model_holds_for_blocking_runs() -> None:
    agent = Agent("openai:gpt-5")
    model = ScriptedModel([calls("order", cake="lemon"), "Ordered."])
    with agent.override(model=model):
        result = agent.run_sync("A lemon cake, please.")
    assert [call.name for call in result.calls] == ["order"]
    model.assert_done()


def test_a_blocking_run_inside_a_loop_is_refused() -> None:
    async def inside() -> None:
        Agent(ScriptedModel(["x"])).run_sync("Hi.")

    with pytest.raises(RuntimeError, match="await the async call"):
        asyncio.run(inside())


def test_threads_that_come_first_together_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_shared", None)
    together = threading.Barrier(4)
    made: list[LoopThread] = []

    class Slow(LoopThread):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            made.append(self)

    monkeypatch.setattr(sync, "LoopThread", Slow)

    def first() -> int:
        together.wait()
        return sync.blocking(there)

    async def there() -> int:
        return id(asyncio.get_running_loop())

    with ThreadPoolExecutor(4) as pool:
        loops = {future.result() for future in [pool.submit(first) for _ in range(4)]}
    assert len(loops) == len(made) == 1
    made[0].stop()


def pythons() -> list[str]:
    """The interpreters that are here, each version once."""
    named = [found for minor in range(11, 16) if (found := shutil.which(f"python3.{minor}"))]
    installed = [str(path) for path in Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python")]
    found = {sys.version.split()[0]: sys.executable}
    for path in [*named, *installed]:
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if version.returncode == 0:
            found.setdefault(version.stdout.split()[1], path)
    return list(found.values())


SCRIPT = """
import asyncio, atexit, sys, threading
sys.path.insert(0, sys.argv[1])
from weftline.work.loop_thread import LoopThread

begun = threading.Event()

async def closed_late():
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        print(await asyncio.to_thread(str, "closed"), flush=True)

loop = LoopThread("own")
atexit.register(loop.stop, patience_s=60)
print(loop.run(asyncio.to_thread(str, "done")), flush=True)
loop.submit(closed_late())
begun.wait()
"""


def test_a_script_that_used_threads_ends_without_a_word() -> None:
    source = str(Path(loop_thread.__file__).parents[2])
    for python in pythons():
        # Without `-I`, a variable of the suite's could load more than the module itself needs.
        script = subprocess.run([python, "-I", "-c", SCRIPT, source], capture_output=True, text=True, check=False)
        assert (script.returncode, script.stdout, script.stderr) == (0, "done\nclosed\n", ""), python


CODE = """
import asyncio, sys
from weftline import Agent, code, tool
from weftline.testing import ScriptedModel, calls

@tool(effect="read")
def price(article: str) -> str:
    "What an article costs."
    return "EUR 3"

class Notes:
    async def open(self):
        return ()

    async def close(self):
        await asyncio.to_thread(print, "closed", flush=True)

languages = ["typescript", "python"]
turn = calls("code", code=sys.argv[2], language=sys.argv[1])
agent = Agent(ScriptedModel([turn, "Done."]), tools=[price, code(languages=languages), Notes()])
print(agent.run_sync("What does tea cost?").calls[-1].result, flush=True)
"""


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("typescript", 'export default await price({article: "tea"})'),
        ("python", 'default = await price(article="tea")'),
    ],
)
def test_a_script_that_ran_code_leaves_nothing_behind(language: str, source: str, tmp_path: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-c", CODE, language, source],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (script.returncode, script.stdout, script.stderr) == (0, "EUR 3\nclosed\n", "")
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import asyncio, os, signal, sys, time, weakref
sys.path.insert(0, sys.argv[1])
from weftline.work.loop_thread import LoopThread

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
gone = []

async def work():
    gone.append(weakref.ref(asyncio.current_task(), lambda ref: os.kill(os.getpid(), signal.SIGINT)))

async def long():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        print("tidied up")

loop = LoopThread("own")
for waiting in (work, long):
    try:
        loop.run(waiting())
        time.sleep(600)
    except KeyboardInterrupt:
        print("heard", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_is_never_lost_while_a_blocking_call_waits() -> None:
    source = str(Path(loop_thread.__file__).parents[2])
    command = [sys.executable, "-I", "-c", INTERRUPTED, source]
    script = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (script.returncode, script.stdout, script.stderr) == (0, "heard True\ntidied up\nheard True\n", "")
