"""MCP servers of an agent that are started as processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline import Agent, Engine, Limits, mcp, tool
from weftline.messages import Image, ToolResults
from weftline.testing import calls
from weftline.text.redaction import Redactor
from weftline.tools.mcp.asking import Question, SampleRequest
from weftline.tools.mcp.tools import McpEntry
from weftline.tools.mcp.toolset import named_tools
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA

from .small import Small, model, offered


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    """Returns when a child has been waited for and the loop has seen the end of its output."""
    async with asyncio.timeout(20):
        while is_there(pid):  # noqa: ASYNC110  (nothing tells us)
            await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.requirement("loop.mcp.tools")
async def test_server_is_started_once_for_its_named_tools(tmp_path: Path) -> None:
    small = Small(tmp_path)
    scripted = model(calls("small__look", what="here"), calls("small__picture", what="x"))
    agent = Agent(scripted, tools=[small.tools])
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
        with agent.override(model=model(calls("small__look", what="again"))):
            await agent.run("Once more.", engine=engine)
    assert [call.result for call in result.calls][:1] == ["look: here"]
    pictures = [
        part
        for message in result.messages
        if isinstance(message, ToolResults)
        for part in message.results[0].parts
        if isinstance(part, Image)
    ]
    assert [picture.media_type for picture in pictures] == ["image/png"]
    assert small.calls == ["look here", "picture x", "look again"]
    assert len(small.starts) == 1
    assert small.journal[-1] == "end"  # the engine has closed it


@pytest.mark.requirement("loop.agent.warmup_parallel")
async def test_servers_are_connected_side_by_side(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    together = {"GATE": str(gate), "TOGETHER": "3"}  # each answers only when all three are there
    servers = [Small(tmp_path, name, env=together) for name in ("one", "two", "three")]
    scripted = model()
    async with Engine() as engine:
        await Agent(scripted, tools=[server.tools for server in servers]).run("Go.", engine=engine)
    assert {name.partition("__")[0] for name in offered(scripted)} == {"one", "two", "three"}
    assert "one__unavailable" not in offered(scripted)


@pytest.mark.requirement("loop.mcp.tools")
async def test_names_are_same_whatever_order_of_listing_and_never_clash(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    for order in ("b_c get-x get_x look", "look get_x b_c get-x"):
        first = Small(tmp_path, "a", env={"TOOLS": order})
        second = Small(tmp_path, "a_b", env={"TOOLS": "c"})
        scripted = model(calls("a__get_x", what="exact"))
        async with Engine() as engine:
            await Agent(scripted, tools=[first.tools, second.tools]).run("Go.", engine=engine)
        seen.append(offered(scripted))
        assert first.calls[-1] == "get_x exact"
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 5
    assert {"a__b_c", "a_b__c"} < set(seen[0])


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="named 'x'"):
        Agent("openai:gpt-5", tools=[mcp("a", name="x"), mcp("b", name="x")])


def test_a_tool_may_have_the_name_of_a_server() -> None:
    @tool
    def weather(city: str) -> str:
        """The weather."""
        return city

    Agent("openai:gpt-5", tools=[mcp("a", name="weather"), weather])


def test_tool_that_could_have_name_of_servers_is_refused() -> None:
    @tool(name="x__look")
    def mine(what: str) -> str:
        """Looks."""
        return what

    with pytest.raises(ValueError, match="x__look"):
        Agent("openai:gpt-5", tools=[mcp("a", name="x"), mine])


@pytest.mark.parametrize("name", ["", "1a", "a__b", "_a", "a_", "a b", "x" * 33])
def test_a_name_that_would_not_keep_servers_apart_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        mcp("server", name=name)


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("npx -y @modelcontextprotocol/server-github", "server_github"),
        ("npx -y @modelcontextprotocol/server-github@1.2.3", "server_github"),
        ("uvx mcp-server-git --repository .", "mcp_server_git"),
        ("uv run server.py", "server"),
        ("/opt/bin/python3.12 /srv/weather.py", "weather"),
        ("python -m weather", "weather"),
        (["my tool", "x"], "my_tool"),
        ("https://mcp.example.com/v1?key=secret", "mcp_example_com"),
        ("https://[::1]:8000/mcp", "at_1"),
    ],
)
def test_a_server_has_a_name_that_says_what_it_is(server: Any, name: str) -> None:
    assert mcp(server).name == name


async def test_server_that_died_between_calls_is_restarted_without_doubt(tmp_path: Path) -> None:
    small = Small(tmp_path)

    @tool
    async def kill(what: str) -> str:
        """Kills the server."""
        os.kill(small.starts[-1], signal.SIGKILL)
        await gone(small.starts[-1])
        return "killed"

    scripted = model(calls("small__once", what="1"), calls("kill", what=""), calls("small__once", what="2"))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools, kill]).run("Go.", engine=engine)
    assert [call.result for call in result.calls] == ["once: 1", "killed", "once: 2"]
    assert small.calls == ["once 1", "once 2"]
    assert len(small.starts) == 2


@pytest.mark.requirement("run.effect.key")
@pytest.mark.parametrize(("name", "times"), [("look", 2), ("put", 2), ("once", 1)])
async def test_call_that_killed_its_server_repeats_only_if_harmless(tmp_path: Path, name: str, times: int) -> None:
    small = Small(tmp_path, env={"DIE_AT": name})
    scripted = model(calls(f"small__{name}", what="it"), calls("small__look", what="after"))
    agent = Agent(scripted, tools=[small.tools], limits=Limits(loop_soft=0))
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert small.calls == [f"{name} it"] * times + ["look after"]
    assert result.calls[0].ok is (times == 2)
    if times == 1:
        assert result.calls[0].how == "in_doubt"
        assert "may or may not have taken effect" in result.calls[0].result
    assert result.calls[1].result == "look: after"
    assert len(set(small.keys[:times])) == 1 and small.keys[-1] != small.keys[0] and "None" not in small.keys


async def test_server_secrets_are_hidden_from_the_model(tmp_path: Path) -> None:
    small = Small(tmp_path, env={"API_TOKEN": "tok-12345678"})
    scripted = model(calls("small__secret", what=""))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    assert result.calls[0].result == "the token is [redacted]"


async def test_server_gets_nothing_of_environment_but_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "of-the-program")
    small = Small(tmp_path)
    async with Engine() as engine:
        result = await Agent(model(calls("small__secret", what="")), tools=[small.tools]).run("Go.", engine=engine)
    assert result.calls[0].result == "the token is None"


async def test_questions_are_declined_with_a_note(tmp_path: Path) -> None:
    small = Small(tmp_path, on_elicit="decline")
    scripted = model(calls("small__ask", what=""), calls("small__think", what=""))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    asked, thought = [call.result for call in result.calls]
    assert '"action": "decline"' in asked and "Nobody can be asked" in asked
    assert "Sampling not supported" in thought


async def test_questions_and_samples_go_to_those_given_for_them(tmp_path: Path) -> None:
    seen: list[Any] = []

    def on_elicit(question: Question) -> dict[str, Any]:
        seen.append(question.message)
        return {"name": "Ann"}

    async def on_sample(request: SampleRequest) -> str:
        seen.append([(message.role, message.text) for message in request.messages])
        return "Because."

    small = Small(tmp_path, on_elicit=on_elicit, on_sample=on_sample)
    scripted = model(calls("small__ask", what=""), calls("small__think", what=""))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    asked, thought = [call.result for call in result.calls]
    assert '"name": "Ann"' in asked and "Nobody" not in asked
    assert "Because." in thought
    assert seen == ["Who are you?", [("user", "Why?")]]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
async def test_exception_of_an_answerer_declines_the_question(tmp_path: Path, error: type[BaseException]) -> None:
    def raises(asked: Any) -> Any:
        raise error("broken")

    small = Small(tmp_path, on_elicit=raises, on_sample=raises)
    scripted = model(calls("small__ask", what=""), calls("small__think", what=""))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    asked, thought = [call.result for call in result.calls]
    assert '"action": "decline"' in asked
    assert "The model could not be asked." in thought


async def test_resources_and_prompts_can_be_read_outside_of_a_run(tmp_path: Path) -> None:
    small = Small(tmp_path, env={"API_TOKEN": "tok-12345678"})
    assert [one.uri for one in await small.tools.resources()] == ["note://1"]
    assert [part.text for part in await small.tools.read_resource("note://1")] == ["held [redacted]"]  # type: ignore[union-attr]
    assert [(one.name, one.arguments) for one in await small.tools.prompts()] == [("greet", ("who",))]
    assert await small.tools.prompt("greet", who="Ann") == "Greet Ann."
    assert small.journal[-1] == "end"


def test_a_server_works_without_an_event_loop_in_sight(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])
    assert agent.run_sync("Go.").calls[0].result == "look: here"


async def test_server_that_speaks_first_is_understood(tmp_path: Path) -> None:
    small = Small(tmp_path, env={"BANNER": "Listening on stdio! \\ud83d {"})
    async with Engine() as engine:
        result = await Agent(model(calls("small__look", what="x")), tools=[small.tools]).run("Go.", engine=engine)
    assert result.calls[0].result == "look: x"


@pytest.mark.parametrize("program", ["import sys; sys.exit(3)", "import time; time.sleep(600)"])
async def test_program_that_is_no_server_does_not_fail_the_run(tmp_path: Path, program: str) -> None:
    await asyncio.to_thread(
        (tmp_path / "program.py").write_text, f"import os\nopen('pid', 'w').write(str(os.getpid()))\n{program}"
    )
    server = mcp([sys.executable, "-S", "program.py"], name="other", cwd=tmp_path, connect_s=1.0)
    scripted = model(calls("other__unavailable"))
    async with Engine() as engine:
        result = await Agent(scripted, tools=[server]).run("Go.", engine=engine)
    assert result.status == "succeeded"
    assert result.calls[0].result.startswith("The MCP server other is unavailable: ")
    assert not is_there(int((tmp_path / "pid").read_text()))


class Nothing:
    """Stands for connections that are never made."""

    redactor = Redactor()


names = st.lists(st.text(st.sampled_from("ab_-É/"), min_size=1, max_size=70), max_size=6)


@given(st.dictionaries(st.sampled_from(["a", "a_b", "b", "a_a_a", "a" * 32]), names, max_size=3))
def test_tools_of_different_servers_have_distinct_names(
    servers: dict[str, list[str]],
) -> None:
    def named(server: str, listed: list[str]) -> dict[str, str]:
        entries = [McpEntry(name, "", EMPTY_OBJECT_SCHEMA, "once") for name in dict.fromkeys(listed)]
        found = named_tools(server, entries, pool=cast("Any", None), place=cast("Any", Nothing()), only=None)
        return {tool.spec.name: tool.upstream for tool in found}

    all_names = [name for server, listed in servers.items() for name in named(server, listed)]
    assert len(set(all_names)) == len(all_names) == sum(len(set(listed)) for listed in servers.values())
    for server, listed in servers.items():
        assert named(server, listed) == named(server, listed[::-1])
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name) for name in all_names)


def test_a_loop_that_ends_takes_its_servers_along(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])
    for _ in range(2):  # nobody has opened an engine, so each loop has one of its own
        assert asyncio.run(agent.run("Go.")).calls[0].result == "look: here"
    assert len(small.starts) == small.journal.count("end") == 2
    assert not any(is_there(pid) for pid in small.starts)
    assert not recwarn.list


async def test_only_the_tools_that_are_wanted_are_offered(tmp_path: Path) -> None:
    small = Small(tmp_path, only=["look", "absent"])
    scripted = model()
    async with Engine() as engine:
        await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    assert offered(scripted) == ["small__look"]
