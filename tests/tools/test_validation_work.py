"""What a model writes for a Python function is validated with a bound on the work."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, cast
from uuid import UUID

import pytest
from msgspec.json import encode
from pydantic import AfterValidator, BaseModel, ValidationError
from typing_extensions import TypedDict

from weftline import Agent, prompts
from weftline.agent.output import OutputType
from weftline.messages import joined_text
from weftline.runtime.tool_calls import preparing
from weftline.testing import ScriptedModel, calls
from weftline.tools import validation_work
from weftline.tools.arguments import InvalidArguments, names_absent, path_in, pointer
from weftline.tools.base import ToolContext
from weftline.tools.counted_type import ReturnType
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool
from weftline.tools.validation_work import SMALL_BYTES
from weftline.work.turns import on_behalf_of

SAME_HASH = 2**61 - 1
"""The hash of each multiple of it is the same."""


class And(BaseModel):
    args: list[Filter]


class Or(BaseModel):
    args: list[Filter]


class Not(BaseModel):
    args: list[Filter]


class Is(BaseModel):
    field: str
    value: str | int | None = None
    since: date | None = None
    ids: set[int] = set()


Filter = And | Or | Not | Is


class Search(BaseModel):
    where: Filter


@tool(effect="read")
async def search(where: Filter) -> str:
    """Searches."""
    depth = 0
    while not isinstance(where, Is):
        where, depth = where.args[0], depth + 1
    return f"{depth} {type(where).__name__}"


def nested(depth: int, leaf: object) -> dict[str, Any]:
    for _ in range(depth):
        leaf = {"args": [leaf]}
    return {"where": leaf}


async def result(one: FunctionTool[..., Any, Any], args: object) -> str:
    final = await one.prepare(encode(args).decode())
    return joined_text((await one.invoke(final, ToolContext("run_1", "0.0", "key_1", one.name, "default"))).parts)


async def issues(one: FunctionTool[..., Any, Any], args: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArguments) as raised:
        await one.prepare(encode(args).decode())
    return [(issue.path, issue.constraint) for issue in raised.value.issues]


@pytest.mark.parametrize("leaf", [{"field": "x"}, {"nothing": 1}], ids=["fits", "does not fit"])
async def test_recursive_union_is_given_up_when_it_takes_too_long(leaf: object) -> None:
    assert await issues(search, nested(40, leaf)) == [("", "work")]


@pytest.mark.parametrize("leaf", [{"field": "x"}, {"nothing": 1}], ids=["fits", "does not fit"])
async def test_other_tasks_have_turn_after_each_call_with_many_unions(leaf: object) -> None:
    """A model may ask for a thousand of them at once."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    for _ in range(20):
        with suppress(InvalidArguments):
            await search.prepare(encode(nested(4, leaf)).decode())
    assert turns >= 20
    other.cancel()


async def test_arguments_waiting_for_others_do_not_blame_their_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparing, "PREPARE_TIMEOUT_S", 0.05)
    may_end = threading.Event()

    @tool(effect="read")
    def keep(text: str) -> str:
        """Keeps a text."""
        return "kept"

    async def occupy() -> None:
        on_behalf_of.set(1)  # the only workspace
        await validation_work.bounded(may_end.wait, size=SMALL_BYTES + 1)

    before = asyncio.create_task(occupy())
    await asyncio.sleep(0)
    try:
        agent = Agent(ScriptedModel([calls("keep", text="x" * 2 * SMALL_BYTES), "Done."]), tools=[keep])
        (call,) = (await agent.run("Keep it.")).calls
    finally:
        may_end.set()
        await before
    assert (call.how, call.result) == (
        "invalid",
        prompts.calls.not_checked("keep", prompts.calls.waited_too_long(0.05)),
    )


class Left(TypedDict, total=False):
    items: list[Left | Right]


class Right(TypedDict, total=False):
    items: list[Left | Right]


@dataclass
class Both:
    items: list[Left | Right]


@tool(effect="read")
def walk(tree: Annotated[Both | Left, AfterValidator(lambda one: one)], other: int | None = None) -> str:
    """Walks."""
    return "walked"


async def test_other_recursive_types_are_bounded_too() -> None:
    tree: object = {"items": []}
    for depth in range(40):
        if depth == 3:
            assert await result(walk, {"tree": tree}) == "walked"
        tree = {"items": [tree]}
    assert await issues(walk, {"tree": tree}) == [("", "work")]


async def test_recursive_union_that_takes_long_is_read_in_thread() -> None:
    assert await result(search, nested(8, {"field": "x"})) == "8 Is"


@pytest.mark.parametrize(
    "leaf",
    [
        {"field": "x", "value": 1, "since": "2020-01-31", "ids": [1, 2, 2, -1, -2]},
        {"field": "x", "value": "1"},
        {"args": []},
    ],
)
async def test_value_is_read_as_pydantic_reads_it(leaf: object) -> None:
    args = encode(nested(2, leaf))
    final = await search.prepare(args.decode())
    assert search.parameters.keywords(final) == {"where": Search.model_validate_json(args).where}


@pytest.mark.parametrize("leaf", [{"field": "x", "since": "never"}, {"field": 1}, {"args": 1}, {}, None])
async def test_issues_are_those_that_pydantic_finds(leaf: object) -> None:
    args = nested(2, leaf)
    with pytest.raises(ValidationError) as raised:
        Search.model_validate_json(encode(args))
    expected = [
        (pointer(path_in(args, one["loc"], names_absent=names_absent(one["type"]))), one["type"])
        for one in raised.value.errors()
    ]
    assert await issues(search, args) == expected[:20]


@tool(effect="read")
def by_number(ids: set[int]) -> str:
    """Looks."""
    return str(len(ids))


@tool(effect="read")
def by_id(ids: frozenset[UUID]) -> str:
    """Looks."""
    return str(len(ids))


@tool(effect="read")
def named(names: dict[int, str]) -> str:
    """Looks."""
    return str(len(names))


async def test_values_that_were_chosen_to_have_same_hash_are_refused() -> None:
    numbers = [SAME_HASH * number for number in range(1, 50_000)]
    assert await issues(by_number, {"ids": numbers}) == [("", "work")]
    assert await issues(by_id, {"ids": [str(UUID(int=number)) for number in numbers]}) == [("", "work")]
    assert await issues(named, {"names": {str(number): "" for number in numbers}}) == [("", "work")]
    assert await issues(by_number, {"ids": numbers[:100]}) == [("", "work")]


async def test_a_set_may_have_any_number_of_other_values() -> None:
    numbers = [*range(-20_000, 20_000), *[SAME_HASH] * 1_000, *[SAME_HASH * 2] * 1_000]
    assert await result(by_number, {"ids": numbers}) == "40002"


@tool(effect="read")
def add(numbers: list[int]) -> str:
    """Adds."""
    return str(sum(numbers))


async def test_of_very_many_wrong_items_the_first_is_reported() -> None:
    few, many, most = (["x"] * count for count in (900, 5_000, 100_000))
    assert await issues(add, {"numbers": few}) == [(f"/numbers/{index}", "int_parsing") for index in range(20)]
    assert await issues(add, {"numbers": many}) == [("/numbers/0", "int_parsing")]
    assert await issues(add, {"numbers": most}) == [("/numbers/0", "int_parsing")]


async def test_large_arguments_are_read_in_a_thread() -> None:
    threads: list[bool] = []

    def look(text: str) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return text

    @tool(effect="read")
    async def note(text: Annotated[str, AfterValidator(look)]) -> str:
        """Notes."""
        return f"{len(text)}"

    for size, on_loop in ((10, True), (SMALL_BYTES + 1, False)):
        threads.clear()
        assert await result(note, {"text": "x" * size}) == str(size)
        assert set(threads) == {on_loop}


async def test_question_about_arguments_that_take_too_long_is_not_asked() -> None:
    def question(where: Filter) -> str:
        return "Really?"

    asking = FunctionTool(cast(Any, search)._fn, effect="read", confirm=question)
    for depth, asks in ((3, True), (9, False)):
        final = await asking.prepare(encode(nested(depth, {"field": "x"})).decode())
        if asks:
            assert asking.asks_people(final) is not None
        else:
            with pytest.raises(Exception, match="too deeply nested"):
                asking.asks_people(final)


def test_recursive_output_type_is_read_with_bounded_work() -> None:
    kind = OutputType(Search)
    assert isinstance(kind.parse(encode(nested(3, {"field": "x"})).decode()).where, And)
    deep = encode(nested(40, {"field": "x"})).decode()
    with pytest.raises(ValueError, match="too deeply nested"):
        kind.parse(deep)
    assert kind.problem(deep) == prompts.calls.TOO_MUCH_TO_CHECK
    with pytest.raises(ValueError, match="/where/And/args/0/Is/field: Field required"):
        kind.parse(encode(nested(1, {})).decode())


def test_result_that_is_provided_is_read_with_bound_on_work() -> None:
    kind = ReturnType(Search)
    assert kind.problem(nested(3, {"field": "x"})) == ""
    assert kind.problem(nested(40, {"field": "x"})) == prompts.calls.TOO_MUCH_TO_CHECK
    assert kind.problem(nested(7, {})) == prompts.calls.TOO_MUCH_TO_LIST
    assert ReturnType(set[int]).problem([SAME_HASH * number for number in range(100)]) != ""
