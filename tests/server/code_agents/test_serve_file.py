"""`weftline serve app.py`: agents of a file for clients of every kind."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import new_secret, operate, weftline
from weftline.agent.loader import ServedAgents, load_agents
from weftline.errors import WeftlineError
from weftline.providers.catalog import Catalog
from weftline.testing import ServerProcess

from ..hosted.test_mcp import connected, text_of
from ..kit import Api, Json, check_error, local_tool

_numbers = itertools.count(1)

NEIGHBOUR = "GREETING = 'Good morning'\n"
APP = '''
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from neighbour import GREETING
from weftline import Agent, RunContext, ToolContext, tool
from weftline.hooks import OutputReady, ToolGate
from weftline.runs import RunInfo
from weftline.testing import ScriptedModel, calls


class Ledger:
    def __init__(self, workspace: str) -> None:
        self.workspace = workspace


@asynccontextmanager
async def ledger(run: RunInfo) -> AsyncGenerator[Ledger]:
    yield Ledger(run.workspace)


@tool
def pay(context: ToolContext[Ledger], amount: int) -> str:
    """Pays."""
    return f"paid {amount} for {context.deps.workspace}"


def instructions(context: RunContext[Ledger]) -> str:
    return f"{GREETING}, {context.deps.workspace}."


billing = Agent("scripted:billing", instructions=instructions, deps=ledger, tools=[pay])
"""Named after its variable."""


@billing.on(ToolGate)
def no_more_than_five(gate: ToolGate) -> None:
    if gate.args["amount"] > 5:
        gate.block("Too much.")


counter = Agent(ScriptedModel(["{\\"value\\": 0}", "{\\"value\\": 7}"]), name="Lucky_Number", output=int)


@counter.on(OutputReady)
def positive(answer: OutputReady[int]) -> None:
    if answer.output <= 0:
        answer.reject("It must be positive.")


echo = Agent("scripted:seen", name="echo", instructions="Repeat.")
same = echo
'''
SCRIPTS: dict[str, Any] = {
    "billing": {
        "turns": [
            {"tool_calls": [{"name": "pay", "args": {"amount": 5}}, {"name": "pay", "args": {"amount": 6}}]},
            {"text": "{{system}} {{tool_results.0}}, {{tool_results.1}}"},
        ]
    },
    "seen": {"turns": [{"text": "{{user_messages}} / {{message_count}} / {{system}}"}]},
    "other": {"turns": [{"text": "other: {{system}}"}]},
    "inside": {"turns": [{"text": "{{system}}|{{tools}}"}]},
}


def write_app(folder: Path, source: str = APP) -> Path:
    (folder / "neighbour.py").write_text(NEIGHBOUR)
    path = folder / "app.py"
    path.write_text(source)
    return path


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("app")
    with ServerProcess(folder, scripts=SCRIPTS, arguments=(str(write_app(folder)),)) as running:
        yield running


@pytest.fixture
async def mine(serving: ServerProcess) -> AsyncGenerator[Api]:
    async with joined(serving, f"team-{next(_numbers)}") as api:
        yield api


@asynccontextmanager
async def joined(server: ServerProcess, slug: str, *agents: str) -> AsyncGenerator[Api]:
    order = partial(new_secret, server.db, slug, name="test", agents=agents)
    secret = await asyncio.to_thread(order)
    async with aiohttp.ClientSession() as http:
        yield Api(http, server.url, slug, secret)


async def answer(api: Api, agent: str, **spec: Any) -> Json:
    reply = await api.post("agent-runs", {"agentId": agent, "prompt": "hello", **spec})
    assert reply.status == 202, reply.body
    await api.events(reply.json["runId"])
    return await api.snapshot(reply.json["runId"])


async def test_client_names_agent_of_file_and_its_code_applies(mine: Api) -> None:
    run = await answer(mine, "billing")
    assert run["finalText"] == f"Good morning, {mine.slug}. paid 5 for {mine.slug}, Blocked: Too much."
    assert run["spec"]["agentId"] == "billing"
    assert (await answer(mine, "echo"))["finalText"] == "hello / 1 / Repeat."


async def test_type_of_answer_and_its_check_hold_for_clients_too(mine: Api) -> None:
    schema = {"schema": {"type": "object", "properties": {"no": {"type": "string"}}}}
    asked = await mine.post("agent-runs", {"agentId": "Lucky_Number", "prompt": "x", "outputSchema": schema})
    check_error(asked, 400, "invalid_request")
    own = (await mine.get("agents/Lucky_Number")).json["spec"]["outputSchema"]
    assert json.loads((await answer(mine, "Lucky_Number", outputSchema=own))["finalText"]) == {"value": 7}
    shaped = await answer(mine, "echo", outputSchema={"schema": {"type": "string"}})
    assert shaped["status"] == "failed", "the agent leaves the shape open, and the client's holds"


async def test_a_client_may_tighten_limits_but_not_loosen_them(mine: Api) -> None:
    none = await answer(mine, "billing", budgets={"maxToolTurns": 0})
    assert (none["status"], none["reason"]) == ("failed", "max_tool_turns")
    assert "paid" not in ((await answer(mine, "billing", toolBudgets={"pay": {"maxCalls": 0}}))["finalText"] or "")


async def test_client_may_choose_model_and_bring_tools_but_not_instructions(mine: Api) -> None:
    run = await answer(mine, "echo", modelId="scripted:inside", systemPrompt="Obey me.", tools=[local_tool("lookup")])
    assert run["finalText"] == "Repeat.|lookup"
    clash = await mine.post("agent-runs", {"agentId": "billing", "prompt": "x", "tools": [local_tool("pay")]})
    check_error(clash, 400, "invalid_request")


async def test_agents_of_the_file_are_listed_and_cannot_be_changed(mine: Api) -> None:
    made = await mine.post("agents", {"name": "Stored", "spec": {"modelId": "scripted:seen"}})
    assert made.status == 201 and "code" not in made.json
    pages: list[Json] = []
    cursor = ""
    while True:
        page = (await mine.get(f"agents?limit=1{cursor}")).json
        pages += page["agents"]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert [(one["id"], one["slug"], one.get("code", False)) for one in pages] == [
        (made.json["id"], "stored", False),
        ("billing", "billing", True),
        ("Lucky_Number", "lucky-number", True),
        ("echo", "echo", True),
    ]
    assert (await mine.get("agents")).json["agents"] == pages
    assert (await mine.get("agents/lucky-number")).json["id"] == "Lucky_Number"
    assert (await mine.get("agents/echo")).json["spec"] == {"modelId": "scripted:seen", "systemPrompt": "Repeat."}
    check_error(await mine.call("DELETE", "agents/echo"), 409, "conflict")
    body = {"name": "Echo", "spec": {"modelId": "scripted:seen"}}
    check_error(await mine.call("PUT", "agents/echo", body), 409, "conflict")
    check_error(await mine.post("agents", {**body, "slug": "echo"}), 409, "conflict")
    check_error(await mine.call("PUT", f"agents/{made.json['id']}", {**body, "slug": "echo"}), 409, "conflict")
    assert (await mine.post("agents", body)).json["slug"] == "echo-2"


async def test_key_narrowed_to_agent_of_file_reaches_no_other(serving: ServerProcess, mine: Api) -> None:
    async with joined(serving, mine.slug, "lucky-number") as narrow:
        assert (await answer(narrow, "lucky-number"))["finalText"] == '{"value": 7}'
        assert [one["id"] for one in (await narrow.get("agents")).json["agents"]] == ["Lucky_Number"]
        for agent in ("echo", "billing", "nope"):
            check_error(await narrow.post("agent-runs", {"agentId": agent, "prompt": "x"}), 403, "forbidden")
            check_error(await narrow.post("agent-sessions", {"agentId": agent}), 403, "forbidden")
        check_error(await narrow.post("agent-runs", {"prompt": "x", "modelId": "scripted:seen"}), 403, "forbidden")
        check_error(await narrow.get("agents/echo"), 404, "not_found")
        other = (await mine.post("agent-runs", {"agentId": "echo", "prompt": "x"})).json["runId"]
        assert (await narrow.get(f"agent-runs/{other}")).status == 404


async def test_a_session_of_an_agent_of_the_file_remembers(mine: Api) -> None:
    made = await mine.post("agent-sessions", {"agentId": "echo"})
    assert made.status == 201, made.body
    session = made.json["sessionId"]
    for prompt, text in (("one", "one / 1 / Repeat."), ("two", "one | two / 3 / Repeat.")):
        run = await mine.send(session, prompt)
        await mine.events(run)
        assert (await mine.snapshot(run))["finalText"] == text


async def test_a2a_callers_reach_an_agent_of_the_file(mine: Api) -> None:
    base = f"/api/a2a/{mine.slug}/agents/lucky-number"
    card = (await mine.get(f"{base}/.well-known/agent-card.json")).json
    assert card["name"] == "Lucky_Number" and card["url"].endswith(base)
    message = {"kind": "message", "role": "user", "messageId": "m", "parts": [{"kind": "text", "text": "go"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    reply = (await mine.post(base, call)).json
    assert [part["text"] for part in reply["result"]["parts"] if part["kind"] == "text"] == ['{"value": 7}'], reply


async def test_mcp_callers_reach_an_agent_of_the_file(mine: Api) -> None:
    async with connected(mine) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["billing", "lucky-number", "echo"]
        assert text_of(await client.call_tool("echo", {"message": "hi"})) == "hi / 1 / Repeat."


def test_its_tools_are_tools_of_the_server_too(serving: ServerProcess) -> None:
    assert "@app/pay" in json.dumps(operate(serving.db, "GET", "tools"))


async def test_a_session_whose_agent_has_left_the_file_says_so(tmp_path: Path) -> None:
    path = write_app(tmp_path)
    with ServerProcess(tmp_path, scripts=SCRIPTS, arguments=(str(path),)) as server:
        async with joined(server, "acme") as api:
            session = (await api.post("agent-sessions", {"agentId": "echo"})).json["sessionId"]
        assert server.terminate() == 0
        path.write_text("from weftline import Agent\nother = Agent('scripted:other', instructions='New.')\n")
        server.start()
        async with joined(server, "acme") as api:
            reply = await api.post(f"agent-sessions/{session}/messages", {"prompt": "hello"})
            check_error(reply, 409, "agent_unavailable")
            assert (await answer(api, "other"))["finalText"] == "other: New."


FATAL = '''
import os, signal
from pathlib import Path
from weftline import Agent, tool
from weftline.hooks import ToolGate

begun = Path(__file__).with_name("begun")


@tool(effect="idempotent")
def fatal() -> str:
    """Takes the process with it, once."""
    if not begun.exists():
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


agent = Agent("scripted:fatal", tools=[fatal])
'''


async def test_run_of_served_agent_goes_on_after_server_was_killed(tmp_path: Path) -> None:
    path = write_app(tmp_path, FATAL)
    turns: list[Any] = [{"tool_calls": [{"name": "fatal", "args": {}}]}, {"text": "{{tool_results.0}}"}]
    with ServerProcess(tmp_path, scripts={"fatal": {"turns": turns}}, arguments=(str(path),)) as server:
        body, once = {"agentId": "agent", "prompt": "Go."}, {"Idempotency-Key": "go"}
        async with joined(server, "acme") as api:
            with suppress(aiohttp.ClientConnectionError):  # the tool may be quicker than the answer
                await api.post("agent-runs", body, headers=once)
            assert await asyncio.to_thread(server.wait) < 0
        server.start()
        async with joined(server, "acme") as api:
            run = (await api.post("agent-runs", body, headers=once)).json["runId"]
            await api.events(run)
            assert (await api.snapshot(run))["finalText"] == "survived"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\n", "has no agents"),
        ("from weftline import Agent\n_a = Agent(name='a')\n", "has no agents"),
        ("from weftline import Agent\na = Agent(name='x')\nb = Agent(name='x')\n", "two agents named 'x'"),
        ("from weftline import Agent\na = Agent(name='what is this?')\n", "cannot be served as 'what is this?'"),
        ("from weftline import Agent\na_b = Agent()\na__b = Agent()\n", "served as 'a-b'"),
        ("from weftline import Agent\na = Agent(deps=str)\n", "give a factory"),
        ("import nowhere\n", "ModuleNotFoundError"),
        ("from weftline import Agent\na = Agent(\n", "syntax error"),
    ],
)
def test_file_that_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(WeftlineError) as refused:
        ServedAgents(load_agents(write_app(tmp_path, source)), Catalog())
    assert said in refused.value.message


def test_the_command_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = weftline("serve", str(tmp_path / "none.py"), "--db", str(tmp_path / "store"), "--port", "0")
    assert done.code == 1 and "There is no file" in done.err
    assert not (tmp_path / "store").exists()


def test_file_serves_public_agents_without_clashing_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = """
from weftline import Agent, tool

@tool(effect="read", name="lookup")
def lookup_a(q: str) -> str:
    return "A"

@tool(effect="read", name="lookup")
def lookup_b(q: str) -> str:
    return "B"

@tool(effect="read")
def other(q: str) -> str:
    return "other"

alpha = Agent(tools=[lookup_a])
beta = Agent(tools=[lookup_b])
_draft = Agent()
"""
    found = load_agents(write_app(tmp_path, source))
    assert list(found.agents) == ["alpha", "beta"]
    assert list(found.tools) == ["other"]
    listed = load_agents(write_app(tmp_path, source + "__all__ = ['beta', '_draft']\n"))
    assert list(listed.agents) == ["beta", "_draft"]


def test_a_limit_on_costs_that_cannot_hold_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "app.py").write_text(
        "from weftline import Agent, Limits\n"
        "from weftline.testing import ScriptedModel\n"
        "class Lab(ScriptedModel):\n    name = 'lab'\n"
        "below = Agent(Lab(['Hi']), name='below', limits=Limits(max_cost_usd=1))\n"
        "tools = [below.as_tool('Asks.')]\n"
        "top = Agent(ScriptedModel(['Hi']), name='top', limits=Limits(max_cost_usd=1), tools=tools)\n"
    )
    ServedAgents(load_agents(tmp_path / "app.py"), Catalog()).advise()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "max_cost_usd of the agent 'below'" in told and "price of the model 'lab:script'" in told
