"""The faces of a served folder: Markdown, skills, schedules, the terminal and the library."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import new_secret, weftline
from server.hosted.test_mcp import connected, text_of
from server.kit import Api, Json
from weftline import Engine
from weftline.client import AsyncClient
from weftline.errors import InvalidRequest, NotFound
from weftline.testing import ServerProcess
from weftline.threads import load_project

from .folders import write
from .test_serving import call, joined, said, thread, turns

SCRIPTS: dict[str, Json] = {
    "plain": turns("{{system}}"),
    "skilled": turns([{"name": "skills_use", "args": {"name": "refunds"}}], "{{tool_results.0}}"),
    "counting": turns(call("count"), "{{tool_results.0}}"),
}
HELPER = "You are brief.\n"
COUNT = """
@define_tool(effect="idempotent")
async def count(state: ThreadState) -> str:
    '''Counts.'''
    await state.set_value("seen", (await state.get_value("seen") or 0) + 1)
    return f"{state.user_id} {await state.get_value('seen')} {await state.get_value('plan')}"
"""
FILES = {
    "scripts.json": json.dumps(SCRIPTS),
    "AGENTS.md": "Everybody is kind.\n",
    "agents/helper.md": HELPER,
    "agents/inheriting.md": f"---\nmodel: inherit\n---\n{HELPER}",
    "agents/skilled.md": "---\nmodel: scripted:skilled\n---\nUse your skills.\n",
    "agents/counter.md": "---\nmodel: scripted:counting\ntools: count\n---\nCount.\n",
    "agents/tools/count.py": COUNT,
    "skills/refunds/SKILL.md": "---\nname: refunds\ndescription: How to pay back.\n---\nAsk for the receipt.\n",
    "schedules/morning.md": "---\ncron: 0 8 * * 1-5\ntimezone: Europe/Oslo\nagent: helper\n---\nSum up.\n",
    "schedules/evening.md": "---\ncron: 0 18 * * *\nagent: counter\n---\nCount on.\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("faces")
    with ServerProcess(
        folder,
        scripts=SCRIPTS,
        config='default_model = "scripted:plain"\n',
        arguments=(str(write(folder / "desk", FILES)),),
    ) as running:
        yield running


@pytest.fixture
async def api(server: ServerProcess) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(server, http, "default")


@pytest.mark.parametrize("agent", ["helper", "inheriting"])
async def test_markdown_agent_reads_what_all_read(api: Api, agent: str) -> None:
    system = await said(api, await thread(api, agent))
    assert system.startswith("Everybody is kind.\n\nYou are brief.")


async def test_every_agent_is_offered_the_skills(api: Api) -> None:
    assert "refunds" in await said(api, await thread(api, "helper"))
    assert "Ask for the receipt." in await said(api, await thread(api, "skilled"))


async def test_schedules_of_the_folder_are_those_of_the_default_workspace(api: Api, server: ServerProcess) -> None:
    listed = (await api.get("schedules")).json["schedules"]
    found = {one["name"]: one for one in listed}
    assert sorted(found) == ["evening", "morning"]
    assert (found["morning"]["cron"], found["morning"]["timezone"]) == ("0 8 * * 1-5", "Europe/Oslo")
    assert found["morning"]["agentId"] == "helper" and found["morning"]["nextAt"]
    run = (await api.post(f"schedules/{found['evening']['id']}/run")).json["runId"]
    await api.events(run)
    assert (await api.snapshot(run))["finalText"] == "None 1 None"
    other = joined(server, api.http, "elsewhere")
    assert (await other.get("schedules")).json["schedules"] == []


async def test_schedules_follow_their_files_at_each_start(tmp_path: Path) -> None:
    desk = write(tmp_path / "desk", {**FILES, "schedules/third.md": FILES["schedules/evening.md"]})
    with ServerProcess(tmp_path, arguments=(str(desk),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "default")
            before = {one["name"]: one["id"] for one in (await api.get("schedules")).json["schedules"]}
            for name in ("morning", "third"):
                await api.call("PATCH", f"schedules/{before[name]}", {"enabled": False})
            assert await asyncio.to_thread(server.terminate) == 0
            (desk / "schedules/evening.md").unlink()
            write(desk, {"schedules/third.md": "---\ncron: 5 5 * * *\nagent: counter\n---\nCount.\n"})
            server.start()
            api = joined(server, http, "default")
            after = {one["name"]: one for one in (await api.get("schedules")).json["schedules"]}
            assert sorted(after) == ["morning", "third"]
            assert {name: one["id"] for name, one in after.items()} == {name: before[name] for name in after}
            assert (after["third"]["cron"], after["third"]["enabled"], after["morning"]["enabled"]) == (
                "5 5 * * *",
                False,
                False,
            )


@pytest.mark.parametrize(
    ("app", "options"), [("desk:counter", ()), ("desk", ("--agent", "counter")), ("./desk:counter", ())]
)
def test_folder_is_talked_to_in_the_terminal(tmp_path: Path, app: str, options: tuple[str, ...]) -> None:
    write(tmp_path / "desk", FILES)
    done = subprocess.run(
        [sys.executable, "-m", "weftline", "chat", app, *options],
        input="one\ntwo\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "None 1 None" in done.stdout and "None 2 None" in done.stdout


async def test_library_has_threads_of_a_folder(tmp_path: Path) -> None:
    project = load_project(write(tmp_path / "desk", FILES))
    given: dict[str, Any] = {"user": "ann", "env": {"KEY": "k"}, "values": {"plan": "pro"}, "key": "once"}
    async with Engine(tmp_path / "data", project=project) as engine:
        made = await engine.create_thread("counter", **given)
        run = await engine.start(engine.agents["counter"], "Go.", thread=made.name)
        assert (await run.result()).text == "ann 1 pro"
    async with Engine(tmp_path / "data", project=project) as engine:
        made = await engine.create_thread("counter", **given)
        run = await engine.start(engine.agents["counter"], "Go.", thread=made.name)
        assert (await run.result()).text == "ann 2 pro"
        state = await made.state()
        assert (state.user_id, await state.env("KEY"), await state.get_value("seen")) == ("ann", "k", 2)
        assert state.execution is None
        with pytest.raises(NotFound, match="counter"):
            await engine.create_thread("conter")
        with pytest.raises(InvalidRequest):
            await engine.thread("named").state()


async def test_thread_of_a_folder_may_be_in_memory(tmp_path: Path) -> None:
    project = load_project(write(tmp_path / "desk", FILES))
    async with Engine(project=project) as engine:
        made = await engine.create_thread("counter")
        for count in (1, 2):
            run = await engine.start(engine.agents["counter"], "Go.", thread=made.name)
            assert (await run.result()).text == f"None {count} None"


@pytest.mark.requirement("thread.define.served")
async def test_agent_of_a_folder_is_reached_through_every_face(api: Api) -> None:
    body: Json = {"agentId": "counter", "prompt": "Go."}
    answers = [await _ended(api, (await api.post("agent-runs", body)).json["runId"])]
    session = (await api.post("agent-sessions", {"agentId": "counter"})).json["sessionId"]
    answers += [await said(api, session), await said(api, session)]
    message = {"kind": "message", "role": "user", "messageId": "m", "parts": [{"kind": "text", "text": "Go."}]}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    sent = (await api.post(f"/api/a2a/{api.slug}/agents/counter", asked)).json["result"]
    answers.append(json.dumps(sent))
    async with connected(api) as client:
        answers.append(text_of(await client.call_tool("counter", {"message": "Go."})))
    schedules = (await api.get("schedules")).json["schedules"]
    [evening] = [one for one in schedules if one["name"] == "evening"]
    answers.append(await _ended(api, (await api.post(f"schedules/{evening['id']}/run")).json["runId"]))
    counts = [1, 1, 2, 1, 1, 1]
    assert all(f"None {count} None" in answer for count, answer in zip(counts, answers, strict=True)), answers
    threads = (await api.get("threads?agentId=counter")).json["threads"]
    assert len(threads) >= 5 and all(one["agentId"] == "counter" for one in threads)


async def _ended(api: Api, run: str) -> str:
    await api.events(run)
    return (await api.snapshot(run))["finalText"]


async def test_client_has_the_threads_of_a_workspace(api: Api) -> None:
    async with AsyncClient(api_key=api.key, workspace=api.slug, base_url=api.url) as client:
        threads = client.threads
        given: dict[str, Any] = {"tags": ["face"], "env": {"KEY": "k"}, "idempotency_key": "face"}
        made = await threads.create("counter", user_id="ann", name="Ann's", values={"plan": {"seats": 3}}, **given)
        again = await threads.create("counter", user_id="ann", name="Ann's", values={"plan": {"seats": 3}}, **given)
        assert again.id == made.id and made.created_at is not None
        assert (made.agent_id, made.user_id, made.name, made.tags, made.status) == (
            "counter",
            "ann",
            "Ann's",
            ("face",),
            "active",
        )
        assert [one.id for one in (await threads.list(tag="face")).items] == [made.id]
        await threads.set_value(made.id, "a/b", [None, 1.5])
        await threads.set_value(made.id, "plan", None)
        assert await threads.values(made.session_id) == {"a/b": [None, 1.5]}
        assert await threads.value(made.id, "a/b") == [None, 1.5]
        assert (await threads.set_env(made.id, "REGION", "eu", type="text")).value == "eu"
        assert [(one.name, one.type, one.value) for one in await threads.env(made.id)] == [
            ("KEY", "secret", None),
            ("REGION", "text", "eu"),
        ]
        await threads.delete_env(made.id, "KEY")
        await threads.delete(made.id)
        assert (await threads.get(made.id)).status == "terminated"
        assert (await threads.list(tag="face", status="active")).items == ()


def test_command_line_has_the_threads_of_a_workspace(server: ServerProcess) -> None:
    of = ("--workspace", "shell", "--db", str(server.db))
    new_secret(server.db, "shell")
    given = ("--agent", "counter", "--user", "ann", "--tag", "vip", "--env", "KEY=k", "--value", "plan=pro")
    done = weftline("threads", "create", *given, *of)
    assert done.code == 0, done.err
    id = done.out.strip()
    assert weftline("threads", "list", "--tag", "vip", "-q", *of).out.split() == [id]
    shown = weftline("threads", "show", id, *of).out
    assert 'value plan = "pro"' in shown and "variable KEY = (secret)" in shown
    assert weftline("threads", "end", id, *of).out.strip() == id
    assert json.loads(weftline("threads", "show", id, "--json", *of).out)["status"] == "terminated"
    assert weftline("threads", "create", "--agent", "counter", "--env", "KEY", *of).code == 2
