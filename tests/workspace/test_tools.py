"""Stored tools: their secrets, and what cannot work is refused when it is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from weftline.cases import tools
from weftline.cases.tools import ToolChanges, spec_of
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.store.records import tools as rows
from weftline.tools.http import HttpSpec
from weftline.workspace.context import Workspaces

TOKEN = {"Authorization": "Bearer {{secrets.TOKEN}}"}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


CITY = raw({"type": "object", "properties": {"city": {"type": "string"}}})


def spec(name: str = "weather", url: str = "https://api.example/{{city}}", **fields: Any) -> HttpSpec:
    given: dict[str, Any] = {"parameters": CITY, **fields}
    return HttpSpec(name, url, **given)


async def values(at: Workspaces, workspace: int, id: str) -> dict[str, str]:
    row = await tools.find(at, workspace, id)
    return at.vault.open_values(row.secrets, tool=id)


async def test_secrets_are_stored_sealed_and_read_as_names(at: Workspaces, acme: int) -> None:
    row = await tools.add(at, acme, spec(headers=TOKEN), values={"TOKEN": "s3cret", "OTHER": "x"})
    assert spec_of(row).secrets == ("OTHER", "TOKEN")
    assert b"s3cret" not in row.spec + (row.secrets or b"")
    assert await values(at, acme, row.id) == {"TOKEN": "s3cret", "OTHER": "x"}


async def test_a_change_keeps_what_it_does_not_name(at: Workspaces, acme: int) -> None:
    row = await tools.add(at, acme, spec(headers=TOKEN), values={"TOKEN": "one", "OTHER": "x"})
    await tools.amend(at, acme, row.id, ToolChanges(description="Tells the weather."))
    assert await values(at, acme, row.id) == {"TOKEN": "one", "OTHER": "x"}
    changed = await tools.amend(at, acme, row.id, ToolChanges(secrets={"TOKEN": "two", "OTHER": None}))
    assert await values(at, acme, row.id) == {"TOKEN": "two"}
    now = spec_of(changed)
    assert isinstance(now, HttpSpec)
    assert now.description == "Tells the weather." and now.headers == TOKEN and now.secrets == ("TOKEN",)
    bare = await tools.amend(
        at, acme, row.id, ToolChanges(url="https://api.example", headers={}, parameters=None, secrets={"TOKEN": None})
    )
    assert spec_of(bare).parameters is UNSET and bare.secrets is None


async def test_a_secret_that_is_still_used_cannot_be_removed(at: Workspaces, acme: int) -> None:
    row = await tools.add(at, acme, spec(headers=TOKEN), values={"TOKEN": "one"})
    with pytest.raises(InvalidRequest) as refused:
        await tools.amend(at, acme, row.id, ToolChanges(secrets={"TOKEN": None}))
    assert refused.value.details["issues"] == [{"path": "headers", "message": "there is no secret 'TOKEN'"}]
    assert await values(at, acme, row.id) == {"TOKEN": "one"}


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (spec(url="https://{{city}}.example"), "url"),
        (spec(url="https://api.example/{{town}}"), "url"),
        (spec(body=raw("x")), "body"),
        (spec(headers={"Cookie": "plain"}), "headers.Cookie"),
        (spec(headers={"Transfer-Encoding": "chunked"}), "headers.Transfer-Encoding"),
        (spec(url="https://api.example/{{secrets.TOKEN}}"), "url"),
        (spec(parameters=raw({"type": "array"})), "parameters"),
        (spec(parameters=raw({"type": "object", "properties": {"city": {"type": "nonsense"}}})), "parameters"),
        (spec(parameters=UNSET), "url"),
    ],
)
async def test_a_tool_that_cannot_work_is_refused(at: Workspaces, acme: int, wrong: HttpSpec, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await tools.add(at, acme, wrong, values={})
    assert [issue["path"] for issue in refused.value.details["issues"]] == [path]
    assert (await at.records.read(rows.page(workspace=acme, after=0, limit=9))).rows == []


async def test_a_name_is_had_once_in_a_workspace(at: Workspaces, acme: int, globex: int) -> None:
    first = await tools.add(at, acme, spec(), values={})
    other = await tools.add(at, acme, spec("other"), values={})
    await tools.add(at, globex, spec(), values={})
    with pytest.raises(Conflict):
        await tools.add(at, acme, spec(), values={})
    with pytest.raises(Conflict):
        await tools.amend(at, acme, other.id, ToolChanges(name="weather"))
    assert (await at.records.read(rows.page(workspace=acme, after=0, limit=9))).rows == [first, other]


async def test_a_tool_of_another_workspace_is_not_there(at: Workspaces, acme: int, globex: int) -> None:
    row = await tools.add(at, acme, spec(), values={})
    for attempt in (
        tools.find(at, globex, row.id),
        tools.amend(at, globex, row.id, ToolChanges(description="x")),
        tools.remove(at, globex, row.id),
    ):
        with pytest.raises(NotFound):
            await attempt
    await tools.remove(at, acme, row.id)
    assert (await at.records.read(rows.page(workspace=acme, after=0, limit=9))).rows == []
