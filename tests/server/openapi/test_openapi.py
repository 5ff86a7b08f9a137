# The generator's own types are open, and so is what it makes of the page.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The OpenAPI page tells the truth: a generator of requests reads it and the server is held to it."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

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

from commands import new_secret
from weftline.api.schemas.oauth import NewClient, NewOAuthApp, OneTokenForm, TokenForm
from weftline.api.schemas.provided import ResultsModel
from weftline.cases.agents import AgentModel
from weftline.cases.awaits import AnswerModel, MessageToRunModel, PauseModel, ResumeModel
from weftline.cases.budgets import BudgetLimitsModel
from weftline.cases.effects import EffectModel
from weftline.cases.keys import NewKey
from weftline.cases.leases import ClaimModel, LeaseModel
from weftline.cases.providers import ProviderChangesModel, ProviderModel
from weftline.cases.schedules import ScheduleChangesModel, ScheduleModel
from weftline.cases.thread_files import FileModel
from weftline.cases.thread_messages import MessageChanges
from weftline.cases.threads import EnvModel, ThreadModel, ValueModel
from weftline.cases.tools import ToolChangesModel, ToolModel
from weftline.cases.webhooks import WebhookChange, WebhookModel
from weftline.server.a2a import rpc
from weftline.server.declared import Form, RawBytes
from weftline.server.openapi import body_type, document, json_type, shown_path
from weftline.server.router import EventStream, Route
from weftline.server.routes.every import ROUTES
from weftline.spec.fields import ENGINE_OPTIONS, ForkModel, MessageModel, RunModel, SessionModel
from weftline.testing import ServerProcess
from weftline.wire.requests import ToolResult

from ..kit import Json

IDENTITY = "mantyx.identity:read"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DIALLED = ("mcp", "a2a")
MODEL = {"modelId": "scripted:hello"}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}}
OWN = {"allowsClientCredentials": True}
MAKERS: dict[str, tuple[str, Json, str]] = {
    "agentId": ("agents", {"name": "Known", "spec": MODEL}, "id"),
    "sessionId": ("agent-sessions", MODEL, "sessionId"),
    "webhookId": ("webhooks", {"url": "http://127.0.0.1:9/hook"}, "id"),
    "scheduleId": ("schedules", {"name": "Known", "cron": "@yearly", "spec": {**MODEL, "prompt": "hi"}}, "id"),
    "keyId": ("api-keys", {"name": "another"}, "id"),
    "toolId": ("tools", {"name": "look_up", "url": "http://127.0.0.1:9/{{word}}", "parameters": WORD}, "id"),
    "providerId": ("providers", {"name": "known", "family": "openai_chat", "apiKey": "k", "models": ["m"]}, "id"),
    "threadId": ("threads", {"agentId": "known", "values": {"k": 1}, "env": {"k": "v"}}, "id"),
    "clientId": ("oauth-apps", {"name": "Known", "allowedScopes": ["models:read"], **OWN}, "clientId"),
}
MESSAGE = {"message": {"messageId": "m1", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}}
FILE = {"data": "eA==", "thumbnail": "eA=="}
_OF_RUN = "/api/v1/workspaces/{slug}/agent-runs/{runId}"
OTHERWISE = (
    ("/api/oauth/client.json", 404),
    (f"{_OF_RUN}/tool-results", 409),
    (f"{_OF_RUN}/tool-results/{{awaitId}}", 409),
    (f"{_OF_RUN}/tool-leases", 409),
    (f"{_OF_RUN}/tool-leases/heartbeat", 409),
    (f"{_OF_RUN}/tool-leases/release", 409),
    (f"{_OF_RUN}/awaits/{{awaitId}}", 409),
    (f"{_OF_RUN}/pause", 409),
    (f"{_OF_RUN}/resume", 409),
    (f"{_OF_RUN}/messages", 409),
    ("/api/v1/workspaces/{slug}/threads/{threadId}/effects", 404),
    ("/api/v1/workspaces/{slug}/threads/{threadId}/effects/{effectId}", 404),
    ("/api/v1/workspaces/{slug}/accounts/{userId}/env/{name}", 404),
    ("/api/v1/workspaces/{slug}/env/{name}", 404),
)
"""This server has no public address and no folder, the run has ended, and a variable may be gone already."""
BODIES: dict[Any, Json] = {
    RunModel: {**MODEL, "prompt": "hi"},
    SessionModel: MODEL,
    MessageModel: {"prompt": "hi"},
    ToolResult: {"toolUseId": "none", "result": "x"},
    ResultsModel: {"results": [{"toolUseId": "none", "result": "x"}]},
    ClaimModel: {"toolUseId": "none"},
    LeaseModel: {"toolUseId": "none", "token": "none"},
    AnswerModel: {"outcome": "approved"},
    ForkModel: {"turn": 0},
    MessageToRunModel: {"text": "hi"},
    PauseModel: {"reason": "lunch"},
    ResumeModel: {"notes": "back"},
    AgentModel: {"name": "Another", "spec": {}},
    WebhookModel: {"url": "http://127.0.0.1:9/hook"},
    WebhookChange: {"enabled": True},
    ScheduleModel: {"name": "Another", "at": "2100-01-01T00:00:00Z", "spec": {**MODEL, "prompt": "hi"}},
    ScheduleChangesModel: {"name": "Renamed", "timezone": "Europe/Berlin"},
    BudgetLimitsModel: {"level": "workspace", "limits": [{"unit": "tokens", "limit": 1_000_000_000, "period": "day"}]},
    ThreadModel: {"agentId": "known"},
    MessageChanges: {"metadata": {"seen": True}},
    ValueModel: {"value": 1},
    FileModel: FILE,
    EnvModel: {"value": "x"},
    EffectModel: {"name": "known"},
    NewKey: {"name": "another"},
    ToolModel: {"name": "another", "url": "http://127.0.0.1:9/"},
    ToolChangesModel: {"description": "Looks a word up."},
    ProviderModel: {"name": "another", "family": "openai_chat", "apiKey": "k", "models": ["m"]},
    ProviderChangesModel: {"models": ["n"]},
    NewClient: {"redirect_uris": ["https://app.example/callback"]},
    NewOAuthApp: {"name": "Another", "allowedScopes": ["models:read"], **OWN},
    rpc.RpcCall: {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": MESSAGE},
}
"""A body of each type that is good for a success, as far as one can be had without a client at work."""
FORMS: dict[Any, Json] = {TokenForm: {"grant_type": "client_credentials"}, OneTokenForm: {"token": "mantyx_at_none"}}
OPERATIONS = [
    route
    for route in ROUTES
    if (json_type(route) is not None and not route.path.startswith("/api/oauth/grants")) or route.returns is EventStream
]
"""Pages and other protocols have tests of their own, and so have the routes for a browser's session."""


class Known:
    """A workspace with something of everything, so that requests find what they name."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
        self.slug = "described"
        self._count = itertools.count()
        secret = new_secret(server.db, self.slug, name="t")
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
            "workspaceSlug": self.slug,
            "runId": run,
            "awaitId": "await_0_0",
            "effectId": "eff_0",
            "turn": "last",
            "key": "k",
            "name": "k",
            "userId": "ann",
            "path": "k",
            "agentId": agent,
            "agentSlug": "known",
            "webhookId": webhook,
            "deliveryId": delivery["deliveries"][0]["id"],
        }
        self.values |= {name: self.made(name) for name in MAKERS if name not in self.values}
        thread = self.values["threadId"]
        said = self.post(f"agent-sessions/{thread}/messages", {"prompt": "hi"})["runId"]
        self.open(f"/api/v1/workspaces/{self.slug}/agent-runs/{said}/stream")
        listed = json.loads(self.open(f"/api/v1/workspaces/{self.slug}/threads/{thread}/messages"))
        self.values["messageId"] = listed["messages"][0]["id"]
        self.message = {**self.values, "messageId": listed["messages"][1]["id"]}
        app = self.post("oauth-apps", {"name": "Robot", "allowedScopes": [IDENTITY], **OWN})
        self.client = {"client_id": app["clientId"], "client_secret": app["clientSecret"]}
        form = urlencode({"grant_type": "client_credentials", **self.client}).encode()
        self.token: str = json.loads(self.open("/api/oauth/token", form))["access_token"]

    def made(self, name: str) -> str:
        """A new thing of a kind, by the name that paths have for its id."""
        path, body, field = MAKERS[name]
        unique = {"name": f"{body['name']}{next(self._count)}"} if path in ("tools", "providers") else {}
        made: str = self.post(path, {**body, **unique})[field]
        if name == "threadId":
            self.post(f"threads/{made}/fs/k", FILE)
        return made

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


@pytest.fixture(scope="module")
def described_page(page: Json) -> Any:
    return schemathesis.openapi.from_dict(page)


def everything(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every member of every object below `value`, with the way to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield (*path, name), one
            yield from everything(one, (*path, name))
    elif isinstance(value, list):
        for one in value:
            yield from everything(one, path)


def usable(body: Any) -> Any:
    """The body without tools that would have the server dial somebody."""
    if not isinstance(body, dict) or not isinstance(body.get("tools"), list):
        return body
    tools = [tool for tool in body["tools"] if not (isinstance(tool, dict) and tool.get("kind") in DIALLED)]
    return {**body, "tools": tools}


def test_every_route_is_on_page_under_id_of_its_own(page: Json) -> None:
    listed = {(method.upper(), path) for path, methods in page["paths"].items() for method in methods}
    assert listed == {(route.method, shown_path(route)) for route in ROUTES}
    ids = [operation["operationId"] for methods in page["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert page == json.loads(json.dumps(document(ROUTES)))


def test_no_route_lacks_its_types() -> None:
    assert [f"{route.method} {route.path}" for route in ROUTES if route.returns is None] == []


def test_every_route_that_reads_a_body_says_which() -> None:
    reads = re.compile(r"(request|sent)\.(body|read|pieces)\(|read_(form|fields)\(|mcp\.answer\(|_Given\(request")
    for route in ROUTES:
        source = inspect.getsource(inspect.unwrap(route.handler))
        sends = route.method in ("POST", "PUT", "PATCH")
        assert (route.body is not None) == (sends and reads.search(source) is not None), route.path


def test_the_page_is_valid_openapi(page: Json) -> None:
    schemathesis.openapi.from_dict(page).validate()


def test_every_request_with_a_body_says_what_it_is(page: Json) -> None:
    """A generator leaves out an operation whose body has no schema."""
    for methods in page["paths"].values():
        for operation in methods.values():
            content: Json = operation.get("requestBody", {}).get("content", {})
            assert all("schema" in media for media in content.values()), operation["operationId"]


def test_every_success_of_a_json_route_has_a_schema(page: Json) -> None:
    for route in ROUTES:
        if json_type(route) is not None:
            success = page["paths"][shown_path(route)][route.method.lower()]["responses"][str(route.status)]
            assert success["content"]["application/json"]["schema"], route.path


def test_events_have_a_schema(page: Json) -> None:
    responses = [
        one for methods in page["paths"].values() for call in methods.values() for one in call["responses"].values()
    ]
    events = [one["content"]["text/event-stream"] for one in responses if "text/event-stream" in one.get("content", {})]
    assert events and all("`data`" in one["schema"]["description"] for one in events)


def test_create_returns_one_type(page: Json) -> None:
    """A generated client takes the types of all successes for that of each."""
    for route in ROUTES:
        if json_type(route) is not None and route.status != 200:
            responses = page["paths"][shown_path(route)][route.method.lower()]["responses"]
            described = [status for status, one in responses.items() if status < "300" and "content" in one]
            assert described == [str(route.status)], route.path


def test_every_schema_has_a_name_of_its_own(page: Json) -> None:
    """Generators name classes by title. Of two with one title they make one, and leave out what needs the other."""
    schemas = page["components"]["schemas"]
    titles = [one.get("title", name) for name, one in schemas.items()]
    assert len(titles) == len(set(titles))
    assert not [name for name in schemas if "__" in name]


def test_no_field_has_a_default(page: Json) -> None:
    """Generators take a field with a default for one that is always there, also in what a client sends."""
    found = [path for path, _ in everything(page["components"]) if path[-1] == "default" and path[-2] != "properties"]
    assert found == []


def test_a_field_that_is_always_true_is_a_boolean(page: Json) -> None:
    assert page["components"]["schemas"]["Ok"]["properties"]["ok"] == {"type": "boolean", "const": True}
    assert [path for path, value in everything(page) if path[-1] == "enum" and not isinstance(value[0], str)] == []


def test_a_session_is_described_without_a_runs_input(page: Json) -> None:
    run, session = (page["components"]["schemas"][name]["properties"] for name in ("RunModel", "SessionModel"))
    assert set(run) - set(session) == {"prompt", "messages", "attachments", "turnId", "runId", *ENGINE_OPTIONS}


def test_every_reference_of_the_page_leads_somewhere(page: Json) -> None:
    found = {value for path, value in everything(page) if path[-1] == "$ref"}
    assert {name.removeprefix("#/components/schemas/") for name in found} <= set(page["components"]["schemas"])


def test_scopes_and_credentials_are_those_of_the_routes(page: Json) -> None:
    def scopes(route: Route) -> list[Json]:
        return page["paths"][shown_path(route)][route.method.lower()].get("security", [])

    for route in ROUTES:
        expected = [] if route.access == "public" else [{name: list(route.scopes)} for name in ("bearer", "apiKey")]
        assert scopes(route) == expected


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_the_server_answers_as_its_page_says(route: Route, described_page: Any, known: Known) -> None:
    method, path = route.method, shown_path(route)
    described = described_page[path][method]
    form = route.body.type if isinstance(route.body, Form) else None
    headers = {"Authorization": f"Bearer {known.token}"} if IDENTITY in route.scopes else known.headers

    def value(name: str) -> str:
        if "{messageId}" in path:
            return known.message[name] if method == "DELETE" else known.values[name]
        return known.made(name) if method in ("DELETE", "PATCH", "PUT") and name in MAKERS else known.values[name]

    def answered(case: Any) -> int:
        response = case.call(base_url=known.url, headers=headers)
        case.validate_response(response, checks=CHECKS)
        return response.status_code

    body = (
        NOT_SET
        if route.body is None
        else BODIES.get(body_type(route))
        if form is None
        else {**FORMS[form], **known.client}
    )
    media = "application/json" if form is None else "application/x-www-form-urlencoded"
    if route.body is not None and route.body.type is RawBytes:
        body, media = b"x", "application/octet-stream"
    plain = described.Case(
        path_parameters={name: value(name) for name in re.findall(r"{(\w+)}", path)},
        body=body,
        media_type=None if route.body is None else media,
    )
    status = answered(plain)
    assert status == route.status or (path, status) in OTHERWISE

    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 2 if route.body or route.query else 1]
    cases: list[st.SearchStrategy[Any]] = [described.as_strategy(generation_mode=mode) for mode in modes]

    profile = settings.default
    assert profile is not None

    # The generator writes what it likes, so its size and its misses say nothing about us. There are many operations.
    @settings(
        max_examples=max(2, profile.max_examples // 10),
        phases=[Phase.generate],
        suppress_health_check=[
            *profile.suppress_health_check,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case: Any = data.draw(data.draw(st.sampled_from(cases)))
        for name in case.path_parameters or {}:
            if name == "slug" or data.draw(st.booleans()):
                case.path_parameters[name] = value(name)
        case.body = usable(case.body)
        if body_type(route) in (RunModel, SessionModel) and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body.update(MODEL)
        answered(case)

    check()
