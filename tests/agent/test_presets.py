"""What agents have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from weftline import Agent, Limits, Settings, hook, skills, tool
from weftline.agent.agent_tools import name_of
from weftline.behaviors import Behavior, Preset, compose_presets, presets
from weftline.hooks import RunEnded, RunStarted
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill


def named(name: str, *, says: str = "") -> Any:
    return tool(name=name, description=says or name)(lambda: says)


def watching(seen: list[str], word: str) -> Any:
    def started(point: RunStarted) -> None:
        seen.append(word)

    return hook(RunStarted)(started)


TOOLS = [named(name, says=f"{name}{n}") for name in "abc" for n in range(2)]
HOOKS = [watching([], str(n)) for n in range(3)]
made = st.builds(
    Preset,
    name=st.sampled_from([UNSET, None, "x", "y"]),
    instructions=st.sampled_from([UNSET, None, "Be brief.", "Be kind."]),
    tools=st.lists(st.sampled_from(TOOLS), max_size=3, unique_by=lambda one: one.name),
    tool_aliases=st.none() | st.dictionaries(st.sampled_from("abc"), st.sampled_from("ABC")),
    behavior=st.builds(Behavior, cache=st.none() | st.booleans(), compact_keep_turns=st.none() | st.integers(0, 3)),
    settings=st.builds(Settings, reasoning=st.none() | st.integers(0, 100)),
    limits=st.sampled_from([UNSET, None, Limits(max_turns=1), Limits(max_turns=2)]),
    hooks=st.lists(st.sampled_from(HOOKS), max_size=3) | st.sampled_from(HOOKS),
)


def flat(preset: Preset) -> list[object]:
    return [
        preset.name,
        preset.instructions,
        list(preset.tools),
        dict(preset.tool_aliases or {}),
        preset.behavior,
        preset.settings,
        preset.limits,
        list(preset.all_hooks),
    ]


@pytest.mark.requirement("loop.preset.compose", "loop.preset.compose_hooks")
@given(st.lists(made, max_size=4), st.integers(0, 4))
def test_presets_compose_field_by_field(given_presets: list[Preset], cut: int) -> None:
    before = [flat(one) for one in given_presets]
    composed = compose_presets(*given_presets)
    assert [flat(one) for one in given_presets] == before
    for field in ("name", "instructions", "limits"):
        defined = [value for one in given_presets if (value := getattr(one, field)) is not UNSET]
        assert getattr(composed, field) == (defined[-1] if defined else UNSET)
    last = {name_of(one): one for preset in given_presets for one in preset.tools}
    assert {name_of(one): one for one in composed.tools} == last
    assert len(composed.tools) == len(last)
    assert composed.all_hooks == tuple(one for preset in given_presets for one in preset.all_hooks)
    for knob in ("cache", "compact_keep_turns"):
        known = [value for one in given_presets if (value := getattr(one.behavior, knob)) is not None]
        assert getattr(composed.behavior, knob) == (known[-1] if known else None)
    grouped = compose_presets(compose_presets(*given_presets[:cut]), compose_presets(*given_presets[cut:]))
    assert flat(grouped) == flat(composed)


@pytest.mark.requirement("loop.preset.fields", "loop.preset.compose_hooks")
async def test_agent_combines_its_preset_and_its_own_settings() -> None:
    seen: list[str] = []
    preset = compose_presets(
        Preset(name="one", hooks=watching(seen, "first"), tools=[named("a", says="old"), named("b", says="b")]),
        Preset(instructions="Be brief.", hooks=[watching(seen, "second")], behavior=Behavior(cache=False)),
    )
    model = ScriptedModel([calls("a"), calls("b"), "Done."])
    agent = Agent(
        model,
        preset=preset,
        tools=[named("a", says="new")],
        hooks=[watching(seen, "own")],
        settings=Settings(reasoning=30),
    )
    other = Agent(model, preset=preset, name="two", instructions="Be kind.", behavior=Behavior(cache=True))
    result = await agent.run("Go.", hooks=[watching(seen, "run")])
    assert (agent.name, other.name) == ("one", "two")
    assert [call.result for call in result.calls] == ["new", "b"]
    assert seen == ["first", "second", "own", "run"]
    assert (model.requests[0].system, model.requests[0].cache) == ("Be brief.", False)
    await other.run("Go.")
    assert (model.requests[3].system, model.requests[3].cache) == ("Be kind.", True)


@pytest.mark.requirement("loop.preset.fields")
@pytest.mark.parametrize("field", ["provider", "model", "thread", "execution", "mcp_connector"])
def test_a_preset_has_no_model_and_nothing_of_a_run(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        Preset(**cast("dict[str, Any]", {field: "x"}))


def test_an_agent_has_one_set_of_skills() -> None:
    first, second = (skills(Skill(name=name, description="x", body="x")) for name in ("a", "b"))
    assert compose_presets(Preset(tools=[first]), Preset(tools=[second])).tools == (second,)


@pytest.mark.requirement("loop.preset.shipped")
async def test_the_presets_that_come_along_work_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for preset in (presets.basic(tmp_path), presets.build(tmp_path), presets.plan(tmp_path)):
        model = ScriptedModel([calls("read_file", path="a.txt"), "Done."])
        result = await Agent(model, preset=preset).run("Go.")
        assert "hello" in result.calls[0].result
        offered = {spec.name for spec in model.requests[0].tools}
        changing = {"write_file", "edit", "multi_edit", "shell"}
        assert changing & offered == (set() if preset.name == "plan" else changing)
        if preset.name != "basic":
            assert preset.behavior.persist_exclude_tools


async def test_hooks_of_a_preset_are_asked_about_an_answer() -> None:
    ended: list[str] = []

    @hook(RunEnded)
    def over(point: RunEnded) -> None:
        ended.append(point.status)

    preset = Preset(hooks=[over])
    await Agent(ScriptedModel(["Done."]), preset=preset).run("Go.")
    assert ended == ["succeeded"]
