"""Tools stored in a workspace that are code: over the API, and in runs."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.testing import ServerProcess

from ..kit import Api, Frame, Json, check_error, of_type

SECRET = "tok-9876543210"
NAME: Json = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
TYPESCRIPT = """
import { env } from 'env';
import * as all from 'env';

export default ({ who }: { who: string }) => {
  console.log('using', env.TOKEN);
  return { greeting: `Hello ${who}`, names: Object.keys(env), all: Object.keys(all), token: env.TOKEN };
};
"""
PYTHON = """
from env import env

def default(args):
    if args["who"] == "Ann":
        raise ValueError("no " + env["TOKEN"])
"""


def greet(source: str = TYPESCRIPT, **fields: Any) -> Json:
    tool = {"kind": "code", "name": "greet", "description": "Greets.", "parameters": NAME, "source": source}
    return tool | {"secrets": {"TOKEN": SECRET}} | fields


async def create(api: Api, tool: Json) -> Json:
    reply = await api.post("tools", tool)
    assert reply.status == 201, reply.body
    return reply.json


async def result_of(api: Api, tool: Json) -> Frame:
    frames = await api.play("greet", tools=[{"kind": "stored", "id": tool["id"]}])
    assert SECRET not in str(frames)
    return of_type(frames, "tool_result")[0]


@pytest.mark.requirement("sandbox.env.bridged")
async def test_code_sees_its_env_and_secrets_are_redacted(server: ServerProcess, api: Api) -> None:
    tool = await create(api, greet())
    await create(api, greet(name="other", secrets={"OTHER": "not-for-greet-1"}))
    result = await result_of(api, tool)
    assert result["ok"], result
    # Its own value and no other of the workspace or the server.
    expected = '{"greeting": "Hello Ann", "names": ["TOKEN"], "all": ["env"], "token": "[redacted]"}'
    assert result["result"] == f"{expected}\n\nLogged:\nusing [redacted]"
    assert all(SECRET.encode() not in path.read_bytes() for path in server.db.iterdir() if path.is_file())


@pytest.mark.requirement("sandbox.env.bridged")
async def test_the_errors_of_python_are_blacked_out_too(api: Api) -> None:
    tool = await create(api, greet(PYTHON, language="python", effect="read"))
    result = await result_of(api, tool)
    assert not result["ok"]
    assert result["result"].startswith("The code failed: ValueError: no [redacted] (line 6, column 15)")


async def test_code_that_runs_too_long_is_ended(api: Api) -> None:
    result = await result_of(api, await create(api, greet("export default () => { while (true) {} }", timeoutMs=200)))
    assert result["result"] == ("The code was stopped: TerminatedError: The code reached its limit of 0.2 seconds.")


async def test_code_tools_keep_secrets_from_changed_code(api: Api) -> None:
    tool = await create(api, greet(effect="read"))
    assert (tool["kind"], tool["language"], tool["source"]) == ("code", "typescript", TYPESCRIPT)
    assert (tool["secrets"], tool["timeoutMs"], tool["effect"]) == (["TOKEN"], 30_000, "read")
    assert "url" not in tool and "method" not in tool
    assert (await api.get(f"tools/{tool['id']}")).json == tool
    path = f"tools/{tool['id']}"
    changed = await api.call("PATCH", path, {"description": "New.", "kind": "code"})
    assert (changed.json["description"], changed.json["source"]) == ("New.", TYPESCRIPT)
    other = "export default () => 1"
    refused = check_error(await api.call("PATCH", path, {"source": other}), 400, "invalid_request")
    assert refused["issues"][0] == {
        "path": "secrets.TOKEN",
        "message": "must be sent again when the tool's code changes",
    }
    again = await api.call("PATCH", path, {"source": other, "secrets": {"TOKEN": "another-value"}})
    assert again.json["source"] == other
    for body, field in (
        ({"url": "https://x.example"}, "url"),
        ({"kind": "http"}, "kind"),
        ({"timeoutMs": 60_000}, "timeoutMs"),
    ):
        assert check_error(await api.call("PATCH", path, body), 400, "invalid_request")["issues"][0]["path"] == field


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"source": None}, "source", "is required"),
        ({"source": ""}, "source", ""),
        ({"source": "x" * (128 * 1024 + 1)}, "source", ""),
        ({"language": "ruby"}, "language", ""),
        ({"timeoutMs": 30_001}, "timeoutMs", "code may run for at most 30,000 milliseconds"),
        ({"url": "https://x.example"}, "url", "only tools of kind `http` have this"),
        ({"headers": {}}, "headers", "only tools of kind `http` have this"),
        ({"parameters": {"type": "string"}}, "parameters", "must be a JSON Schema of type object with properties"),
    ],
)
async def test_wrong_tool_of_code_is_refused_with_field_at_fault(api: Api, fields: Json, path: str, words: str) -> None:
    tool = {name: value for name, value in greet(**fields).items() if value is not None}
    [issue] = check_error(await api.post("tools", tool), 400, "invalid_request")["issues"]
    assert issue["path"] == path
    assert words in issue["message"]
