"""Who speaks on a thread: agents that hand over to each other, sides that take turns, and what ends their turns."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import new_secret
from server.kit import Api, Json, of_type
from weftline.prompts import seats
from weftline.testing import ServerProcess
from weftline.threads import SideConfig, define_agent

from .folders import write

_numbers = itertools.count(1)


def call(name: str, **args: Any) -> list[Json]:
    return [{"name": name, "args": args}]


def turns(*given: str | list[Json]) -> Json:
    return {"turns": [{"text": one} if isinstance(one, str) else {"tool_calls": one} for one in given]}


TOOLS = {
    "count": """
@define_tool(effect="idempotent")
async def count(state: ThreadState) -> str:
    '''Counts.'''
    seen = await state.get_value("seen") or []
    await state.set_value("seen", [*seen, state.agent_id])
    return ", ".join(await state.get_value("seen"))
""",
    "shade": """
@define_tool(effect="read")
async def shade(state: ThreadState) -> str:
    '''Says which shade it has, and who asks.'''
    return " ".join([await state.env("SHADE"), str(dict(state.options)), state.agent_id])
""",
    "finish": """
@define_tool(effect="idempotent")
def finish(text: str) -> str:
    '''Ends something.'''
    return "The end."
""",
    "break_off": """
@define_tool(effect="idempotent")
def break_off(why: str) -> str:
    '''Ends something badly.'''
    return "Broken off."
""",
    "progress": """
@define_tool(effect="read")
async def progress(state: ThreadState) -> dict[str, object]:
    '''Says how far the run is.'''
    at = state.execution
    return {
        "flow": at.flow_id, "side": at.current_side, "turns": at.turn_count,
        "steps": [at.step_count, at.side_a_step_count, at.side_b_step_count],
        "stopped": [at.stopped, at.stopped_by], "path": at.prompt_path,
        "history": [f"{one.role}: {one.content}" for one in at.message_history], "aborted": at.abort_signal.is_set(),
    }
""",
    "halt": """
@define_tool(effect="idempotent")
def halt(state: SyncThreadState) -> str:
    '''Stops the run.'''
    state.execution.stop()
    return f"{state.execution.stopped} {state.execution.stopped_by}"
""",
    "turn_to": """
@define_tool(effect="idempotent")
async def turn_to(state: ThreadState, side: str) -> str:
    '''Gives the next turn to a side.'''
    try:
        state.execution.force_turn(side)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"
""",
    "wait_for_abort": """
import asyncio

from ...shared import kept

@define_tool(effect="idempotent")
async def wait_for_abort(state: ThreadState) -> str:
    '''Waits until it is cancelled.'''
    signal = state.execution.abort_signal
    kept.signals.append(signal)

    async def woken() -> None:
        await signal.wait()
        kept.woken.append(state.thread_id)

    kept.tasks.append(asyncio.ensure_future(woken()))
    await asyncio.sleep(600)
""",
    "woken": """
from ...shared import kept

@define_tool(effect="read")
def woken(state: SyncThreadState) -> str:
    '''Says who was woken.'''
    return f"{kept.woken} {[one.is_set() for one in kept.signals]} {state.execution.abort_signal.is_set()}"
""",
    "die_once": """
import os, signal

@define_tool(effect="idempotent")
async def die_once(state: ThreadState) -> str:
    '''Kills the server, the first time.'''
    if await state.get_value("died"):
        return "alive again"
    await state.set_value("died", True)
    os.kill(os.getpid(), signal.SIGKILL)
""",
}
IDLE = """
@define_thread_endpoint
async def running(request: Request, state: ThreadState, params: dict[str, str]) -> dict[str, bool]:
    return {"running": state.execution is not None}
"""
HEARD = "({{user_messages}})"
OWN = "{{system}} {{tools}} {{reasoning}}"
SAID = "{{system}} | {{tools}} | {{user_messages}}"


class Folder:
    """The files of a folder, with a model and a prompt for each speaker. A speaker says the turn of its script that has
    the place of the request in the run.
    """

    def __init__(self) -> None:
        self.files = {f"agents/tools/{name}.py": text for name, text in TOOLS.items()}
        self.files["shared/kept.py"] = "signals, woken, tasks = [], [], []\n"
        self.files["agents/api/running.py"] = IDLE
        self._scripts: dict[str, Json] = {}

    def speaker(self, name: str, *said: str | list[Json], tools: str = "", more: str = "") -> None:
        self._scripts[name] = turns(*said)
        self.files["scripts.json"] = json.dumps(self._scripts)
        model = f'name="{name}", provider="test", model="{name}"'
        self.files[f"agents/models/{name}.py"] = f"model = define_model({model})\n"
        self.files[f"agents/prompts/{name}.py"] = (
            f'prompt = define_prompt(name="{name}", model="{name}", tool_description="x", prompt="I am {name}.",'
            f" tools=[{tools}]{more})\n"
        )

    def agent(self, name: str, *said: str | list[Json], tools: str = "", side: str = "", env: str = "{}") -> None:
        self.speaker(name, *said, tools=tools)
        self.files[f"agents/agents/{name}.py"] = (
            f'agent = define_agent(name="{name}", side_a=SideConfig(prompt="{name}"{side}), env={env})\n'
        )

    def two_sides(self, name: str, a: str, b: str, *, side_a: str = "", side_b: str = "", most: int = 6) -> None:
        self.files[f"agents/agents/{name}.py"] = (
            f'agent = define_agent(name="{name}", type="dual_ai", max_session_turns={most},'
            f' side_a=SideConfig(prompt="{a}"{side_a}), side_b=SideConfig(prompt="{b}"{side_b}))\n'
        )


def desk() -> Folder:
    folder = Folder()
    # Hand-offs
    folder.agent("triage", call("refunds"), tools='"refunds", "count"')
    again, then = f"Again {SAID}", f"Refunds: {SAID}"
    folder.agent("refunds", again, call("count"), then, tools='"count", "triage", "shade"')
    folder.agent("ping", call("pong"), "", "Back at ping: {{message_count}}", tools='"pong"')
    folder.agent("pong", "", call("ping"), tools='"ping"')
    folder.agent("round", call("robin"), tools='"robin"')
    folder.agent("robin", call("round"), tools='"round"')
    own = 'PromptToolConfig("shade", options={"n": 1}), "two_shade", "count"'
    folder.agent("one_shade", [*call("shade"), *call("two_shade"), *call("count")], tools=own, env='{"SHADE": "first"}')
    own = 'PromptToolConfig("shade", options={"n": 2})'
    both = [*call("shade"), *call("count")]
    folder.agent("two_shade", "", both, "{{all_tool_results}}", tools=own, env='{"SHADE": "second"}')
    folder.agent("dying", call("dead"), tools='"dead"')
    folder.agent("dead", "", call("die_once"), "{{system}} {{all_tool_results}}", tools='"die_once"')
    # One side
    ends = ', stop_tool="finish", stop_tool_response_property="text"'
    folder.agent(
        "by_argument", [*call("finish", text="All done."), *call("count")], tools='"finish", "count"', side=ends
    )
    ends = ', stop_tool="finish"'
    folder.agent("by_result", call("count"), call("finish", text="All done."), tools='"finish", "count"', side=ends)
    folder.agent("two_steps", *[call("count")] * 2, "At last: {{tools}}", tools='"count"', side=", max_steps=2")
    goes_on = ', stop_on_response=False, stop_tool="finish", stop_tool_response_property="text"'
    folder.agent("talker", "One.", "Two.", call("finish", text="{{message_count}}"), tools='"finish"', side=goes_on)
    folder.agent("chatter", "Still talking. {{n}}", tools='"finish"', side=goes_on)
    ends = ', session_stop=SessionToolBinding("finish", message_property="text"),'
    ends += ' session_fail=SessionToolBinding("break_off", message_property="why")'
    tools = '"finish", "break_off", "count"'
    folder.agent("stops", call("finish", text="Stopped."), tools=tools, side=ends)
    folder.agent("fails", call("break_off", why="No use."), tools=tools, side=ends)
    folder.agent("fails_to_stop", call("finish"), "Went on.", tools=tools, side=ends)
    # Two sides
    folder.speaker("pro", f"P1 {HEARD}", "", f"P2 {HEARD}", "", f"P3 {HEARD}", tools='"count"')
    folder.speaker("con", "", f"C1 {HEARD}", "", f"C2 {HEARD}")
    folder.two_sides("debate", "pro", "con", most=5)
    more = ", reasoning=ReasoningConfig(level=70)"
    folder.speaker("writer", "", call("count"), f"W {OWN} {HEARD}", tools='"count"', more=more)
    more = ", reasoning=ReasoningConfig(level=20)"
    folder.speaker("maker", f"M {OWN}", "", "", "M {{message_count}} " + HEARD, tools='"shade"', more=more)
    folder.two_sides("own", "maker", "writer", most=3)
    folder.speaker("quiet", "Say something.", "", "Heard {{message_count}}: {{user_messages}}")
    folder.speaker("mute", "", "")
    folder.two_sides("silent", "quiet", "mute", most=3)
    folder.speaker("judge", "Go on.", "", "", call("finish", text="Granted."), tools='"finish"')
    folder.speaker("lawyer", "", call("shut"), "No.", tools='"shut"')
    folder.files["agents/tools/shut.py"] = TOOLS["finish"].replace("finish(text: str)", "shut()")
    folder.two_sides(
        "court",
        "judge",
        "lawyer",
        side_a=', session_stop=SessionToolBinding("finish", "text")',
        side_b=', stop_tool="shut"',
    )
    folder.speaker("alive", "A1", "", "", "A2 {{user_messages}}")
    folder.speaker("dies", "", call("die_once"), "B {{all_tool_results}}", tools='"die_once"')
    folder.two_sides("mortal", "alive", "dies", most=3)
    # What code sees of the run, and asks of it
    folder.agent("reporter", call("count"), call("progress"), "{{all_tool_results}}", tools='"count", "progress"')
    folder.speaker("asker", "Well?", "", "Ended.", tools='"count"')
    folder.speaker("replier", "", call("progress"), "{{tool_results.0}}", tools='"progress"')
    folder.two_sides("reporting", "asker", "replier", most=3)
    folder.agent("halted", [*call("halt"), *call("count")], "Never said.", tools='"halt", "count"')
    said = ["One.", "", call("turn_to", side="a"), "Three.", "Four {{message_count}}"]
    folder.speaker("first", *said, tools='"turn_to"')
    folder.speaker("second", "", "Two.", "", "", "Never.")
    folder.two_sides("forced", "first", "second", most=4)
    wrong = [*call("turn_to", side="b"), *call("turn_to", side="c"), *call("turn_to", side="a")]
    folder.agent("alone", wrong, "{{all_tool_results}}", tools='"turn_to"')
    folder.agent("waiting", call("wait_for_abort"), tools='"wait_for_abort"')
    folder.agent("looking", call("woken"), "{{tool_results.0}}", tools='"woken"')
    # Prompts that are called
    folder.agent("boss", call("sum_up", message="the year"), "{{tool_results.0}}", tools='"sum_up"')
    folder.speaker("sum_up", call("look_into", topic="May"), f"Sum: {{{{tool_results.0}}}} {SAID}", tools='"look_into"')
    schema = '{"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}'
    folder.speaker(
        "look_into", call("progress"), "{{tool_results.0}}", tools='"progress"', more=f", required_schema={schema}"
    )
    folder.agent("quick", call("look_into", subject="May"), "{{tool_results.0}}", tools='"look_into"')
    entry = 'SubpromptConfig(name="sum_up", include_text_response=False)'
    folder.agent("discreet", call("sum_up", message="the year"), "{{tool_results.0}}", tools=entry)
    return folder


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    with ServerProcess(folder, arguments=(str(write(folder / "desk", desk().files)),)) as running:
        yield running


@pytest.fixture
async def api(serving: ServerProcess) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(serving, http, f"team-{next(_numbers)}")


def joined(server: ServerProcess, http: aiohttp.ClientSession, slug: str) -> Api:
    return Api(http, server.url, slug, new_secret(server.db, slug, name="test"))


async def thread(api: Api, agent: str, **given: Any) -> str:
    made = await api.post("threads", {"agentId": agent, **given})
    assert made.status == 201, made.body
    return made.json["id"]


async def run_on(api: Api, thread: str) -> Json:
    """The end of a run with a message on a thread."""
    run = await api.send(thread)
    await api.events(run)
    return await api.snapshot(run)


async def said(api: Api, thread: str) -> str:
    snapshot = await run_on(api, thread)
    assert snapshot["status"] == "succeeded", snapshot
    return snapshot["finalText"]


# Hand-offs


@pytest.mark.requirement("thread.agent.handoff_facts")
async def test_called_agent_takes_the_thread_over(api: Api) -> None:
    made = await thread(api, "triage")
    first = await said(api, made)
    assert first.startswith("Refunds: I am refunds. | count,shade,triage | "), first
    shown = (await api.get(f"threads/{made}")).json
    assert shown["agentId"] == "refunds"
    assert (await api.get(f"threads/{made}/values/seen")).json["value"] == ["refunds"]
    assert (await said(api, made)).startswith("Again I am refunds. | count,shade,triage | ")
    for owner, threads in (("triage", [made]), ("refunds", [])):
        listed = (await api.get(f"threads?agentId={owner}")).json["threads"]
        assert [one["id"] for one in listed] == threads


@pytest.mark.requirement("thread.agent.handoff_facts")
async def test_agent_hands_back(api: Api) -> None:
    made = await thread(api, "ping")
    assert await said(api, made) == "Back at ping: 3"
    assert (await api.get(f"threads/{made}")).json["agentId"] == "ping"


@pytest.mark.requirement("thread.agent.handoff_facts")
async def test_hand_offs_in_circles_are_ended(api: Api) -> None:
    run = await api.send(await thread(api, "round"))
    end = (await api.events(run))[-1]
    assert (end.type, end["terminationReason"]) == ("error", "loop_detected")


async def test_each_agent_has_its_own_tools_and_variables(api: Api) -> None:
    """What follows a hand-off in its turn is not executed, and a tool that only the other agent has is unknown."""
    made = await thread(api, "one_shade")
    run = await api.send(made)
    results = of_type(await api.events(run), "tool_result")
    assert [(one["name"], one["ok"]) for one in results] == [
        ("shade", True),
        ("two_shade", True),
        ("count", False),
        ("count", False),
        ("shade", True),
    ]
    assert results[0]["result"] == "first {'n': 1} one_shade"
    assert "Unknown tool" in results[3]["result"]
    assert results[4]["result"] == "second {'n': 2} two_shade"


@pytest.mark.requirement("thread.agent.handoff_facts")
async def test_agent_goes_on_after_a_crash_when_it_was_handed_over(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", desk().files)),)) as server:
        assert await said_after_crash(server, "dying") == f"I am dead. {seats.handed_over('dead')} || alive again"


async def said_after_crash(server: ServerProcess, agent: str) -> str:
    async with aiohttp.ClientSession() as http:
        api = joined(server, http, "acme")
        made = await thread(api, agent)
        body, once = {"prompt": "Go."}, {"Idempotency-Key": "go"}
        with suppress(aiohttp.ClientConnectionError):
            await api.post(f"agent-sessions/{made}/messages", body, headers=once)
        assert await asyncio.to_thread(server.wait) < 0
        server.start()
        api = joined(server, http, "acme")
        run = (await api.post(f"agent-sessions/{made}/messages", body, headers=once)).json["runId"]
        await api.events(run)
        return (await api.snapshot(run))["finalText"]


# One side


@pytest.mark.requirement("thread.side.stop_tool")
async def test_stop_tool_ends_the_turn_with_an_argument_or_its_result(api: Api) -> None:
    made = await thread(api, "by_argument")
    assert await said(api, made) == "All done."
    assert (await api.get(f"threads/{made}/values")).json["values"] == []
    assert await said(api, await thread(api, "by_result")) == "The end."


@pytest.mark.requirement("thread.side.max_steps")
async def test_side_answers_without_tools_after_its_steps(api: Api) -> None:
    made = await thread(api, "two_steps")
    run = await api.send(made)
    end = (await api.events(run))[-1]
    assert (end["subtype"], end["text"], end["terminationReason"]) == ("success", "At last: ", "max_steps")
    assert (await api.get(f"threads/{made}/values/seen")).json["value"] == ["two_steps"] * 2


@pytest.mark.requirement("thread.side.stop_on_response", "thread.exec.no_answer")
async def test_side_that_does_not_stop_is_asked_on(api: Api) -> None:
    assert await said(api, await thread(api, "talker")) == "5"
    assert await said(api, await thread(api, "chatter")) == "Still talking. 8"


async def test_tool_ends_the_session(api: Api) -> None:
    assert await said(api, await thread(api, "stops")) == "Stopped."
    snapshot = await run_on(api, await thread(api, "fails"))
    assert (snapshot["status"], snapshot["error"]) == ("failed", "No use.")
    assert await said(api, await thread(api, "fails_to_stop")) == "Went on."


# Two sides


@pytest.mark.requirement("thread.side.view", "thread.side.first", "thread.agent.session_turns")
async def test_sides_take_turns_and_see_each_other_as_users(api: Api) -> None:
    """Each text has in it what its side had heard from the other, and from the person who asked."""
    text = await said(api, await thread(api, "debate"))
    first, second = "C1 (P1 (hello))", "C2 (P1 (hello) | P2 (hello | C1 (P1 (hello))))"
    assert text == f"P3 (hello | {first} | {second})"


@pytest.mark.requirement("thread.side.view")
async def test_each_side_has_its_own_settings(api: Api) -> None:
    """The last request has the person's message, each side's text, and that this is the end: no call, no result."""
    heard = "W I am writer. count 70 (M I am maker. shade 20)"
    assert await said(api, await thread(api, "own")) == f"M 4 (hello | {heard})"


@pytest.mark.requirement("thread.side.first")
async def test_side_hears_that_nothing_was_said(api: Api) -> None:
    """Its last request: what the person said, its own answer, that nothing was said, and that this is the end."""
    assert await said(api, await thread(api, "silent")) == "Heard 4: hello"


async def test_sides_end_turns_and_the_session_by_calls(api: Api) -> None:
    assert await said(api, await thread(api, "court")) == "Granted."


async def test_thread_keeps_the_second_side_as_a_user(api: Api) -> None:
    """A later session on the thread begins with what both sides have said in the one before."""
    made = await thread(api, "court")
    assert await said(api, made) == "Granted."
    listed = (await api.get(f"threads/{made}/messages?order=asc")).json["messages"]
    heard = [("user", "hello"), ("assistant", "Go on."), ("user", "The end."), ("assistant", ""), ("user", "No.")]
    assert [(one["role"], one["content"]) for one in listed if not one.get("silent")][:5] == heard
    assert await said(api, made) == "Granted."


async def test_side_goes_on_after_a_crash(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", desk().files)),)) as server:
        assert await said_after_crash(server, "mortal") == "A2 Go. | B alive again"


@pytest.mark.requirement("thread.agent.session_turns")
@pytest.mark.parametrize(("given", "most"), [(None, 250), (7, 7), (1000, 250)])
def test_session_has_at_most_250_side_turns(given: int | None, most: int) -> None:
    a, b = SideConfig(prompt="a"), SideConfig(prompt="b")
    assert define_agent(name="two", type="dual_ai", side_a=a, side_b=b, max_session_turns=given).turns_at_most == most


# What code sees of the run, and asks of it


@pytest.mark.requirement("thread.exec.fields")
async def test_code_sees_how_far_the_run_is(api: Api) -> None:
    made = await thread(api, "reporter")
    run = await api.send(made)
    results = of_type(await api.events(run), "tool_result")
    assert json.loads(results[1]["result"]) == {
        "flow": run,
        "side": "a",
        "steps": [2, 2, 0],
        "turns": 1,
        "stopped": [False, ""],
        "path": ["reporter"],
        "history": ["user: hello", "assistant: ", "tool: reporter", "assistant: "],
        "aborted": False,
    }
    run = await api.send(await thread(api, "reporting"))
    [result] = of_type(await api.events(run), "tool_result")
    found = json.loads(result["result"])
    assert (found["side"], found["steps"], found["turns"], found["path"]) == ("b", [2, 1, 1], 2, ["replier"])


@pytest.mark.requirement("thread.exec.absent")
async def test_idle_thread_has_no_run(api: Api) -> None:
    made = await thread(api, "reporter")
    await said(api, made)
    assert (await api.get(f"threads/{made}/running")).json == {"running": False}


@pytest.mark.requirement("thread.exec.stop")
async def test_stopped_run_finishes_its_calls_and_asks_no_model(api: Api) -> None:
    made = await thread(api, "halted")
    run = await api.send(made)
    frames = await api.events(run)
    assert [one["result"] for one in of_type(frames, "tool_result")] == ["True halt", "halted"]
    end = frames[-1]
    assert (end["subtype"], end["terminationReason"], end["turns"]) == ("success", "stopped", 1)


@pytest.mark.requirement("thread.exec.force_turn")
async def test_code_gives_a_side_the_next_turn(api: Api) -> None:
    """The side that speaks is given the next turn, too; it hears nothing in between."""
    run = await api.send(await thread(api, "forced"))
    frames = await api.events(run)
    assert [one["result"] for one in of_type(frames, "tool_result")] == ["ok"]
    assert frames[-1]["text"].startswith("Four ")
    refused = await said(api, await thread(api, "alone"))
    assert refused.count("InvalidRequest") == 2 and refused.endswith("ok")


@pytest.mark.requirement("thread.exec.abort_signal")
async def test_cancelled_run_wakes_who_waits_for_it(api: Api) -> None:
    made = await thread(api, "waiting")
    run = await api.send(made)
    async with api.stream(run) as stream:
        while (frame := await stream.next()) is not None and frame.type != "tool_call":
            pass
    assert (await api.call("POST", f"agent-runs/{run}/cancel")).status < 300
    await api.events(run)
    assert await said(api, await thread(api, "looking")) == f"['{made}'] [True] False"


# Prompts that are called


async def test_called_prompt_answers_its_caller_on_the_same_thread(api: Api) -> None:
    made = await thread(api, "boss")
    text = await said(api, made)
    start, _, rest = text.partition("{")
    found, _, rest = rest.rpartition("} ")
    assert start == "Sum: " and rest == "I am sum_up. | look_into | the year"
    inner = json.loads("{" + found + "}")
    assert (inner["path"], inner["steps"]) == (["boss", "sum_up", "look_into"], [1, 1, 0])
    assert inner["history"][0] == 'user: {"topic":"May"}'
    assert await said(api, await thread(api, "discreet")) == "Done."


async def test_called_prompt_takes_only_the_arguments_that_it_declares(api: Api) -> None:
    assert "topic" in await said(api, await thread(api, "quick"))
