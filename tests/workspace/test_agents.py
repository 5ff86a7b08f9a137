"""Stored agents: their slugs, who sees and uses them, and what a run that names one becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weftline.api.planning import SpecAndHeaders, effective
from weftline.cases import agents as stored
from weftline.cases.agents import AgentDraft
from weftline.errors import Conflict, Forbidden, InvalidRequest, NotFound
from weftline.workspace import agents
from weftline.workspace.context import Workspaces

from .conftest import Caller


def draft(name: str = "Sales Bot", *, slug: str = "", system: bool = False, **spec: Any) -> AgentDraft:
    return AgentDraft(name=name, slug=slug, spec=json.dumps(spec).encode(), system=system)


async def test_a_slug_is_made_of_the_name_and_numbered(at: Workspaces, acme: int, globex: int) -> None:
    made = [await stored.add(at, acme, draft(name)) for name in ("Sales Bot!", "sales  bot", "???", "x" * 90)]
    assert [row.slug for row in made] == ["sales-bot", "sales-bot-2", "agent", "x" * 48]
    assert (await stored.add(at, globex, draft())).slug == "sales-bot"


async def test_a_workspace_has_so_many_agents(
    at: Workspaces, acme: int, globex: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_PER_WORKSPACE", 2)
    first = await stored.add(at, acme, draft())
    await stored.add(at, acme, draft())
    with pytest.raises(InvalidRequest, match="at most 2 agents"):
        await stored.add(at, acme, draft())
    await stored.add(at, globex, draft())
    await stored.remove(at, acme, first.id)
    await stored.add(at, acme, draft())


async def test_a_slug_is_had_once_in_a_workspace(at: Workspaces, acme: int) -> None:
    first = await stored.add(at, acme, draft(slug="bot"))
    other = await stored.add(at, acme, draft(slug="other"))
    with pytest.raises(Conflict):
        await stored.add(at, acme, draft(slug="bot"))
    with pytest.raises(Conflict):
        await stored.amend(at, acme, other.id, draft(slug="bot"))
    with pytest.raises(InvalidRequest):
        await stored.add(at, acme, draft(slug="-bot"))
    assert (await stored.amend(at, acme, first.id, draft("Renamed"))).slug == "bot"
    assert (await stored.amend(at, acme, first.id, draft("Renamed", slug="bot"))).name == "Renamed"
    assert [row.slug for row in await agents.of_workspace(at, acme)] == ["bot", "other"]


async def test_agent_is_found_by_id_and_slug_in_its_workspace(at: Workspaces, acme: int, globex: int) -> None:
    row = await stored.add(at, acme, draft())
    assert await agents.find(at, acme, row.id) == await agents.find(at, acme, "sales-bot") == row
    for workspace, name in ((globex, row.id), (acme, "nobody")):
        with pytest.raises(NotFound):
            await agents.find(at, workspace, name)
    with pytest.raises(NotFound):
        await stored.remove(at, globex, row.id)
    await stored.remove(at, acme, row.id)
    assert await agents.of_workspace(at, acme) == []


async def test_narrowed_credentials_see_only_their_own(at: Workspaces, acme: int) -> None:
    plain = await stored.add(at, acme, draft("plain"))
    system = await stored.add(at, acme, draft("system", system=True))
    anybody, narrowed = Caller(acme), Caller(acme, (system.id,))
    assert (await agents.visible(at, anybody, limit=9)).rows == [plain, system]
    assert [row.id for row in await agents.usable(at, anybody)] == [plain.id]
    assert (await agents.visible(at, narrowed, limit=9)).rows == [system]
    assert [row.id for row in await agents.usable(at, narrowed)] == [system.id]
    assert await agents.use(at, narrowed, system.id) == await agents.use_by_slug(at, narrowed, "system") == system
    assert await agents.find_visible(at, anybody, "system") == system
    with pytest.raises(NotFound):
        await agents.find_visible(at, narrowed, plain.id)


async def test_missing_agent_looks_like_all_others_when_narrowed(at: Workspaces, acme: int, globex: int) -> None:
    theirs = await stored.add(at, globex, draft())
    system = await stored.add(at, acme, draft("system", system=True))
    told: set[str] = set()
    for agent in (theirs.id, system.id, "agent_unknown"):
        with pytest.raises(Forbidden) as refused:
            await agents.use(at, Caller(acme, ("agent_other",)), agent)
        told.add(refused.value.message)
    assert len(told) == 1
    for slug in (theirs.slug, system.slug, "nobody"):
        with pytest.raises(NotFound, match=slug):
            await agents.use_by_slug(at, Caller(acme, ("agent_other",)), slug)
    for agent in (theirs.id, "agent_unknown"):
        with pytest.raises(NotFound, match=agent):
            await agents.use(at, Caller(acme), agent)
    with pytest.raises(NotFound, match="nobody"):
        await agents.use_by_slug(at, Caller(acme), "nobody")
    with pytest.raises(Forbidden):
        await agents.use(at, Caller(acme), system.id)
    with pytest.raises(InvalidRequest, match=r"^agent_id: "):
        await agents.use(at, Caller(acme), "no id!")
    with pytest.raises(Forbidden) as refused:
        agents.require_named(Caller(acme, ("agent_other",)), None)
    assert refused.value.hint == "Name one of them in agent_id."


async def test_run_takes_agents_spec_with_its_own_laid_over_it(at: Workspaces, acme: int) -> None:
    remote = [{"kind": "mcp", "name": name, "url": "https://mcp.example"} for name in ("kept", "replaced")]
    definition = AgentDraft(
        name="Bot",
        spec=json.dumps({"systemPrompt": "Be kind.", "modelId": "m1", "tools": remote}).encode(),
        headers={"kept": {"X-Key": "1"}, "replaced": {"X-Key": "2"}},
    )
    row = await stored.add(at, acme, definition)
    assert b"X-Key" not in (row.secrets or b"") and row.secrets is not None
    own = {"prompt": "hi", "modelId": "m2", "tools": [remote[1] | {"url": "https://other.example"}]}
    whole = await effective(at, Caller(acme), row.id, SpecAndHeaders(json.dumps(own).encode(), {"mine": {"X": "3"}}))
    spec = json.loads(whole.spec)
    assert spec["systemPrompt"] == "Be kind." and spec["modelId"] == "m2" and spec["name"] == "Bot"
    assert [tool["name"] for tool in spec["tools"]] == ["kept", "replaced"]
    # The replaced tool is sent to another address: the agent's headers must not go there.
    assert whole.headers == {"kept": {"X-Key": "1"}, "mine": {"X": "3"}}


async def test_a_run_without_an_agent_stays_as_it_is(at: Workspaces, acme: int) -> None:
    own = SpecAndHeaders(b'{"prompt":"hi"}', {})
    assert await effective(at, Caller(acme), None, own) is own
    with pytest.raises(Forbidden):
        await effective(at, Caller(acme, ("agent_1",)), None, own)
