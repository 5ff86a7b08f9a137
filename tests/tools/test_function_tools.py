from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from itertools import permutations
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
from pydantic import AfterValidator, BaseModel, Field, field_validator

import weftline
from weftline import Agent, prompts
from weftline.messages import Image, Text, joined_text
from weftline.testing import ScriptedModel, calls
from weftline.tools.arguments import InvalidArguments, StaleArguments
from weftline.tools.base import Happened, Tool, ToolContext, ToolFailed, ToolOutput, Unknown, WillNotHappen
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool


def context(name: str = "t") -> ToolContext:
    return ToolContext("run_1", "0.0", "key_1", name, "default")


def schema_of(subject: Tool) -> dict[str, Any]:
    return msgspec.json.decode(subject.spec.parameters, type=dict[str, Any])


async def call(subject: Tool, args: str = "{}") -> ToolOutput:
    return await subject.invoke(await subject.prepare(args), context())


def text_of(output: ToolOutput) -> str:
    return joined_text(output.parts)


class Unit(Enum):
    celsius = "c"
    fahrenheit = "f"


class Place(BaseModel):
    city: str
    country: str = "DE"


@weftline.tool(effect="read", concurrent=True, timeout_s=5)
async def weather(place: Place, days: Annotated[int, Field(ge=1, le=7)] = 1, unit: Unit = Unit.celsius) -> str:
    """Forecast for a place.

    Covers a week at most.

    Args:
        place: Where, as city
            and country.
        days (int): How many days ahead: one by default.
        unit: Of temperatures.

    Returns:
        days: not a parameter.
    """
    return f"{place.city} {place.country} {days} {unit.name}"


def test_the_schema_comes_from_type_hints_and_docstring() -> None:
    assert weather.spec.name == "weather"
    assert weather.spec.description == "Forecast for a place.\n\nCovers a week at most."
    schema = schema_of(weather)
    assert schema["type"] == "object"
    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    assert "title" not in schema
    days = {"default": 1, "description": "How many days ahead: one by default.", "maximum": 7, "minimum": 1}
    assert schema["properties"]["days"] == {**days, "type": "integer"}
    assert schema["properties"]["place"]["description"] == "Where, as city and country."
    assert schema["properties"]["unit"]["description"] == "Of temperatures."
    assert list(schema["properties"]) == ["place", "days", "unit"]


def test_the_declared_options_are_the_tools_own() -> None:
    assert (weather.effect, weather.concurrent, weather.timeout_s, weather.client) == ("read", True, 5, None)

    @tool
    def plain() -> None: ...

    assert (plain.effect, plain.concurrent, plain.timeout_s, plain.peer) == ("once", False, None, None)
    named = tool(name="other", description="Else.")(lambda: None)
    assert (named.spec.name, named.spec.description) == ("other", "Else.")


async def test_a_tool_is_still_the_function() -> None:
    assert await weather(Place(city="Bonn"), unit=Unit.fahrenheit) == "Bonn DE 1 fahrenheit"
    assert weather.__name__ == "weather"


async def test_final_arguments_are_coerced_complete_and_canonical() -> None:
    final = b'{"days":3,"place":{"city":"Bonn","country":"DE"},"unit":"c"}'
    assert await weather.prepare('{"days": "3", "place": {"city": "Bonn"}}') == final
    assert await weather.prepare(final.decode()) == final


class Order(BaseModel):
    amount: int

    @field_validator("amount")
    @classmethod
    def in_cents(cls, amount: int) -> int:
        return amount * 100


def one_more(number: int) -> int:
    return number + 1


def unit_dropped(price: object) -> int:
    assert isinstance(price, str)
    return int(price.removesuffix(" EUR"))


@pytest.mark.parametrize(
    ("hint", "args"),
    [
        (Order, '{"it":{"amount":5}}'),
        (Annotated[int, AfterValidator(one_more)], '{"it":1}'),
    ],
    ids=["it computes", "it counts"],
)
async def test_call_is_not_made_if_validators_change_their_own_output(
    hint: Any, args: str, caplog: pytest.LogCaptureFixture
) -> None:
    def pay(it: Any) -> None: ...

    pay.__annotations__["it"] = hint
    with pytest.raises(InvalidArguments) as caught:
        await tool(pay).prepare(args)
    assert [(issue.path, issue.constraint) for issue in caught.value.issues] == [("/it", "stored")]
    assert caught.value.message == prompts.calls.cannot_be_stored("pay", ["it"])
    assert [record.levelname for record in caplog.records if "the tool pay" in record.getMessage()] == ["ERROR"]


async def test_a_default_that_the_validators_would_change_is_not_used() -> None:
    @tool
    def count(start: Annotated[int, AfterValidator(one_more)] = 1) -> None: ...

    with pytest.raises(InvalidArguments):
        await count.prepare("{}")


async def test_validators_that_only_tidy_up_run_twice_without_harm() -> None:
    class Either(BaseModel, populate_by_name=True):
        limit: int = Field(3, validation_alias="max")

    @tool
    def tidy(name: Annotated[str, AfterValidator(str.strip)], tags: set[int], how: Either) -> str:
        return f"{name} {sorted(tags)} {how.limit}"

    final = await tidy.prepare('{"name": " Ada ", "tags": [8, 0, 16, 7, 15, 23], "how": {"max": 5}}')
    assert text_of(await call(tidy, final.decode())) == "Ada [0, 7, 8, 15, 16, 23] 5"


async def test_a_tool_receives_its_arguments_in_their_declared_types() -> None:
    assert text_of(await call(weather, '{"place":{"city":"Bonn"},"unit":"f"}')) == "Bonn DE 1 fahrenheit"


async def test_arguments_that_do_not_fit_are_listed_with_their_place() -> None:
    with pytest.raises(InvalidArguments) as caught:
        await weather.prepare('{"place":{"country":1},"days":9,"more":0}')
    assert {(issue.path, issue.constraint) for issue in caught.value.issues} == {
        ("/place/city", "missing"),
        ("/place/country", "string_type"),
        ("/days", "less_than_equal"),
        ("/more", "extra_forbidden"),
    }


async def test_path_of_issue_leaves_out_members_of_union() -> None:
    @tool
    def pick(items: list[int | Literal["all"]]) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        await pick.prepare('{"items":[1,"none"]}')
    assert {issue.path for issue in caught.value.issues} == {"/items/1"}


@pytest.mark.parametrize("args", ['{"x":"nan"}', '{"x":"inf"}', '{"x":NaN}', "[]", "{", '{"x":1e999}'])
async def test_arguments_that_json_cannot_hold_are_invalid(args: str) -> None:
    @tool
    def half(x: float) -> float:
        return x / 2

    with pytest.raises(InvalidArguments):
        await half.prepare(args)


async def test_large_integers_arrive_exactly() -> None:
    @tool(blocking=False)
    def same(n: int) -> int:
        return n

    assert text_of(await call(same, '{"n":123456789012345678901234567890}')) == "123456789012345678901234567890"


async def test_parameters_without_type_hints_take_anything() -> None:
    def function(copy: int, _private: int = 2, model_config: int | None = None, schema: str = "s") -> list[object]:
        return [copy, _private, model_config, schema]

    function.__annotations__.clear()
    odd = tool(blocking=False)(function)
    assert list(schema_of(odd)["properties"]) == ["copy", "_private", "model_config", "schema"]
    assert text_of(await call(odd, '{"copy":{"a":[1]}}')) == '[{"a":[1]},2,null,"s"]'


async def test_a_default_of_none_widens_its_type() -> None:
    @tool(blocking=False)
    def late(day: date = cast(Any, None)) -> str:  # noqa: B008
        return str(day)

    assert await late.prepare("{}") == b'{"day":null}'
    assert text_of(await call(late)) == "None"
    assert text_of(await call(late, '{"day":"2026-01-02"}')) == "2026-01-02"


async def test_the_context_is_injected_and_not_in_the_schema() -> None:
    @tool
    async def who(name: str, ctx: ToolContext) -> str:
        return f"{name} {ctx.run_id} {ctx.idempotency_key}"

    assert list(schema_of(who)["properties"]) == ["name"]
    assert text_of(await call(who, '{"name":"Ada"}')) == "Ada run_1 key_1"
    with pytest.raises(InvalidArguments):
        await who.prepare('{"name":"Ada","ctx":{}}')


def test_options_that_make_no_sense_are_refused_at_decoration() -> None:
    def fn(x: int = 1) -> None: ...

    make: Any = FunctionTool
    for options in (
        {"effect": "twice"},
        {"effect": "reconcile"},
        {"effect": "read", "reconcile": fn},
        {"timeout_s": 0},
        {"timeout_s": -1.5},
        {"timeout_s": math.nan},
        {"name": "has space"},
        {"name": ""},
        {"name": "x" * 65},
        {"name": "line\n"},
    ):
        with pytest.raises(ValueError):
            make(fn, **options)


def test_functions_that_json_arguments_cannot_call_are_refused_at_decoration() -> None:
    def star(*args: int) -> None: ...
    def stars(**kwargs: int) -> None: ...
    def positional(x: int, /) -> None: ...
    def method(self: object, x: int) -> None: ...
    def generator():
        yield 1

    make: Any = FunctionTool
    for fn in (star, stars, positional, method, generator, 3, int):
        with pytest.raises(TypeError):
            make(fn)


def test_invalid_hints_and_defaults_are_refused_at_first_use() -> None:
    class Opaque: ...

    def opaque(x: Opaque) -> None: ...
    def undefined(x: int) -> None: ...
    def misfit(x: int = cast(Any, "many")) -> None: ...
    def unstorable(x: Any = object()) -> None: ...  # noqa: B008
    def twice(a: ToolContext, b: ToolContext) -> None: ...

    undefined.__annotations__["x"] = "Nowhere"
    make: Any = FunctionTool
    for fn in (opaque, undefined, misfit, unstorable, twice):
        subject: FunctionTool = make(fn)
        with pytest.raises(TypeError, match=subject.name):
            _ = subject.spec


async def test_a_bound_method_can_be_a_tool() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def add(self, by: int) -> int:
            self.n += by
            return self.n

    counter = Counter()
    assert text_of(await call(tool(counter.add), '{"by":2}')) == "2"
    assert counter.n == 2


@dataclass
class Point:
    x: int
    tags: tuple[str, ...]


class Box(msgspec.Struct):
    when: date


class Keyed(BaseModel):
    by_id: dict[int, str]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain ünicode", "plain ünicode"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (2**70, str(2**70)),
        (1.0, "1.0"),
        ({"b": 1, "a": (1, None)}, '{"a":[1,null],"b":1}'),
        ([], "[]"),
        (Place(city="Bonn"), '{"city":"Bonn","country":"DE"}'),
        ([Point(1, ("a",)), Box(date(2026, 1, 2))], '[{"tags":["a"],"x":1},{"when":"2026-01-02"}]'),
        ({"unit": Unit.celsius, "set": {3, 1, 2}}, '{"set":[1,2,3],"unit":"c"}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ((n for n in (1, 2)), "[1,2]"),
    ],
)
async def test_tool_return_value_is_what_the_model_reads(value: object, expected: str) -> None:
    def give() -> object:
        return value

    output = await call(tool(blocking=False)(give))
    assert (text_of(output), output.is_error) == (expected, False)


async def test_message_parts_and_outputs_are_taken_as_they_are() -> None:
    parts = [Text("see"), Image("image/png", data="aGk=")]
    whole = ToolOutput.of("no", is_error=True)

    @tool(blocking=False)
    def give(which: str) -> object:
        return {"list": parts, "one": parts[1], "whole": whole}[which]

    assert (await call(give, '{"which":"list"}')).parts == tuple(parts)
    assert (await call(give, '{"which":"one"}')).parts == (parts[1],)
    assert await call(give, '{"which":"whole"}') == whole


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, {"a": [math.inf]}, {1: "a"}, {"a": {None: 1}}, Keyed(by_id={1: "a"}), b"raw", [b"raw"], object()),
        *({"a": object()}, Point(cast(Any, object()), ())),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_result_that_json_cannot_hold_is_error_that_names_tool(value: object) -> None:
    def give() -> object:
        return value

    for blocking in (True, False):
        output = await call(tool(blocking=blocking)(give))
        assert output.is_error
        assert "give" in text_of(output)
        msgspec.json.encode(output)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\ud800", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        ({"\ud800": ["\udc00", 1]}, '{"\ufffd":["\ufffd",1]}'),
        (ToolOutput.of("\ud800"), "\ufffd"),
        ([Text("\ud800"), Text("b")], "\ufffd\nb"),
        ("a\0b", "a\ufffdb"),
    ],
    ids=["text", "pair", "data", "output", "parts", "nul"],
)
async def test_half_a_character_costs_a_result_that_character_alone(value: object, expected: str) -> None:
    def give() -> object:
        return value

    output = await call(tool(give))
    assert (text_of(output), output.is_error) == (expected, False)


async def test_results_that_are_nested_without_end_are_an_error() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop

    @tool(blocking=False)
    def give() -> object:
        return loop

    assert (await call(give)).is_error


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Shut(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError


class Odd(BaseException):
    pass


@pytest.mark.usefixtures("no_ctrl_c")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolFailed("No such city."), "No such city."),
        (ToolFailed(), "The tool failed."),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (Silent(), "Silent"),
        (Shut(), "Shut"),
        (Odd("x"), "Odd: x"),
        (StopIteration("s"), "StopIteration: s"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_tool_exception_is_an_error_result(
    error: BaseException, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="weftline.tools")  # half a character in a report stops pytest's workers

    def plain() -> None:
        raise error

    outputs = [await call(tool(plain))]
    if type(error) is not StopIteration:
        # A coroutine that raises StopIteration raises RuntimeError by the language's own rule.
        async def unblocked() -> None:
            raise error

        outputs.append(await call(tool(unblocked)))
    for output in outputs:
        assert (text_of(output), output.is_error) == (expected, True)


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError("No."), "No."), (ValueError(), "ValueError"), (Silent(), "Silent")]
)
async def test_wordless_exception_of_a_tool_class_is_the_result(error: Exception, reason: str) -> None:
    class Custom(FunctionTool):
        async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
            raise error

    def pay() -> str:
        raise AssertionError

    result = await Agent(ScriptedModel([calls("pay"), "Done."]), tools=[Custom(pay)]).run("Go.")
    assert [(call.how, call.result) for call in result.calls] == [("failed", prompts.calls.tool_failed("pay", reason))]


async def test_call_whose_stored_arguments_no_longer_fit_is_not_made() -> None:
    output = await weather.invoke(b'{"town":"Bonn"}', context())
    assert (output.is_error, output.not_run) == (True, True)
    assert "/town" in text_of(output)


def doubled(n: int) -> int:
    return n * 2


def refused(n: int) -> int:
    raise KeyError("rates")


def turned(names: list[str]) -> list[str]:
    return names[::-1]


@pytest.mark.parametrize(
    ("hint", "stored"),
    [
        (int, b'{"value":"1"}'),  # it is converted
        (float, b'{"value":1}'),
        (bool, b'{"value":1}'),
        (Annotated[int, AfterValidator(doubled)], b'{"value":1}'),
        (Annotated[int, AfterValidator(refused)], b'{"value":1}'),
        (Annotated[list[str], AfterValidator(turned)], b'{"value":["a","b"]}'),
        (dict[str, Annotated[int, AfterValidator(doubled)]], b'{"value":{"a":1}}'),
        (set[Annotated[int, AfterValidator(doubled)]], b'{"value":[1]}'),
        (set[int], b'{"value":[1,1]}'),
    ],
)
async def test_function_gets_what_log_says_or_is_not_called(hint: Any, stored: bytes) -> None:
    """The stored arguments were made by an earlier version of the tool, which did not have this type."""

    def take(value: Any) -> None:
        raise AssertionError("it was called")

    asked: list[object] = []

    def ask(value: object) -> str:
        asked.append(value)
        return "Take it?"

    take.__annotations__ = {"value": hint, "return": None}
    taking: Tool = tool(take)
    output = await taking.invoke(stored, context())
    assert (output.is_error, output.not_run) == (True, True)
    with pytest.raises(StaleArguments):
        tool(confirm=ask)(take).asks_people(stored)
    checked: Tool = tool(reconcile=ask)(take)
    assert (await checked.reconcile(stored, context()), asked) == (Unknown(), [])


async def test_call_whose_changed_tool_cannot_reconcile_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(reconcile=lambda: Unknown())
    def take(value: int) -> None: ...

    assert await take.reconcile(b'{"value":"x"}', context()) == Unknown()
    (line,) = caplog.records
    assert line.levelname == "WARNING" and line.exc_info is None
    assert line.getMessage() == "the tool take no longer takes the arguments of a call, and is not called with them"


async def test_function_is_not_called_with_an_unlogged_default() -> None:
    def take(value: int, more: int = 0) -> None:
        raise AssertionError("it was called")

    output = await tool(take).invoke(b'{"value":1}', context())
    assert (text_of(output), output.not_run) == (prompts.calls.changed_since_asked("take"), True)


class Labels(BaseModel):
    labels: set[str]
    pairs: dict[int, frozenset[tuple[str, int]]] = {}


@pytest.mark.parametrize(
    ("hint", "stored"),
    [
        (set[str], b'{"value":["%s"]}'),
        (list[set[str] | str], b'{"value":["x",["%s"]]}'),
        (Labels, b'{"value":{"labels":["%s"],"pairs":{"1":[["x",1],["y",2]]}}}'),
        (dict[str, Labels], b'{"value":{"x":{"labels":["%s"],"pairs":{}}}}'),
    ],
)
async def test_the_order_of_a_set_does_not_count(hint: Any, stored: bytes) -> None:
    def take(value: Any) -> str:
        return "called"

    take.__annotations__ = {"value": hint, "return": str}
    for letters in permutations(b"abcd"):
        args = stored % b'","'.join([bytes([letter]) for letter in letters])
        taking: Tool = tool(take)
        final = await taking.prepare(args.decode())
        assert final == stored % b'a","b","c","d'
        assert text_of(await taking.invoke(final, context())) == "called", args


current = contextvars.ContextVar("current", default="none")


async def test_plain_functions_run_in_thread_and_see_callers_contextvars() -> None:
    def where() -> list[object]:
        return [threading.current_thread() is threading.main_thread(), current.get()]

    async def where_async() -> list[object]:
        return where()

    current.set("caller")
    assert text_of(await call(tool(where))) == '[false,"caller"]'
    assert text_of(await call(tool(blocking=False)(where))) == '[true,"caller"]'
    assert text_of(await call(tool(where_async))) == '[true,"caller"]'


async def test_a_coroutine_from_a_plain_function_is_awaited() -> None:
    async def later() -> str:
        return "done"

    @tool
    def start() -> Awaitable[str]:
        return later()

    assert text_of(await call(start)) == "done"


async def test_a_cancelled_call_returns_at_once_and_tells_the_tool() -> None:
    begun, told, release = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def stuck(ctx: ToolContext) -> None:
        ctx.on_cancel.append(told.set)
        loop.call_soon_threadsafe(begun.set)
        release.wait()

    task = asyncio.create_task(call(stuck))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.is_set()
    release.set()


async def test_a_cancelled_async_call_is_cancelled() -> None:
    begun = asyncio.Event()

    @tool
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call(waits))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_reconcile_is_asked_with_the_arguments_it_names() -> None:
    def known(order: int, context: ToolContext) -> object:
        answers = {1: Happened(context.idempotency_key), 2: WillNotHappen(), 3: "will_not_happen"}
        if order not in answers:
            raise ConnectionError
        return answers[order]

    async def known_async(order: int, context: ToolContext) -> object:
        return known(order, context)

    for reconcile in (known, known_async):

        @tool(reconcile=reconcile)
        def pay(order: int, amount: float = 1) -> None: ...

        assert pay.effect == "reconcile"
        answers = [await pay.reconcile(await pay.prepare(f'{{"order":{n}}}'), context()) for n in (1, 2, 3, 4)]
        assert answers == [Happened("key_1"), WillNotHappen(), Unknown(), Unknown()]


async def test_a_tool_without_reconcile_knows_nothing() -> None:
    assert await weather.reconcile(b"{}", context()) == Unknown()


def test_making_a_tool_imports_neither_pydantic_nor_jsonschema() -> None:
    code = """
import sys, weftline
@weftline.tool
def f(x: int): "d"
heavy = {"pydantic", "pydantic_core", "jsonschema_rs", "aiohttp", "starlette"} & set(sys.modules)
assert not heavy, heavy
import asyncio
asyncio.run(f.prepare('{"x":1}'))
assert "pydantic" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


WRONG: list[tuple[Any, Any]] = [("text", False), ((5,), False), ((Text(cast(Any, 5)),), False), ((), "no")]


@pytest.mark.parametrize(("parts", "is_error"), WRONG)
async def test_unreadable_output_is_an_error_result(parts: Any, is_error: Any) -> None:
    @tool(blocking=False)
    def wrong() -> ToolOutput:
        return ToolOutput(parts, is_error)

    result = await call(wrong)
    assert result.is_error and "cannot be shown" in text_of(result)


async def test_a_null_for_an_optional_parameter_means_its_default() -> None:
    @weftline.tool
    def trip(place: Place, days: int = 3, note: str | None = "none") -> str:
        return f"{place.city} {place.country} {days} {note}"

    args = '{"place": {"city": "Oslo", "country": null}, "days": null, "note": null}'
    assert text_of(await call(trip, args)) == "Oslo DE 3 None"
    with pytest.raises(InvalidArguments, match="/place"):
        await trip.prepare('{"place": null, "days": null}')
    with pytest.raises(InvalidArguments, match="/hours"):
        await trip.prepare('{"place": {"city": "Oslo"}, "hours": null}')


@pytest.mark.parametrize("confirm", [True, 1, ["Pay?"]])
def test_a_question_to_people_is_a_text_or_a_function(confirm: Any) -> None:
    with pytest.raises(TypeError, match="confirm is the question"):

        @tool(confirm=confirm)
        def pay(amount: int) -> None: ...
