"""The shapes of answers in the OpenAPI page, by name. Request shapes come from the models that judge requests."""

from __future__ import annotations

from typing import Any, TypeAlias

from weftline.errors import TABLE
from weftline.server.routes.lists import RUN_STATUSES, SESSION_STATUSES
from weftline.workspace.webhooks import DELIVERY_STATUSES, EVENTS

Schema: TypeAlias = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TIME: Schema = {"type": "string", "format": "date-time"}
WORDS: Schema = {"type": "object", "additionalProperties": STRING}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def record(fields: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    """An object with these fields, and room for more in later versions."""
    return {"type": "object", "properties": fields, "required": [name for name in fields if name not in optional]}


_RUN: Schema = {
    "id": STRING,
    "runId": STRING,
    "sessionId": nullable(STRING),
    "status": {"enum": [status for status in RUN_STATUSES if status != "paused"]},
    "paused": BOOLEAN,
    "reason": nullable(STRING),
    "finalText": nullable(STRING),
    "error": nullable(STRING),
    "failureReason": nullable(record({"errorClass": STRING, "finishReason": nullable(STRING)})),
    "metadata": WORDS,
    "name": STRING,
    "createdAt": TIME,
    "startedAt": nullable(TIME),
    "finishedAt": nullable(TIME),
    "tokens": nullable(ref("Tokens")),
    "turns": nullable(COUNT),
    "model": nullable(ref("ModelUsed")),
    "costUsd": nullable(NUMBER),
}
_WEBHOOK: Schema = {
    "id": STRING,
    "url": STRING,
    "events": listed({"enum": list(EVENTS)}),
    "enabled": BOOLEAN,
    "createdAt": TIME,
}
_CALLS = listed(record({"toolUseId": STRING, "name": STRING}))

SCHEMAS: dict[str, Schema] = {
    "Error": record(
        {
            "error": STRING,
            "code": {"enum": list(TABLE)},
            "message": STRING,
            "hint": STRING,
            "requestId": STRING,
            "issues": listed(record({"path": STRING, "message": STRING})),
        },
        optional=("hint", "requestId", "issues"),
    ),
    "Ok": record({"ok": {"const": True}}),
    "Tokens": record({"inputTokens": COUNT, "cachedTokens": COUNT, "reasoningTokens": COUNT, "outputTokens": COUNT}),
    "ModelUsed": record(
        {"id": STRING, "provider": STRING, "vendorModelId": STRING, "reasoningEffort": STRING},
        optional=("reasoningEffort",),
    ),
    "CreatedRun": record({"runId": STRING, "streamUrl": STRING}),
    "Run": record({**_RUN, "spec": OBJECT, "agentSpec": OBJECT}),
    "ListedRun": record({**_RUN, "agentId": nullable(STRING)}),
    "RunPage": record({"runs": listed(ref("ListedRun")), "nextCursor": nullable(STRING)}),
    "ToolResultTaken": record({"ok": {"const": True}, "ignored": BOOLEAN}, optional=("ignored",)),
    "Cancelled": record(
        {"ok": {"const": True}, "status": {"enum": list(RUN_STATUSES)}, "stopped": _CALLS, "finished": _CALLS}
        | {"inDoubt": _CALLS}
    ),
    "ToolResult": record({"toolUseId": STRING, "result": STRING, "error": STRING}, optional=("result", "error")),
    "CreatedSession": record({"sessionId": STRING, "name": STRING, "createdAt": TIME}),
    "Session": record(
        {
            "id": STRING,
            "name": STRING,
            "status": {"enum": list(SESSION_STATUSES)},
            "createdAt": TIME,
            "lastUsedAt": TIME,
            "endedAt": nullable(TIME),
            "agentSpec": OBJECT,
            "messages": listed(record({"role": {"enum": ["user", "assistant", "system"]}, "content": STRING})),
            "metadata": WORDS,
            "usage": record({"runs": COUNT, "turns": COUNT, "tokens": ref("Tokens"), "costUsd": nullable(NUMBER)}),
        }
    ),
    "ListedSession": record(
        {
            "id": STRING,
            "sessionId": STRING,
            "name": STRING,
            "status": {"enum": list(SESSION_STATUSES)},
            "agentId": nullable(STRING),
            "metadata": WORDS,
            "createdAt": TIME,
            "lastUsedAt": TIME,
            "endedAt": nullable(TIME),
        }
    ),
    "SessionPage": record({"sessions": listed(ref("ListedSession")), "nextCursor": nullable(STRING)}),
    "Models": record(
        {
            "models": listed(
                record(
                    {
                        "id": STRING,
                        "label": STRING,
                        "provider": STRING,
                        "vendorModelId": STRING,
                        "source": {"enum": ["workspace_provider", "platform_offering"]},
                        "contextWindowTokens": nullable(INTEGER),
                        "pricing": nullable(OBJECT),
                        "maxOutputTokens": INTEGER,
                        "capabilities": OBJECT,
                        "icon": STRING,
                        "builtinTools": listed(STRING),
                    },
                    optional=("maxOutputTokens", "capabilities", "icon", "builtinTools"),
                )
            ),
            "defaultModelId": nullable(STRING),
        }
    ),
    "Agent": record(
        {
            "id": STRING,
            "slug": STRING,
            "name": STRING,
            "description": STRING,
            "spec": OBJECT,
            "metadata": WORDS,
            "system": BOOLEAN,
            "createdAt": TIME,
            "updatedAt": TIME,
        }
    ),
    "Agents": record({"agents": listed(ref("Agent"))}),
    "Webhook": record(_WEBHOOK),
    "NewWebhook": record({**_WEBHOOK, "secret": STRING}),
    "Webhooks": record({"webhooks": listed(ref("Webhook"))}),
    "Delivery": record(
        {
            "id": STRING,
            "runId": STRING,
            "status": {"enum": list(DELIVERY_STATUSES)},
            "attempts": COUNT,
            "createdAt": TIME,
            "nextAttemptAt": nullable(TIME),
            "lastAttemptAt": nullable(TIME),
            "lastStatus": nullable(INTEGER),
            "lastError": STRING,
        }
    ),
    "DeliveryPage": record({"deliveries": listed(ref("Delivery")), "nextCursor": nullable(STRING)}),
    "AgentCard": record(
        {
            "protocolVersion": STRING,
            "name": STRING,
            "description": STRING,
            "url": STRING,
            "version": STRING,
            "capabilities": OBJECT,
            "defaultInputModes": listed(STRING),
            "defaultOutputModes": listed(STRING),
            "skills": listed(OBJECT),
            "securitySchemes": OBJECT,
        }
    ),
    "AgentCards": record({"agents": listed(ref("AgentCard"))}),
    "RpcCall": record(
        {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "integer", "null"]},
            "method": STRING,
            "params": OBJECT,
        },
        optional=("id", "params"),
    ),
    "RpcReply": record(
        {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number", "null"]},
            "result": OBJECT,
            "error": record({"code": INTEGER, "message": STRING, "data": OBJECT}, optional=("data",)),
        },
        optional=("result", "error"),
    ),
    "Health": record({"status": STRING}),
}
