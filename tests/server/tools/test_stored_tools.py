"""HTTP tools stored in a workspace: over the API, by command, and in runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from msgspec import Raw
from msgspec.json import encode

from commands import weftline
from weftline.messages import Image, Text
from weftline.net.dial import Dialer
from weftline.testing import ServerProcess
from weftline.tools.base import ToolContext
from weftline.tools.builtin.code_functions import value_of
from weftline.tools.http import HttpSpec, HttpTool

from ..kit import TIMEOUT_S, Api, Json, check_error, local_tool, of_type
from .peers import Peer, serving

SECRET = "tok-0123456789"
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def weather(url: str = "https://weather.example/v1/{{city}}/now", **fields: Any) -> Json:
    return {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": CITY,
        "url": url,
        "headers": {"Authorization": "Bearer {{secrets.TOKEN}}"},
        "secrets": {"TOKEN": SECRET},
        **fields,
    }


async def create(api: Api, tool: Json) -> Json:
    reply = await api.post("tools", tool)
    assert reply.status == 201, reply.body
    return reply.json


async def clear_sky(request: web.Request) -> web.Response:
    return web.json_response({"sky": "clear", "seen": request.headers.get("Authorization", "")})


@pytest.mark.requirement("wire.tools.mantyx", "wire.event.server_tool")
async def test_a_stored_tool_runs_on_the_server(api: Api) -> None:
    async with serving(clear_sky) as site:
        tool = await create(api, weather(f"{site.url}/v1/{{{{city}}}}/now"))
        frames = await api.play("stored", tools=[{"kind": "mantyx", "id": tool["id"]}])
    assert site.paths == ["/v1/%C3%85rhus%20%26%20co/now?days=2"]
    assert site.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
    call, result = of_type(frames, "tool_call")[0], of_type(frames, "tool_result")[0]
    assert call["name"] == "get_weather" and result["ok"]
    # A secret that the peer gives back is blacked out.
    assert json.loads(result["result"]) == {"sky": "clear", "seen": "Bearer [redacted]"}
    assert not of_type(frames, "local_tool_call")


async def test_hanging_calls_do_not_delay_other_workspaces(api: Api, other_api: Api) -> None:
    held, over, full = 0, asyncio.Event(), asyncio.Event()

    async def hanging(request: web.Request) -> web.Response:
        nonlocal held
        if "Theirs" not in request.headers:
            held += 1
            if held == 64:
                full.set()
            await over.wait()
        return web.json_response({"sky": "clear"})

    async with serving(hanging) as site:
        mine = await create(api, weather(f"{site.url}/{{{{city}}}}"))
        theirs = await create(other_api, weather(f"{site.url}/{{{{city}}}}", headers={"Theirs": "1"}, secrets={}))
        tools = [{"kind": "mantyx", "id": mine["id"]}]
        runs = [await api.start("stored_often", tools=tools) for _ in range(2)]
        async with asyncio.timeout(TIMEOUT_S):
            await full.wait()
        frames = await other_api.play("stored", tools=[{"kind": "mantyx", "id": theirs["id"]}])
        assert of_type(frames, "tool_result")[0]["ok"]
        assert held == 64, "the others wait for their turn"
        over.set()
        for run in runs:
            results = of_type(await api.events(run), "tool_result")
            assert [result["ok"] for result in results] == [True] * 64


@pytest.mark.requirement("wire.tools.mantyx")
async def test_unowned_or_foreign_tool_is_refused_at_create(api: Api, other_api: Api) -> None:
    theirs = await create(other_api, weather())
    for id in ("tool_nothing", theirs["id"]):
        tools = [local_tool(), {"kind": "mantyx", "id": id}]
        for path in ("agent-runs", "agent-sessions"):
            body = {"modelId": "scripted:stored", "tools": tools} | ({"prompt": "x"} if path == "agent-runs" else {})
            assert "tools[1]" in check_error(await api.post(path, body), 400, "invalid_request")["message"]


async def test_a_stored_tool_may_not_take_anothers_name(api: Api) -> None:
    tool = await create(api, weather())
    tools = [local_tool("get_weather"), {"kind": "mantyx", "id": tool["id"]}]
    reply = await api.post("agent-runs", {"prompt": "x", "modelId": "scripted:stored", "tools": tools})
    assert "get_weather" in check_error(reply, 400, "invalid_request")["message"]


async def test_tools_are_created_read_changed_and_deleted(server: ServerProcess, api: Api, other_api: Api) -> None:
    tool = await create(api, weather(effect="idempotent", timeoutMs=5000))
    assert tool["id"].startswith("tool_") and tool["secrets"] == ["TOKEN"] and tool["timeoutMs"] == 5000
    assert (await api.get(f"tools/{tool['id']}")).json == tool
    assert [one["id"] for one in (await api.get("tools")).json["tools"]] == [tool["id"]]
    assert (await other_api.get("tools")).json == {"tools": [], "nextCursor": None}
    check_error(await other_api.get(f"tools/{tool['id']}"), 404, "not_found")
    check_error(await other_api.call("DELETE", f"tools/{tool['id']}"), 404, "not_found")
    changed = await api.call("PATCH", f"tools/{tool['id']}", {"description": "New.", "secrets": {"OTHER": "value-2"}})
    assert changed.status == 200, changed.body
    assert changed.json["description"] == "New." and changed.json["secrets"] == ["OTHER", "TOKEN"]
    assert changed.json["url"] == tool["url"] and changed.json["effect"] == "idempotent"
    back = await api.call("PATCH", f"tools/{tool['id']}", changed.json)  # as it was read
    assert (back.status, back.json["secrets"]) == (200, ["OTHER", "TOKEN"]), back.body
    kept = await api.call("PATCH", f"tools/{tool['id']}", {"secrets": {"TOKEN": "[redacted]"}})
    assert (kept.status, kept.json["secrets"]) == (200, ["OTHER", "TOKEN"])
    marked = await api.call("PATCH", f"tools/{tool['id']}", {"secrets": {"NEW": "[redacted]"}})
    assert "secrets.NEW" in check_error(marked, 400, "invalid_request")["message"]
    moved = await api.call(
        "PATCH", f"tools/{tool['id']}", {"url": "https://elsewhere.example/", "secrets": {"TOKEN": "[redacted]"}}
    )
    assert "must be sent again" in check_error(moved, 400, "invalid_request")["message"]
    gone = await api.call("PATCH", f"tools/{tool['id']}", {"secrets": {"TOKEN": None}})
    assert "TOKEN" in check_error(gone, 400, "invalid_request")["message"]
    assert (await api.call("DELETE", f"tools/{tool['id']}")).json == {"ok": True}
    check_error(await api.get(f"tools/{tool['id']}"), 404, "not_found")
    assert all(SECRET.encode() not in path.read_bytes() for path in server.db.iterdir() if path.is_file())


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"kind": "plugin"}, "kind"),
        ({"source": "export default 1"}, "source"),
        ({"name": "get-weather"}, "name"),
        ({"url": "ftp://x/"}, "url"),
        ({"url": "https://{{city}}.example/"}, "url"),
        ({"url": "https://x/{{planet}}"}, "url"),
        ({"headers": {"Authorization": "Bearer plain"}}, "headers.Authorization"),
        ({"headers": {"X-Y": "{{secrets.NONE}}"}}, "headers"),
        ({"method": "BREW"}, "method"),
        ({"body": {"a": 1}}, "body"),
        ({"parameters": {"type": "string"}}, "parameters"),
        ({"timeoutMs": 1}, "timeoutMs"),
        ({"effect": "maybe"}, "effect"),
    ],
)
async def test_a_wrong_tool_is_refused_with_the_field_at_fault(api: Api, fields: Json, place: str) -> None:
    body = check_error(await api.post("tools", weather(**fields)), 400, "invalid_request")
    assert body["issues"][0]["path"] == place and SECRET not in str(body)


async def test_two_tools_of_one_name_are_a_conflict(api: Api) -> None:
    await create(api, weather())
    check_error(await api.post("tools", weather()), 409, "conflict")


async def test_stored_tools_do_not_reach_the_inside(api: Api) -> None:
    tool = await create(api, weather("http://10.0.0.2:1/{{city}}"))
    frames = await api.play("stored", tools=[{"kind": "mantyx", "id": tool["id"]}])
    result = of_type(frames, "tool_result")[0]
    assert result["ok"] is False and "does not connect" in result["result"]


def test_tools_are_managed_by_command(server: ServerProcess) -> None:
    server.create_key("by-hand")

    def command(*arguments: str, stdin: str = "") -> str:
        done = weftline("tools", *arguments, "--workspace", "by-hand", "--db", str(server.db), stdin=stdin)
        assert done.code == 0, done.err
        return done.out.strip()

    tool = weather()
    del tool["secrets"]
    id = command("create", "--secret", f"TOKEN={SECRET}", stdin=json.dumps(tool))
    assert id in command("list", "-q").split()
    shown = command("show", id, "--json")
    assert json.loads(shown)["secrets"] == ["TOKEN"] and SECRET not in shown
    assert json.loads(command("delete", id, "--json")) == {"id": id, "deleted": True}
    assert id not in command("list", "--json")


async def invoked(dialer: Dialer, context: ToolContext, args: bytes, **spec: Any) -> Any:
    if "body" in spec:
        spec["body"] = raw(spec["body"])
    tool = HttpTool(HttpSpec("call", **spec), secrets={"TOKEN": SECRET}, dialer=dialer)
    return await tool.invoke(args, context)


def raw(value: object) -> Raw:
    return Raw(encode(value))


async def test_a_json_body_is_filled_by_structure(dialer: Dialer, context: ToolContext) -> None:
    async with serving(clear_sky) as site:
        body = {"q": "{{city}}", "note": "to {{city}}", "n": "{{days}}", "key": "{{secrets.TOKEN}}", "none": "{{x}}"}
        args = b'{"city":"a\\"b","days":[1,2]}'
        await invoked(dialer, context, args, url=f"{site.url}/", method="POST", body=body)
        await invoked(dialer, context, b'{"city":"a","days":1}', url=f"{site.url}/{{{{city}}}}", method="PUT")
        await invoked(dialer, context, b'{"city":"a"}', url=f"{site.url}/", method="POST", body="<c>{{city}}</c>")
    first, second, third = site.requests
    assert first.json == {"q": 'a"b', "note": 'to a"b', "n": [1, 2], "key": SECRET, "none": None}
    assert first.headers["Content-Type"] == "application/json" and first.headers["Idempotency-Key"] == "key-1"
    assert second.json == {"days": 1} and second.path == "/a"
    assert third.body == b"<c>a</c>" and third.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("path", "value"), [("json", 5), ("text", "5"), ("failed", "HTTP 500 Internal Server Error\n5")]
)
async def test_code_gets_the_value_of_an_answer_in_json(
    dialer: Dialer, context: ToolContext, path: str, value: object
) -> None:
    async def answer(request: web.Request) -> web.Response:
        kind = "text/plain" if request.path == "/text" else "application/json"
        return web.Response(text="5", content_type=kind, status=500 if request.path == "/failed" else 200)

    async with serving(answer) as site:
        assert value_of(await invoked(dialer, context, b"{}", url=f"{site.url}/{path}")) == value


async def test_no_argument_leaves_its_place(dialer: Dialer, context: ToolContext) -> None:
    async with serving(clear_sky) as site:
        url = f"{site.url}/a/{{{{x}}}}/b?q={{{{y}}}}"
        await invoked(dialer, context, b'{"x":"../../etc?z#w","y":"1&admin=1"}', url=url)
        up = await invoked(dialer, context, b'{"x":"..","y":""}', url=url)
        line = await invoked(dialer, context, b'{"x":"a\\r\\nX-Evil: 1"}', url=f"{site.url}/", headers={"X-A": "{{x}}"})
    assert site.paths == ["/a/..%2F..%2Fetc%3Fz%23w/b?q=1%26admin%3D1"]
    assert up.is_error and line.is_error


@pytest.mark.parametrize(
    ("part", "spec"),
    [
        ("address", {"url": "http://127.0.0.1:9/?" + "&a={{x}}" * 9_000}),
        ("address", {"url": "http://127.0.0.1:9/" + "{{x}}" * 9_000}),
        ("address", {"url": "http://127.0.0.1:9/"}),
        ("header", {"url": "http://127.0.0.1:9/", "headers": {"X-A": "{{x}}" * 9_000}}),
        ("body", {"url": "http://127.0.0.1:9/", "method": "POST", "body": "{{x}}" * 9_000}),
        ("body", {"url": "http://127.0.0.1:9/", "method": "POST", "body": ["{{x}}"] * 9_000}),
        ("body", {"url": "http://127.0.0.1:9/", "method": "POST", "body": [{"a": "{{x}}!"}] * 9_000}),
        ("body", {"url": "http://127.0.0.1:9/", "method": "POST", "body": ["{{y}}"] * 9_000}),
    ],
)
async def test_a_template_cannot_multiply_an_argument(
    part: str, spec: dict[str, Any], dialer: Dialer, context: ToolContext
) -> None:
    """A megabyte nine thousand times over would take all the memory there is before anything is sent."""
    args = encode({"x": "é" * 1_000_000, "y": ["a" * 1_000_000]})
    refused = await invoked(dialer, context, args, **spec)
    assert refused.is_error and not refused.in_doubt
    assert f"make the request's {part} longer than" in refused.parts[0].text


async def test_answers_become_results(dialer: Dialer, context: ToolContext) -> None:
    async def mixed(request: web.Request) -> web.Response:
        match request.path:
            case "/image":
                return web.Response(body=b"\x89PNG", content_type="image/png")
            case "/binary":
                return web.Response(body=b"\x00\x01", content_type="application/octet-stream")
            case "/empty":
                return web.Response(status=204)
            case "/large":
                return web.Response(text="x" * 3_000_000)
            case _:
                return web.Response(status=418, text="short and stout")

    async with serving(mixed) as site:

        async def of(path: str) -> Any:
            return await invoked(dialer, context, b"{}", url=site.url + path)

        assert isinstance((await of("/image")).parts[0], Image)
        assert "cannot be shown" in (await of("/binary")).parts[0].text
        assert (await of("/empty")).parts == (Text("HTTP 204"),)
        assert len((await of("/large")).parts[0].text) < 250_000
        teapot = await of("/teapot")
        assert teapot.is_error and "418" in teapot.parts[0].text and "short and stout" in teapot.parts[0].text


async def test_secrets_do_not_follow_a_redirect_to_another_origin(dialer: Dialer, context: ToolContext) -> None:
    async with serving(clear_sky) as elsewhere:

        async def away(request: web.Request) -> web.Response:
            if request.path == "/near":
                raise web.HTTPTemporaryRedirect("/far")
            raise web.HTTPFound(f"{elsewhere.url}/there")

        async with serving(away) as site:
            headers = {"X-Token": "{{secrets.TOKEN}}"}
            await invoked(dialer, context, b"{}", url=f"{site.url}/near", headers=headers)
    assert [request.headers.get("X-Token") for request in site.requests] == [SECRET, SECRET]
    assert elsewhere.paths == ["/there"] and "X-Token" not in elsewhere.requests[0].headers


async def test_a_peer_that_goes_away_leaves_the_call_in_doubt(dialer: Dialer, context: ToolContext) -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    peer: Peer
    async with serving(cut) as peer:
        output = await invoked(dialer, context, b"{}", url=f"{peer.url}/", method="POST")
    assert output.is_error and "may or may not" in output.parts[0].text
