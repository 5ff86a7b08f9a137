"""What a request leaves out or renames, and what it never does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from weftline import Agent, skills, tool
from weftline.agent.agent_tools import Aliases, check_names
from weftline.agent.requests.shaping import recent_turns, repaired, tail_compacted, without_stale_reads
from weftline.behaviors import Behavior
from weftline.errors import Conflict
from weftline.hooks import BeforeModel, ContextBuilt, ToolAfter, ToolGate, keep_recent
from weftline.messages import Assistant, Image, Message, System, Text, ToolCall, ToolResult, ToolResults, User
from weftline.providers.base import ModelRequest, ToolSpec
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill
from weftline.tools.results import output_bytes

from .kit import results_in, scripted

NAMES = ("read_file", "edit", "write_file", "look")


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Whole conversations: each call has its result in the message after it."""
    messages: list[Message] = [User.of(draw(st.sampled_from(["Hi.", "Go."])))]
    for turn in range(draw(st.integers(0, 7))):
        made = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["a", "./a", "b"])), max_size=3))
        parts = [ToolCall(f"c{turn}.{n}", name, f'{{"path":"{path}"}}') for n, (name, path) in enumerate(made)]
        messages.append(Assistant((*([Text("So.")] if draw(st.booleans()) or not parts else []), *parts)))
        if parts:
            results: list[ToolResult] = []
            for call in parts:
                content: list[Any] = [Text("x" * draw(st.integers(0, 400)))]
                if draw(st.booleans()):
                    content.append(Image("image/png", data="A" * draw(st.integers(0, 400))))
                results.append(ToolResult(call.id, call.name, tuple(content), draw(st.booleans())))
            messages.append(ToolResults(tuple(results)))
        if not parts or draw(st.booleans()):
            messages.append(User.of("And?"))
    return messages


def shape_of(messages: list[Message]) -> list[object]:
    """The conversation without the contents of its results."""
    return [
        [(one.id, one.name, one.is_error) for one in message.results] if isinstance(message, ToolResults) else message
        for message in messages
    ]


# Compaction


@pytest.mark.requirement("loop.compact.tail")
@given(conversations(), st.integers(0, 1500), st.integers(0, 8), st.sets(st.sampled_from(["c0.0", "c1.1", "c2.0"])))
def test_compaction_keeps_pairs_whole_and_touches_old_results_only(
    messages: list[Message], threshold: int, keep_turns: int, keep: set[str]
) -> None:
    found = tail_compacted(messages, threshold_bytes=threshold, keep_turns=keep_turns, keep=keep)
    before = [one for message in messages if isinstance(message, ToolResults) for one in message.results]
    after = [one for message in found if isinstance(message, ToolResults) for one in message.results]
    size = sum(output_bytes(one.parts) for one in before)
    if size <= threshold:
        assert found is messages
        return
    assert shape_of(list(found)) == shape_of(messages)
    assert repaired(found) == list(found)
    turns = [message for message in messages if isinstance(message, Assistant)]
    first = max(len(turns) - keep_turns, 0)
    recent = {call.id for message in turns[first:] for call in message.calls}
    for old, new in zip(before, after, strict=True):
        if old.id in recent | keep:
            assert new == old
        elif new != old:
            assert output_bytes(new.parts) < output_bytes(old.parts)
            assert "left out" in new.text
        else:
            assert output_bytes(old.parts) < 120  # a stub would have been longer


@pytest.mark.requirement("loop.compact.stale_reads")
@given(conversations())
def test_only_reads_of_changed_files_are_omitted(messages: list[Message]) -> None:
    found = list(without_stale_reads(messages))
    assert shape_of(found) == shape_of(messages)
    before = {one.id: one for message in messages if isinstance(message, ToolResults) for one in message.results}
    after = {one.id: one for message in found if isinstance(message, ToolResults) for one in message.results}
    asked = [call for message in messages if isinstance(message, Assistant) for call in message.calls]
    for position, call in enumerate(asked):
        path = call.args.replace("./", "")
        later = [
            other
            for other in asked[position + 1 :]
            if other.name in ("edit", "write_file")
            and other.args.replace("./", "") == path
            and not before[other.id].is_error
        ]
        stale = call.name == "read_file" and not before[call.id].is_error and bool(later)
        if after[call.id] != before[call.id]:
            assert stale and "changed since" in after[call.id].text
        else:
            assert not stale or output_bytes(before[call.id].parts) < 120


@given(conversations(), st.integers(0, 8))
def test_recent_turns_are_whole_and_begin_with_what_was_asked(messages: list[Message], turns: int) -> None:
    found = keep_recent(messages, turns=turns)
    assert repaired(found) == found
    assert sum(isinstance(message, Assistant) for message in found) == min(
        turns, sum(isinstance(message, Assistant) for message in messages)
    )
    assert isinstance(found[0], User)
    assert found[1:] == messages[len(messages) - len(found) + 1 :]


@tool(effect="read")
def look(size: int = 500) -> str:
    """Looks."""
    return "x" * size


@pytest.mark.requirement("loop.compact.tail")
async def test_the_stored_conversation_is_not_compacted() -> None:
    behavior = Behavior(compact_strategy="tail", compact_threshold_bytes=1200, compact_keep_turns=1)
    agent, model = scripted(*[calls("look", size=500 + n) for n in range(4)], tools=[look], behavior=behavior)
    result = await agent.run("Go.")
    sizes = [[len(text) for text in results_in(request.messages)] for request in model.requests]
    stub = len("[The result of look (500 bytes) was left out to save space. Call it again if you still need it.]")
    assert sizes == [[], [500], [500, 501], [stub, stub, 502], [stub, stub, stub, 503]]
    assert [len(text) for text in results_in(result.messages)] == [500, 501, 502, 503]


@pytest.mark.requirement("run.history.keep_recent")
@given(conversations(), st.integers(1, 8), st.booleans())
def test_recent_turns_keep_pairs_whole_and_the_newest_turn(messages: list[Message], turns: int, lead: bool) -> None:
    whole = [System("Be kind."), System("Be brief."), *messages] if lead else messages
    before = list(whole)
    found = list(recent_turns(whole, turns=turns))
    assert whole == before
    assert found[: 2 * lead] == whole[: 2 * lead], "leading system messages stay"
    said = [index for index, one in enumerate(messages) if isinstance(one, User)]
    begins: list[int] = said
    if len(said) == 1:
        begins = [index for index, one in enumerate(messages) if isinstance(one, Assistant)]
    if len(begins) <= turns:
        assert found == whole
        return
    rest = found[2 * lead :]
    assert rest == (messages[:1] if len(said) == 1 else []) + messages[begins[-turns] :]
    made = [call.id for one in rest if isinstance(one, Assistant) for call in one.calls]
    given = [one.id for message in rest if isinstance(message, ToolResults) for one in message.results]
    assert set(given) == set(made) if not isinstance(rest[-1], Assistant) else set(given) <= set(made)


@pytest.mark.requirement("run.history.keep_recent")
async def test_requests_have_recent_turns_and_stored_conversation_has_all() -> None:
    agent, model = scripted(
        *[calls("look", size=n) for n in range(4)], tools=[look], behavior=Behavior(keep_recent_turns=2)
    )
    result = await agent.run("Go.")
    sizes = [[len(text) for text in results_in(request.messages)] for request in model.requests]
    assert sizes == [[], [0], [0, 1], [1, 2], [2, 3]]
    assert all(isinstance(request.messages[0], User) for request in model.requests)
    assert [len(text) for text in results_in(result.messages)] == [0, 1, 2, 3]
    again, other = scripted(tools=[look], behavior=Behavior(keep_recent_turns=1))
    await again.run("And now?", messages=result.messages)
    (only,) = other.requests[0].messages
    assert isinstance(only, User) and only.text == "And now?"


@pytest.mark.requirement("skill.active.kept")
async def test_active_skill_text_stays_whole(tmp_path: Any) -> None:
    long = Skill(name="long", description="Long.", body="Word. " * 500)
    behavior = Behavior(
        compact_strategy="tail",
        compact_threshold_bytes=0,
        compact_keep_turns=0,
        persist_threshold_bytes=10,
        persist_dir=tmp_path,
    )
    agent, model = scripted(
        calls("skills_use", name="long"), calls("look"), tools=[skills(long), look], behavior=behavior
    )
    await agent.run("Go.")
    content, looked = results_in(model.requests[2].messages)
    assert content.startswith("<skill_content") and content.count("Word. ") == 500
    assert "left out" in looked or "persisted-output" in looked


async def test_compaction_comes_after_the_hooks_on_messages() -> None:
    behavior = Behavior(compact_strategy="tail", compact_threshold_bytes=600, compact_keep_turns=0)
    agent, model = scripted(calls("look"), calls("look"), tools=[look], behavior=behavior)
    seen: list[list[int]] = []
    agent.on(ContextBuilt)(lambda request: seen.append([len(text) for text in results_in(request.messages)]))
    agent.on(BeforeModel)(lambda request: seen.append([len(text) for text in results_in(request.messages)]))
    await agent.run("Go.")
    assert seen[-2] == [500, 500] and max(seen[-1]) < 150
    assert max(len(text) for text in results_in(model.requests[-1].messages)) < 150


# Aliases

tool_names = st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=5, unique=True)


@pytest.mark.requirement("loop.alias.boundary", "loop.alias.collision")
@given(tool_names, st.data())
def test_names_come_back_as_they_went(tools: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(tools), unique=True))
    wires = data.draw(st.lists(st.text("abcX", min_size=1, max_size=2), min_size=len(chosen), max_size=len(chosen)))
    aliases = dict(zip(chosen, wires, strict=True))
    shown = [aliases.get(name, name) for name in tools]
    if len(set(shown)) < len(tools):
        with pytest.raises(Conflict):
            check_names(tools, aliases)
        return
    check_names(tools, aliases)
    names = Aliases(aliases)
    asked = Assistant(tuple([ToolCall(f"c{n}", name, "{}") for n, name in enumerate(tools)]))
    answered = ToolResults(tuple([ToolResult(f"c{n}", name, (Text("ok"),)) for n, name in enumerate(tools)]))
    specs = [ToolSpec(name, "", b"{}") for name in tools]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    request = ModelRequest("m", [User.of("Hi."), asked, answered], tools=specs)
    for whole in (True, False):
        sent = names.sent(request, whole=whole)
        assert [spec.name for spec in sent.tools] == shown
        first, second = sent.messages[1], sent.messages[2]
        assert isinstance(first, Assistant) and isinstance(second, ToolResults)
        assert [call.name for call in first.calls] == [one.name for one in second.results] == shown
        assert names.received(first) == asked
    assert request.messages[1] == asked


async def test_a_thread_goes_on_under_other_aliases() -> None:
    seen: list[tuple[str, str]] = []

    @tool(effect="read")
    def shell(command: str) -> str:
        """Runs."""
        return f"ran {command}"

    model = ScriptedModel([calls("Bash", command="ls"), calls("Bash", command="pwd"), "Done."])
    agent = Agent(model, tools=[shell], tool_aliases={"shell": "Bash"}, behavior=Behavior(tool_budgets={"shell": 1}))
    agent.on(ToolGate)(lambda gate: seen.append((gate.tool, gate.display_name)))
    agent.on(ToolAfter)(lambda after: seen.append((after.tool, after.display_name)))
    result = await agent.run("Go.")
    assert [call.name for call in result.calls] == ["shell", "shell"]
    assert [call.how for call in result.calls] == ["returned", "budget"]
    assert seen == [("shell", "Bash")] * 3
    for request in model.requests:
        assert [spec.name for spec in request.tools] == ["Bash"]
    shown = model.requests[2].messages[1]
    assert isinstance(shown, Assistant) and [call.name for call in shown.calls] == ["Bash"]
    stored = result.messages[1]
    assert isinstance(stored, Assistant) and [call.name for call in stored.calls] == ["shell"]
    other = ScriptedModel(["Done."])
    again = Agent(other, tools=[shell], tool_aliases={"shell": "run"})
    await again.run("And?", messages=result.messages)
    shown = other.requests[0].messages[1]
    assert isinstance(shown, Assistant) and [call.name for call in shown.calls] == ["run"]


@pytest.mark.requirement("loop.alias.collision")
async def test_two_tools_under_one_wire_name_are_refused() -> None:
    @tool
    def other() -> str:
        """Another."""
        return ""

    with pytest.raises(ValueError, match="'look' and 'other'"):
        Agent(ScriptedModel(["x"]), tools=[look, other], tool_aliases={"other": "look"})

    class Late:
        async def open(self) -> list[Any]:
            return [other]

        async def close(self) -> None:
            pass

    model = ScriptedModel(["x"])
    late = Agent(model, tools=[look, Late()], tool_aliases={"other": "look"})
    with pytest.raises(Exception, match="'look' and 'other'"):
        await late.run("Go.")
    assert model.requests == []


async def test_provider_data_is_kept_under_aliases_too() -> None:
    names = Aliases({"look": "See"})
    messages: list[Message] = [User.of("Hi.")]
    request = ModelRequest("m", messages)
    first = names.sent(request, whole=True)
    first.native.append(b"encoded")
    messages.append(Assistant((Text("So."),)))
    second = names.sent(replace(request), whole=True)
    assert second.native is first.native and second.messages is first.messages
    assert len(second.messages) == 2
    assert names.sent(replace(request, model="other"), whole=True).native == []
