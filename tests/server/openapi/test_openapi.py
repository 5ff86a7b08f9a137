# The generator's own types are open, and so is what it makes of the page.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The OpenAPI page tells the truth: a generator of requests reads it and the server is held to it."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from weftline.cli.admin import administer, now_us
from weftline.server.openapi import DESCRIBED, document
from weftline.server.router import Route
from weftline.server.routes import ROUTES
from weftline.testing import ServerProcess

from ..kit import Json

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DIALLED = ("mcp", "a2a")
MODEL = {"modelId": "scripted:hello"}
MAKERS: dict[str, tuple[str, Json, str]] = {
    "agentId": ("agents", {"name": "Known", "spec": MODEL}, "id"),
    "sessionId": ("agent-sessions", MODEL, "sessionId"),
    "webhookId": ("webhooks", {"url": "http://127.0.0.1:9/hook"}, "id"),
}
MESSAGE = {"message": {"parts": [{"kind": "text", "text": "hi"}]}}
BODIES: dict[str, Json] = {
    "RunModel": MODEL,
    "MessageModel": {"prompt": "hi"},
    "ToolResult": {"toolUseId": "none", "result": "x"},
    "AgentModel": {"name": "Another", "spec": {}},
    "WebhookModel": {"url": "http://127.0.0.1:9/hook"},
    "WebhookChange": {"enabled": True},
    "RpcCall": {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": MESSAGE},
}
"""A body of each shape that is good for a success, as far as one can be had without a client at work."""
OPERATIONS = [key for key in DESCRIBED if not key[1].startswith("/api/mcp")]
"""MCP has a protocol of its own, and its own tests."""


class Known:
    """A workspace with something of everything, so that requests find what they name."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
        self.slug = "described"
        _, secret = administer(server.db, "keys.create", workspace=self.slug, name="t", now=now_us())
        self.headers = {"Authorization": f"Bearer {secret}"}
        webhook = self.made("webhookId")
        agent = self.made("agentId")
        run = self.post("agent-runs", {"agentId": agent, "prompt": "hi", "metadata": {"k": "v"}})["runId"]
        waiting = self.post("agent-runs", {**MODEL, "prompt": "hi"})["runId"]
        for one in (run, waiting):
            self.open(f"/api/v1/workspaces/{self.slug}/agent-runs/{one}/stream")
        delivery = json.loads(self.open(f"/api/v1/workspaces/{self.slug}/webhooks/{webhook}/deliveries"))
        self.values = {
            "slug": self.slug,
            "runId": run,
            "sessionId": self.made("sessionId"),
            "agentId": agent,
            "agentSlug": "known",
            "webhookId": webhook,
            "deliveryId": delivery["deliveries"][0]["id"],
        }

    def made(self, name: str) -> str:
        """A new thing of a kind, by the name that paths have for its id."""
        path, body, field = MAKERS[name]
        return self.post(path, body)[field]

    def post(self, path: str, body: Json) -> Json:
        return json.loads(self.open(f"/api/v1/workspaces/{self.slug}/{path}", json.dumps(body).encode()))

    def open(self, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=data, headers=self.headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()


@pytest.fixture(scope="module")
def known(server: ServerProcess) -> Known:
    return Known(server)


@pytest.fixture(scope="module")
def page(known: Known) -> Json:
    return json.loads(known.open("/openapi.json"))


def usable(body: Any) -> Any:
    """The body without tools that would have the server dial somebody."""
    if not isinstance(body, dict) or not isinstance(body.get("tools"), list):
        return body
    tools = [tool for tool in body["tools"] if not (isinstance(tool, dict) and tool.get("kind") in DIALLED)]
    return {**body, "tools": tools}


def test_every_route_is_on_the_page_under_an_id_of_its_own(page: Json) -> None:
    listed = {(method.upper(), path) for path, methods in page["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for methods in page["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert page == json.loads(json.dumps(document(ROUTES)))


def test_every_description_belongs_to_a_route() -> None:
    assert set(DESCRIBED) - {(route.method, route.path) for route in ROUTES} == set()


def test_every_reference_of_the_page_leads_somewhere(page: Json) -> None:
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update(one for key, one in value.items() if key == "$ref")
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(page)
    assert {name.removeprefix("#/components/schemas/") for name in found} <= set(page["components"]["schemas"])


def test_scopes_and_credentials_are_those_of_the_routes(page: Json) -> None:
    def scopes(route: Route) -> list[Json]:
        return page["paths"][route.path][route.method.lower()].get("security", [])

    for route in ROUTES:
        expected = [] if route.access == "public" else [{name: list(route.scopes)} for name in ("bearer", "apiKey")]
        assert scopes(route) == expected


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one[0]} {one[1]}")
def test_the_server_answers_as_its_page_says(operation: tuple[str, str], page: Json, known: Known) -> None:
    method, path = operation
    described = schemathesis.openapi.from_dict(page)[path][method]
    about = DESCRIBED[operation]

    def value(name: str) -> str:
        return known.made(name) if method in ("DELETE", "PATCH", "PUT") and name in MAKERS else known.values[name]

    def answered(case: Any) -> int:
        response = case.call(base_url=known.url, headers=known.headers)
        case.validate_response(response, checks=CHECKS)
        return response.status_code

    plain = described.Case(
        path_parameters={name: value(name) for name in re.findall(r"{(\w+)}", path)},
        body={**BODIES[about.body], **({"prompt": "hi"} if path.endswith("/agent-runs") else {})}
        if about.body
        else NOT_SET,
        media_type="application/json" if about.body else None,
    )
    status = answered(plain)
    assert status in about.answers or (path.endswith("/tool-results") and status == 409)

    wrong_too = bool(about.body or about.query)

    profile = settings.default
    assert profile is not None

    # The generator writes what it likes, so its size and its misses say nothing about us. There are many operations.
    @settings(
        max_examples=max(1, profile.max_examples // 8),
        phases=[Phase.generate],
        suppress_health_check=[
            *profile.suppress_health_check,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        mode = GenerationMode.NEGATIVE if wrong_too and data.draw(st.booleans()) else GenerationMode.POSITIVE
        case: Any = data.draw(described.as_strategy(generation_mode=mode))
        for name in case.path_parameters or {}:
            if name == "slug" or data.draw(st.booleans()):
                case.path_parameters[name] = value(name)
        case.body = usable(case.body)
        if about.body == "RunModel" and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body.update(MODEL)
        answered(case)

    check()
