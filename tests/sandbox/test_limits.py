"""What code can cost its host, and what it can get of somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from weftline.sandbox import Sandbox, conversation
from weftline.sandbox.monty import MontyEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncGenerator[Sandbox]:
    async with Sandbox(max_running=3) as sandbox:
        yield sandbox


def same(value: object) -> object:
    return value


@pytest.mark.parametrize(
    "statement",
    [
        "default = huge",
        "report(huge)\ndefault = 1",
        "tool(huge)\ndefault = 1",
        "default = [print(one, end='') for one in huge]",
    ],
)
async def test_a_value_counts_as_often_as_it_occurs(sandbox: Sandbox, statement: str) -> None:
    source = f"text = 'x' * 1000000\nhuge = [text] * 3000\n{statement}"
    result = await sandbox.run_code(source, language="python", globals={"tool": same}, report=lambda _: None)
    assert result.status in ("terminated", "memory")


@pytest.mark.parametrize("statement", ["console.log(huge)\ndefault = 1", "from lib import f\nf(huge)\ndefault = 1"])
async def test_the_process_between_has_a_limit_of_its_own(sandbox: Sandbox, statement: str) -> None:
    source = f"text = 'x' * 1000000\nhuge = [text] * 3000\n{statement}"
    result = await sandbox.run_code(source, language="python", imports={"lib": {"f": same}})
    assert result.status in ("terminated", "memory")
    assert (await sandbox.run_code("default = 1", language="python")).result == 1


async def test_an_answer_that_comes_late_answers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CALLS_END_S", 0.0)
    begun, other, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> object:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await other.wait()
        finished.set()
        return "a secret of the first"

    async def slow() -> object:
        other.set()
        await finished.wait()
        return "the second's own"

    async with Sandbox(engines=[MontyEngine(warm=0)]) as sandbox, asyncio.timeout(60):
        first = "async def default():\n    stubborn()\n    return await ready()"
        given = {"stubborn": stubborn, "ready": begun.wait}
        assert (await sandbox.run_code(first, language="python", globals=given)).result is True
        second = "async def default():\n    return await slow()"
        result = await sandbox.run_code(second, language="python", globals={"slow": slow})
    assert result.result == "the second's own"


async def test_the_names_of_the_runtime_are_not_the_codes(sandbox: Sandbox) -> None:
    for source in ("def __weftline_run(*args):\n    return 1", "__weftline_report(1)", "import lib as __weftline_out"):
        result = await sandbox.run_code(f"default = 1\n{source}", language="python", imports={"lib": {}})
        assert result.status == "link_error"
