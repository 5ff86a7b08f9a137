"""Stored tools. Their secrets are never returned, only their names."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace
from pydantic import Field, StringConstraints

from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Sent, require_accepting
from weftline.errors import LOG_DAMAGED, Conflict, InvalidRequest, Issue, NotFound, StoreError, invalid
from weftline.framing import REFUSAL, frames_request
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import Effect
from weftline.net.address import InvalidAddress, parse, same_origin
from weftline.sandbox.base import Language, SandboxUnavailable
from weftline.sandbox.sandbox import Sandbox
from weftline.store.database import Query
from weftline.store.records import tools
from weftline.store.records.tools import ToolColumns, ToolRow
from weftline.store.sealing import Vault
from weftline.text.redaction import REDACTED, SEALED_URL, redact_template
from weftline.text.schema_cost import refusal
from weftline.tools.checking import can_be_checked
from weftline.tools.http import HttpSpec, Method, whole_tool
from weftline.tools.schema import object_schema
from weftline.tools.stored_code import TIMEOUT_S as MAX_CODE_S
from weftline.tools.stored_code import CodeSpec
from weftline.tools.templates import placeholders, secret_names
from weftline.wire.errors import client_names, error_code
from weftline.wire.models import Headers, Part, ToolName, Url
from weftline.wire.responses import JsonObject, Time, Warnings, iso
from weftline.wire.unknown_fields import UnknownField, with_typos
from weftline.workspace.context import Workspaces

_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
MAX_PER_WORKSPACE = 1_000
_NOT_AN_OBJECT = "must be a JSON Schema of type object with properties"

MAX_SOURCE_CHARS = 128 * 1024
_SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")]
_SecretValue = Annotated[str, StringConstraints(min_length=1, max_length=8192)]

StoredSpec: TypeAlias = HttpSpec | CodeSpec
_decode_http = msgspec.json.Decoder(HttpSpec).decode
_decode_code = msgspec.json.Decoder(CodeSpec).decode
_OF_HTTP = ("url", "method", "headers", "body")
_OF_CODE = ("source", "language")


class _ToolFields(Part):
    kind: Literal["http", "code"] = "http"
    description: Annotated[str, StringConstraints(max_length=8192)] = ""
    parameters: dict[str, Any] | None = None
    method: Method = "GET"
    headers: Headers = Field(default={})
    body: Any = None
    effect: Literal["read", "idempotent", "once"] | None = None
    timeoutMs: Annotated[int, Field(ge=100, le=300_000)] = 30_000
    language: Language = "typescript"
    source: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SOURCE_CHARS)] = ""


class ToolModel(_ToolFields):
    """The body that creates a tool."""

    name: ToolName
    url: Url = ""
    """Required for the kind `http`, as `source` is for `code`."""
    secrets: dict[_SecretName, _SecretValue | None] = Field(default={})


class ToolChangesModel(_ToolFields):
    """The body that changes a tool: what is absent stays."""

    name: ToolName = ""
    url: Url = ""
    secrets: dict[_SecretName, _SecretValue | None] | list[_SecretName] = Field(default={})
    """A list of names, as a tool is returned with, changes nothing."""


class Tool(Struct, rename="camel", kw_only=True):
    id: str
    kind: str
    name: str
    description: str
    parameters: JsonObject | None
    method: str | UnsetType = UNSET
    """This and the next three are for the kind `http`."""
    url: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    body: Raw | UnsetType | None = UNSET
    language: str | UnsetType = UNSET
    """This and the next one are for the kind `code`."""
    source: str | UnsetType = UNSET
    effect: str | None
    timeout_ms: int
    secrets: tuple[str, ...]
    created_at: Time
    updated_at: Time
    warnings: Warnings = UNSET
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class Tools(Struct, rename="camel"):
    tools: list[Tool]
    next_cursor: str | None


class ToolChanges(Struct, frozen=True, kw_only=True):
    """Changes to a tool; UNSET fields are left unchanged."""

    kind: str | UnsetType = UNSET
    """It cannot be changed; it is only compared."""
    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    method: Method | UnsetType = UNSET
    description: str | UnsetType = UNSET
    parameters: Raw | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    body: Raw | UnsetType | None = UNSET
    effect: Effect | UnsetType | None = UNSET
    timeout_s: float | UnsetType = UNSET
    source: str | UnsetType = UNSET
    language: Language | UnsetType = UNSET
    secrets: dict[str, str | None] = {}
    """Values by name; None removes one. The others are kept."""


async def create(on: Host, by: Principal, sent: Sent[ToolModel]) -> Tool:
    body = await sent.read()
    spec, values = new_tool(body.fields, body.unknown)
    warnings = sent.warn(body.unknown)
    require_accepting(on, by)
    with client_names():
        return _shown(await add(on.workspaces, by.workspace, spec, values=values), warnings)


async def index(on: Host, by: Principal, page: Page) -> Tools:
    """Lists the tools, oldest first: as many as fit, and at least one."""
    query = tools.page(workspace=by.workspace, after=page.after, limit=page.limit)
    found = await on.workspaces.records.read(query, heavy=True)
    return Tools(await asyncio.to_thread(lambda: [_shown(row) for row in found.rows]), page.next_cursor(found))


async def read(on: Host, by: Principal, tool_id: str) -> Tool:
    return _shown(await find(on.workspaces, by.workspace, tool_id))


async def change(on: Host, by: Principal, tool_id: str, sent: Sent[ToolChangesModel]) -> Tool:
    body = await sent.read()
    warnings = sent.warn(body.unknown)
    require_accepting(on, by)
    with client_names():
        return _shown(await amend(on.workspaces, by.workspace, tool_id, _changes(body.fields)), warnings)


async def delete(on: Host, by: Principal, tool_id: str) -> None:
    require_accepting(on, by)
    await remove(on.workspaces, by.workspace, tool_id)


def new_tool(sent: ToolModel, unknown: Sequence[UnknownField]) -> tuple[StoredSpec, dict[str, str]]:
    """Returns a tool to create, and its secrets. Raises `InvalidRequest`, which also names misspelt fields."""
    given = sent.model_fields_set
    issues = [not_of_kind(name) for name in fields_of_others(sent.kind) if name in given]
    needed = "source" if sent.kind == "code" else "url"
    if needed not in given:
        issues.insert(0, Issue(needed, "is required"))
    if issues:
        raise with_typos(invalid(issues), unknown)
    values = {name: value for name, value in sent.secrets.items() if value is not None}
    if sent.kind == "code":
        return _code_spec(sent), values
    spec = HttpSpec(
        sent.name,
        sent.url,
        sent.method,
        sent.description,
        _raw(sent.parameters) or UNSET,
        dict(sent.headers),
        _raw(sent.body) or UNSET,
        sent.effect,
        sent.timeoutMs / 1000,
    )
    return spec, values


def _code_spec(sent: ToolModel) -> CodeSpec:
    return CodeSpec(
        sent.name,
        sent.source,
        sent.language,
        sent.description,
        _raw(sent.parameters) or UNSET,
        sent.effect,
        sent.timeoutMs / 1000,
    )


def _changes(sent: ToolChangesModel) -> ToolChanges:
    given = sent.model_fields_set
    return ToolChanges(
        kind=sent.kind if "kind" in given else UNSET,
        name=sent.name if "name" in given else UNSET,
        url=sent.url if "url" in given else UNSET,
        method=sent.method if "method" in given else UNSET,
        description=sent.description if "description" in given else UNSET,
        parameters=_raw(sent.parameters) if "parameters" in given else UNSET,
        headers=dict(sent.headers) if "headers" in given else UNSET,
        body=_raw(sent.body) if "body" in given else UNSET,
        effect=sent.effect if "effect" in given else UNSET,
        timeout_s=sent.timeoutMs / 1000 if "timeoutMs" in given else UNSET,
        source=sent.source if "source" in given else UNSET,
        language=sent.language if "language" in given else UNSET,
        secrets={} if isinstance(sent.secrets, list) else dict(sent.secrets),
    )


def spec_of(row: ToolRow) -> StoredSpec:
    """As callers see it: without the secrets in its address."""
    if not row.damaged:
        with suppress(*UNREADABLE):
            return _decode_code(row.spec) if row.kind == "code" else _decode_http(row.spec)
    raise StoreError(f"The tool {row.id} is damaged: its {row.damaged or 'spec'} cannot be read.", code=LOG_DAMAGED)


async def add(at: Workspaces, workspace: int, spec: StoredSpec, *, values: Mapping[str, str]) -> ToolRow:
    """Stores a tool with these secrets. Raises `Conflict` if the workspace already has one with that name."""
    spec = replace(spec, secrets=tuple(sorted(values)))
    kind = "code" if isinstance(spec, CodeSpec) else "http"
    if isinstance(spec, CodeSpec):
        _check_code(spec)
    else:
        _checked(spec)
    await _require_checkable(spec.parameters)
    identity = "tool_" + secrets.token_hex(12)
    columns = _columns(spec, values, vault=at.vault, id=identity)

    def query() -> Query[ToolRow]:
        if (yield from tools.count(workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} tools.")
        row = yield from tools.insert(identity, columns, workspace=workspace, kind=kind, now=at.clock.now_us())
        return row or (yield from _taken(spec.name, workspace=workspace))

    return await at.records.write(query())


async def amend(at: Workspaces, workspace: int, id: str, sent: ToolChanges) -> ToolRow:
    """Changes a tool; active runs see the change when they are next resumed.

    If its origin changes, its secrets must be given again. `[redacted]` stands for the stored value.
    """
    await _require_checkable(sent.parameters)

    def query() -> Query[ToolRow]:
        row = yield from _existing(id, workspace=workspace)
        before, values = opened(row, vault=at.vault)
        changes = _without_marks(sent, values)
        if changes.kind not in (UNSET, row.kind):
            raise invalid([Issue("kind", f"cannot be changed: the tool is of kind `{row.kind}`")])
        spec = _changed(before, changes)
        if isinstance(spec, CodeSpec):
            assert isinstance(before, CodeSpec)
            same = (before.source, before.language) == (spec.source, spec.language)
            _check_code(spec, [] if same else _kept_secrets(before, changes, when="code changes"))
        else:
            assert isinstance(before, HttpSpec)
            same = same_origin(before.url, spec.url)
            _checked(spec, [] if same else _kept_secrets(before, changes, when="origin changes"))
        twin = yield from tools.by_name(spec.name, workspace=workspace)
        if twin is not None and twin.key != row.key:
            yield from _taken(spec.name, workspace=workspace)
        kept = {name: value for name, value in {**values, **changes.secrets}.items() if value is not None}
        columns = _columns(spec, kept, vault=at.vault, id=row.id)
        changed = yield from tools.update(row.key, columns, now=at.clock.now_us())
        assert changed is not None
        return changed

    return await at.records.write(query())


async def remove(at: Workspaces, workspace: int, id: str) -> None:
    """Removes a tool; active runs keep it until they are next resumed."""

    def query() -> Query[None]:
        row = yield from _existing(id, workspace=workspace)
        yield from tools.delete(row.key)

    await at.records.write(query())


async def find(at: Workspaces, workspace: int, id: str) -> ToolRow:
    """Raises `NotFound`."""
    return await at.records.read(_existing(id, workspace=workspace))


def _existing(id: str, *, workspace: int) -> Query[ToolRow]:
    row = yield from tools.by_id(id, workspace=workspace)
    if row is None:
        raise NotFound("There is no such tool.")
    return row


def _taken(name: str, *, workspace: int) -> Query[ToolRow]:
    twin = yield from tools.by_name(name, workspace=workspace)
    raise Conflict(f"This workspace already has a tool named {name!r}{f': {twin.id}' if twin else ''}.")


def opened(row: ToolRow, *, vault: Vault) -> tuple[StoredSpec, dict[str, str]]:
    """The tool with its complete address, and its secrets. Raises `StoreError` if they were encrypted with another
    key.
    """
    spec, values = spec_of(row), vault.open_values(row.secrets, tool=row.id)
    return (spec, values) if isinstance(spec, CodeSpec) else whole_tool(spec, values)


def _columns(spec: StoredSpec, values: Mapping[str, str], *, vault: Vault, id: str) -> ToolColumns:
    """An address that contains a token is stored redacted, and in full among the secrets."""
    if isinstance(spec, CodeSpec):
        return ToolColumns(
            name=spec.name, spec=msgspec.json.encode(spec), secrets=vault.seal_values(dict(values), tool=id)
        )
    redacted, kept = redact_template(spec.url), dict(values)
    if redacted != spec.url:
        kept[SEALED_URL] = spec.url
    return ToolColumns(
        name=spec.name,
        spec=msgspec.json.encode(replace(spec, url=redacted)),
        secrets=vault.seal_values(kept, tool=id),
    )


def _changed(spec: StoredSpec, changes: ToolChanges) -> StoredSpec:
    given: dict[str, Any] = {name: value for name, value in asdict(changes).items() if value is not UNSET}
    given.pop("kind", None)
    foreign = fields_of_others("code" if isinstance(spec, CodeSpec) else "http")
    if wrong := [name for name in foreign if name in given]:
        raise invalid([not_of_kind(name) for name in wrong])
    for name in ("parameters", "body"):
        if name in given and given[name] is None:
            given[name] = UNSET
    if isinstance(spec, HttpSpec) and given.get("url") == redact_template(spec.url):
        del given["url"]  # sent back as it was read, so it is unchanged
    names = {*spec.secrets, *changes.secrets} - {name for name, value in changes.secrets.items() if value is None}
    return replace(spec, **{**given, "secrets": tuple(sorted(names))})


def not_of_kind(field: str) -> Issue:
    """A field that only tools of the other kind have."""
    kind = "http" if field in _OF_HTTP else "code"
    return Issue(field, f"only tools of kind `{kind}` have this")


def fields_of_others(kind: str) -> tuple[str, ...]:
    """The fields that tools of this kind do not have."""
    return _OF_HTTP if kind == "code" else _OF_CODE


def _without_marks(changes: ToolChanges, values: Mapping[str, str]) -> ToolChanges:
    """The changes, without redacted secrets, which are kept."""
    marked = [name for name, value in changes.secrets.items() if value == REDACTED]
    unknown = [
        Issue(f"secrets.{name}", "is not stored, so there is nothing to keep") for name in marked if name not in values
    ]
    if unknown:
        raise invalid(unknown)
    kept = {name: value for name, value in changes.secrets.items() if name not in marked}
    return replace(changes, secrets=kept) if marked else changes


def _kept_secrets(before: StoredSpec, changes: ToolChanges, *, when: str) -> list[Issue]:
    # Otherwise anyone who may change a tool could send its secrets to an address of their own, or print them with code
    # of their own.
    return [
        Issue(f"secrets.{name}", f"must be sent again when the tool's {when}")
        for name in before.secrets
        if name not in changes.secrets
    ]


def _check_code(spec: CodeSpec, more: Sequence[Issue] = ()) -> None:
    """Raises `InvalidRequest` for code that cannot work here."""
    issues = [*more]
    try:
        Sandbox().require(spec.language)
    except SandboxUnavailable as error:
        issues.append(Issue("kind", f"code cannot be run on this server: {error.message}"))
    if spec.parameters is not UNSET and object_schema(spec.parameters) is not spec.parameters:
        issues.append(Issue("parameters", _NOT_AN_OBJECT))
    if spec.timeout_s > MAX_CODE_S:
        issues.append(Issue("timeout_s", f"code may run for at most {MAX_CODE_S * 1000:,.0f} milliseconds"))
    if issues:
        raise invalid(issues)


def _checked(spec: HttpSpec, more: Sequence[Issue] = ()) -> HttpSpec:
    """The spec, if it can work. Raises `InvalidRequest`."""
    issues = [*more]
    authority = spec.url.partition("://")[2].split("/")[0].split("?")[0]
    if "{{" in authority:
        issues.append(Issue("url", "must name its host; placeholders are allowed only in the path and the query"))
    else:
        try:
            parse(spec.url)
        except InvalidAddress as error:
            issues.append(Issue("url", str(error)))
    if REDACTED in spec.url:
        issues.append(Issue("url", f"must be sent in full: {REDACTED} stands for what was not shown"))
    if spec.method in ("GET", "HEAD") and spec.body is not UNSET:
        issues.append(Issue("body", f"{spec.method} has no body"))
    issues += [Issue(f"headers.{name}", REFUSAL) for name in spec.headers if frames_request(name)]
    for name, value in spec.headers.items():
        if name.lower() in _SECRET_HEADERS and not secret_names(value):
            issues.append(Issue(f"headers.{name}", "put the value into `secrets` and write {{secrets.NAME}} here"))
    body = None if spec.body is UNSET else msgspec.json.decode(spec.body)
    templates: dict[str, Any] = {"url": spec.url, "headers": list(spec.headers.values()), "body": body}
    for place, template in templates.items():
        missing = sorted(secret_names(template) - set(spec.secrets))
        issues += [Issue(place, f"there is no secret {name!r}") for name in missing]
    issues += _parameter_issues(spec, templates)
    if issues:
        raise invalid(issues)
    return spec


async def _require_checkable(parameters: Raw | UnsetType | None) -> None:
    """Raises `InvalidRequest` for parameters whose schema is too expensive to check, or cannot be checked against."""
    if parameters is UNSET or parameters is None:
        return
    problem = refusal(msgspec.json.decode(parameters), encoded=bytes(parameters))
    if problem is None and not await can_be_checked(parameters):
        problem = "is not a JSON Schema that can be checked"
    if problem is not None:
        raise invalid([Issue("parameters", problem)])


def _parameter_issues(spec: HttpSpec, templates: dict[str, Any]) -> list[Issue]:
    properties: set[str] = set()
    if spec.parameters is not UNSET:
        raw = spec.parameters
        if object_schema(raw) is not raw:
            return [Issue("parameters", _NOT_AN_OBJECT)]
        properties = set(msgspec.json.decode(raw)["properties"])
    return [
        Issue(place, f"{{{{{name}}}}} is not among the properties of `parameters`")
        for place, template in templates.items()
        for name in placeholders(template)
        if not name.startswith("secrets.") and name.partition(".")[0] not in properties
    ]


def _shown(row: ToolRow, warnings: Warnings = UNSET) -> Tool:
    damaged = ""
    try:
        spec = spec_of(row)
    except StoreError as error:
        damaged, spec = error.message, HttpSpec(row.name, "")
    return Tool(
        id=row.id,
        kind=row.kind,
        name=spec.name,
        description=spec.description,
        parameters=_or_none(spec.parameters),
        method=UNSET if isinstance(spec, CodeSpec) else spec.method,
        url=UNSET if isinstance(spec, CodeSpec) else redact_template(spec.url),
        headers=UNSET if isinstance(spec, CodeSpec) else spec.headers,
        body=UNSET if isinstance(spec, CodeSpec) else _or_none(spec.body),
        language=spec.language if isinstance(spec, CodeSpec) else UNSET,
        source=spec.source if isinstance(spec, CodeSpec) else UNSET,
        effect=spec.effect,
        timeout_ms=round(spec.timeout_s * 1000),
        secrets=spec.secrets,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        warnings=warnings,
        error_code=error_code(damaged),
    )


def _raw(value: Any) -> Raw | None:
    return None if value is None else Raw(msgspec.json.encode(value))


def _or_none(raw: Raw | UnsetType) -> Raw | None:
    return None if raw is UNSET else raw
