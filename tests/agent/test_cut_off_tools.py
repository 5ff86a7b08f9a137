"""A tool that is cut off, and raises something else than its cancellation: nobody knows what it did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, ToolFailed, tool
from weftline.testing import ScriptedModel, calls
from weftline.tools import WillNotHappen

RAISED = [ConnectionError, TimeoutError, SystemExit, ToolFailed]


class Payments:
    """Each payment hangs the first time; what cleans up after it fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self.begun = asyncio.Event()
        self.count = 0
        self.reconciled = 0
        self._error = error

    async def pay(self) -> str:
        self.count += 1
        self.begun.set()
        if self.count > 1:
            return "paid"
        try:
            await asyncio.sleep(3600)
        finally:
            raise self._error("the rollback failed")

    def reconcile(self) -> WillNotHappen:
        self.reconciled += 1
        return WillNotHappen()


def payer(payments: Payments, effect: Any, **options: Any) -> Agent[Any, Any]:
    if effect == "reconcile":
        options["reconcile"] = payments.reconcile

    @tool(effect=effect, **options)
    async def pay() -> str:
        """Pays."""
        return await payments.pay()

    return Agent(ScriptedModel([calls("pay"), calls("pay"), "Done."]), name="payer", tools=[pay])


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize(
    ("effect", "hows", "count", "reconciled"),
    [
        ("once", ["in_doubt", "repeat_of_doubt"], 1, 0),
        ("reconcile", ["returned", "returned"], 3, 1),
        ("idempotent", ["returned", "returned"], 3, 0),
        ("read", ["returned", "returned"], 3, 0),
    ],
)
async def test_tool_cut_by_a_stop_is_treated_like_a_crash(
    tmp_path: Path, error: type[BaseException], effect: str, hows: list[str], count: int, reconciled: int
) -> None:
    payments = Payments(error)
    agent = payer(payments, effect)
    async with asyncio.timeout(60):
        async with Engine(tmp_path / "store", agents=[agent], drain_s=0) as engine:
            run = await engine.start(agent, "Pay.")
            await payments.begun.wait()
        async with Engine(tmp_path / "store", agents=[agent]) as engine:
            result = await engine.attach(run.id).result()
    assert [call.how for call in result.calls] == hows
    assert (payments.count, payments.reconciled) == (count, reconciled)


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize(
    ("effect", "hows"), [("once", ["in_doubt", "repeat_of_doubt"]), ("idempotent", ["timeout", "returned"])]
)
async def test_tool_that_times_out_is_in_doubt_whatever_it_raises(
    error: type[BaseException], effect: str, hows: list[str]
) -> None:
    result = await payer(Payments(error), effect, timeout_s=0.01).run("Pay.")
    assert [call.how for call in result.calls] == hows


async def test_a_tool_that_returns_though_it_was_cancelled_has_returned(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool
    async def pay() -> str:
        """Pays."""
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "paid"
        return "unreachable"

    agent = Agent(ScriptedModel([calls("pay"), "Done."]), name="payer", tools=[pay])
    async with asyncio.timeout(60):
        async with Engine(tmp_path / "store", agents=[agent], drain_s=0) as engine:
            run = await engine.start(agent, "Pay.")
            await begun.wait()
        async with Engine(tmp_path / "store", agents=[agent]) as engine:
            result = await engine.attach(run.id).result()
    assert [(call.how, call.result) for call in result.calls] == [("returned", "paid")]


class Wrapped:
    """A tool of another class, around one of ours."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def invoke(self, args: bytes, context: Any) -> Any:
        try:
            return await self._inner.invoke(args, context)
        except asyncio.CancelledError:
            raise ConnectionError("lost") from None


@pytest.mark.parametrize("timeout_s", [0.01, None])
async def test_a_tool_of_another_class_is_in_doubt_too(tmp_path: Path, timeout_s: float | None) -> None:
    begun, count = asyncio.Event(), 0

    @tool(timeout_s=timeout_s)
    async def pay() -> str:
        """Pays."""
        nonlocal count
        count += 1
        begun.set()
        await asyncio.sleep(3600 if count == 1 else 0)
        return "paid"

    wrapped: Any = Wrapped(pay)
    agent = Agent(ScriptedModel([calls("pay"), calls("pay"), "Done."]), name="payer", tools=[wrapped])
    async with asyncio.timeout(60):
        async with Engine(tmp_path / "store", agents=[agent], drain_s=0) as engine:
            run = await engine.start(agent, "Pay.")
            await begun.wait()
            if timeout_s is not None:
                await run.result()
        async with Engine(tmp_path / "store", agents=[agent]) as engine:
            result = await engine.attach(run.id).result()
    assert ([call.how for call in result.calls], count) == (["in_doubt", "repeat_of_doubt"], 1)


async def test_a_tool_that_denies_its_cancellation_has_timed_out() -> None:
    @tool(timeout_s=0.01)
    async def pay() -> str:
        """Pays."""
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            raise ConnectionError("lost") from None
        return "unreachable"

    result = await Agent(ScriptedModel([calls("pay"), "Done."]), tools=[pay]).run("Pay.")
    assert [call.how for call in result.calls] == ["in_doubt"]
