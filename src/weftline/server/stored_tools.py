"""Stored tools as the API and the command line see them: what they accept, what they show, and the operations.

Secrets go in and never come out: a tool that is read shows their names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import apsw
import msgspec
from msgspec import UNSET, Raw, Struct
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from weftline.errors import InvalidRequest
from weftline.store.sqlite import keys, tools
from weftline.store.sqlite.reads import Reader, ToolRow
from weftline.tools.http import HttpSpec, Method
from weftline.tools.schema import ArgsValidator, object_schema
from weftline.tools.templates import placeholders, secret_names
from weftline.wire.requests import Issue, invalid
from weftline.wire.responses import iso
from weftline.wire.tool_refs import Headers, ToolName, Url

MAX_BODY_BYTES = 256 * 1024
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")]
_SecretValue = Annotated[str, StringConstraints(min_length=1, max_length=8192)]


class ToolModel(BaseModel):
    """The body of a tool to create or change."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    kind: Literal["http"] = "http"
    name: ToolName
    description: Annotated[str, StringConstraints(max_length=8192)] = ""
    parameters: dict[str, Any] | None = None
    method: Method = "GET"
    url: Url
    headers: Headers = {}
    body: Any = None
    secrets: dict[_SecretName, _SecretValue | None] = {}
    effect: Literal["read", "idempotent", "once"] | None = None
    timeoutMs: Annotated[int, Field(ge=100, le=300_000)] = 30_000


_check = TypeAdapter(ToolModel).validate_python
_decode_spec = msgspec.json.Decoder(HttpSpec).decode


class Draft(Struct, frozen=True):
    """A valid tool to store. `values` are secrets to set, or with None to remove."""

    spec: HttpSpec
    values: dict[str, str | None]

    @property
    def stored(self) -> bytes:
        return msgspec.json.encode(self.spec)


def parse_tool(fields: dict[str, Any], *, known: ToolRow | None = None) -> Draft:
    """The tool that `fields` describe; laid over `known`, when that is to be changed. Raises `InvalidRequest`."""
    kind = fields.get("kind", "http")
    if kind == "code":
        raise invalid([Issue("kind", "tools made of code are not available on this server; store an `http` tool")])
    earlier = _decode_spec(known.spec) if known is not None else None
    whole = {**_fields(earlier), **fields} if earlier is not None else fields
    try:
        model = _check(whole)
    except ValidationError as error:
        raise invalid(_issues(error)) from None
    values: dict[str, str | None] = dict(model.secrets)
    names = set(earlier.secrets if earlier is not None else ())
    names |= {name for name, value in values.items() if value is not None}
    names -= {name for name, value in values.items() if value is None}
    faults = _faults(model, names)
    if faults:
        raise invalid(faults)
    spec = HttpSpec(
        model.name,
        model.url,
        model.method,
        model.description,
        UNSET if model.parameters is None else Raw(msgspec.json.encode(model.parameters)),
        dict(model.headers),
        UNSET if model.body is None else Raw(msgspec.json.encode(model.body)),
        model.effect,
        model.timeoutMs / 1000,
        tuple(sorted(names)),
    )
    return Draft(spec, values)


def shown_tool(row: ToolRow) -> dict[str, Any]:
    """A tool as the outside sees it: the names of its secrets, never their values."""
    spec = _decode_spec(row.spec)
    return {
        "id": row.id,
        "kind": row.kind,
        **_fields(spec),
        "secrets": list(spec.secrets),
        "createdAt": iso(row.created_at),
        "updatedAt": iso(row.updated_at),
    }


def create(db: apsw.Connection, *, workspace: str, tool: dict[str, Any], now: int) -> dict[str, Any]:
    draft = parse_tool(tool)
    key = keys.known_workspace(db, workspace)
    return shown_tool(store_new(db, workspace=key, draft=draft, now=now))


def listed(db: apsw.Connection, *, workspace: str) -> list[dict[str, Any]]:
    return [shown_tool(row) for row in Reader(db).tools(keys.known_workspace(db, workspace))]


def show(db: apsw.Connection, *, workspace: str, id: str) -> dict[str, Any]:
    row = Reader(db).tool(id, workspace=keys.known_workspace(db, workspace))
    if row is None:
        raise tools.no_such_tool()
    return shown_tool(row)


def delete(db: apsw.Connection, *, workspace: str, id: str) -> None:
    tools.delete_tool(db, id=id, workspace=keys.known_workspace(db, workspace))


def store_new(db: apsw.Connection, *, workspace: int, draft: Draft, now: int) -> ToolRow:
    values = {name: value for name, value in draft.values.items() if value is not None}
    return tools.create_tool(
        db, workspace=workspace, name=draft.spec.name, kind="http", spec=draft.stored, values=values, now=now
    )


def store_changed(db: apsw.Connection, *, workspace: int, id: str, fields: dict[str, Any], now: int) -> ToolRow:
    row = Reader(db).tool(id, workspace=workspace)
    if row is None:
        raise tools.no_such_tool()
    draft = parse_tool(fields, known=row)
    return tools.update_tool(
        db, id=id, workspace=workspace, name=draft.spec.name, spec=draft.stored, values=draft.values, now=now
    )


def _fields(spec: HttpSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": None if spec.parameters is UNSET else msgspec.json.decode(bytes(spec.parameters)),
        "method": spec.method,
        "url": spec.url,
        "headers": spec.headers,
        "body": None if spec.body is UNSET else msgspec.json.decode(bytes(spec.body)),
        "effect": spec.effect,
        "timeoutMs": round(spec.timeout_s * 1000),
    }


def _faults(model: ToolModel, secrets: set[str]) -> list[Issue]:
    """What the shapes alone do not tell."""
    faults: list[Issue] = []
    authority = model.url.partition("://")[2].split("/")[0].split("?")[0]
    if "{{" in authority:
        faults.append(Issue("url", "must name its host; placeholders may stand in the path and the query only"))
    if model.method in ("GET", "HEAD") and model.body is not None:
        faults.append(Issue("body", f"{model.method} has no body"))
    for name, value in model.headers.items():
        if name.lower() in _SECRET_HEADERS and not secret_names(value):
            faults.append(Issue(f"headers.{name}", "put the value into `secrets` and write {{secrets.NAME}} here"))
    templates = {"url": model.url, "headers": list(model.headers.values()), "body": model.body}
    for place, template in templates.items():
        missing = sorted(secret_names(template) - secrets)
        faults += [Issue(place, f"there is no secret {name!r}") for name in missing]
    faults += _parameter_faults(model, templates)
    return faults


def _parameter_faults(model: ToolModel, templates: dict[str, Any]) -> list[Issue]:
    properties: set[str] = set()
    if model.parameters is not None:
        raw = Raw(msgspec.json.encode(model.parameters))
        if object_schema(raw) is not raw:
            return [Issue("parameters", "must be a JSON Schema of type object with properties")]
        if not ArgsValidator.of(raw).enforced:
            return [Issue("parameters", "is not a JSON Schema that can be checked")]
        properties = set(model.parameters["properties"])
    return [
        Issue(place, f"{{{{{name}}}}} is not among the properties of `parameters`")
        for place, template in templates.items()
        for name in placeholders(template)
        if not name.startswith("secrets.") and name.partition(".")[0] not in properties
    ]


def _issues(error: ValidationError) -> list[Issue]:
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(step) for step in problem["loc"] if step != "[key]")
        found.append(Issue(path, problem["msg"]))
    return found


def required_fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest("The tool must be a JSON object.")
    return cast("dict[str, Any]", value)
