"""What a run is at a moment, and its log a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from weftline import Agent, Engine, Limits, RunFailed, ask_user, tool
from weftline.errors import InvalidRequest, NotFound
from weftline.events import AwaitOpened, RunEnded, TextDelta
from weftline.kernel.bodies import ProviderFailure
from weftline.providers.base import Chunk, ModelRequest, ProviderError
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60


@pytest.mark.requirement("run.status.values")
async def test_run_is_queued_running_paused_and_has_ended_one_way() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go.wait()
        return "ok"

    @tool(effect="once", confirm="Pay?")
    async def pay() -> str:
        """Pays."""
        begun.set()
        await go.wait()
        return "Paid."

    broken = {"error": {"class": "auth", "message": "bad key", "retryable": False}}
    async with asyncio.timeout(PATIENCE_S), Engine(max_runs=1) as engine:
        first = await engine.start(
            Agent(ScriptedModel([calls("wait"), calls("pay"), "Done."]), tools=[wait, pay]), "Go."
        )
        await begun.wait()
        second = await engine.start(Agent(ScriptedModel([broken])), "Fail.")
        assert (await first.status(), await second.status()) == ("running", "queued")
        await first.pause()
        assert await first.status() == "paused"
        await first.resume()
        assert await first.status() == "running"
        begun.clear()
        go.set()
        opened = await anext(event async for event in first.events() if isinstance(event, AwaitOpened))
        with pytest.raises(RunFailed):
            await second.result()  # it has the place of the one that waits
        assert (await first.status(), await second.status()) == ("paused", "failed")
        go.clear()
        await first.approve(opened.id)
        await begun.wait()
        assert await first.status() == "running"
        go.set()
        await first.result()
        third = await engine.start(Agent(ScriptedModel([calls("pay")]), tools=[pay]), "Go.")
        await anext(event async for event in third.events() if isinstance(event, AwaitOpened))
        await third.cancel()
        assert (await first.status(), await third.status()) == ("succeeded", "cancelled")


@pytest.mark.requirement("run.log.read")
@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
async def test_log_is_read_in_pages_and_then_followed_without_gap(limit: int, tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go.wait()
        return "ok"

    model = ScriptedModel([{"deltas": ["one ", "two ", "three"], **calls("wait")}, "Done."])
    agent = Agent(model, name="reader", tools=[wait])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path) as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        seqs: list[int] = []
        while True:
            page = await run.entries(after=seqs[-1] if seqs else 0, limit=limit)
            assert 0 < len(page.entries) <= limit and page.last_seq == page.entries[-1].seq
            seqs += [entry.seq for entry in page.entries]
            if page.at_tail:
                break
        assert seqs == list(range(1, len(seqs) + 1))
        assert (await run.entries(after=seqs[-1])).entries == ()
        go.set()
        live = [event async for event in run.events(after=seqs[-1])]
        later = await run.entries(after=seqs[-1], limit=1000)
        assert later.at_tail and later.entries[-1].kind == "run.ended"
        assert [entry.seq for entry in later.entries] == list(range(len(seqs) + 1, later.last_seq + 1))
        assert {event.seq for event in live} <= {entry.seq for entry in later.entries}
        whole = await run.entries(limit=1000)
        first = whole.entries[0]
        assert (first.run_id, first.kind, first.head and first.head["type"]) == (run.id, "run.created", "run.created")
        texts = [entry.body["text"] for entry in whole.entries if entry.kind == "delta.text"]
        assert texts == [event.text async for event in run.events() if isinstance(event, TextDelta)]
        assert isinstance(live[-1], RunEnded) and live[-1].seq == whole.last_seq
        with pytest.raises(InvalidRequest, match="limit must be 1 or more, not 0"):
            await run.entries(limit=0)
        with pytest.raises(NotFound):
            await engine.attach("run_1000000000000000").entries()


class Refusing(ScriptedModel):
    """Fails as a real provider does."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        raise ProviderError("rate_limit", "Slow down.", status=429, code="rpm_exceeded", retryable=self.retryable)

    retryable = True


@pytest.mark.requirement("run.end.classes")
async def test_run_ends_in_one_of_three_ways() -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    models = Catalog()
    models.add(Refusing(["x"]), name="lab")
    async with asyncio.timeout(PATIENCE_S), Engine(models=models) as engine:
        done = await engine.start(Agent(ScriptedModel(["Done."])), "Go.")
        result = await done.result()
        assert (result.status, result.error, result.code, result.provider_failure) == ("succeeded", "", "", None)
        cancelled = await engine.start(Agent(ScriptedModel([calls("wait")]), tools=[wait]), "Go.")
        await begun.wait()
        await cancelled.cancel()
        result = await cancelled.result()
        assert (result.status, result.error, result.code) == ("cancelled", "", "")
        failed = await engine.start(Agent("lab:script", limits=Limits(max_retries=0)), "Go.")
        with pytest.raises(RunFailed) as raised:
            await failed.result()
        found = raised.value.result
        assert (found.status, found.code) == ("failed", "rate_limit")
        last = (await failed.entries(limit=1000)).entries[-1]
        assert last.kind == "run.ended" and last.body["provider"] == {
            "provider": "scripted",
            "kind": "rate_limit",
            "retryable": True,
            "operation": "chat",
            "code": "rpm_exceeded",
            "status": 429,
        }
        assert found.provider_failure == ProviderFailure("scripted", "chat", "rate_limit", True, "rpm_exceeded", 429)
        late = await engine.start(
            Agent(ScriptedModel([calls("ask_user", question="?")]), tools=[ask_user]),
            "Go.",
            limits=Limits(await_timeout_s=0.01, on_await_expired="end"),
        )
        with pytest.raises(RunFailed) as raised:
            await late.result()
        found = raised.value.result
        assert (found.status, found.code, found.provider_failure) == ("failed", "await_expired", None)
