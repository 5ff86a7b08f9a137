"""A forked child has no threads, loops or processes of its parent's: it makes its own."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls
from weftline.work.loop_thread import LoopThread

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
WAIT_S = 60


@tool(effect="read")
def plain() -> str:
    """A plain function."""
    return str(os.getpid())


def work(_: int) -> str:
    return Agent(ScriptedModel([calls("plain"), "{{tool_results.0}}"]), tools=[plain]).run_sync("x").text


@pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")
def test_a_forked_child_runs_plain_functions_after_its_parent_did() -> None:
    assert work(0) == str(os.getpid())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map_async(work, range(1)).get(WAIT_S) != [str(os.getpid())]


async def _here() -> int:
    return threading.get_ident()


def _use(loop: LoopThread, said: multiprocessing.SimpleQueue[str]) -> None:
    try:
        loop.run(_here())
    except RuntimeError as error:
        said.put(str(error))
    loop.stop()  # which leaves the parent's alone


@pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")
def test_loop_of_parents_refuses_work_in_forked_child() -> None:
    loop = LoopThread("test")
    try:
        before = loop.run(_here())
        forking = multiprocessing.get_context("fork")
        said = forking.SimpleQueue()
        child = forking.Process(target=_use, args=(loop, said))
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        assert "forked" in said.get()
        assert loop.run(_here()) == before
    finally:
        loop.stop()
