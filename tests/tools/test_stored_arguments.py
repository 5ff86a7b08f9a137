"""What a function gets is what its types make of the model's arguments, by way of the log; or it is not called."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Network
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from typing_extensions import TypeAliasType, TypedDict

import weftline.client
from weftline import Agent, prompts, tool
from weftline.testing import ScriptedModel, calls
from weftline.tools.arguments import Injected, InvalidArguments, StaleArguments
from weftline.tools.function import FunctionTool

T = TypeVar("T")


class Excluding(BaseModel):
    a: int
    note: str = Field("default", exclude=True)


class Renaming(BaseModel):
    sender: str = Field(alias="from", serialization_alias="From")
    limit: int = Field(3, validation_alias="max")
    size: int = Field(0, validation_alias=AliasChoices(AliasPath("sizes", 0), "size", "s"))
    kind: str = Field("", serialization_alias="Kind")


class EitherName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    sender: str = Field(alias="from")


class OnlyNames(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    sender: str = Field(alias="from")


class Computing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: float
    height: float = 1

    @computed_field
    @property
    def area(self) -> float:
        return self.width * self.height


class LocalDate(BaseModel):
    day: date

    @field_serializer("day")
    def in_words(self, day: date) -> str:
        return f"{day:%d.%m.%Y}"


class OneLine(BaseModel):
    a: int
    b: int

    @model_serializer
    def line(self) -> str:
        return f"{self.a}/{self.b}"


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = Field(0, exclude=True)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)
    name: str
    tags: frozenset[str] = frozenset()


class Units(BaseModel):
    """Its JSON has other forms than pydantic reads."""

    model_config = ConfigDict(ser_json_timedelta="float", ser_json_bytes="base64", ser_json_temporal="seconds")
    wait: timedelta
    data: bytes
    at: datetime


class Binary(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: bytes


class Tree(BaseModel):
    value: int = Field(exclude=True)
    children: list[Tree] = []


class Holder(BaseModel, Generic[T]):
    held: T


class Numbered(BaseModel):
    id: UUID = Field(default_factory=uuid4)
    name: str
    _seen: UUID = PrivateAttr(default_factory=uuid4)


def as_list(it: Any) -> Any:
    return [it] if isinstance(it, int) else it


class Sorted(BaseModel):
    items: list[int]

    @field_validator("items", mode="before")
    @classmethod
    def one_is_a_list(cls, items: object) -> object:
        return as_list(items)

    @model_validator(mode="after")
    def in_order(self) -> Sorted:
        self.items.sort()
        return self


class Reserved(BaseModel):
    """Its fields have the names of parts of pydantic's schemas."""

    type: Excluding
    default: Excluding
    metadata: Excluding
    schema_: Excluding = Field(alias="schema")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, exclude=True)


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int = Field(serialization_alias="years")


class Excluded(RootModel[list[Excluding]]): ...


@dataclasses.dataclass
class Box:
    width: float
    height: float = 0
    parts: list[str] = dataclasses.field(default_factory=list[str])
    area: float = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.area = self.width * self.height


@dataclasses.dataclass
class Rate:
    value: float
    percent: dataclasses.InitVar[bool] = False

    def __post_init__(self, percent: bool) -> None:
        if percent:
            self.value /= 100


@checked_dataclass(frozen=True)
class Parcel:
    to: str = Field(alias="recipient", serialization_alias="To")
    fragile: bool = Field(False, exclude=True)


class Row(TypedDict, total=False):
    a: int
    b: Annotated[str, Field(alias="B", exclude=True)]


class Pair(NamedTuple):
    a: int
    b: float = 0


class Color(Enum):
    red = "r"
    blue = "b"


class Level(IntEnum):
    low = 1
    high = 2


class Mode(StrEnum):
    fast = "fast"


class Money:
    """A type of its own, without equality."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


Priced = Annotated[
    Money,
    PlainValidator(lambda text: Money(int(str(text).removesuffix(" ct"))), json_schema_input_type=str),
    PlainSerializer(lambda money: f"{money.cents} ct"),
]
Cents = Annotated[
    int, AfterValidator(lambda euros: euros * 100), PlainSerializer(lambda cents: cents // 100, return_type=int)
]
Nested = TypeAliasType("Nested", "dict[str, Nested] | list[Nested] | int")
Sku = NewType("Sku", str)

INTEGERS = st.integers(-(2**70), 2**70)
FLOATS: st.SearchStrategy[Any] = st.floats(allow_nan=False, allow_infinity=False, width=32)
SMALL = st.integers(-999, 999)
NUMBERS: st.SearchStrategy[Any] = st.one_of(INTEGERS, FLOATS, SMALL.map(str), st.booleans())
TEXTS = st.text(max_size=5)
DATES = st.dates().map(str)
OFFSETS = st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ZONES: st.SearchStrategy[Any] = st.none() | OFFSETS
TIMESTAMPS = st.integers(0, 2**31)
MOMENTS = st.datetimes(min_value=datetime(1900, 1, 1), timezones=ZONES).map(datetime.isoformat) | TIMESTAMPS
EXCLUDING: st.SearchStrategy[Any] = st.fixed_dictionaries({"a": SMALL | SMALL.map(str)}, optional={"note": TEXTS})
LEAVES: st.SearchStrategy[Any] = st.fixed_dictionaries({"value": SMALL})


def with_children(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"value": SMALL, "children": st.lists(children, max_size=2)})


TREES: st.SearchStrategy[Any] = st.recursive(LEAVES, with_children, max_leaves=4)
NESTED: st.SearchStrategy[Any] = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2), max_leaves=4
)

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, NUMBERS),
    (float, NUMBERS),
    (bool, st.sampled_from([True, 0, "yes", "off"])),
    (Any, NESTED | FLOATS),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False).map(str) | FLOATS | INTEGERS),
    (Decimal | str, st.decimals(allow_nan=False, allow_infinity=False).map(str) | FLOATS | TEXTS),
    (int | float | bool | str | None, NUMBERS | TEXTS | st.none()),
    (Level | str, st.sampled_from([1, 2, 2.0, "1", "x"])),
    (Mode | str, st.sampled_from(["fast", "slow"])),
    (Color, st.sampled_from(["r", "b"])),
    (dict[Color, Level], st.dictionaries(st.sampled_from(["r", "b"]), st.sampled_from([1, 2, "1"]))),
    (date, DATES),
    (datetime, MOMENTS),
    (datetime | date | str, MOMENTS | DATES | TEXTS),
    (time, st.times().map(str)),
    (timedelta, st.timedeltas(timedelta(-999), timedelta(999)).map(timedelta.total_seconds)),
    (bytes, TEXTS),
    (bytes | str, TEXTS),
    (Base64Bytes, st.sampled_from(["aGk=", "", "/+8="])),
    (UUID, st.uuids().map(str) | st.uuids().map(lambda one: one.hex)),
    (Path, st.sampled_from(["a/b", "a//b/", "."])),
    (IPv4Network, st.sampled_from(["10.0.0.0/8", "10.1.2.3"])),
    (HttpUrl, st.sampled_from(["http://EXAMPLE.com", "https://a:b@example.com/x?y#z"])),
    (ByteSize, st.sampled_from(["1 KB", "3MiB", 5])),
    (Sku, TEXTS),
    (set[int], st.lists(SMALL | SMALL.map(str))),
    (frozenset[tuple[str, int]], st.lists(st.tuples(TEXTS, SMALL | SMALL.map(str)))),
    (tuple[int, str, float], st.tuples(NUMBERS, TEXTS, NUMBERS)),
    (deque[float], st.lists(NUMBERS)),
    (Sequence[float], st.lists(NUMBERS)),
    (dict[int, list[float]], st.dictionaries(SMALL.map(str), st.lists(NUMBERS), max_size=3)),
    (Json[Any], NESTED.map(json.dumps)),
    (Json[list[Excluding]], st.lists(EXCLUDING).map(json.dumps)),
    (Annotated[str, AfterValidator(str.strip)], TEXTS),
    (Annotated[float, AfterValidator(lambda number: min(number, 100))], NUMBERS),
    (Annotated[list[int], BeforeValidator(as_list)], SMALL | st.lists(SMALL)),
    (Annotated[date, PlainSerializer(lambda day: f"{day:%d.%m.%Y}")], DATES),
    (Cents, SMALL),
    (Priced, SMALL.map(str) | SMALL.map(lambda cents: f"{cents} ct")),
    (Excluding, EXCLUDING),
    (Excluding | None, EXCLUDING | st.none()),
    (list[dict[str, Excluding]], st.lists(st.dictionaries(TEXTS, EXCLUDING, max_size=2), max_size=2)),
    (Excluded, st.lists(EXCLUDING, max_size=2)),
    (Renaming, st.fixed_dictionaries({"from": TEXTS}, optional={"max": SMALL, "s": SMALL, "sizes": st.lists(SMALL)})),
    (Renaming, st.fixed_dictionaries({"from": TEXTS, "kind": TEXTS})),
    (EitherName, st.fixed_dictionaries({"from": TEXTS}) | st.fixed_dictionaries({"sender": TEXTS})),
    (OnlyNames, st.fixed_dictionaries({"sender": TEXTS})),
    (Computing, st.fixed_dictionaries({"width": NUMBERS}, optional={"height": NUMBERS})),
    (LocalDate, st.fixed_dictionaries({"day": DATES})),
    (OneLine, st.fixed_dictionaries({"a": NUMBERS, "b": SMALL})),
    (Loose, st.dictionaries(TEXTS, NESTED, max_size=3) | st.fixed_dictionaries({"a": SMALL, "b": NESTED})),
    (Frozen, st.fixed_dictionaries({"name": TEXTS}, optional={"tags": st.lists(TEXTS)})),
    (Units, st.fixed_dictionaries({"wait": NUMBERS, "data": TEXTS, "at": MOMENTS})),
    (Binary, st.fixed_dictionaries({"data": st.sampled_from(["__8=", "aGk="])})),
    (Tree, TREES),
    (Nested, NESTED),
    (Holder[Excluding], st.fixed_dictionaries({"held": EXCLUDING})),
    (Holder[Iterable[Excluding]], st.fixed_dictionaries({"held": st.lists(EXCLUDING)})),
    (Sorted, st.fixed_dictionaries({"items": SMALL | st.lists(SMALL)})),
    (Reserved, st.fixed_dictionaries(dict.fromkeys(["type", "default", "metadata", "schema"], EXCLUDING))),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        st.fixed_dictionaries({"kind": st.just("cat")}, optional={"lives": SMALL})
        | st.fixed_dictionaries({"kind": st.just("dog"), "age": SMALL}),
    ),
    (Cat | Dog, st.fixed_dictionaries({"kind": st.sampled_from(["cat", "dog"]), "age": SMALL, "lives": SMALL})),
    (Box, st.fixed_dictionaries({"width": FLOATS}, optional={"height": SMALL, "parts": st.lists(TEXTS)})),
    (Rate, st.fixed_dictionaries({"value": FLOATS}, optional={"percent": st.booleans()})),
    (Parcel, st.fixed_dictionaries({"recipient": TEXTS}, optional={"fragile": st.booleans()})),
    (Row, st.fixed_dictionaries({}, optional={"a": SMALL | SMALL.map(str), "B": TEXTS})),
    (Pair, st.fixed_dictionaries({"a": SMALL}, optional={"b": SMALL}) | st.tuples(SMALL, SMALL)),
]


def taking(hint: Any) -> FunctionTool:
    def take(it: Any, more: int = 0) -> None: ...

    take.__annotations__["it"] = hint
    return tool(take)


def as_first_read(hint: Any, written: Any) -> object:
    """What pydantic makes of the JSON, without the log. The log's JSON has sorted keys."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    return adapter.validate_json(json.dumps(written, sort_keys=True))


@pytest.mark.requirement("run.call.input")
@pytest.mark.parametrize(("hint", "values"), TYPES, ids=lambda value: getattr(value, "__name__", None))
def test_function_gets_what_its_types_make_of_models_arguments(hint: Any, values: st.SearchStrategy[Any]) -> None:
    before, after = taking(hint).parameters, taking(hint).parameters

    @given(values, st.booleans())
    def check(written: Any, complete: bool) -> None:
        args = {"it": written, **({"more": 1} if complete else {})}
        try:
            expected = as_first_read(hint, written)
        except ValidationError:
            with pytest.raises(InvalidArguments):
                before.final_args(json.dumps(args))
            return
        final = before.final_args(json.dumps(args))
        got = after.keywords(final)["it"]
        expected = eager(expected)
        assert got == expected or (isinstance(got, Money) and vars(got) == vars(expected)), final
        assert type(got) is type(expected) or isinstance(got, int | float)
        assert after.final_args(final.decode()) == final

    check()


def eager(value: Any) -> Any:
    """The value, with what pydantic reads only when it is iterated over."""
    held: Any = getattr(value, "held", None)
    return value if held is None or isinstance(held, BaseModel) else value.model_copy(update={"held": list(held)})


def test_omitted_argument_is_generated_once() -> None:
    parameters = taking(Numbered).parameters
    final = parameters.final_args('{"it":{"name":"Ada"}}')
    first, second = [parameters.keywords(final)["it"] for _ in range(2)]
    assert first.id == second.id == UUID(json.loads(final)["it"]["id"])


def test_an_iterable_is_a_list_that_was_checked() -> None:
    parameters = taking(Iterable[int]).parameters
    assert parameters.keywords(parameters.final_args('{"it":[1,"2"]}'))["it"] == [1, 2]
    with pytest.raises(InvalidArguments) as caught:
        parameters.final_args('{"it":[1,"x"]}')
    assert [issue.path for issue in caught.value.issues] == ["/it/1"]


def test_default_may_have_a_type_with_json_aliases() -> None:
    def take(it: Renaming = Renaming.model_validate({"from": "me"})) -> None: ...  # noqa: B008

    parameters = tool(take).parameters
    assert parameters.keywords(parameters.final_args("{}"))["it"] == Renaming.model_validate({"from": "me"})


def unit_dropped(price: object) -> int:
    assert isinstance(price, str)
    return int(price.removesuffix(" EUR"))


class FromPath(BaseModel):
    first: int = Field(validation_alias=AliasPath("all", 0))


class Rounded(BaseModel):
    price: Annotated[Money, PlainValidator(lambda cents: Money(cents)), PlainSerializer(lambda it: it.cents // 10 * 10)]


class Opaque(BaseModel):
    money: Annotated[Money, PlainValidator(lambda cents: Money(cents))]


def test_call_is_not_made_if_validators_change_their_own_output(caplog: pytest.LogCaptureFixture) -> None:
    def pay(it: Annotated[int, AfterValidator(lambda number: number + 1)], to: str = "me") -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        tool(pay).parameters.final_args('{"it":1}')
    assert caught.value.message == prompts.calls.cannot_be_stored("pay", ["it"])
    assert [(issue.path, issue.constraint) for issue in caught.value.issues] == [("/it", "stored")]
    assert [record.levelno for record in caplog.records if "the tool pay" in record.getMessage()] == [logging.ERROR]


@pytest.mark.parametrize(
    ("hint", "written", "cents"),
    [
        (Annotated[int, BeforeValidator(unit_dropped)], "5 EUR", "real"),
        (FromPath, {"all": [5, 2]}, "first"),
        (Rounded, {"price": 5}, "price.cents"),
        (Opaque, {"money": 5}, "money.cents"),
    ],
    ids=["it does not read what it returns", "it reads a path", "it writes less", "it is never written"],
)
def test_types_that_cannot_write_back_are_stored_as_written(hint: Any, written: Any, cents: str) -> None:
    final = taking(hint).parameters.final_args(json.dumps({"it": written}))
    assert json.loads(final) == {"it": written}
    assert attrgetter(cents)(taking(hint).parameters.keywords(final)["it"]) == 5


def test_new_excluded_field_counts_since_the_call_was_asked() -> None:
    with pytest.raises(StaleArguments):
        taking(Excluding).parameters.keywords(b'{"it":{"a":1},"more":0}')


@dataclasses.dataclass
class Login:
    user: str
    password: SecretStr | None = None


class Account(BaseModel):
    logins: list[Login]


class Entry(TypedDict):
    key: Annotated[SecretBytes, Field(max_length=5)]


class Pin(Secret[int]): ...


class Recursive(BaseModel):
    more: list[Recursive]


Hidden = NewType("Hidden", SecretStr)
Alias = TypeAliasType("Alias", dict[str, SecretStr])
SECRETS = [SecretStr, SecretBytes, Secret[int], Pin, Account, Entry, Hidden, Alias, Holder[Pin], Injected[SecretStr]]


@pytest.mark.parametrize("hint", SECRETS, ids=str)
def test_tool_taking_a_secret_from_a_model_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"tool 'take': parameter 'it' takes a \w+, but .* log .* environment"):
        Agent(ScriptedModel(["Done."]), tools=[taking(hint)])
    taking(Recursive).spec  # noqa: B018  one without


def test_a_client_refuses_such_a_tool_too() -> None:
    @weftline.client.tool
    def sign_in(user: str, password: SecretStr) -> None: ...

    @weftline.client.tool(parameters=Account)
    def sign_in_all(account: Account) -> None: ...

    for refused in (sign_in, sign_in_all):
        with pytest.raises(TypeError, match="takes a SecretStr"):
            refused.ref()


async def test_agents_tool_gets_fields_that_json_would_leave_out() -> None:
    got: list[Excluding] = []

    @tool
    def note(it: Excluding) -> str:
        got.append(it)
        return "Noted."

    agent = Agent(ScriptedModel([calls("note", it={"a": "1", "note": "important"}), "Done."]), tools=[note])
    result = await agent.run("Go.")
    assert got == [Excluding(a=1, note="important")]
    assert [call.args for call in result.calls] == [{"it": {"a": 1, "note": "important"}}]


@dataclasses.dataclass(slots=True)
class Slotted:
    tags: set[str]


class Tags(RootModel[set[str]]):
    pass


@dataclasses.dataclass
class Counted:
    tags: set[str]
    count: int = dataclasses.field(init=False, default=0)


@pytest.mark.parametrize(
    ("hint", "written"),
    [
        (Slotted, {"tags": ["a", "b", "c"]}),
        (Tags, ["a", "b", "c"]),
        (deque[set[str]], [["a", "b", "c"]]),
        (Counted, {"tags": ["a", "b", "c"]}),
    ],
)
def test_order_of_set_does_not_matter_wherever_set_is(hint: Any, written: Any) -> None:
    orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]]
    for order in orders:
        there = json.dumps({"it": written, "more": 0}).replace('["a", "b", "c"]', json.dumps(order))
        final = taking(hint).parameters.final_args(there)
        assert taking(hint).parameters.keywords(final)


def test_a_default_that_is_not_of_its_type_is_converted() -> None:
    def pay(price: Decimal = 0, wait: timedelta = 60) -> None: ...  # pyright: ignore[reportArgumentType]

    parameters = tool(pay).parameters
    final = parameters.final_args("{}")
    assert parameters.keywords(final) == {"price": Decimal(0), "wait": timedelta(seconds=60)}


class Careful(Enum):
    YES = "yes"


class Careless(BaseModel):
    """As people write it: pydantic does not check defaults."""

    text: str
    count: int = None  # pyright: ignore[reportAssignmentType]
    price: Annotated[Decimal, Field(gt=0)] = None  # pyright: ignore[reportAssignmentType]
    kind: Literal["a", "b"] | Careful = None  # pyright: ignore[reportAssignmentType]
    checked: int = None  # pyright: ignore[reportAssignmentType]

    @field_validator("checked")
    @classmethod
    def double(cls, value: int) -> int:
        assert value % 2 == 0
        return value


@dataclasses.dataclass
class CarelessToo:
    one: Careless
    more: list[str] = None  # pyright: ignore[reportAssignmentType]


def test_none_may_be_default_of_field_of_any_type() -> None:
    parameters = taking(CarelessToo).parameters
    expected = {"it": CarelessToo(Careless(text="x")), "more": 0}
    for written in ('{"it":{"one":{"text":"x"}}}', '{"it":{"one":{"text":"x","count":null},"more":null}}'):
        final = parameters.final_args(written)
        assert parameters.keywords(final) == expected
        assert parameters.final_args(final.decode()) == final
    given = parameters.final_args('{"it":{"one":{"text":"x","count":3,"checked":4},"more":["a"]}}')
    assert parameters.keywords(given)["it"] == CarelessToo(Careless(text="x", count=3, checked=4), ["a"])
    for wrong in ('{"count":"x"}', '{"price":-1}', '{"checked":3}', '{"text":null}'):
        with pytest.raises(InvalidArguments):
            parameters.final_args(json.dumps({"it": {"one": {"text": "x", **json.loads(wrong)}}}))


def test_none_is_refused_where_defaults_are_checked() -> None:
    class Strict(BaseModel):
        count: int = Field(None, validate_default=True)  # pyright: ignore[reportArgumentType]
        sure: int = None  # pyright: ignore[reportAssignmentType]

    parameters = taking(Strict).parameters
    for wrong in ('{"it":{}}', '{"it":{"count":null}}'):
        with pytest.raises(InvalidArguments):
            parameters.final_args(wrong)
    assert parameters.keywords(parameters.final_args('{"it":{"count":1,"sure":null}}'))["it"] == Strict(count=1)


@pytest.mark.parametrize(
    "kind",
    [
        Path,
        HttpUrl,
        Sequence[int],
        IPv4Network,
        deque[int],
    ],
    ids=str,
)
def test_value_with_custom_validators_may_be_no_default(kind: Any) -> None:
    model = create_model("Model", text=(str, "x"), value=(kind, None))
    parameters = taking(model).parameters
    for written in ("{}", '{"value":null}'):
        final = parameters.final_args(f'{{"it":{written}}}')
        assert parameters.keywords(final)["it"] == model()


def test_none_may_be_in_a_default_too() -> None:
    def pay(what: Careless = Careless(text="x")) -> None: ...  # noqa: B008

    parameters = tool(pay).parameters
    assert parameters.keywords(parameters.final_args("{}")) == {"what": Careless(text="x")}


def test_a_validator_of_an_optional_field_still_sees_null() -> None:
    class Optionally(BaseModel):
        count: Annotated[int | None, AfterValidator(lambda value: value or 7)] = None

    parameters = taking(Optionally).parameters
    assert parameters.keywords(parameters.final_args('{"it":{"count":null}}'))["it"].count == 7


class Rendered(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return {**value}

    @model_serializer
    def write(self) -> str:
        return f"a={self.a}"


def test_serializer_whose_output_validators_fail_for_is_not_used() -> None:
    final = taking(Rendered).parameters.final_args('{"it":{"a":1}}')
    assert taking(Rendered).parameters.keywords(final)["it"] == Rendered(a=1)


class NoSchema: ...


def test_default_without_a_schema_is_refused_in_words() -> None:
    unknown = NoSchema()

    def pay(it: NoSchema = unknown) -> None: ...

    with pytest.raises(TypeError, match="pay"):
        _ = tool(pay).parameters
