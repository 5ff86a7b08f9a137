"""Agents with subagents, served: a client asks the agent, and children do their part as they do in a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from weftline import Agent, Engine, asgi, spawn, tool
from weftline.client import AsyncClient
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, ServerProcess, calls

from ..kit import TIMEOUT_S, Api, Json, check_error
from .test_mounted import joined as joined_mounted
from .test_mounted import listening
from .test_serve_file import answer, joined

APP = '''
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_tracer_provider

from weftline import Agent, Limits, spawn, tool
from weftline.testing import ScriptedModel, calls


class Lines(SpanExporter):
    def export(self, spans):
        with Path(__file__).with_name("spans.txt").open("a") as file:
            for span in spans:
                parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
                file.write(f"{span.context.trace_id:032x} {parent} {span.name}\\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
set_tracer_provider(provider)


@tool
def search(words: str) -> str:
    """Searches the archive."""
    return f"3 letters about {words}"


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


clerk = Agent(ScriptedModel([calls("search", words="rent"), "{{tool_results.0}}"]), name="clerk", tools=[search])
archive = Agent(
    ScriptedModel([calls("clerk", task="Look."), "{{tool_results.0}}"]), name="archive", tools=[clerk.as_tool("Looks.")]
)
leader = Agent(
    ScriptedModel([calls("archive", task="What about the rent?"), "They say: {{tool_results.0}}"]),
    name="leader",
    tools=[archive.as_tool("Knows the archive.")],
)
cashier = Agent(
    ScriptedModel([calls("pay", amount=5), "{{tool_results.0}}"]),
    name="cashier",
    tools=[pay],
    limits=Limits(four_eyes=True),
)
shop = Agent(
    ScriptedModel([calls("cashier", task="Pay."), "{{tool_results.0}}"]),
    name="shop",
    tools=[cashier.as_tool("Pays.")],
)
payer = Agent(
    ScriptedModel([calls("pay", amount=5), calls("pay", amount=6), "{{tool_results.0}}"]),
    name="payer",
    tools=[pay],
    limits=Limits(four_eyes=True),
)
twin = Agent(
    ScriptedModel([calls("spawn", task="Be me."), "{{tool_results.0}}"]), name="twin", tools=[spawn()]
)
'''
CONFIG = """
[server]
traces = true
"""
SCRIPTS: dict[str, Any] = {
    "plain": {"turns": [{"text": "Hello."}]},
    "ask": {
        "turns": [{"tool_calls": [{"name": "archive", "args": {"task": "x"}}]}, {"text": "asked: {{tool_results.0}}"}]
    },
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("app")
    path = folder / "app.py"
    path.write_text(APP)
    with ServerProcess(folder, scripts=SCRIPTS, arguments=(str(path),), config=CONFIG) as running:
        yield running


@pytest.fixture
async def mine(serving: ServerProcess) -> AsyncGenerator[Api]:
    async with joined(serving, "team") as api:
        yield api


async def test_a_served_agent_asks_the_agents_below_it(mine: Api) -> None:
    run = await answer(mine, "leader")
    assert run["finalText"] == "They say: 3 letters about rent"
    frames = await mine.events(run["id"])
    (started,) = [frame for frame in frames if frame.type == "child_started"]
    (result,) = [frame for frame in frames if frame.type == "tool_result"]
    assert result["childrenCount"] == 1 and result["runLink"] == {
        "runId": started["childRunId"],
        "agentId": "archive",
        "parentRunId": run["id"],
        "parentToolUseId": result["toolUseId"],
    }


@pytest.mark.requirement("run.trace.context")
@pytest.mark.parametrize(
    ("spec", "trace", "root"),
    [
        ({"agentId": "leader"}, "1" * 32, "invoke_agent leader"),
        ({"modelId": "scripted:plain"}, "2" * 32, "invoke_agent"),
    ],
    ids=["code", "plain"],
)
async def test_a_run_is_in_the_trace_that_its_request_names(
    serving: ServerProcess, mine: Api, spec: Json, trace: str, root: str
) -> None:
    headers = {"traceparent": f"00-{trace}-{'b' * 16}-01"}
    made = await mine.post("agent-runs", {**spec, "prompt": "Go."}, headers=headers)
    await mine.events(made.json["runId"])
    lines = await _spans(serving.folder / "spans.txt", trace, root)
    assert [name for parent, name in lines if parent == "b" * 16] == [root]
    assert ("invoke_agent clerk" in [name for _, name in lines]) == ("agentId" in spec)


@pytest.mark.requirement("run.trace.context")
async def test_run_of_the_client_is_inside_its_active_span(serving: ServerProcess, mine: Api) -> None:
    async with AsyncClient(api_key=mine.key, workspace=mine.slug, base_url=mine.url) as client:
        with TracerProvider().get_tracer("test").start_as_current_span("mine") as span:
            await client.run("Go.", model_id="scripted:plain")
    here = span.get_span_context()
    lines = await _spans(serving.folder / "spans.txt", f"{here.trace_id:032x}", "invoke_agent")
    assert lines[-1] == (f"{here.span_id:016x}", "invoke_agent")


def _lines(file: Path) -> list[list[str]]:
    return [line.split(" ", 2) for line in file.read_text().splitlines()] if file.exists() else []


async def _spans(file: Path, trace: str, last: str) -> list[tuple[str, str]]:
    """The parent and the name of each span of a trace, once the last one is there."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            spans = [(parent, name) for id, parent, name in _lines(file) if id == trace]
            if spans and spans[-1][1] == last:
                return spans
            await asyncio.sleep(0.01)


async def test_the_client_may_choose_the_model_of_the_agent_above(mine: Api) -> None:
    assert (await answer(mine, "leader", modelId="scripted:ask"))["finalText"] == "asked: 3 letters about rent"


async def test_a_session_has_subagents_too(mine: Api) -> None:
    session = (await mine.post("agent-sessions", {"agentId": "leader"})).json["sessionId"]
    run = await mine.send(session, "hello")
    await mine.events(run)
    assert (await mine.snapshot(run))["finalText"] == "They say: 3 letters about rent"
    for query, count in (("", 1), ("&children=false", 1), ("&children=true", 3)):
        listed = (await mine.get(f"agent-runs?sessionId={session}{query}")).json["runs"]
        assert [one["sessionId"] for one in listed] == [session] * count and listed[-1]["id"] == run
    check_error(await mine.get(f"agent-runs?sessionId={session}&children=yes"), 400, "invalid_request")
    async with AsyncClient(api_key=mine.key, workspace=mine.slug, base_url=mine.url) as client:
        page = await client.list_runs(session_id=session, children=True)
        assert len(page.items) == 3


async def test_copies_go_as_deep_as_the_limit(mine: Api) -> None:
    text = (await answer(mine, "twin"))["finalText"]
    assert text.count("[turns: 2") == 3 and "may be nested 3 deep" in text, text


async def test_child_question_is_answered_over_http_by_another_person(serving: ServerProcess, mine: Api) -> None:
    run = (await mine.post("agent-runs", {"agentId": "shop", "prompt": "Buy it."})).json["runId"]
    asked = await _asked(mine, run)
    async with joined(serving, "team") as other:
        assert (asked["rootRunId"], asked["question"]) == (run, "Pay 5?") and asked["runId"] != run
        where = f"agent-runs/{asked['runId']}/awaits/{asked['id']}"
        check_error(await mine.post(where, {"outcome": "approved"}), 403, "four_eyes")
        assert (await other.post(where, {"outcome": "approved"})).status == 200
    await mine.events(run)
    assert (await mine.snapshot(run))["finalText"] == "paid 5"
    assert (await mine.get("awaits")).json["awaits"] == []


async def test_ones_own_keys_and_apps_do_not_satisfy_four_eyes(serving: ServerProcess) -> None:
    async with joined(serving, "solo") as api, joined(serving, "solo") as other:
        second = (await api.post("api-keys", {"name": "mine too"})).json["key"]
        third = (await api.post("api-keys", {"name": "and this"}, key=second)).json["key"]
        given = {"name": "Robot", "allowedScopes": ["runs:write"], "allowsClientCredentials": True}
        app = (await api.post("oauth-apps", given)).json
        form = {"grant_type": "client_credentials", "client_id": app["clientId"], "client_secret": app["clientSecret"]}
        async with api.http.post(f"{api.url}/api/oauth/token", data=form) as reply:
            token = (await reply.json())["access_token"]
        mine = [api.key, second, third, token]
        for requester in (api.key, third, token):
            made = await api.post("agent-runs", {"agentId": "cashier", "prompt": "Pay."}, key=requester)
            asked = await _asked(api, made.json["runId"])
            where = f"agent-runs/{asked['runId']}/awaits/{asked['id']}"
            if requester == token:  # what is gone cannot tell any more whose it was
                assert (await api.call("DELETE", f"oauth-apps/{app['clientId']}")).status == 200
                mine.remove(token)
                check_error(await other.post(where, {"outcome": "approved"}), 403, "four_eyes")
            for key in mine:
                check_error(await api.post(where, {"outcome": "approved"}, key=key), 403, "four_eyes")
            if requester != token:
                assert (await other.post(where, {"outcome": "approved"})).status == 200


async def test_whoever_steers_run_may_not_approve_what_it_does_then(serving: ServerProcess) -> None:
    async with joined(serving, "steered") as ann, joined(serving, "steered") as bob, joined(serving, "steered") as eve:
        run = (await ann.post("agent-runs", {"agentId": "payer", "prompt": "Pay."})).json["runId"]
        first = await _asked(ann, run)
        for who, messages in ((bob, ["Pay six."]), (eve, [])):
            assert (await who.post(f"agent-runs/{run}/pause")).status == 200
            assert (await who.post(f"agent-runs/{run}/resume", {"messages": messages})).status == 200
        asked = await _asked(ann, run, other_than=first["id"])
        where = f"agent-runs/{run}/awaits/{asked['id']}"
        for who in (ann, bob):
            check_error(await who.post(where, {"outcome": "approved"}), 403, "four_eyes")
        assert (await eve.post(where, {"outcome": "approved"})).status == 200


async def _asked(api: Api, run: str, *, other_than: str = "") -> Json:
    """What a run or one below it asks, once it does: the stream of the run above does not tell."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            for found in (await api.get(f"awaits?runId={run}")).json["awaits"]:
                if found["id"] != other_than:
                    return found


@tool
def here() -> str:
    """Where it is."""
    return "here"


async def test_a_mounted_engine_has_them_in_every_workspace(tmp_path: Path) -> None:
    below = Agent(ScriptedModel([calls("here"), "{{tool_results.0}}"]), name="below", tools=[here])
    above = Agent(
        ScriptedModel([calls("below", task="Where?"), "{{tool_results.0}}"]),
        name="above",
        tools=[below.as_tool("Looks."), spawn()],
    )
    engine = Engine(tmp_path / "data", agents=[above], models=Catalog())
    async with listening(asgi(engine)) as url, joined_mounted(url, tmp_path / "data") as api:
        assert (await answer(api, "above"))["finalText"] == "here"
