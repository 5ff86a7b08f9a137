"""Stored tools as JSON. Secrets are never returned, only their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from weftline.api.validation import refused
from weftline.errors import Issue, StoreError, invalid
from weftline.sandbox.base import Language
from weftline.store.records.tools import ToolRow
from weftline.text.redaction import redact_template
from weftline.tools.http import HttpSpec, Method
from weftline.tools.stored_code import CodeSpec
from weftline.wire.errors import error_code
from weftline.wire.models import Headers, ToolName, Url
from weftline.wire.responses import JsonObject, Time, Warnings, iso
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields, with_typos
from weftline.workspace.tools import StoredSpec, ToolChanges, fields_of_others, not_of_kind, spec_of

MAX_BODY_BYTES = 256 * 1024
MAX_SOURCE_CHARS = 128 * 1024
_SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")]
_SecretValue = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
_Model = TypeVar("_Model", bound=BaseModel)


class _ToolFields(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    kind: Literal["http", "code"] = "http"
    description: Annotated[str, StringConstraints(max_length=8192)] = ""
    parameters: dict[str, Any] | None = None
    method: Method = "GET"
    headers: Headers = {}
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
    secrets: dict[_SecretName, _SecretValue | None] = {}


class ToolChangesModel(_ToolFields):
    """The body that changes a tool: what is absent stays."""

    name: ToolName = ""
    url: Url = ""
    secrets: dict[_SecretName, _SecretValue | None] | list[_SecretName] = {}
    """A list of names, as a tool is returned with, changes nothing."""


_TOOL = shape_of(ToolModel)


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


def parse_tool(fields: dict[str, Any]) -> tuple[StoredSpec, dict[str, str], Sequence[UnknownField]]:
    """Parses a tool to create, and its secrets; also returns the unknown fields. Raises `InvalidRequest`."""
    sent = _checked(ToolModel, fields)
    unknown = unknown_fields(fields, _TOOL)
    given = sent.model_fields_set
    issues = [not_of_kind(name) for name in fields_of_others(sent.kind) if name in given]
    needed = "source" if sent.kind == "code" else "url"
    if needed not in given:
        issues.insert(0, Issue(needed, "is required"))
    if issues:
        raise with_typos(invalid(issues), unknown)
    values = {name: value for name, value in sent.secrets.items() if value is not None}
    if sent.kind == "code":
        return _code_spec(sent), values, unknown
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
    return spec, values, unknown


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


def parse_tool_changes(fields: dict[str, Any]) -> tuple[ToolChanges, Sequence[UnknownField]]:
    """Parses changes to a tool; also returns the unknown fields. Raises `InvalidRequest`."""
    sent = _checked(ToolChangesModel, fields)
    given = sent.model_fields_set
    changes = ToolChanges(
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
    return changes, unknown_fields(fields, _TOOL)


def tool_json(row: ToolRow, warnings: Warnings = UNSET) -> Tool:
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


def _checked(model: type[_Model], fields: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise refused(error, model, fields) from None


def _raw(value: Any) -> Raw | None:
    return None if value is None else Raw(msgspec.json.encode(value))


def _or_none(raw: Raw | UnsetType) -> Raw | None:
    return None if raw is UNSET else raw
