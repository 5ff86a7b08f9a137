"""Words of the protocol that come from elsewhere: ours work as well, and clients that use theirs notice nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from weftline.plan import ServerRef, StoredRef
from weftline.spec.door import parse_run
from weftline.spec.plan import plan_from_spec

from .kit import Api, check_error, of_type

TOOL = {"name": "weather", "url": "https://weather.example/today"}


@pytest.mark.parametrize("kind", ["server", "mantyx_plugin"])
async def test_server_tool_has_two_kinds_and_keeps_the_sent_one(api: Api, kind: str) -> None:
    tools = [{"kind": kind, "name": "echo"}]
    run = await api.start("echo", tools=tools)
    (result,) = of_type(await api.events(run), "tool_result")
    assert result["name"] == "echo"
    assert (await api.snapshot(run))["spec"]["tools"] == tools


@pytest.mark.parametrize("kind", ["stored", "mantyx"])
async def test_a_stored_tool_has_two_kinds(api: Api, kind: str) -> None:
    made = (await api.post("tools", TOOL)).json["id"]
    run = await api.start("inside", tools=[{"kind": kind, "id": made}])
    (end,) = of_type(await api.events(run), "result")
    assert "weather" in end["text"]
    error = check_error(
        await api.post(
            "agent-runs", {"prompt": "hi", "modelId": "scripted:hello", "tools": [{"kind": kind, "id": "tool_none"}]}
        ),
        400,
        "invalid_request",
    )
    assert "tool_none" in error["message"]


async def test_an_agent_and_a_session_take_our_words(api: Api) -> None:
    spec = {"modelId": "scripted:echo", "tools": [{"kind": "server", "name": "echo"}]}
    agent = (await api.post("agents", {"name": "Helper", "spec": spec})).json
    assert agent["spec"]["tools"] == spec["tools"]
    # The same tool under the other word is the same tool, and the request's wins.
    body = {"agentId": agent["id"], "prompt": "hi", "tools": [{"kind": "mantyx_plugin", "name": "echo"}]}
    run = (await api.post("agent-runs", body)).json["runId"]
    assert len((await api.snapshot(run))["spec"]["tools"]) == 1
    session = await api.session("echo", tools=spec["tools"])
    assert of_type(await api.events(await api.send(session)), "tool_result")


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        ({"kind": "server"}, "tools[0].name"),
        ({"kind": "server", "name": "a/b"}, "tools[0].name"),
        ({"kind": "stored"}, "tools[0].id"),
        ({"kind": "stored", "id": "a b"}, "tools[0].id"),
        ({"kind": "plugin", "name": "x"}, "tools[0].kind"),
    ],
)
async def test_wrong_ref_is_refused_at_the_clients_field(api: Api, ref: dict[str, Any], path: str) -> None:
    error = check_error(await api.post("agent-runs", {"prompt": "hi", "tools": [ref]}), 400, "invalid_request")
    assert [issue["path"] for issue in error["issues"]] == [path]
    if path.endswith("kind"):
        assert "must be one of stored, server, local" in error["message"]


async def test_the_same_tool_under_both_words_is_a_clash(api: Api) -> None:
    for twins in (
        [{"kind": "server", "name": "echo"}, {"kind": "mantyx_plugin", "name": "echo"}],
        [{"kind": "stored", "id": "tool_1"}, {"kind": "mantyx", "id": "tool_1"}],
    ):
        check_error(await api.post("agent-runs", {"prompt": "hi", "tools": twins}), 400, "invalid_request")


def test_the_log_speaks_our_words() -> None:
    spec = b'{"prompt": "hi", "tools": [{"kind": "mantyx", "id": "t"}, {"kind": "mantyx_plugin", "name": "echo"}]}'
    assert plan_from_spec(parse_run(spec).spec).tools == (StoredRef("t"), ServerRef("echo"))


@pytest.mark.parametrize("name", ["knowledge_search_deals", "hive_search_deals"])
def test_tools_of_workspaces_knowledge_have_their_budget_under_both_names(name: str) -> None:
    spec = b'{"prompt": "hi", "tools": [{"kind": "local", "name": "%s"}]}' % name.encode()
    assert plan_from_spec(parse_run(spec).spec).limits.tool_budgets == {name: 5}


def test_every_foreign_word_of_source_is_explained_on_its_page() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "foreign-words.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    words = set(re.findall(r"(?i)\b(?:mantyx|hive)(?:[_.:]\w+)*", source))
    assert {"mantyx_plugin", "hive:read", "mantyx_oas_"} <= words
    assert sorted(word for word in words if word not in page) == []
