"""Arguments of the wrong type that can only mean one thing."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from weftline import tool
from weftline.hooks import ArgumentsCoerced, ArgumentsRejected, ToolAfter, ToolBefore, ToolGate, ToolTransform
from weftline.testing import calls
from weftline.tools.coercion import Coercion, coerced, coercions

from .kit import scripted

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "flag": {"type": "boolean"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "names": {"type": "array"},
        "options": {"type": "object"},
        "text": {"type": "string"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": {},
        "known": {"$ref": "#/$defs/Known"},
    },
    "required": ["text"],
    "$defs": {"Known": {"type": "boolean"}},
}
RAW = Raw(json.dumps(SCHEMA).encode())


@pytest.mark.requirement("loop.args.coerce", "loop.call.invalid")
@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("flag", "true", True),
        ("flag", "YES", True),
        ("flag", "1", True),
        ("flag", "No", False),
        ("flag", "0", False),
        ("flag", "maybe", None),
        ("flag", 1, None),
        ("count", "12", 12),
        ("count", "-3", -3),
        ("count", "1.0", 1),
        ("count", "1.5", None),
        ("count", "abc", None),
        ("count", "0x10", None),
        ("count", "9" * 5000, None),
        ("share", "1.5", 1.5),
        ("share", "1e3", 1000.0),
        ("share", "1e999", None),
        ("share", "nan", None),
        ("names", '["a", 1]', ["a", 1]),
        ("names", "[", None),
        ("names", '{"a": 1}', None),
        ("options", '{"a": "1"}', {"a": "1"}),
        ("options", "[1]", None),
        ("text", 3, "3"),
        ("text", 1.5, "1.5"),
        ("text", True, "true"),
        ("text", ["a"], None),
        ("maybe", "7", 7),
        ("known", "no", False),
    ],
)
def test_a_value_that_can_be_read_as_its_type_is(name: str, given_value: object, expected: object) -> None:
    found = coerced({"text": "x", name: given_value}, RAW)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found[name] == expected and type(found[name]) is type(expected)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("inside", ["1e300," * 6_000, "[]," * 200_000])
def test_text_that_costs_too_much_to_read_stays_text(inside: str) -> None:
    schema = Raw(b'{"type":"object","properties":{"all":{"type":"array"}}}')
    assert coerced({"all": "[1,2]"}, schema) == {"all": [1, 2]}
    assert coerced({"all": f"[{inside}1]"}, schema) is None


@pytest.mark.requirement("loop.args.coerce", "loop.args.required")
@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), values))
def test_fitting_content_is_unchanged(args: dict[str, Any]) -> None:
    found = coerced(args, RAW)
    if args.get("text") is None:
        assert found is None
        return
    after = args if found is None else found
    assert after.keys() == args.keys()
    for name, value in args.items():
        if after[name] != value or type(after[name]) is not type(value):
            assert isinstance(value, str | bool | int | float)
            assert name not in ("any", "other", "either") or not isinstance(value, str)
    assert found is None or coerced(found, RAW) is None


def test_a_default_that_is_added_is_not_a_coercion() -> None:
    assert coercions({"a": 1}, {"a": 1, "b": 2}) == ()
    assert coercions({"a": "1"}, {"a": 1}) == (Coercion("a", "1", 1),)
    assert coercions({"a": 1}, {"a": True}) == (Coercion("a", 1, True),)


@tool(effect="read")
def order(cakes: list[str], count: int, note: str = "", wrap: bool = False) -> str:
    """Orders."""
    return f"{count} of {cakes}, {wrap}, {note}"


@pytest.mark.requirement("loop.args.coerced_input", "loop.call.order")
async def test_a_tool_and_its_hooks_get_the_coerced_arguments() -> None:
    turns = (
        calls("order", cakes='["lemon"]', count="2", note=7, wrap="yes"),
        calls("order", cakes=["plum"], count=1),
    )
    agent, _ = scripted(*turns, tools=[order])
    seen: list[object] = []
    agent.on(ArgumentsCoerced)(lambda at: seen.append({one.path: (one.before, one.after) for one in at.coercions}))
    agent.on(ToolBefore)(lambda at: seen.append((dict(at.args), [one.path for one in at.coercions])))
    result = await agent.run("Go.")
    assert [call.result for call in result.calls] == ["2 of ['lemon'], True, 7", "1 of ['plum'], False, "]
    changed = {"cakes": ('["lemon"]', ["lemon"]), "count": ("2", 2), "note": (7, "7"), "wrap": ("yes", True)}
    assert seen == [
        changed,
        ({"cakes": ["lemon"], "count": 2, "note": "7", "wrap": True}, list(changed)),
        ({"cakes": ["plum"], "count": 1, "note": "", "wrap": False}, []),
    ]


@pytest.mark.requirement("loop.args.required", "loop.call.invalid")
@pytest.mark.parametrize(
    "args", [{"count": "2"}, {"cakes": None, "count": "2"}, {"cakes": [], "count": "two"}, {"cakes": "[", "count": 1}]
)
async def test_arguments_that_do_not_fit_are_rejected(args: dict[str, Any]) -> None:
    agent, _ = scripted(calls("order", **args), tools=[order])
    seen: list[str] = []
    for point in (ArgumentsCoerced, ArgumentsRejected, ToolBefore, ToolTransform, ToolAfter):
        agent.on(point)(lambda at: seen.append(at.name))
    result = await agent.run("Go.")
    (call,) = result.calls
    assert (call.how, call.ok) == ("invalid", False)
    assert call.result.startswith("Validation error: ") and ("cakes" in call.result or "count" in call.result)
    assert seen == ["arguments_rejected"]


async def test_gate_values_are_not_reported_as_coercion() -> None:
    agent, _ = scripted(calls("order", cakes=["a"], count=1), tools=[order])

    @agent.on(ToolGate)
    def more(gate: ToolGate) -> None:
        gate.args = {**gate.args, "count": 5}

    seen: list[object] = []
    agent.on(ToolBefore)(lambda at: seen.append((at.args["count"], at.coercions)))
    await agent.run("Go.")
    assert seen == [(5, ())]


async def test_gate_values_are_coerced_like_model_values() -> None:
    agent, _ = scripted(calls("order", cakes=["a"], count=1), tools=[order])

    @agent.on(ToolGate)
    def more(gate: ToolGate) -> None:
        gate.args = {**gate.args, "cakes": '["a", "b"]'}

    seen: list[object] = []
    agent.on(ToolBefore)(lambda at: seen.append(at.args["cakes"]))
    result = await agent.run("Go.")
    assert (seen, result.calls[0].how) == ([["a", "b"]], "returned")


async def test_word_of_fixed_set_is_not_made_of_something_else() -> None:
    @tool(effect="read")
    def pick(size: Literal["1", "2"]) -> str:
        """Picks."""
        return size

    agent, _ = scripted(calls("pick", size=1), calls("pick", size=3), tools=[pick])
    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["returned", "invalid"]
