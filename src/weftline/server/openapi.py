"""The OpenAPI page, made from the table of routes and a few words about each.

A route that is not described here is on the page all the same, with its path, its credentials and the shape of its
errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import Struct
from pydantic.json_schema import models_json_schema

from weftline._version import __version__
from weftline.server.openapi_schemas import SCHEMAS, STRING, Schema, ref
from weftline.server.router import Route
from weftline.server.routes.lists import DEFAULT_LIMIT, MOST, RUN_STATUSES, SESSION_STATUSES
from weftline.server.schemas.agents import AgentModel
from weftline.server.schemas.webhooks import WebhookChange, WebhookModel
from weftline.wire.limits import ID_PATTERN, MAX_REASONING_LEVEL, REASONING_LEVELS
from weftline.wire.run_spec import MessageModel, RunModel
from weftline.workspace.webhooks import DELIVERY_STATUSES

REASONS = {
    400: "The request is wrong; the message names the field.",
    401: "No credential, or one that is not valid.",
    403: "The credential may not do this.",
    404: "Unknown, or of another workspace.",
    409: "Not possible at this moment.",
    413: "The body is too large.",
    429: "Too many requests; try again after Retry-After.",
    500: "The server failed.",
    503: "The server takes no work at the moment; try again after Retry-After.",
}
_MODELS = (RunModel, MessageModel, AgentModel, WebhookModel, WebhookChange)
_CREDENTIALS = ("bearer", "apiKey")


class Described(Struct, frozen=True, kw_only=True):
    """What the table of routes does not say: bodies, answers by status, parameters of the query."""

    body: str = ""
    answers: dict[int, str] = {}
    """The shape of each success by status; "" for none that JSON Schema could tell."""
    query: tuple[Schema, ...] = ()
    errors: tuple[int, ...] = ()
    """Beyond those that every route of its kind has."""
    idempotent: bool = False
    """Whether it takes an `Idempotency-Key`."""
    stream: bool = False
    """Whether it may answer with events."""
    open_ended: bool = False
    """Another protocol rules its answers."""


def _query(name: str, schema: Schema, about: str, **more: Any) -> Schema:
    return {"name": name, "in": "query", "description": about, "schema": schema, **more}


_PAGE = (
    _query("limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}, "Items on a page."),
    _query("cursor", STRING, "`nextCursor` of the page before."),
)
_FILTERS = (
    _query("sessionId", STRING, "Of this session."),
    _query("agentId", {"type": "string", "pattern": f"^{ID_PATTERN}$"}, "Of this agent."),
    _query(
        "metadata",
        {"type": "array", "items": STRING},
        "`key:value`; may be repeated, and all must match.",
        style="form",
        explode=True,
    ),
    *_PAGE,
)


def _status(words: tuple[str, ...]) -> Schema:
    return _query("status", {"type": "string", "enum": list(words)}, "With this status.")


_W = "/api/v1/workspaces/{slug}"
_A = "/api/a2a/{slug}"
DESCRIBED: dict[tuple[str, str], Described] = {
    ("GET", f"{_W}/models"): Described(answers={200: "Models"}),
    ("POST", f"{_W}/agent-runs"): Described(
        body="RunModel", answers={202: "CreatedRun"}, errors=(409,), idempotent=True
    ),
    ("GET", f"{_W}/agent-runs"): Described(answers={200: "RunPage"}, query=(_status(RUN_STATUSES), *_FILTERS)),
    ("GET", f"{_W}/agent-runs/{{runId}}"): Described(answers={200: "Run"}),
    ("GET", f"{_W}/agent-runs/{{runId}}/stream"): Described(
        answers={200: ""}, stream=True, query=(_query("lastSeq", STRING, "The last event that was seen."),)
    ),
    ("POST", f"{_W}/agent-runs/{{runId}}/tool-results"): Described(
        body="ToolResult", answers={200: "ToolResultTaken"}, errors=(409,)
    ),
    ("POST", f"{_W}/agent-runs/{{runId}}/cancel"): Described(answers={200: "Cancelled"}),
    ("POST", f"{_W}/agent-sessions"): Described(body="RunModel", answers={201: "CreatedSession"}),
    ("GET", f"{_W}/agent-sessions"): Described(
        answers={200: "SessionPage"}, query=(_status(SESSION_STATUSES), *_FILTERS)
    ),
    ("GET", f"{_W}/agent-sessions/{{sessionId}}"): Described(answers={200: "Session"}),
    ("DELETE", f"{_W}/agent-sessions/{{sessionId}}"): Described(answers={200: "Ok"}),
    ("POST", f"{_W}/agent-sessions/{{sessionId}}/messages"): Described(
        body="MessageModel", answers={202: "CreatedRun"}, errors=(409,), idempotent=True
    ),
    ("GET", f"{_W}/agents"): Described(answers={200: "Agents"}),
    ("POST", f"{_W}/agents"): Described(body="AgentModel", answers={201: "Agent"}, errors=(409,)),
    ("GET", f"{_W}/agents/{{agentId}}"): Described(answers={200: "Agent"}),
    ("PUT", f"{_W}/agents/{{agentId}}"): Described(body="AgentModel", answers={200: "Agent"}, errors=(409,)),
    ("DELETE", f"{_W}/agents/{{agentId}}"): Described(answers={200: "Ok"}),
    ("GET", f"{_W}/webhooks"): Described(answers={200: "Webhooks"}),
    ("POST", f"{_W}/webhooks"): Described(body="WebhookModel", answers={201: "NewWebhook"}),
    ("GET", f"{_W}/webhooks/{{webhookId}}"): Described(answers={200: "Webhook"}),
    ("PATCH", f"{_W}/webhooks/{{webhookId}}"): Described(body="WebhookChange", answers={200: "Webhook"}),
    ("DELETE", f"{_W}/webhooks/{{webhookId}}"): Described(answers={200: "Ok"}),
    ("GET", f"{_W}/webhooks/{{webhookId}}/deliveries"): Described(
        answers={200: "DeliveryPage"}, query=(_status(DELIVERY_STATUSES), *_PAGE)
    ),
    ("POST", f"{_W}/webhooks/{{webhookId}}/deliveries/{{deliveryId}}/redeliver"): Described(answers={202: "Delivery"}),
    ("POST", f"{_A}/agents/{{agentSlug}}"): Described(body="RpcCall", answers={200: "RpcReply"}, stream=True),
    ("GET", f"{_A}/agents/{{agentSlug}}/.well-known/agent-card.json"): Described(answers={200: "AgentCard"}),
    ("GET", f"{_A}/agents/{{agentSlug}}/.well-known/agent.json"): Described(answers={200: "AgentCard"}),
    ("GET", f"{_A}/discovery"): Described(answers={200: "AgentCards"}),
    ("POST", "/api/mcp/{slug}"): Described(body="RpcCall", answers={200: "", 202: ""}, stream=True, open_ended=True),
    ("GET", "/api/mcp/{slug}"): Described(answers={200: ""}, stream=True, open_ended=True),
    ("DELETE", "/api/mcp/{slug}"): Described(answers={200: ""}, open_ended=True),
    ("GET", "/healthz"): Described(answers={200: "Health"}),
    ("GET", "/readyz"): Described(answers={200: "Health"}, errors=(503,)),
    ("GET", "/openapi.json"): Described(answers={200: ""}),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole page."""
    paths: dict[str, dict[str, Any]] = {}
    ids: set[str] = set()
    for route in routes:
        name = f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}"
        if name in ids:
            name = f"{name}_{re.sub(r'[^a-z]+', '_', (route.method + route.path.rpartition('/')[2]).lower())}"
        ids.add(name)
        paths.setdefault(route.path, {})[route.method.lower()] = {"operationId": name, **_operation(route)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weftline", "version": __version__, "description": "A durable runtime for LLM agents."},
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, **request_schemas()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or OAuth access token."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
            },
        },
    }


@cache
def request_schemas() -> dict[str, Schema]:
    """The shapes of request bodies, as the models that judge them have them."""
    _, whole = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Schema] = whole["$defs"]
    for name in ("RunModel", "MessageModel"):
        fields = schemas[name]["properties"]
        # Judged by functions, of which the models say nothing.
        fields["loopDetection"]["anyOf"].append({"const": False})
        fields["reasoningLevel"] = {
            "anyOf": [
                {"enum": list(REASONING_LEVELS)},
                {"type": "integer", "minimum": 0, "maximum": MAX_REASONING_LEVEL},
                {"type": "null"},
            ]
        }
    return schemas


def _operation(route: Route) -> Schema:
    described = DESCRIBED.get((route.method, route.path))
    made: Schema = {"summary": route.summary, "tags": [_tag(route.path)]}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if described is not None:
        parameters += described.query
        if described.idempotent:
            parameters.append(
                {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "description": "The same key and body again bring the same answer.",
                    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
                }
            )
        if described.body:
            content = {"application/json": {"schema": ref(described.body)}}
            made["requestBody"] = {"required": True, "content": content}
    if parameters:
        made["parameters"] = parameters
    made["responses"] = _responses(route, described)
    if route.access != "public":
        made["security"] = [{name: list(route.scopes)} for name in _CREDENTIALS]
    return made


def _responses(route: Route, described: Described | None) -> Schema:
    if described is None or described.open_ended:
        codes = {"2XX": {"description": "Done."}} if described is None else _answers(described)
        return {**codes, "4XX": {"description": "Refused."}, "5XX": {"description": "The server failed."}}
    return {
        **_answers(described),
        **{
            str(status): {
                "description": REASONS[status],
                "content": {"application/json": {"schema": ref("Error")}},
            }
            for status in sorted({*_usual_errors(route, described), *described.errors})
        },
    }


def _answers(described: Described) -> Schema:
    answers: Schema = {}
    for status, name in described.answers.items():
        content: Schema = {}
        if name:
            content["application/json"] = {"schema": ref(name)}
        elif not described.stream or described.open_ended:
            content["application/json"] = {}
        if described.stream:
            content["text/event-stream"] = {}
        answers[str(status)] = {"description": "Done.", "content": content}
    return answers


def _usual_errors(route: Route, described: Described) -> set[int]:
    errors = {500} if route.access != "public" or described.errors else set[int]()
    if route.access != "public":
        errors |= {401, 403, 404, 503}
        if route.limited:
            errors.add(429)
    if described.body:
        errors |= {400, 413}
    if described.query:
        errors.add(400)
    return errors


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    if path.startswith("/api/v1/workspaces/"):
        return parts[3]
    return parts[1] if parts[0] == "api" else "server"
