"""What called code raises is its own failure, except for interruptions of the caller."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel
from weftline.work.outcomes import as_errors, attempt, is_interruption

OWN = [Exception("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), BaseException("x")]


@pytest.mark.usefixtures("no_ctrl_c")
@pytest.mark.parametrize("error", OWN, ids=type)
async def test_exception_raised_by_called_code_is_not_an_interruption(error: BaseException) -> None:
    assert not is_interruption(error)


async def test_ctrl_c_may_raise_whatever_loop_runs() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler, "the runner of asyncio has its own"
    assert is_interruption(KeyboardInterrupt())


async def test_ctrl_c_raises_in_no_other_thread() -> None:
    assert not await asyncio.to_thread(is_interruption, KeyboardInterrupt())


def test_code_that_is_closed_has_not_failed() -> None:
    """As Python closes what is left of a loop that is gone."""

    async def wait() -> None:
        with as_errors():
            await asyncio.sleep(0)

    waiting = wait()
    waiting.send(None)
    waiting.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()], ids=type)
async def test_a_cancellation_of_the_task_is_an_interruption(error: BaseException) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert is_interruption(error)
    with pytest.raises(type(error)), as_errors():
        raise error
    task.uncancel()


@pytest.mark.usefixtures("no_ctrl_c")
@pytest.mark.parametrize("error", OWN, ids=type)
async def test_called_code_that_nobody_guards_raises_errors_only(error: BaseException) -> None:
    with pytest.raises(Exception) as raised, as_errors():
        raise error
    assert error in (raised.value, raised.value.__cause__)


def test_without_a_loop_nothing_is_cancelled() -> None:
    assert not is_interruption(asyncio.CancelledError())


INTERRUPTED = """
import asyncio, os, signal
from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls

@tool
async def wait() -> str:
    "Waits."
    os.kill(os.getpid(), signal.SIGINT)
    return "not interrupted"

loop = asyncio.new_event_loop()
loop.run_until_complete(Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait]).run("Go."))
print("went on")
"""


TWICE = """
import asyncio, os, signal, sys, time
from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel, calls

@tool
async def pay() -> str:
    "Pays."
    os.kill(os.getpid(), signal.SIGINT)  # cancels
    os.kill(os.getpid(), signal.SIGINT)  # raises
    return "not interrupted"

async def main():
    agent = Agent(ScriptedModel([calls("pay"), "Done."]), name="payer", tools=[pay])
    async with Engine(sys.argv[1], agents=[agent], drain_s=0) as engine:
        run = await engine.start(agent, "Go.")
        print(run.id, flush=True)
        await run.result()

asyncio.run(main())
"""


async def test_second_ctrl_c_is_not_the_tools_failure(tmp_path: Path) -> None:
    program = [sys.executable, "-c", TWICE, str(tmp_path / "store")]
    ended = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in ended.stderr

    @tool
    async def pay() -> str:
        """Pays."""
        return "paid"

    agent = Agent(ScriptedModel(["Done."]), name="payer", tools=[pay])
    async with asyncio.timeout(60), Engine(tmp_path / "store", agents=[agent]) as engine:
        result = await engine.attach(ended.stdout.strip()).result()
    assert [call.how for call in result.calls] == ["in_doubt"]


def test_ctrl_c_ends_program_whose_loop_does_not_handle_it() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert "went on" not in ended.stdout
    assert "KeyboardInterrupt" in ended.stderr


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), asyncio.CancelledError()], ids=type)
async def test_what_code_raises_is_logged_and_found_afterwards(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with attempt(logging.getLogger("weftline.test"), "the code of %s failed", "ann") as trying:
        raise raised
    assert trying.error is raised and caplog.messages == ["the code of ann failed"]


def test_errors_that_the_caller_handles_are_raised() -> None:
    with pytest.raises(LookupError), attempt(but=(LookupError,)):
        raise KeyError("x")


@pytest.mark.parametrize("or_cancelled", [True, False])
async def test_an_error_of_cancelled_code_is_a_cancellation_if_the_caller_says_so(or_cancelled: bool) -> None:
    handled: list[str] = []

    async def work() -> None:
        with attempt(or_cancelled=or_cancelled) as trying:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("while it cleans up")
        handled.append(str(trying.error))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), handled) == (or_cancelled, [] if or_cancelled else ["while it cleans up"])
