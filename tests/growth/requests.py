"""What callers send: bodies, queries, headers, forms, cursors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from weftline.api.cursors import key_of
from weftline.api.validation import parsed_as
from weftline.cases.agents import AgentModel
from weftline.cases.tools import ToolModel, new_tool
from weftline.cases.webhooks import WebhookModel, parse_delivery_id
from weftline.errors import WeftlineError
from weftline.runtime import ids
from weftline.server.a2a.rpc import NotACall, RpcError, parse_call
from weftline.server.a2a.serving import page_cursor, page_time
from weftline.server.a2a.v0_3 import V03
from weftline.server.a2a.v1_0 import V1
from weftline.server.declared import Declared, Form
from weftline.server.http import Request
from weftline.server.oauth.forms import read_form
from weftline.server.router import Router, declared_by
from weftline.server.routes.every import ROUTES
from weftline.server.routes.runs import ROUTES as OF_RUNS
from weftline.server.sse import resume_point
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.plan import plan_from_spec
from weftline.text.canonical import NotCanonical, canonical, parse
from weftline.text.json_size import excess, has_more_values
from weftline.text.percent import decoded_up_to
from weftline.text.schema_cost import TooCostly, measured
from weftline.trace_context import RequestInfo
from weftline.wire.json_text import decode_object
from weftline.wire.requests import parse_tool_result
from weftline.workspace.apps import redirect_uri
from weftline.workspace.grants import OAuthError

from .meter import Maker, Work

_ROUTER = Router(ROUTES)
_FORM = Form[Any](dict)
_STREAM = declared_by(next(route for route in OF_RUNS if route.path.endswith("/stream")))
_DECLARED = Declared(_STREAM.query | {"z"}, _STREAM.headers, _FORM)


def _refused(work: Work) -> Work:
    def run() -> None:
        with suppress(WeftlineError, RpcError, NotACall, NotCanonical, TooCostly, OAuthError, ValueError):
            work()

    return run


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _run(**spec: Any) -> Work:
    body = _json({"prompt": "x", **spec} if "messages" not in spec else spec)
    return _refused(lambda: plan_from_spec(parse_run(body).spec))


def _attached(url: str) -> Work:
    return _run(attachments=[{"url": url}])


def _local(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "local", "name": name, **fields}


def _twice_the_next(levels: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {}}}


def _request(*, query: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: object) -> None: ...

    scope: dict[str, Any] = {"method": "GET", "path": "/", "query_string": query, "headers": headers or []}
    request = Request(scope, receive, send, RequestInfo("req_1"))
    request.declared = _DECLARED
    return request


def _form(body: bytes) -> Work:
    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    return _refused(lambda: asyncio.run(read_form(_request(headers=headers, body=body), _FORM)))


CASES: dict[str, tuple[int, Maker]] = {
    "messages": (1_000, lambda n: _run(messages=[{"role": "user", "content": "x"}] * n)),
    "messages that are all wrong": (1_000, lambda n: _run(messages=[{}] * n)),
    "messages of nothing": (20_000, lambda n: _run(messages=[None] * n)),
    "tools": (60, lambda n: _run(tools=[_local(f"t{i}") for i in range(n)])),
    "tools of one name": (60, lambda n: _run(tools=[_local("t")] * n)),
    "tools of no kind": (60, lambda n: _run(tools=[{"kind": "x" * 100}] * n)),
    "schemas of tools": (8, lambda n: _run(tools=[_local(f"t{i}", parameters=_twice_the_next(12)) for i in range(n)])),
    "a large schema": (400, lambda n: _run(tools=[_local("t", parameters={"enum": [{}] * n})])),
    "a header": (
        1_000,
        lambda n: _run(tools=[{"kind": "mcp", "name": "m", "url": "http://x", "headers": {"a": "b" * n}}]),
    ),
    "a URL": (1_000, lambda n: _run(tools=[{"kind": "mcp", "name": "m", "url": "http://x/" + "a?" * n}])),
    "a tool name": (100_000, lambda n: _run(tools=[_local("a" * n + "!")])),
    "a plugin name": (100_000, lambda n: _run(tools=[{"kind": "mantyx_plugin", "name": "@a/" + "a-" * n + "!"}])),
    "metadata": (20_000, lambda n: _run(metadata={f"k{i}": "v" for i in range(n)})),
    "a metadata key": (100_000, lambda n: _run(metadata={"a." * n + "!": "v"})),
    "tool budgets": (8_000, lambda n: _run(toolBudgets={f"k{i}": {"maxCalls": 1} for i in range(n)})),
    "unknown fields": (8_000, lambda n: _run(**{f"k{i}": [] for i in range(n)})),
    "a prompt": (30_000, lambda n: _run(prompt='"\\\u00e9,[' * n)),
    "brackets": (20_000, lambda n: _refused(lambda: decode_object(b'{"a":' * n))),
    "brackets that close": (20_000, lambda n: _refused(lambda: decode_object(b'{"a":' * n + b"1" + b"}" * n))),
    "a number": (20_000, lambda n: _refused(lambda: decode_object(b'{"a":' + b"1" * n + b"}"))),
    "a fraction": (20_000, lambda n: _refused(lambda: decode_object(b'{"a":0.' + b"1" * n + b"e-99}"))),
    "a session": (60, lambda n: _refused(lambda: parse_session(_json({"tools": [_local(f"t{i}") for i in range(n)]})))),
    "a message to a session": (100_000, lambda n: _refused(lambda: parse_message(_json({"prompt": "x" * n})))),
    "an agent": (100_000, lambda n: _refused(lambda: parsed_as(AgentModel, {"name": "a" * n, "spec": {}}))),
    "a stored tool": (
        2_000,
        lambda n: _refused(
            lambda: new_tool(parsed_as(ToolModel, {"name": "t", "url": "http://x/" + "{{ a" * n})[0], ())
        ),
    ),
    "a tool result": (
        200_000,
        lambda n: _refused(lambda: parse_tool_result(_json({"toolUseId": "x", "result": "\n" * n}), user_agent="")),
    ),
    "a tool result of anything": (
        20_000,
        lambda n: _refused(lambda: parse_tool_result(_json({"toolUseId": ["x"] * n, "result": {}}), user_agent="")),
    ),
    "counting values": (200_000, lambda n: lambda: has_more_values(b'[],"",\\"' * n)),
    "a long integer": (200_000, lambda n: lambda: excess(b"9" * n)),
    "many long integers": (500, lambda n: lambda: excess(b"9" * 400 + b"," + b"9" * 401 * n)),
    "digits in strings": (200_000, lambda n: lambda: excess(b'["' + b"9" * n + b'"]')),
    "exponents": (40_000, lambda n: lambda: excess(b"1e20," * n + b"1e300," * n)),
    "exponents in strings": (40_000, lambda n: lambda: excess(b'["' + b"e123" * n + b'"]')),
    "a schema with references": (20, lambda n: _refused(lambda: measured(_twice_the_next(n)))),
    "a schema with a long pattern": (100_000, lambda n: _refused(lambda: measured({"pattern": "{1,1" * n}))),
    "a schema with long pointers": (
        200,
        lambda n: _refused(lambda: measured({"anyOf": [{"$ref": "#" + "/a" * 100}] * n})),
    ),
    "canonical JSON": (50_000, lambda n: _refused(lambda: canonical(b'{"a":[' + b"1.5e3," * n + b"0]}"))),
    "canonical keys": (6_000, lambda n: _refused(lambda: canonical(_json({f"k{i}": i for i in range(n)})))),
    "arguments nested deep": (20_000, lambda n: _refused(lambda: parse("[" * n + "]" * n))),
    "a JSON-RPC call": (
        50_000,
        lambda n: _refused(
            lambda: V03().message(
                parse_call(
                    _json(
                        {
                            "jsonrpc": "2.0",
                            "id": 1,
                            "method": "message/send",
                            "params": {"message": {"parts": [{"kind": "text", "text": "x"}] * n}},
                        }
                    )
                ).params
            )
        ),
    ),
    "a message of A2A 1.0": (
        4_000,
        lambda n: _refused(lambda: V1().message(_json({"message": {"parts": [{"text": "x", "media_type": ""}] * n}}))),
    ),
    "a page of A2A tasks": (100_000, lambda n: _refused(lambda: page_cursor("1-" * n))),
    "a time of A2A": (100_000, lambda n: _refused(lambda: page_time("2026-01-01T" * n))),
    "what is not a JSON-RPC call": (100_000, lambda n: _refused(lambda: parse_call(b'[{"a":1},' * n))),
    "a query": (5_000, lambda n: _refused(lambda: _request(query=b"a=%41&;" * n).query_value("z"))),
    "a query of percent signs": (5_000, lambda n: _refused(lambda: _request(query=b"a=%&%4" * n).query_value("z"))),
    "an escaped text": (50_000, lambda n: lambda: decoded_up_to(b"a=%41%3d" * n, 100 * n)),
    "percent signs": (200_000, lambda n: _refused(lambda: decoded_up_to(b"%" * n, 100 * n))),
    "a data URL": (100_000, lambda n: _attached("data:text/plain," + "a%41" * n)),
    "a data URL of percent signs": (100_000, lambda n: _attached("data:text/plain," + "%" * n)),
    "a data URL in base64": (200_000, lambda n: _attached("data:text/plain;base64," + "QUFB" * n)),
    "a data URL of parameters": (200_000, lambda n: _attached("data:text/plain" + ";" * n + ",x")),
    "a path": (50_000, lambda n: lambda: _ROUTER.match("GET", "/api" + "/v1" * n)),
    "headers": (
        20_000,
        lambda n: lambda: resume_point(_request(headers=[(b"x", b"y")] * n + [(b"last-event-id", b"7" * n)])),
    ),
    "a form": (20_000, lambda n: _form(b"a=%41&" * n)),
    "a cursor": (100_000, lambda n: _refused(lambda: key_of("MTox" * n))),
    "an id": (100_000, lambda n: lambda: ids.parse("run_" + "f" * n, prefix="run_")),
    "the id of a delivery": (100_000, lambda n: _refused(lambda: parse_delivery_id("dlv_" + "0" * n))),
    "the URL of a webhook": (
        100_000,
        lambda n: _refused(lambda: parsed_as(WebhookModel, {"url": "http://" + "a/?#" * n})),
    ),
    "a redirect URI": (100_000, lambda n: _refused(lambda: redirect_uri("http://" + "a:@/" * n))),
}
