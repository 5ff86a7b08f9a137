from __future__ import annotations

import asyncio
import json
import threading
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, field_validator

import weftline
from weftline import prompts
from weftline.client import (
    AsyncClient,
    BadRequest,
    Client,
    InvalidSpec,
    ToolContext,
    ToolError,
    tool,
)
from weftline.events import BudgetExceeded, CallFinished, TextDelta

from .stand_in import StandIn, hybrid, stream, success, when


def answers(stand_in: StandIn) -> list[dict[str, Any]]:
    return [one.json for one in stand_in.to("POST", "/agent-runs/run_1/tool-results")]


def calling(stand_in: StandIn, *calls: bytes) -> threading.Event:
    """A run that makes `calls` and ends when the event is set."""
    answered = threading.Event()
    stand_in.run("run_1", stream(*calls), when(answered, stream(success(90))))
    return answered


async def ask(client: AsyncClient, stand_in: StandIn, *tools: Any, call: bytes) -> dict[str, Any]:
    """The one answer that a run gets to its one call."""
    answered = calling(stand_in, call)
    run = await client.start("hi", tools=tools)
    await asyncio.to_thread(stand_in.wait_for, "POST", "/agent-runs/run_1/tool-results")
    answered.set()
    await run.result()
    (answer,) = answers(stand_in)
    return answer


def call(name: str = "lookup", **fields: Any) -> bytes:
    return hybrid(2, "local_tool_call", **{"toolUseId": "u1", "name": name, "args": {"key": "a"}, **fields})


@tool
def lookup(key: str) -> str:
    """Looks something up."""
    return f"value of {key}"


@pytest.mark.requirement("wire.client.dispatch")
async def test_a_run_gets_its_answers_from_async_and_sync_functions(client: AsyncClient) -> None:
    seen: list[tuple[str, bool]] = []

    @tool(name="lookup", description="")
    async def lookup_async(key: str, context: ToolContext) -> dict[str, str]:
        seen.append((context.run_id, context.cancelled))
        return {"key": key}

    run = await client.start("hi", model_id="scripted:lookup", tools=[lookup_async])
    assert (await run.result()).text == 'It is {"key":"a"}.'
    assert seen == [(run.id, False)]
    assert (await client.run("hi", model_id="scripted:lookup", tools=[lookup])).text == "It is value of a."


@pytest.mark.requirement("wire.client.dispatch")
def test_the_sync_client_answers_with_async_and_sync_functions(sync_client: Client) -> None:
    @tool(name="lookup")
    async def lookup_async(key: str) -> str:
        await asyncio.sleep(0)
        return key * 2

    assert sync_client.run("hi", model_id="scripted:lookup", tools=[lookup_async]).text == "It is aa."
    assert sync_client.run("hi", model_id="scripted:lookup", tools=[lookup]).text == "It is value of a."


async def test_a_plain_function_is_a_tool(client: AsyncClient) -> None:
    def lookup(key: str) -> list[str]:
        return [key]

    assert (await client.run("hi", model_id="scripted:lookup", tools=[lookup])).text == 'It is ["a"].'


def confirmed() -> Any:
    @weftline.tool(confirm="Pay {amount}?")
    def pay(amount: int) -> str:
        return f"paid {amount}"

    return pay


async def test_a_client_refuses_a_tool_that_asks_people(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    with pytest.raises(InvalidSpec, match="asks a person"):
        await to_stand_in.start("hi", tools=[confirmed()])
    assert stand_in.to("POST", "/agent-runs") == []


async def test_a_tool_of_the_library_keeps_its_name_and_limit_on_a_client(
    to_stand_in: AsyncClient, stand_in: StandIn
) -> None:
    @weftline.tool(name="lookup", timeout_s=0.2)
    async def slow(key: str) -> str:
        """Is slow."""
        await asyncio.Event().wait()
        return ""

    assert "timed out after 0.2 s" in (await ask(to_stand_in, stand_in, slow, call=call()))["error"]
    (created,) = stand_in.to("POST", "/agent-runs")
    (ref,) = created.json["tools"]
    assert (ref["name"], ref["description"]) == ("lookup", "Is slow.")


@pytest.mark.requirement("wire.client.dispatch")
@pytest.mark.parametrize("kind", [{}, {"kind": "local"}], ids=["missing", "local"])
async def test_a_call_without_a_kind_is_local(
    to_stand_in: AsyncClient, stand_in: StandIn, kind: dict[str, str]
) -> None:
    assert await ask(to_stand_in, stand_in, lookup, call=call(**kind)) == {"toolUseId": "u1", "result": "value of a"}


@pytest.mark.requirement("wire.client.dispatch")
@pytest.mark.parametrize("kind", ["mcp_local", "a2a_local", "local"])
async def test_call_that_nobody_here_handles_is_answered_with_error(
    to_stand_in: AsyncClient, stand_in: StandIn, kind: str
) -> None:
    name = "other" if kind == "local" else "lookup"
    answer = await ask(to_stand_in, stand_in, lookup, call=call(name, kind=kind))
    assert set(answer) == {"toolUseId", "error"}
    assert name in answer["error"]


@pytest.mark.requirement("wire.client.dispatch")
async def test_arguments_that_do_not_fit_never_reach_the_handler(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    called: list[str] = []

    @tool(name="lookup")
    def strict(key: int) -> str:
        called.append("called")
        return ""

    answer = await ask(to_stand_in, stand_in, strict, call=call())
    assert "key" in answer["error"]
    assert called == []


@pytest.mark.requirement("wire.client.dispatch")
async def test_arguments_are_checked_against_a_schema_that_was_given(
    to_stand_in: AsyncClient, stand_in: StandIn
) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "integer"}}, "required": ["key"]}

    @tool(name="lookup", parameters=schema)
    def by_schema(args: dict[str, Any]) -> str:
        return str(args)

    answer = await ask(to_stand_in, stand_in, by_schema, call=call())
    assert "key" in answer["error"]


async def test_a_tool_may_take_its_arguments_as_a_model(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    class Query(BaseModel):
        key: str
        limit: int = 3

    @tool(name="lookup", parameters=Query)
    def by_model(query: Query) -> Query:
        return query

    answer = await ask(to_stand_in, stand_in, by_model, call=call())
    assert json.loads(answer["result"]) == {"key": "a", "limit": 3}


class Shouted(BaseModel):
    key: str
    limit: int = Field(3, validation_alias="max")

    @field_validator("key")
    @classmethod
    def louder(cls, key: str) -> str:
        return f"{key}!"


async def test_call_is_not_executed_if_validators_change_their_output(
    to_stand_in: AsyncClient, stand_in: StandIn
) -> None:
    called: list[str] = []

    @tool(name="lookup", parameters=Shouted)
    def by_model(query: Shouted) -> None:
        called.append(query.key)

    @tool(name="lookup")
    def by_name(key: Annotated[str, AfterValidator(lambda key: f"{key}!")]) -> None:
        called.append(key)

    for refuses in (by_model, by_name):
        answer = await ask(to_stand_in, stand_in, refuses, call=call())
        assert answer["error"] == prompts.calls.cannot_be_stored("lookup", ["key"])
    assert called == []


async def test_a_strict_model_takes_what_json_has_for_its_types(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    class Days(BaseModel, strict=True):
        days: tuple[date, date]

    @tool(name="lookup", parameters=Days)
    def by_model(query: Days) -> int:
        return (query.days[1] - query.days[0]).days

    args = {"days": ["2026-01-01", "2026-01-03"]}
    assert (await ask(to_stand_in, stand_in, by_model, call=call(args=args)))["result"] == "2"


async def test_a_model_may_read_other_names_than_it_writes(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    class Query(BaseModel):
        limit: int = Field(3, validation_alias="max")

    @tool(name="lookup", parameters=Query)
    def by_model(query: Query) -> int:
        return query.limit

    assert (await ask(to_stand_in, stand_in, by_model, call=call(args={"max": 5})))["result"] == "5"


async def test_hints_may_name_what_stands_around_the_function(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    class Wrapped(BaseModel):
        key: str

    @tool
    def lookup(wrapped: Wrapped) -> str:
        return wrapped.key

    wrapped = call(args={"wrapped": {"key": "inner"}})
    assert (await ask(to_stand_in, stand_in, lookup, call=wrapped))["result"] == "inner"


async def test_a_bound_method_is_a_tool(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    class Store:
        def lookup(self, key: str) -> str:
            return key.upper()

    assert (await ask(to_stand_in, stand_in, Store().lookup, call=call()))["result"] == "A"
    with pytest.raises(TypeError):
        tool(Store.lookup)


async def test_name_that_model_may_not_see_is_refused_at_once() -> None:
    with pytest.raises(InvalidSpec):
        tool(name="get-weather")(lambda: None)


@pytest.mark.requirement("wire.client.dispatch")
async def test_an_exception_is_told_in_at_most_8_kb(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    @tool(name="lookup")
    def failing(key: str) -> str:
        raise KeyError("é" * 10_000)

    answer = await ask(to_stand_in, stand_in, failing, call=call())
    assert answer["error"].startswith("KeyError")
    assert 8000 < len(answer["error"].encode()) <= 8 * 1024


@pytest.mark.requirement("wire.client.dispatch")
async def test_result_over_2_mb_is_error_that_says_so(client: AsyncClient) -> None:
    @tool(name="lookup")
    def huge(key: str) -> str:
        return "x" * (2 * 1024 * 1024 + 1)

    result = await client.run("hi", model_id="scripted:lookup", tools=[huge])
    assert "2097153 bytes" in result.text


async def test_a_result_of_exactly_2_mb_is_handed_over(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    @tool(name="lookup")
    def large(key: str) -> str:
        return "x" * (2 * 1024 * 1024)

    answer = await ask(to_stand_in, stand_in, large, call=call())
    assert len(answer["result"]) == 2 * 1024 * 1024


async def test_half_a_character_in_a_result_costs_that_character_alone(client: AsyncClient) -> None:
    @tool(name="lookup")
    def cut(key: str) -> str:
        return "a \ud83d\ude00 and \ud83d"

    assert (await client.run("hi", model_id="scripted:lookup", tools=[cut])).text == "It is a 😀 and \ufffd."
    with pytest.raises(InvalidSpec, match="unpaired surrogate"):
        await client.run("cut \ud83d")


async def test_a_mistyped_option_or_model_is_answered_with_the_nearest(client: AsyncClient) -> None:
    slip: Any = {"model": "scripted:hello"}
    with pytest.raises(TypeError, match=r"unknown option model\. Did you mean 'model_id'"):
        await client.run("hi", **slip)
    with pytest.raises(BadRequest, match="Did you mean 'scripted:hello'"):
        await client.run("hi", model_id="scripted:helo")


async def test_a_handler_may_choose_its_words(client: AsyncClient) -> None:
    @tool(name="lookup")
    def failing(key: str) -> str:
        raise ToolError("try another key")

    assert (await client.run("hi", model_id="scripted:lookup", tools=[failing])).text == "It is try another key."


async def test_the_client_may_choose_the_words_for_exceptions(stand_in: StandIn) -> None:
    @tool(name="lookup")
    def failing(key: str) -> str:
        raise KeyError("secret path")

    async with AsyncClient(
        api_key="key", workspace="acme", base_url=stand_in.url, format_error=lambda error: type(error).__name__
    ) as client:
        answer = await ask(client, stand_in, failing, call=call())
    assert answer["error"] == "KeyError"


@pytest.mark.requirement("wire.client.dispatch")
async def test_a_blocking_handler_does_not_stall_the_stream(client: AsyncClient) -> None:
    quick_was_answered = threading.Event()

    @tool
    def slow() -> str:
        assert quick_was_answered.wait(20)
        return "slow"

    @tool
    def quick() -> str:
        return "quick"

    async def follow() -> None:
        async for event in run:
            if isinstance(event, CallFinished) and event.result == "quick":
                quick_was_answered.set()

    run = await client.start("hi", model_id="scripted:both", tools=[slow, quick])
    await follow()
    assert (await run.result()).text == "slow || quick"


async def test_a_handler_that_takes_too_long_is_given_up(client: AsyncClient) -> None:
    given_up = threading.Event()

    @tool(name="lookup", timeout_s=0.05)
    async def forever(key: str) -> str:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            given_up.set()
        return ""

    result = await client.run("hi", model_id="scripted:lookup", tools=[forever])
    assert "timed out after 0.05 s" in result.text
    assert given_up.is_set()


async def test_a_busy_handler_is_told_when_the_run_has_ended(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    begun, noticed, release = threading.Event(), threading.Event(), threading.Event()

    @tool(name="lookup")
    def busy(key: str, context: ToolContext) -> str:
        begun.set()
        while not context.cancelled:
            release.wait(0.001)
        noticed.set()
        return "too late"

    stand_in.run("run_1", stream(call()), when(begun, stream(success(9))))
    assert (await to_stand_in.run("hi", tools=[busy])).text == "done"
    assert await asyncio.to_thread(noticed.wait, 20)
    assert answers(stand_in) == []


async def test_concurrent_calls_of_a_tool_are_limited(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    now, most = 0, 0

    @tool(max_concurrency=2)
    async def lookup(key: str) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return key

    calls = [
        hybrid(seq, "local_tool_call", toolUseId=f"u{seq}", name="lookup", args={"key": "a"}) for seq in range(2, 8)
    ]
    answered = calling(stand_in, *calls)
    run = await to_stand_in.start("hi", tools=[lookup])
    await asyncio.to_thread(stand_in.wait_for, "POST", "/agent-runs/run_1/tool-results", 6)
    answered.set()
    await run.result()
    assert most == 2
    assert sorted(answer["toolUseId"] for answer in answers(stand_in)) == [f"u{seq}" for seq in range(2, 8)]


@pytest.mark.requirement("wire.client.events")
async def test_a_tool_budget_does_not_end_the_run(client: AsyncClient) -> None:
    result = await client.run(
        "hi", model_id="scripted:budget", tools=[lookup], tool_budgets={"lookup": {"maxCalls": 1}}
    )
    exceeded = [event for event in result.events if isinstance(event, BudgetExceeded)]
    assert [(event.tool, event.max_calls, event.call_index) for event in exceeded] == [("lookup", 1, 2)]
    assert result.text == "enough"
    assert any(isinstance(event, TextDelta) for event in result.events)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
async def test_whatever_an_async_function_raises_is_an_error_result(
    to_stand_in: AsyncClient, stand_in: StandIn, error: type[BaseException]
) -> None:
    @tool(name="lookup")
    async def raises(key: str) -> str:
        """Looks something up."""
        raise error("broken")

    answer = await ask(to_stand_in, stand_in, raises, call=call())
    assert answer["error"].endswith(f"{error.__name__}: broken")
