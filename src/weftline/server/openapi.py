"""The OpenAPI document, derived from the table of routes and their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any, TypeAlias, cast, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, structs
from msgspec.json import schema as schema_of
from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from weftline._version import __version__
from weftline.errors import TABLE
from weftline.server.declared import AnyBody, Body, Form, OtherProtocol, RawBytes
from weftline.server.router import EventStream, HtmlPage, PlainText, Redirect, Route, headers_of
from weftline.spec.declare import schema_of_seconds
from weftline.wire.errors import wire_code

Schema: TypeAlias = dict[str, Any]


class Schemas(Struct, frozen=True):
    """Schemas by type; `by_type` refers to `components` for types with a name."""

    by_type: dict[Any, Schema]
    components: dict[str, Schema]


def schemas_of(*, requests: Iterable[Any], responses: Iterable[Any]) -> Schemas:
    """Returns the schemas. Raises `ValueError` if two types have the same name."""
    sent = list(dict.fromkeys(requests))
    models = [one for one in sent if isinstance(one, type) and issubclass(one, BaseModel)]
    received = list(dict.fromkeys(responses))
    found = [
        _of_models(models),
        _of_structs([one for one in sent if one not in models]),
        _as_written(_of_structs(received), received),
    ]
    by_type: dict[Any, Schema] = {}
    components: dict[str, Schema] = {}
    for schemas in found:
        for name, schema in schemas.components.items():
            if components.setdefault(name, schema) != schema:
                raise ValueError(f"two types are named {name}")
        by_type |= schemas.by_type
    return Schemas(_all_for_generators(by_type), _all_for_generators(components))


def _of_models(models: Sequence[type[BaseModel]]) -> Schemas:
    by_model, whole = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return Schemas({model: schema for (model, _), schema in by_model.items()}, whole.get("$defs", {}))


def _of_structs(types: Sequence[Any]) -> Schemas:
    schemas, components = schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=schema_of_seconds
    )
    for one in _structs(types):
        if one.__name__ not in components:
            raise ValueError(f"two types are named {one.__name__}")
    return Schemas(dict(zip(types, schemas, strict=True)), components)


def _as_written(schemas: Schemas, types: Sequence[Any]) -> Schemas:
    """Adapts the schemas of responses: a field is always present unless it can be unset, and defaults do not matter."""
    for one in _structs(types):
        component = schemas.components[one.__name__]
        for schema in component["properties"].values():
            schema.pop("default", None)
        if not one.__struct_config__.omit_defaults:
            component["required"] = [
                field.encode_name for field in structs.fields(one) if UnsetType not in get_args(field.type)
            ]
    return schemas


def _structs(types: Iterable[Any]) -> list[type[Struct]]:
    """Returns all structs that these types contain."""
    found: dict[type[Struct], None] = {}
    waiting = list(types)
    while waiting:
        one = waiting.pop()
        if not (isinstance(one, type) and issubclass(one, Struct)):
            waiting.extend(get_args(one))
        elif one not in found:
            found[one] = None
            waiting.extend(field.type for field in structs.fields(one))
    return list(found)


_NAMED = frozenset({"properties", "$defs"})


def _for_generators(value: Any) -> Any:
    """Adapts a schema to client generators.

    These assume that a field with a default is always present, and that enumerations contain strings. Patterns are
    those of JavaScript.
    """
    if isinstance(value, list):
        return [_for_generators(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields.get("enum") in ([True], [False]):
        return {"type": "boolean", "const": fields["enum"][0]}
    pattern = fields.get("pattern")
    if isinstance(pattern, str):
        fields["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return {
        name: _all_for_generators(one) if name in _NAMED else _for_generators(one)
        for name, one in fields.items()
        if name != "default"
    }


def _all_for_generators(schemas: dict[Any, Any]) -> dict[Any, Any]:
    return {name: _for_generators(one) for name, one in schemas.items()}


REASONS = {
    400: "The request is wrong; the message names the field.",
    401: "The credential is missing or invalid.",
    403: "The credential may not do this.",
    404: "Unknown, or in another workspace.",
    409: "Not possible in the current state.",
    413: "The body is too large.",
    429: "Too many requests; try again after Retry-After.",
    500: "The server failed.",
    502: "What the request needs from elsewhere cannot be had; the message says why.",
    503: "The server is not accepting work; try again after Retry-After.",
}
_CREDENTIALS = ("bearer", "apiKey")
_NOT_JSON = (EventStream, HtmlPage, PlainText, RawBytes, Redirect, OtherProtocol)
_BYTES: Schema = {"type": "string", "format": "binary"}


class Issue(Struct):
    path: str
    message: str


class Error(Struct, rename="camel"):
    """The body of every response that is not 2xx, with more fields for some codes."""

    error: str
    code: Annotated[str, Meta(extra_json_schema={"enum": [*map(wire_code, TABLE), "thread_ended"]})]
    message: str
    hint: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    issues: list[Issue] | UnsetType = UNSET


def document(routes: Iterable[Route], *, prefix: str = "") -> dict[str, Any]:
    """Returns the whole document. `prefix` is put before all of its paths."""
    routes = tuple(routes)
    schemas = schemas_of(
        requests=[body_type(route) for route in routes if body_type(route) is not None],
        responses=[
            Error,
            *(json_type(route) for route in routes if json_type(route) is not None),
            *(route.refuses for route in routes if route.refuses is not None),
        ],
    )
    paths: dict[str, dict[str, Any]] = {}
    ids: set[str] = set()
    for route in routes:
        name = f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}"
        if name in ids:
            name = f"{name}_{re.sub(r'[^a-z]+', '_', (route.method + route.path.rpartition('/')[2]).lower())}"
        ids.add(name)
        paths.setdefault(shown_path(route), {})[route.method.lower()] = {
            "operationId": name,
            **_operation(route, schemas),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weftline", "version": __version__, "description": "A durable runtime for LLM agents."},
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or OAuth access token."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
            },
        },
    }


def shown_path(route: Route) -> str:
    """Returns the path of a route as OpenAPI writes it, which has no parameter for several segments."""
    return route.path.replace("{*", "{")


def body_type(route: Route) -> Any:
    """Returns the type of a request's body; None if it has none that JSON Schema could describe."""
    if route.body is None or route.body.type in (OtherProtocol, RawBytes):
        return None
    described = route.body.type
    return resolve_name(described) if isinstance(described, str) else described


def json_type(route: Route) -> Any:
    """Returns the type of a JSON success; None if there is none."""
    return next((one for one in _kinds(route) if one not in _NOT_JSON), None)


def _kinds(route: Route) -> tuple[Any, ...]:
    """Returns the kinds of success: the return type, or the members of a union."""
    members = get_args(route.returns)
    return members if any(one in _NOT_JSON for one in members) else (route.returns,)


def _operation(route: Route, schemas: Schemas) -> Schema:
    made: Schema = {"summary": route.summary, "tags": [_tag(route.path)]}
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", shown_path(route))
    ]
    parameters += [
        {"name": one.name, "in": place, "description": one.about, "schema": schema_of(one.type)}
        for place, declared in (("query", route.query), ("header", headers_of(route)))
        for one in declared
    ]
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": _content(route, route.body, schemas)}
    made["responses"] = _responses(route, schemas)
    if route.access != "public":
        made["security"] = [{name: list(route.scopes)} for name in _CREDENTIALS]
    return made


def _content(route: Route, body: AnyBody, schemas: Schemas) -> Schema:
    if body.type is RawBytes:
        return {"application/octet-stream": {"schema": _BYTES}}
    media = "application/x-www-form-urlencoded" if isinstance(body, Form) else "application/json"
    described = body_type(route)
    content: Schema = {media: {"schema": {} if described is None else schemas.by_type[described]}}
    if isinstance(body, Body) and body.or_bytes:
        content["application/octet-stream"] = {"schema": _BYTES}
    return content


_EVENTS: Schema = {
    "description": "Events: the lines `id`, `event` and `data` of each, and an empty one after it. `data` is JSON.",
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
            "required": ["data"],
        },
    ],
}
"""What reads events takes this for the schema of each, and generated clients for that of all of them in one text."""


def _responses(route: Route, schemas: Schemas) -> Schema:
    kinds = _kinds(route)
    shape = json_type(route)
    if shape is None and any(one in (HtmlPage, Redirect, OtherProtocol) for one in kinds):
        status = "2XX" if OtherProtocol in kinds else str(route.status)
        success: Schema = {"description": "Done."}
        if HtmlPage in kinds:
            success["content"] = {"text/html": {"schema": {"type": "string"}}}
        return {status: success, "4XX": {"description": "Refused."}, "5XX": {"description": "The server failed."}}
    content: Schema = {}
    if shape is not None:
        content["application/json"] = {"schema": schemas.by_type[shape]}
    if HtmlPage in kinds:
        content["text/html"] = {}
    if RawBytes in kinds:
        content["*/*"] = {"schema": _BYTES}
    if PlainText in kinds:
        content["text/plain"] = {"schema": {"type": "string"}}
    successes: dict[str, Schema] = {str(route.status): {"description": "Done.", "content": content}}
    if EventStream in kinds and content and route.status != 200:
        # Only described in words: generated clients never ask for events, and with a schema here they would read every
        # success as text.
        successes["200"] = {"description": "The events, as `text/event-stream`, if the request accepts them."}
    elif EventStream in kinds:
        content["text/event-stream"] = {"schema": _EVENTS}
    return {
        **successes,
        **({"204": {"description": "Done. The response has no body."}} if route.silent else {}),
        **{str(status): _refusal(route, status, schemas) for status in sorted(_errors(route))},
    }


def _refusal(route: Route, status: int, schemas: Schemas) -> Schema:
    shape = route.refuses if route.refuses is not None and status in (400, 401) else Error
    return {"description": REASONS[status], "content": {"application/json": {"schema": schemas.by_type[shape]}}}


def _errors(route: Route) -> set[int]:
    """Returns the error statuses of a route: those of its kind, and its own."""
    errors = {*route.errors}
    if route.access != "public":
        errors |= {401, 403, 404, 503}
        if route.limited:
            errors.add(429)
    if route.body is not None:
        errors |= {400} if isinstance(route.body, Form) else {400, 413}
    if route.query:
        errors.add(400)
    return errors | {500} if errors else errors


def _tag(path: str) -> str:
    parts: Sequence[str] = [part for part in path.split("/") if part and not part.startswith("{")]
    if path.startswith("/api/v1/workspaces/"):
        return parts[3]
    return parts[1] if parts[:1] == ["api"] else "server"
