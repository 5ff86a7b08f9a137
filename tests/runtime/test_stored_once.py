"""What is said once takes its place on the disk once, in however many requests, forks and child runs it is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, tool
from weftline.messages import User
from weftline.runtime import ids
from weftline.testing import ScriptedModel, calls
from weftline.testing.store.subject import read_log

MB = 1024 * 1024
OVERHEAD = 0.05
"""Rows, indexes and half-filled pages, as a part of what is stored."""


def words(seed: int) -> str:
    """A megabyte that SQLite cannot know from elsewhere."""
    return random.Random(seed).randbytes(MB // 2).hex()


MESSAGE, RESULT, TASK, ANSWER = map(words, range(4))


@tool(effect="read")
def fetch() -> str:
    """Fetches a large page."""
    return RESULT


@tool(effect="read")
def look(page: int) -> str:
    """Looks at a page."""
    return f"page {page}"


async def grows_by(path: Path, work: Callable[[Engine], Awaitable[None]]) -> int:
    """By how many bytes the store on the disk grows."""

    async def empty(engine: Engine) -> None:
        await (await engine.start(Agent(ScriptedModel(["Hi."]), name="first"), "Hello", thread="t")).result()

    sizes: list[int] = []
    for one in (empty, work):
        async with Engine(path) as engine:
            await one(engine)
        sizes.append(size_of(path))
    return sizes[1] - sizes[0]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


@pytest.mark.requirement("run.cost.stored_once")
async def test_repeated_message_and_result_are_stored_once(tmp_path: Path) -> None:
    asks = [calls("fetch"), *[calls("look", page=page) for page in range(98)], "Seen."]
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(asks),
        name="reader",
        tools=[fetch, look],
        limits=Limits(max_turns=200),
    )

    other: Agent[Any, Any] = Agent(ScriptedModel(["Yes."]), name="other", tools=[fetch, look])

    async def work(engine: Engine) -> None:
        run = await engine.start(agent, MESSAGE, thread="t")
        assert (await run.result()).turns == 100
        fork = await engine.fork(run.id, other, turn=99)
        assert (await fork.result()).text == "Yes."
        await (await engine.start(other, "Is that all?", thread="t")).result()
        assert MESSAGE.encode() in (await read_log(engine.store.log, ids.key_of(run.id)))[0].body
        for thread in ("t", (await fork.snapshot()).thread or ""):
            said = str(await engine.thread(thread).messages())
            assert MESSAGE in said and RESULT in said

    rows = 100 * 12 * 400  # what a hundred turns take without it
    assert 2 * MB < await grows_by(tmp_path / "store", work) < 2 * MB * (1 + OVERHEAD) + rows


@pytest.mark.requirement("run.cost.stored_once")
async def test_content_handed_to_a_child_is_stored_once(tmp_path: Path) -> None:
    helper = Agent(ScriptedModel([calls("fetch"), ANSWER]), name="helper", tools=[fetch])
    model = ScriptedModel([calls("helper", task=TASK), "Done."])
    agent: Agent[Any, Any] = Agent(model, name="boss", tools=[helper.as_tool("Helps.")])

    async def work(engine: Engine) -> None:
        await (await engine.start(agent, "Do it.")).result()
        assert ANSWER in str(model.requests[1].messages) and TASK in str(model.requests[1].messages)

    streamed = MB  # an answer is in the log as its deltas, too
    grown = await grows_by(tmp_path / "store", work)
    assert 3 * MB + streamed < grown < (3 * MB + streamed) * (1 + OVERHEAD)


@pytest.mark.requirement("run.cost.stored_once")
async def test_a_request_that_repeats_a_message_adds_next_to_nothing(tmp_path: Path) -> None:
    """As clients do that keep the conversation themselves and send all of it with each run."""
    agent: Agent[Any, Any] = Agent(ScriptedModel(["Yes."] * 10), name="agent")

    async def work(engine: Engine) -> None:
        for _ in range(10):
            await (await engine.start(agent, MESSAGE)).result()

    assert MB < await grows_by(tmp_path / "store", work) < MB * (1 + OVERHEAD) + 10 * 8_000


async def test_conversation_that_a_client_resends_is_stored_once(tmp_path: Path) -> None:
    """Although none of its messages is long: lists that begin alike share what they begin with."""
    texts = [MESSAGE[at : at + 4_096] for at in range(0, MB // 2, 4_096)]
    agent: Agent[Any, Any] = Agent(ScriptedModel(["Yes."]), name="agent")

    async def work(engine: Engine) -> None:
        for number in range(len(texts) - 16, len(texts)):
            given = [User.of(text) for text in texts[:number]]
            run = await engine.start(agent, texts[number], messages=given)
            await run.result()
            first = (await read_log(engine.store.log, ids.key_of(run.id)))[0]
            assert all(text.encode() in first.body for text in texts[: number + 1])

    grown = await grows_by(tmp_path / "store", work)
    assert grown < MB / 2 * (1 + OVERHEAD) + 16 * 32_000, "and not sixteen times"
