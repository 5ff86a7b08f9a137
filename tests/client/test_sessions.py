from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from weftline.client import AsyncClient, Client, Conflict, tool
from weftline.events import CallFinished, RunEnded


@tool
def lookup(key: str) -> str:
    return key * 2


async def test_a_session_remembers_and_ends_with_its_context(client: AsyncClient) -> None:
    async with await client.create_session(model_id="scripted:echo", metadata={"a": "b"}) as session:
        assert (await session.send("one")).text == "one"
        assert (await session.send("two")).text == "one | two"
        history = await session.history()
        assert [message.content for message in history] == ["one", "one", "two", "one | two"]
        assert (await session.info()).metadata == {"a": "b"}
        assert session.usage.runs == 2
    info = await client.get_session(session.id)
    assert (info.status, info.ended_at is not None) == ("ended", True)
    with pytest.raises(Conflict) as caught:
        await session.send("three")
    assert caught.value.code == "session_ended"


async def test_the_tools_of_a_session_answer_its_runs(client: AsyncClient) -> None:
    async with await client.create_session(model_id="scripted:lookup", tools=[lookup]) as session:
        result = await session.send("hi")
        assert result.text == "It is aa."
        asked, answer = await session.history(with_calls=True)
        assert asked.id != answer.id and {asked.run_id, answer.run_id} == {result.run_id} and not asked.calls
        assert asked.created_at and answer.created_at and asked.created_at <= answer.created_at
        assert [(call.name, call.how) for call in answer.calls] == [("lookup", "returned")]
        events = [event async for event in session.stream("again")]
        assert [event.how for event in events if isinstance(event, CallFinished)] == ["returned"]


async def test_a_message_may_bring_its_own_tools(client: AsyncClient) -> None:
    @tool(name="lookup")
    def other(key: str) -> str:
        return "other"

    async with await client.create_session(model_id="scripted:lookup", tools=[lookup]) as session:
        assert (await session.send("hi", tools=[other])).text == "It is other."
        assert (await session.send("hi")).text == "It is aa."


async def test_messages_that_are_sent_at_once_wait_for_each_other(client: AsyncClient) -> None:
    async with await client.create_session(model_id="scripted:echo") as session:
        results = await asyncio.gather(*(session.send(str(number)) for number in range(4)))
    assert [result.text for result in results] == ["0", "0 | 1", "0 | 1 | 2", "0 | 1 | 2 | 3"]


async def test_a_session_can_be_taken_up_again(client: AsyncClient) -> None:
    created = await client.create_session(model_id="scripted:lookup", tools=[lookup])
    await created.close()

    @tool(name="lookup")
    def later(key: str) -> str:
        return "later"

    session = await client.session(created.id, tools=[later])
    assert (await session.send("hi")).text == "It is later."
    await session.end()


def test_the_sync_session_works_the_same_from_many_threads(sync_client: Client) -> None:
    with (
        sync_client.create_session(model_id="scripted:lookup", tools=[lookup]) as session,
        ThreadPoolExecutor(4) as pool,
    ):
        futures = [pool.submit(session.send, str(number)) for number in range(4)]
        assert [future.result().text for future in futures] == ["It is aa."] * 4
        assert isinstance(list(session.stream("hi"))[-1], RunEnded)
        assert len(session.history()) == 10
    assert sync_client.get_session(session.id).status == "ended"
