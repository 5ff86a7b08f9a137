"""Messages of threads: put there, changed and removed, while a run reads them and while none does."""

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

from server.kit import Api, check_error
from weftline import Agent, Engine, Limits, RunFailed
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.testing import ScriptedModel, ServerProcess
from weftline.workspace.thread_messages import said as message_said

from .folders import write
from .test_serving import call, joined, said, thread, turns

SCRIPTS = {
    "echo": turns("{{user_messages}}"),
    "looks": turns(call("look"), "Seen."),
    "injects": turns(call("inject"), "{{user_messages}}"),
    "changes": turns(call("change"), "{{user_messages}}"),
    "drops": turns(call("drop"), "{{user_messages}}"),
    "owns": turns(call("own"), "{{tool_results.0}}"),
    "dies": turns(call("inject"), call("die_once"), "{{user_messages}}"),
    "changes_and_dies": turns(call("change"), call("drop_last"), call("die_once"), "{{user_messages}}"),
}
TOOLS = {
    "look": "return 'seen'",
    "inject": "return (await state.inject_message('Injected.', metadata={'a': 1})).id",
    "change": """
    first = (await state.get_messages()).messages[0]
    changed = await state.update_message(first.id, content='Changed.', metadata={'b': 2})
    return changed.content""",
    "drop": """
    first = (await state.get_messages()).messages[0]
    return str([await state.delete_message(first.id), await state.delete_message(first.id)])""",
    "drop_last": """
    users = [one for one in (await state.get_messages()).messages if one.role == 'user']
    return str(await state.delete_message(users[1].id))""",
    "own": """
    last = (await state.get_messages()).messages[-1]
    found = []
    for change in (state.update_message(last.id, content='x'), state.delete_message(last.id)):
        try:
            await change
        except Conflict as error:
            found.append(error.code)
    return str([last.role, *found])""",
    "die_once": """
    if await state.get_value('died'):
        return 'alive'
    await state.set_value('died', True)
    os.kill(os.getpid(), signal.SIGKILL)""",
}
COUNTS = turns(call("look"), "{{user_messages}} / {{all_tool_results}} / {{message_count}}")
FILES: dict[str, str] = {"scripts.json": json.dumps({**SCRIPTS, "counts": COUNTS})}
for _name, _body in TOOLS.items():
    FILES[f"agents/tools/{_name}.py"] = (
        "import os, signal\nfrom weftline.errors import Conflict\n\n"
        f'@define_tool(effect="idempotent")\nasync def {_name}(state: ThreadState) -> str:\n'
        f'    """Does it."""\n    {_body.strip()}\n'
    )
for _name, _script in SCRIPTS.items():
    _tools = sorted({one["name"] for turn in _script["turns"] for one in turn.get("tool_calls", ())})
    FILES[f"agents/models/{_name}.py"] = f'model = define_model(name="{_name}", provider="test", model="{_name}")\n'
    FILES[f"agents/prompts/{_name}.py"] = (
        f'prompt = define_prompt(name="{_name}", model="{_name}", tool_description="x", prompt="Be brief.",'
        f" tools={_tools!r})\n"
    )
    FILES[f"agents/agents/{_name}.py"] = f'agent = define_agent(name="{_name}", side_a=SideConfig(prompt="{_name}"))\n'


FILES["agents/models/counts.py"] = 'model = define_model(name="counts", provider="test", model="counts")\n'
for _chat in ("True", "False"):
    for _past in ("True", "False"):
        _name = f"counts_{_chat}_{_past}"
        FILES[f"agents/prompts/{_name}.py"] = (
            f'prompt = define_prompt(name="{_name}", model="counts", tool_description="x", prompt="Be brief.",'
            f' tools=["look"], include_chat={_chat}, include_past_tools={_past})\n'
        )
        FILES[f"agents/agents/{_name}.py"] = (
            f'agent = define_agent(name="{_name}", side_a=SideConfig(prompt="{_name}"))\n'
        )


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("messages")
    with ServerProcess(folder, arguments=(str(write(folder / "desk", FILES)),)) as running:
        yield running


@pytest.fixture
async def api(serving: ServerProcess, request: pytest.FixtureRequest) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(serving, http, f"m-{abs(hash(request.node.name))}")


async def listed(api: Api, made: str, query: str = "") -> list[dict[str, Any]]:
    return (await api.get(f"threads/{made}/messages?{query}")).json["messages"]


async def texts(api: Api, made: str) -> list[str]:
    return [one["content"] for one in await listed(api, made)]


async def test_injected_message_is_in_the_next_request_and_the_list(api: Api) -> None:
    made = await thread(api, "injects")
    assert await said(api, made) == "hello | Injected."
    roles = [(one["role"], one["content"][:9]) for one in await listed(api, made)]
    assert roles[0] == ("user", "hello") and ("user", "Injected.") in roles
    [injected] = [one for one in await listed(api, made) if one["content"] == "Injected."]
    assert injected["metadata"] == {"a": 1} and injected["status"] == "completed"
    session = (await api.get(f"threads/{made}")).json["sessionId"]
    assert len((await api.get(f"agent-runs?sessionId={session}")).json["runs"]) == 1
    assert await said(api, made) == "hello | Injected. | hello | Injected."


@pytest.mark.requirement("thread.message.update")
async def test_update_merges_metadata_and_replaces_the_rest(api: Api) -> None:
    made, other = await thread(api, "echo"), await thread(api, "echo")
    assert await said(api, made) == "hello"
    [asked, answer] = await listed(api, made)
    path = f"threads/{made}/messages/{asked['id']}"
    first = (await api.call("PATCH", path, {"metadata": {"a": 1, "b": {"c": 2}}})).json
    assert first == {**asked, "metadata": {"a": 1, "b": {"c": 2}}}
    second = (await api.call("PATCH", path, {"content": "Changed.", "metadata": {"b": 3}})).json
    assert second == {**asked, "content": "Changed.", "metadata": {"a": 1, "b": 3}}
    assert (await listed(api, made))[0] == second
    assert await said(api, made) == "Changed. | hello"
    await api.call("PATCH", f"threads/{made}/messages/{answer['id']}", {"silent": True})
    assert answer["id"] not in [one["id"] for one in await listed(api, made)]
    assert answer["id"] in [one["id"] for one in await listed(api, made, "silent=true")]
    reply = await api.call("PATCH", f"threads/{other}/messages/{asked['id']}", {"content": "x"})
    check_error(reply, 404, "unknown_message")


@pytest.mark.requirement("thread.message.silent")
async def test_silent_message_is_read_by_models_and_not_listed_for_people(api: Api) -> None:
    made = await thread(api, "injects")
    await said(api, made)
    [injected] = [one for one in await listed(api, made) if one["content"] == "Injected."]
    await api.call("PATCH", f"threads/{made}/messages/{injected['id']}", {"silent": True})
    assert "Injected." not in await texts(api, made)
    shown = [one for one in await listed(api, made, "silent=true") if one["silent"]]
    assert [one["content"] for one in shown] == ["Injected."]
    session = (await api.get(f"agent-sessions/{made}")).json["messages"]
    assert "Injected." not in [one["content"] for one in session]


async def test_runs_of_a_thread_are_listed_in_pages(api: Api) -> None:
    made, other = await thread(api, "echo"), await thread(api, "echo")
    for one in (made, other, made, made):
        await said(api, one)
    whole = (await api.get(f"threads/{made}/runs")).json
    assert len(whole["runs"]) == 3 and whole["nextCursor"] is None
    ids = [one["id"] for one in whole["runs"]]
    assert {one["log_id"] for one in await listed(api, made)} == set(ids)
    page = (await api.get(f"threads/{made}/runs?limit=2")).json
    rest = (await api.get(f"threads/{made}/runs?limit=2&cursor={page['nextCursor']}")).json
    assert [one["id"] for one in page["runs"] + rest["runs"]] == ids and rest["nextCursor"] is None


async def test_answer_is_removed_with_its_results(api: Api) -> None:
    made = await thread(api, "looks")
    await said(api, made)
    user, asked, result, answer = await listed(api, made)
    check_error(await api.call("DELETE", f"threads/{made}/messages/{result['id']}"), 400, "invalid_request")
    assert (await api.call("DELETE", f"threads/{made}/messages/{asked['id']}")).status == 200
    assert [one["id"] for one in await listed(api, made)] == [user["id"], answer["id"]]
    for gone in (asked, result):
        check_error(await api.get(f"threads/{made}/messages/{gone['id']}"), 404, "unknown_message")
        check_error(await api.call("DELETE", f"threads/{made}/messages/{gone['id']}"), 404, "unknown_message")
    assert await said(api, made) == "Seen."


async def test_run_reads_what_was_changed_and_removed_in_it(api: Api) -> None:
    made = await thread(api, "changes")
    assert await said(api, made) == "Changed."
    assert await said(api, made) == "Changed. | hello"
    made = await thread(api, "drops")
    await said(api, made)
    assert (await listed(api, made))[1]["content"] == str([True, False])


@pytest.mark.requirement("thread.prompt.history")
async def test_prompt_chooses_what_is_sent_of_earlier_runs(api: Api) -> None:
    def asked(chat: str, tools: str) -> str:
        return f"counts_{chat}_{tools}"

    seen: dict[str, list[str]] = {}
    for chat in ("True", "False"):
        for tools in ("True", "False"):
            made = await thread(api, asked(chat, tools))
            seen[asked(chat, tools)] = [await said(api, made), await said(api, made)]
    alone = "hello / seen / 2"
    assert seen == {
        "counts_True_True": [alone, "hello | hello / seen / 5"],
        "counts_True_False": [alone, "hello | hello / seen / 4"],
        "counts_False_True": [alone, alone],
        "counts_False_False": [alone, alone],
    }


@pytest.mark.requirement("thread.message.in_use")
async def test_messages_of_an_open_turn_are_in_use(api: Api) -> None:
    made = await thread(api, "owns")
    assert await said(api, made) == str(["assistant", "message_in_use", "message_in_use"])
    [asked] = [one for one in await listed(api, made) if one["tool_calls"]]
    reply = await api.call("PATCH", f"threads/{made}/messages/{asked['id']}", {"content": "Thinking."})
    assert reply.json["content"] == "Thinking." and reply.json["tool_calls"] == asked["tool_calls"]


async def test_terminated_thread_keeps_its_messages_as_they_are(api: Api) -> None:
    made = await thread(api, "echo")
    await said(api, made)
    before = await listed(api, made)
    await api.call("DELETE", f"threads/{made}")
    path = f"threads/{made}/messages/{before[0]['id']}"
    check_error(await api.call("PATCH", path, {"content": "x"}), 409, "thread_ended")
    check_error(await api.call("DELETE", path), 409, "thread_ended")
    assert await listed(api, made) == before


@pytest.mark.requirement("thread.message.edit_in_run", "thread.message.inject")
@pytest.mark.parametrize(
    ("agent", "answer"),
    [("dies", "First. | Second. | Injected."), ("changes_and_dies", "Changed.")],
)
async def test_edits_in_a_run_survive_a_kill(tmp_path: Path, agent: str, answer: str) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", FILES)),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            made = await thread(api, agent)
            await api.call("PUT", f"threads/{made}/values/died", {"value": True})
            before = await api.send(made, "First.")
            await api.events(before)
            ended = await api.snapshot(before)
            await api.call("DELETE", f"threads/{made}/values/died")
            body, once = {"prompt": "Second."}, {"Idempotency-Key": "go"}
            for one in (await listed(api, made))[1:]:
                if one["role"] == "user":
                    await api.call("DELETE", f"threads/{made}/messages/{one['id']}")
            with suppress(aiohttp.ClientConnectionError):
                await api.post(f"agent-sessions/{made}/messages", body, headers=once)
            assert await asyncio.to_thread(server.wait) < 0
            server.start()
            api = joined(server, http, "acme")
            run = (await api.post(f"agent-sessions/{made}/messages", body, headers=once)).json["runId"]
            await api.events(run)
            assert (await api.snapshot(run))["finalText"] == answer
            assert await api.snapshot(before) == ended
            users = [one["content"] for one in await listed(api, made) if one["role"] == "user"]
            assert " | ".join(users) == answer


@pytest.mark.requirement("thread.message.streaming")
async def test_answer_is_listed_while_it_is_given_under_the_id_that_it_keeps() -> None:
    whole: dict[str, Any] = {"deltas": ["One, ", "two, ", "three."], "delay_ms": 300}
    cut: dict[str, Any] = {
        "deltas": ["Half ", "of ", "it"],
        "delay_ms": 300,
        "error": {"class": "auth", "message": "no"},
    }
    agent = Agent(ScriptedModel([whole]), limits=Limits(max_retries=0))
    async with asyncio.timeout(60), Engine() as engine:
        host, key = await engine.runtime(), await engine.thread("t").key()
        for turn, status, text in ((whole, "completed", "One, two, three."), (cut, "failed", "Half of it")):
            with agent.override(model=ScriptedModel([turn])):
                run = await engine.start(agent, "Go.", thread="t")
            listed: list[MessageRow] = []
            async for _ in run.text():
                rows, total = await host.messages.page(MessageFilter(thread=key, newest_first=True, limit=2))
                assert total % 2 == 0 and [(one.status, one.asked_by) for one in rows][1:] == [("completed", None)]
                listed.append(rows[0])
                if len(listed) == 2:
                    break
            assert listed[0].status == "pending" and len({one.name for one in listed}) == 1
            with suppress(RunFailed):
                await run.result()
            row = await host.messages.one(key, listed[0].name)
            assert row is not None and (row.status, message_said(row).content) == (status, text)
            said_so_far = [message_said(one).content for one in listed]
            assert all(later.startswith(earlier) for earlier, later in itertools.pairwise([*said_so_far, text]))
