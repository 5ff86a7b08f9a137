"""Schedules over HTTP, from the client and by command, on a real server."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from commands import weftline_beside
from weftline.client import AsyncClient, BadRequest, InvalidSpec, NotFound, server_tool, tool
from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Api, Json, check_error

SPEC: Json = {"modelId": "scripted:hello", "prompt": "hi"}
YEARLY: Json = {"name": "Yearly", "cron": "@yearly", "spec": SPEC}


async def made(api: Api, **fields: Any) -> Json:
    reply = await api.post("schedules", {**YEARLY, **fields})
    assert reply.status == 201, reply.body
    return reply.json


async def test_schedule_starts_its_run_and_finds_it(server: ServerProcess, api: Api) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    async with AsyncClient(api_key=api.key, workspace=api.slug, base_url=server.url) as client:
        one = await client.schedules.create("Soon", "hi", at=soon, model_id="scripted:hello", name="tidy")
        assert (one.next_at, one.last_run_id, one.spec["name"]) == (soon, None, "tidy")
        async with asyncio.timeout(TIMEOUT_S):
            while (one := await client.schedules.get(one.id)).last_run_id is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (one.next_at, one.last_at, one.last_error) == (None, soon, "")
        (run,) = (await client.list_runs(metadata={"weftline.schedule": one.id})).items
        assert run.id == one.last_run_id and (await client.wait_run(run.id)).status == "succeeded"


async def test_it_is_made_listed_changed_switched_started_and_removed(server: ServerProcess, api: Api) -> None:
    async with AsyncClient(api_key=api.key, workspace=api.slug, base_url=server.url) as client:
        book = client.schedules
        one = await book.create(
            "Weekdays",
            "hi",
            cron="0 9 * * 1-5",
            timezone="Europe/Berlin",
            catch_up="skip",
            model_id="scripted:hello",
            tools=[server_tool("calculator")],
        )
        assert one.next_at is not None and one.next_at.astimezone(UTC).hour in (7, 8) and one.catch_up == "skip"
        assert one.requested_by.startswith("key:") and [listed.id for listed in await book.list()] == [one.id]
        off = await book.pause(one.id)
        assert (off.enabled, off.next_at) == (False, None)
        run = await client.wait_run(await book.run(one.id))
        assert run.status == "succeeded" and (await book.get(one.id)).last_run_id == run.id
        on = await book.resume(one.id)
        assert on.next_at == one.next_at
        other = await book.change(one.id, name="Noon", cron="0 12 * * *", timezone="UTC", spec={**SPEC, "prompt": "ho"})
        assert other.next_at is not None and (other.name, other.next_at.hour, other.spec["prompt"]) == (
            "Noon",
            12,
            "ho",
        )
        with pytest.raises(BadRequest, match="this time has passed"):
            await book.change(one.id, at=datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidSpec, match="tools of this process: here"):
            await book.create("Local", "hi", cron="@daily", tools=[tool(name="here")(lambda: "x")])
        await book.delete(one.id)
        with pytest.raises(NotFound):
            await book.run(one.id)
        assert await book.list() == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cron": None}, "exactly one of `at` and `cron`"),
        ({"at": "2100-01-01T00:00:00Z"}, "exactly one of `at` and `cron`"),
        ({"cron": None, "at": "2100-01-01T00:00:00"}, "a time with a time zone"),
        ({"cron": None, "at": "2020-01-01T00:00:00Z"}, "this time has passed"),
        ({"cron": None, "at": "1969-01-01T00:00:00Z"}, "at: this time has passed"),
        ({"cron": None, "at": "9999-01-01T00:00:00Z"}, "at: must be before the year 9000"),
        ({"cron": None, "at": "9999-01-01T00:00:00"}, "a time with a time zone"),
        ({"cron": "0 0 31 2 *"}, "never occurs"),
        ({"timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"catchUp": "twice"}, "catchUp"),
        ({"spec": {"modelId": "scripted:hello"}}, "spec: prompt"),
        ({"spec": {**SPEC, "prompt": "x" * 300_000}}, "spec: has more than 262,144 bytes"),
        ({"spec": {**SPEC, "metadata": {str(n): "" for n in range(15)}}}, "spec: metadata"),
        (
            {"spec": {**SPEC, "attachments": [{"mediaType": "text/plain", "data": "aGk="}]}},
            "spec: attachments: a schedule",
        ),
        ({"spec": SPEC, "crom": "* * * * *", "cron": None}, "cron instead of crom"),
    ],
)
async def test_unschedulable_time_is_refused_in_words(fields: Json, says: str, api: Api) -> None:
    reply = await api.post("schedules", {**YEARLY, **fields})
    assert says in check_error(reply, 400, "invalid_request")["message"]


async def test_unrunnable_spec_is_not_scheduled(api: Api, other_api: Api) -> None:
    check_error(await api.post("schedules", {**YEARLY, "spec": {**SPEC, "modelId": "nope"}}), 400, "invalid_model")
    check_error(await api.post("schedules", {**YEARLY, "spec": {"agentId": "nope", "prompt": "x"}}), 404, "not_found")
    mine = (await made(api))["id"]
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/run")):
        check_error(await other_api.call(method, f"schedules/{mine}{path}", {}), 404, "not_found")


async def test_a_request_that_comes_again_finds_its_schedule(api: Api) -> None:
    once = {"Idempotency-Key": "k1"}
    first, again = [await api.post("schedules", YEARLY, headers=once) for _ in range(2)]
    assert first.status == again.status == 201 and first.json["id"] == again.json["id"]
    check_error(await api.post("schedules", {**YEARLY, "name": "x"}, headers=once), 409, "idempotency_conflict")
    path = f"schedules/{first.json['id']}/run"
    runs = [(await api.post(path, headers=once)).json["runId"] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len((await api.get("schedules")).json["schedules"]) == 1


async def test_a_key_of_some_agents_schedules_and_sees_only_those(api: Api) -> None:
    ids = [
        (await api.post("agents", {"name": name, "spec": {"modelId": "scripted:hello"}})).json["id"]
        for name in ("Mine", "Yours")
    ]
    key = (await api.post("api-keys", {"name": "n", "agentIds": ids[:1]})).json["key"]
    others = [await made(api, spec={"agentId": ids[1], "prompt": "x"}), await made(api)]
    mine = await api.post("schedules", {**YEARLY, "spec": {"agentId": "mine", "prompt": "x"}}, key=key)
    assert mine.status == 201 and mine.json["agentId"] == mine.json["spec"]["agentId"] == ids[0]
    for spec in (SPEC, {"agentId": ids[1], "prompt": "x"}):
        check_error(await api.post("schedules", {**YEARLY, "spec": spec}, key=key), 403, "forbidden")
        change = await api.call("PATCH", f"schedules/{mine.json['id']}", {"spec": spec}, key=key)
        check_error(change, 403, "forbidden")
    for other in others:
        check_error(await api.get(f"schedules/{other['id']}", key=key), 404, "not_found")
        check_error(await api.post(f"schedules/{other['id']}/run", key=key), 404, "not_found")
    assert [one["id"] for one in (await api.get("schedules", key=key)).json["schedules"]] == [mine.json["id"]]


async def test_secrets_of_its_tools_are_never_shown_and_survive_change(api: Api) -> None:
    dialled = {"kind": "mcp", "name": "far", "url": "https://mcp.example/", "headers": {"Authorization": "s3cret"}}
    one = await made(api, spec={**SPEC, "tools": [dialled]})
    assert one["spec"]["tools"][0]["headers"] == {"Authorization": "[redacted]"}
    path = f"schedules/{one['id']}"
    assert (await api.call("PATCH", path, {"spec": one["spec"]})).json["spec"] == one["spec"]
    moved = {**one["spec"], "tools": [{**one["spec"]["tools"][0], "url": "https://other.example/"}]}
    refused = check_error(await api.call("PATCH", path, {"spec": moved}), 400, "invalid_request")
    assert "must be sent again" in refused["message"]


async def test_the_commands_do_the_same_through_the_running_server(server: ServerProcess, api: Api) -> None:
    at = ("--workspace", api.slug, "--db", str(server.db))
    what = ("--model", "scripted:hello", "--prompt", "hi", "--cron", "0 9 * * *", "--timezone", "Europe/Berlin")
    done = await weftline_beside("schedules", "add", "--name", "Daily", *what, *at)
    assert (done.code, done.err) == (0, "")
    one = done.out.strip()
    listed = await weftline_beside("schedules", "list", "-q", *at, "--json")
    assert json.loads(listed.out)[0]["requestedBy"].startswith("operator:")
    assert (await weftline_beside("schedules", "list", "-q", *at)).out == f"{one}\n"
    assert (await weftline_beside("schedules", "pause", one, *at)).out == f"{one}\n"
    assert (await api.get(f"schedules/{one}")).json["enabled"] is False
    assert (await weftline_beside("schedules", "resume", one, *at)).out.startswith("20")
    run = (await weftline_beside("schedules", "run", one, *at)).out.strip()
    assert (await api.snapshot(run))["metadata"] == {"weftline.schedule": one}
    assert (await weftline_beside("schedules", "remove", one, *at)).out == f"{one}\n"
    gone = await weftline_beside("schedules", "remove", one, *at)
    assert (gone.code, gone.err) == (1, "weftline: There is no such schedule.\n")
    later = await weftline_beside("schedules", "add", "--name", "x", "--model", "nope", *what[2:], *at)
    assert later.code == 0 and "cannot run as things are" in later.err
