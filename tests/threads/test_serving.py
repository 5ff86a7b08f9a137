"""A folder of agents, served: its agents run on threads, with its tools, variables and values."""

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

from commands import new_secret, weftline_beside
from server.kit import Api, Json, check_error, of_type
from weftline.testing import ServerProcess

from .folders import write

_numbers = itertools.count(1)


def turns(*given: Any) -> Json:
    return {"turns": [{"text": one} if isinstance(one, str) else {"tool_calls": one} for one in given]}


def call(name: str, **args: Any) -> list[Json]:
    return [{"name": name, "args": args}]


SCRIPTS = {
    "counting": turns(call("count", by=2), call("count"), "{{tool_results.0}}"),
    "placed": turns(call("where"), "{{tool_results.0}}"),
    "system": turns("{{system}}"),
    "reading": turns(call("variables"), "{{tool_results.0}}"),
    "set": turns(call("set_it"), "{{tool_results.0}}"),
    "needs": turns(call("needs_key"), "{{tool_results.0}}"),
    "resulting": turns(call("results", how="error"), call("results", how="success"), "{{tool_results.0}}"),
    "listing": turns(call("lists"), "{{tool_results.0}}"),
    "forming": turns(call("forms", how="now"), call("forms", how="before"), "{{tool_results.0}}"),
    "lately": turns(call("late"), call("late"), "{{tool_results.0}}"),
    "die": turns(call("count", by=5), call("die_once"), "{{tool_results.0}}"),
}
FILES: dict[str, str] = {
    "scripts.json": json.dumps(SCRIPTS),
    "shared/kept.py": "states = []\n",
    "agents/prompts/tone.py": """
prompt = define_prompt(
    name="tone", model="system", tool_description="Tone.", prompt=["Be kind, ", PromptEnvPart("WHO")]
)
""",
    "agents/tools/count.py": """
@define_tool(effect="idempotent")
async def count(state: ThreadState, by: int = 1) -> str:
    '''Counts.'''
    seen = await state.get_value("seen") or {}
    if state.idempotency_key not in seen:
        await state.set_value("seen", {**seen, state.idempotency_key: by})
    return str(sum((await state.get_value("seen")).values()))
""",
    "agents/tools/where.py": """
@define_tool(effect="read")
def where(state: SyncThreadState) -> dict[str, object]:
    '''Says where it is.'''
    return {
        "thread": state.thread_id, "agent": state.agent_id, "user": state.user_id, "options": state.options,
        "names": [state.get_agent_names(), state.get_model_names()], "key": bool(state.idempotency_key),
        "steps": state.execution.step_count, "terminated": state.terminated, "shade": state.env("SHADE"),
    }
""",
    "agents/tools/variables.py": """
@define_tool(effect="read")
async def variables(state: ThreadState) -> dict[str, str]:
    '''Reads variables.'''
    found = {}
    for name in ("T", "A", "P", "U", "W", "NONE"):
        try:
            found[name] = await state.env(name) + " " + await state.env_type(name)
        except Exception as error:
            found[name] = f"{type(error).__name__} {await state.env_type(name)}"
    return found
""",
    "agents/tools/set_it.py": """
@define_tool(effect="idempotent")
async def set_it(state: ThreadState) -> list[str]:
    '''Sets variables.'''
    await state.set_env("X", "1")
    first = await state.env_type("X")
    await state.set_env("X", "2", type="text")
    await state.set_env("X", "")
    return [first, await state.env_type("X"), await state.env("X")]
""",
    "agents/tools/needs_key.py": """
@define_tool(effect="read", variables=[VariableDefinition("KEY", required=True)])
async def needs_key(state: ThreadState) -> str:
    '''Needs a key.'''
    return await state.env("KEY")
""",
    "agents/tools/results.py": """
@define_tool(effect="read")
async def results(state: ThreadState, how: str) -> ToolResult:
    '''Returns a result.'''
    return ToolResult(status="error", error="no such order") if how == "error" else ToolResult(result="found")
""",
    "agents/tools/lists.py": """
@define_tool(effect="read")
async def lists(state: ThreadState) -> list[object]:
    '''Lists messages.'''
    whole, one = await state.get_messages(), await state.get_messages(limit=1, order="asc")
    first = one.messages[0]
    assert await state.get_message(first.id) == first and whole.messages[0].created_at > 0
    return [whole.total + 1, [one.role for one in whole.messages], [first.role], await state.get_message("msg_no")]
""",
    "agents/tools/forms.py": """
@define_tool(effect="read")
async def forms(state: ThreadState, how: str) -> object:
    '''Returns a result as a mapping.'''
    if how == "now":
        return {"status": "error", "error": "no such thing"}
    return {"content": [{"type": "text", "text": "as before"}]}
""",
    "agents/tools/late.py": """
from ...shared import kept

@define_tool(effect="read")
async def late(state: ThreadState) -> str:
    '''Keeps its state.'''
    kept.states.append(state)
    try:
        return str(await kept.states[0].get_value("a"))
    except Exception as error:
        return type(error).__name__ + " " + error.code
""",
    "agents/tools/die_once.py": """
import os, signal

@define_tool(effect="idempotent")
async def die_once(state: ThreadState) -> str:
    '''Kills the server, the first time.'''
    if await state.get_value("died"):
        return "alive again, with " + str(sum((await state.get_value("seen")).values()))
    await state.set_value("died", True)
    os.kill(os.getpid(), signal.SIGKILL)
""",
}
for _name in SCRIPTS:
    FILES[f"agents/models/{_name}.py"] = f'model = define_model(name="{_name}", provider="test", model="{_name}")\n'
    _tools = sorted({one["name"] for turn in SCRIPTS[_name]["turns"] for one in turn.get("tool_calls", ())})
    _entries: list[str] = [
        'PromptToolConfig("where", env={"SHADE": "own"}, options={"currency": "EUR"})' if one == "where" else repr(one)
        for one in _tools
    ]
    _parts = '["You answer for ", PromptEnvPart("WHO"), ". ", PromptIncludePart("tone")]'
    FILES[f"agents/prompts/{_name}.py"] = (
        f'prompt = define_prompt(name="{_name}", model="{_name}", tool_description="x", prompt={_parts},'
        f' env={{"P": "prompt", "SHADE": "prompt"}}, tools=[{", ".join(_entries)}])\n'
    )
    FILES[f"agents/agents/{_name}.py"] = (
        f'agent = define_agent(name="{_name}", side_a=SideConfig(prompt="{_name}"),'
        ' env={"WHO": "Tea", "A": "agent"})\n'
    )


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    with ServerProcess(folder, arguments=(str(write(folder / "desk", FILES)),)) as running:
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


async def said(api: Api, thread: str) -> str:
    """The answer to a message on a thread."""
    run = await api.send(thread)
    await api.events(run)
    snapshot = await api.snapshot(run)
    assert snapshot["status"] == "succeeded", snapshot
    return snapshot["finalText"]


async def test_values_are_kept_from_run_to_run(api: Api) -> None:
    one, other = await thread(api, "counting"), await thread(api, "counting")
    assert (await said(api, one), await said(api, one), await said(api, other)) == ("3", "6", "3")


@pytest.mark.requirement("thread.model.scripted")
async def test_prompt_is_rendered_with_its_parts_for_each_thread(api: Api) -> None:
    plain = await thread(api, "system")
    assert await said(api, plain) == "You answer for Tea. Be kind, Tea"
    assert await said(api, await thread(api, "system", env={"WHO": "Ann"})) == "You answer for Ann. Be kind, Ann"
    await api.call("PUT", f"threads/{plain}/env/WHO", {"value": "Bob"})
    assert await said(api, plain) == "You answer for Bob. Be kind, Bob"


@pytest.mark.requirement("thread.tool.options", "thread.env.tool_overlay")
async def test_tool_knows_its_thread_and_its_options(api: Api) -> None:
    made = await thread(api, "placed", userId="ann")
    found = json.loads(await said(api, made))
    assert (found["thread"], found["agent"], found["user"]) == (made, "placed", "ann")
    assert found["options"] == {"currency": "EUR"} and found["key"] and found["terminated"] is None
    assert found["names"] == [sorted(SCRIPTS), sorted(SCRIPTS)]
    assert found["shade"] == "own"


@pytest.mark.requirement("thread.env.type", "thread.env.missing")
async def test_variable_is_that_of_the_nearest_place(api: Api) -> None:
    await api.call("PUT", "env/W", {"value": "workspace", "type": "text"})
    await api.call("PUT", "accounts/ann/env/U", {"value": "account"})
    for path in ("env", "accounts/ann/env"):
        for name in ("A", "P", "T"):
            await api.call("PUT", f"{path}/{name}", {"value": "far", "type": "text"})
    await api.call("PUT", "env/U", {"value": "far", "type": "text"})
    made = await thread(api, "reading", userId="ann", env={"T": "thread"})
    assert json.loads(await said(api, made)) == {
        "T": "thread secret",
        "A": "agent secret",
        "P": "prompt secret",
        "U": "account secret",
        "W": "workspace text",
        "NONE": "MissingVariable secret",
    }


@pytest.mark.requirement("thread.env.empty")
async def test_variable_keeps_its_type_and_may_be_empty(api: Api) -> None:
    made = await thread(api, "set")
    assert json.loads(await said(api, made)) == ["secret", "text", ""]
    listed = (await api.get(f"threads/{made}/env")).json["env"]
    assert [(one["name"], one["type"], one["value"]) for one in listed] == [("X", "text", "")]


@pytest.mark.requirement("thread.variable.missing_at_call")
async def test_tool_without_its_variable_does_not_run(api: Api) -> None:
    made = await thread(api, "needs", env={"KEY": "k"})
    assert await said(api, made) == "k"
    await api.call("DELETE", f"threads/{made}/env/KEY")
    missing = await said(api, made)
    assert "KEY" in missing and "cannot run" in missing


@pytest.mark.parametrize("path", ["threads", "agent-sessions", "agent-runs"])
async def test_thread_is_not_created_without_its_variables(api: Api, path: str) -> None:
    body = {"agentId": "needs", "prompt": "Go."} if path == "agent-runs" else {"agentId": "needs"}
    refused = await api.post(path, body)
    check_error(refused, 400, "missing_variable")
    assert 'KEY (tool "needs_key")' in refused.json["message"]
    assert (await api.get("threads")).json["threads"] == []
    await api.call("PUT", "env/KEY", {"value": "of the workspace"})
    assert (await api.post(path, body)).status in (201, 202)


@pytest.mark.requirement("thread.message.fields")
async def test_messages_of_a_turn_with_a_call_are_listed_field_by_field(api: Api) -> None:
    made = await thread(api, "resulting")
    run = await api.send(made, "Find it.")
    await api.events(run)
    listed = (await api.get(f"threads/{made}/messages")).json
    user, asked, failed, again, found, answer = listed["messages"]
    assert listed["total"] == 6
    base = f"msg_{run.removeprefix('run_')}_"
    assert [one["id"] for one in listed["messages"]] == [base + end for end in ("m1", "0", "0_0", "1", "1_0", "2")]
    assert (user["role"], user["content"], user["depth"], user["silent"], user["status"]) == (
        "user",
        "Find it.",
        0,
        False,
        "completed",
    )
    [wanted] = json.loads(asked["tool_calls"])
    assert (asked["role"], wanted["function"]["name"]) == ("assistant", "results")
    assert json.loads(wanted["function"]["arguments"]) == {"how": "error"}
    assert (failed["role"], failed["name"], failed["tool_status"]) == ("tool", "results", "error")
    assert failed["tool_call_id"] == wanted["id"] and failed["content"] == "no such order"
    assert (found["tool_status"], found["content"], answer["content"]) == ("success", "found", "found")
    assert {one["log_id"] for one in listed["messages"]} == {run}
    assert asked["request_sent_at"] <= asked["response_completed_at"] == asked["created_at"] >= user["created_at"]
    assert all((one["parent_id"], one["metadata"], one["attachments"]) == (None, {}, []) for one in listed["messages"])
    assert again["id"] != asked["id"]
    assert (await api.get(f"threads/{made}/messages/{found['id']}")).json == found


@pytest.mark.requirement("thread.message.list")
async def test_messages_are_paged_in_either_order(api: Api) -> None:
    made, other = await thread(api, "resulting"), await thread(api, "resulting")
    for one in (made, other):
        await said(api, one)
    whole = (await api.get(f"threads/{made}/messages")).json["messages"]
    names = [one["id"] for one in whole]

    async def page(query: str) -> list[str]:
        listed = (await api.get(f"threads/{made}/messages?{query}")).json
        assert listed["total"] == len(whole)
        return [one["id"] for one in listed["messages"]]

    assert await page("limit=2") == names[:2]
    assert await page("limit=2&offset=3") == names[3:5]
    assert await page("order=desc&limit=3&offset=1") == names[::-1][1:4]
    assert await page("maxDepth=0&offset=5") == names[5:]
    assert await page("offset=6") == []
    check_error(await api.get(f"threads/{other}/messages/{names[0]}"), 404, "unknown_message")
    check_error(await api.get(f"threads/{made}/messages/msg_1-1"), 404, "unknown_message")
    check_error(await api.get(f"threads/{made}/messages?limit=0"), 400, "invalid_request")
    seen = json.loads(await said(api, await thread(api, "listing")))
    assert seen == [3, ["user", "assistant"], ["user"], None]


@pytest.mark.requirement("thread.message.wire_history")
async def test_session_shows_questions_and_answers_of_its_thread(api: Api) -> None:
    made = await thread(api, "resulting")
    await said(api, made)
    shown = (await api.get(f"agent-sessions/{made}")).json["messages"]
    assert [(one["role"], one["content"]) for one in shown] == [("user", "hello"), ("assistant", "found")]


async def test_result_may_have_the_specifications_form(api: Api) -> None:
    made = await thread(api, "resulting")
    run = await api.send(made)
    results = of_type(await api.events(run), "tool_result")
    assert [(one["result"], one["ok"]) for one in results] == [("no such order", False), ("found", True)]


async def test_result_may_be_a_mapping_in_either_form(api: Api) -> None:
    run = await api.send(await thread(api, "forming"))
    results = of_type(await api.events(run), "tool_result")
    assert [(one["result"], one["ok"]) for one in results] == [("no such thing", False), ("as before", True)]


async def test_state_is_over_with_its_call(api: Api) -> None:
    assert await said(api, await thread(api, "lately")) == "Conflict scope_ended"


async def test_run_without_a_thread_gets_one(api: Api) -> None:
    run = (await api.post("agent-runs", {"agentId": "counting", "prompt": "hi"})).json["runId"]
    await api.events(run)
    [found] = (await api.get("threads")).json["threads"]
    assert found["agentId"] == "counting"
    assert len((await api.get(f"threads/{found['id']}/values/seen")).json["value"]) == 2
    assert await said(api, found["id"]) == "6"


async def test_agents_of_a_folder_are_listed_and_cannot_be_changed(api: Api) -> None:
    listed = (await api.get("agents")).json["agents"]
    assert [one["id"] for one in listed] == sorted(SCRIPTS)
    check_error(await api.call("DELETE", "agents/counting"), 409, "conflict")
    check_error(await api.post("threads", {"agentId": "nobody"}), 404, "not_found")


@pytest.mark.requirement("thread.prompt.parts")
async def test_variable_of_the_prompt_that_is_missing_ends_the_run_by_name(tmp_path: Path) -> None:
    files = {name: text.replace('"WHO": "Tea", ', "") for name, text in FILES.items()}
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", files)),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            run = await api.send(await thread(api, "system"))
            await api.events(run)
            snapshot = await api.snapshot(run)
            assert snapshot["status"] == "failed" and "WHO" in snapshot["error"], snapshot
            assert (
                await said(api, await thread(api, "system", env={"WHO": "Ann"})) == "You answer for Ann. Be kind, Ann"
            )


async def test_model_may_be_of_a_provider_of_the_configuration(tmp_path: Path) -> None:
    config = '[providers.mine]\nfamily = "openai_chat"\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "env:MINE"\n'
    helper = {
        "agents/models/own.py": 'model = define_model(name="own", provider="mine", model="large")\n',
        "agents/helper.md": "---\nmodel: own\n---\nHelp.\n",
    }
    folder = str(write(tmp_path / "desk", helper))
    with ServerProcess(tmp_path, config=config, env={"MINE": "key"}, arguments=(folder,)) as server:
        async with aiohttp.ClientSession() as http:
            [agent] = (await joined(server, http, "acme").get("agents")).json["agents"]
            assert agent["id"] == "helper"
    doctor = ("doctor", folder, "--db", str(server.db), "--config", str(tmp_path / "config.toml"))
    assert (await weftline_beside(*doctor)).code == 0


async def test_run_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", FILES)),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            made = await thread(api, "die")
            body, once = {"prompt": "Go."}, {"Idempotency-Key": "go"}
            with suppress(aiohttp.ClientConnectionError):
                await api.post(f"threads/{made}/messages", body, headers=once)
                await api.post(f"agent-sessions/{made}/messages", body, headers=once)
            assert await asyncio.to_thread(server.wait) < 0
            server.start()
            api = joined(server, http, "acme")
            run = (await api.post(f"agent-sessions/{made}/messages", body, headers=once)).json["runId"]
            await api.events(run)
            assert (await api.snapshot(run))["finalText"] == "alive again, with 5"
