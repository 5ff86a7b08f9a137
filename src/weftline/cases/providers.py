"""Model providers that a workspace adds.

API keys and header values are never returned: reading a provider shows whether it has a key, and the names of its
headers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Sent, require_accepting
from weftline.errors import Conflict, InvalidRequest, Issue, NotFound, StoreError, WeftlineError, invalid
from weftline.framing import REFUSAL, frames_request
from weftline.kernel.damage import UNREADABLE
from weftline.net.address import InvalidAddress, parse
from weftline.net.transport import AiohttpTransport
from weftline.providers.families import NotAvailable, build_provider
from weftline.store.database import Query
from weftline.store.records import providers
from weftline.store.records.providers import ProviderColumns, ProviderRow
from weftline.store.sealing import Vault
from weftline.text.redaction import REDACTED, redact_url
from weftline.wire.errors import client_names, error_code
from weftline.wire.models import Headers
from weftline.wire.responses import Time, iso
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.providers import OfferedModel, ProviderSecrets, ProviderSpec, opened, settings_of, spec_of

_NOT_OPTIONS = frozenset(
    {
        "transport",
        "api_key",
        "oauth",
        "base_url",
        "models",
        "headers",
        "family",
        "any_model",
        "source",
        "max_concurrency",
        "tokens_per_minute",
    }
)
"""Arguments of a family that are not options, because they have fields of their own or are set by the server."""
MAX_PER_WORKSPACE = 50
MAX_MODELS_PER_WORKSPACE = 5_000
_Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
_Family = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Count = Annotated[int, Field(ge=1, le=2**53)]


class OfferedModelModel(BaseModel):
    """A model that a provider should offer. Absent fields are unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: _Id
    label: Annotated[str, StringConstraints(max_length=256)] = ""
    contextWindowTokens: _Count | None = None
    maxOutputTokens: _Count | None = None
    vision: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None


class _ProviderFields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    baseUrl: Annotated[str, StringConstraints(max_length=2048)] | None = None
    apiKey: Annotated[str, StringConstraints(min_length=1, max_length=8192)] | None = Field(default=None, repr=False)
    headers: Headers | None = Field(default=None, repr=False)
    models: Annotated[list[_Id | OfferedModelModel], Field(max_length=500)] = []
    anyModel: bool | None = None
    maxConcurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokensPerMinute: _Count | None = None
    options: dict[str, Any] = {}


class ProviderModel(_ProviderFields):
    """The body that creates a provider."""

    name: _Name
    family: _Family


class ProviderChangesModel(_ProviderFields):
    """The body that changes a provider: what is absent stays."""

    name: _Name = ""
    family: _Family = ""


class ProvidedModel(Struct, rename="camel"):
    """A model of a provider, with what was sent about it."""

    id: str
    label: str | UnsetType = UNSET
    context_window_tokens: int | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    vision: bool | UnsetType | None = UNSET
    reasoning: bool | UnsetType | None = UNSET
    tools: bool | UnsetType | None = UNSET


class Provider(Struct, rename="camel"):
    id: str
    name: str
    family: str
    base_url: str | None
    models: list[str | ProvidedModel]
    any_model: bool | None
    max_concurrency: int | None
    tokens_per_minute: int | None
    options: dict[str, Any]
    has_api_key: bool
    header_names: tuple[str, ...]
    created_at: Time
    updated_at: Time
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that its models are not offered; left out otherwise."""


class Providers(Struct, rename="camel"):
    providers: list[Provider]
    next_cursor: str | None


class ProviderChanges(Struct, frozen=True, kw_only=True):
    """Changes to a provider; UNSET fields are left unchanged."""

    name: str | UnsetType = UNSET
    family: str | UnsetType = UNSET
    base_url: str | UnsetType | None = UNSET
    models: tuple[str | OfferedModel, ...] | UnsetType = UNSET
    any_model: bool | UnsetType | None = UNSET
    max_concurrency: int | UnsetType | None = UNSET
    tokens_per_minute: int | UnsetType | None = UNSET
    options: dict[str, Any] | UnsetType = UNSET
    api_key: str | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET

    def __repr__(self) -> str:
        return "ProviderChanges(…)"


class _Listed(Struct):
    """The models in a provider's spec."""

    models: list[Raw] = []


_decode_models = msgspec.json.Decoder(_Listed).decode


async def create(on: Host, by: Principal, sent: Sent[ProviderModel]) -> Provider:
    fields = (await sent.read()).fields
    require_accepting(on, by)
    spec = ProviderSpec(
        family=fields.family,
        base_url=fields.baseUrl,
        models=_models(fields),
        any_model=fields.anyModel,
        max_concurrency=fields.maxConcurrency,
        tokens_per_minute=fields.tokensPerMinute,
        options=fields.options,
    )
    values = ProviderSecrets(fields.apiKey, dict(fields.headers or {}))
    with client_names():
        return _shown(await add(on.workspaces, by.workspace, fields.name, spec, values))


async def index(on: Host, by: Principal, page: Page) -> Providers:
    """Lists the providers, oldest first: as many as fit, and at least one."""
    query = providers.page(workspace=by.workspace, after=page.after, limit=page.limit)
    found = await on.workspaces.records.read(query, heavy=True)
    return Providers(await asyncio.to_thread(lambda: [_shown(row) for row in found.rows]), page.next_cursor(found))


async def read(on: Host, by: Principal, provider_id: str) -> Provider:
    return _shown(await find(on.workspaces, by.workspace, provider_id))


async def change(on: Host, by: Principal, provider_id: str, sent: Sent[ProviderChangesModel]) -> Provider:
    fields = (await sent.read()).fields
    require_accepting(on, by)
    with client_names():
        return _shown(await amend(on.workspaces, by.workspace, provider_id, _changes(fields)))


async def delete(on: Host, by: Principal, provider_id: str) -> None:
    require_accepting(on, by)
    await remove(on.workspaces, by.workspace, provider_id)


def _changes(sent: ProviderChangesModel) -> ProviderChanges:
    given = sent.model_fields_set
    return ProviderChanges(
        name=sent.name if "name" in given else UNSET,
        family=sent.family if "family" in given else UNSET,
        base_url=sent.baseUrl if "baseUrl" in given else UNSET,
        models=_models(sent) if "models" in given else UNSET,
        any_model=sent.anyModel if "anyModel" in given else UNSET,
        max_concurrency=sent.maxConcurrency if "maxConcurrency" in given else UNSET,
        tokens_per_minute=sent.tokensPerMinute if "tokensPerMinute" in given else UNSET,
        options=sent.options if "options" in given else UNSET,
        api_key=sent.apiKey if "apiKey" in given else UNSET,
        headers=dict(sent.headers or {}) if "headers" in given else UNSET,
    )


def _models(sent: _ProviderFields) -> tuple[str | OfferedModel, ...]:
    return tuple(model if isinstance(model, str) else _offered(model) for model in sent.models)


def _offered(model: OfferedModelModel) -> OfferedModel:
    given = model.model_fields_set
    return OfferedModel(
        model.id,
        model.label if "label" in given else UNSET,
        model.contextWindowTokens if "contextWindowTokens" in given else UNSET,
        model.maxOutputTokens if "maxOutputTokens" in given else UNSET,
        model.vision if "vision" in given else UNSET,
        model.reasoning if "reasoning" in given else UNSET,
        model.tools if "tools" in given else UNSET,
    )


async def add(at: Workspaces, workspace: int, name: str, spec: ProviderSpec, values: ProviderSecrets) -> ProviderRow:
    """Stores a provider with these secrets. Raises `Conflict` if the workspace already has one with that name."""
    spec = _checked(name, spec, values)
    identity = "prov_" + secrets.token_hex(12)
    columns = _columns(name, spec, values, vault=at.vault, id=identity)

    def query() -> Query[ProviderRow]:
        if (yield from providers.count(workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} providers.")
        yield from _require_room(len(spec.models), workspace=workspace)
        row = yield from providers.insert(identity, columns, workspace=workspace, now=at.clock.now_us())
        return row or (yield from _taken(name, workspace=workspace))

    row = await at.records.write(query())
    await at.changed(Change("providers", workspace))
    return row


async def amend(at: Workspaces, workspace: int, id: str, changes: ProviderChanges) -> ProviderRow:
    """Changes a provider, by its id or name. If its address changes, its secrets must be given again."""

    def query() -> Query[ProviderRow]:
        row = yield from _existing(id, workspace=workspace)
        name, spec, values = _changed(row, opened(at.vault, row), changes)
        twin = yield from providers.by_name(name, workspace=workspace)
        if twin is not None and twin.key != row.key:
            yield from _taken(name, workspace=workspace)
        yield from _require_room(len(spec.models) - len(spec_of(row).models), workspace=workspace)
        columns = _columns(name, spec, values, vault=at.vault, id=row.id)
        changed = yield from providers.update(row.key, columns, now=at.clock.now_us())
        assert changed is not None
        return changed

    row = await at.records.write(query())
    await at.changed(Change("providers", workspace))
    return row


async def remove(at: Workspaces, workspace: int, id: str) -> str:
    """Removes a provider, by its id or name, and returns its id.

    Calls in progress end; later calls of the same runs find no model.
    """

    def query() -> Query[str]:
        row = yield from _existing(id, workspace=workspace)
        yield from providers.delete(row.key)
        return row.id

    removed = await at.records.write(query())
    await at.changed(Change("providers", workspace))
    return removed


async def find(at: Workspaces, workspace: int, id: str) -> ProviderRow:
    """The provider with this id or name. Raises `NotFound`."""
    return await at.records.read(_existing(id, workspace=workspace))


def _existing(id: str, *, workspace: int) -> Query[ProviderRow]:
    row = yield from providers.find(id, workspace=workspace)
    if row is None:
        raise NotFound("There is no such provider.")
    return row


def _require_room(more: int, *, workspace: int) -> Query[None]:
    if more <= 0:
        return
    listed = 0
    for spec in (yield from providers.specs(workspace)):
        with suppress(*UNREADABLE):  # a damaged one lists none
            listed += len(_decode_models(spec).models)
    if listed + more > MAX_MODELS_PER_WORKSPACE:
        problem = f"a workspace's providers can list at most {MAX_MODELS_PER_WORKSPACE:,} models together"
        raise invalid([Issue("models", problem)])


def _taken(name: str, *, workspace: int) -> Query[ProviderRow]:
    twin = yield from providers.by_name(name, workspace=workspace)
    raise Conflict(f"This workspace already has a provider named {name!r}{f': {twin.id}' if twin else ''}.")


def _columns(name: str, spec: ProviderSpec, values: ProviderSecrets, *, vault: Vault, id: str) -> ProviderColumns:
    """An address that may contain a token is stored redacted, and in full among the secrets."""
    redacted = spec.base_url and redact_url(spec.base_url)
    values = replace(values, base_url=spec.base_url if redacted != spec.base_url else None)
    sealed = None
    if values != ProviderSecrets():
        sealed = vault.seal(msgspec.json.encode(values), place=f"provider:{id}")
    return ProviderColumns(name=name, spec=msgspec.json.encode(replace(spec, base_url=redacted)), secrets=sealed)


def _changed(
    row: ProviderRow, earlier: ProviderSecrets, changes: ProviderChanges
) -> tuple[str, ProviderSpec, ProviderSecrets]:
    before = spec_of(row)
    before = replace(before, base_url=earlier.base_url or before.base_url)
    given: dict[str, Any] = {
        name: value for name in ProviderSpec.__struct_fields__ if (value := getattr(changes, name, UNSET)) is not UNSET
    }
    if before.base_url is not None and given.get("base_url") == redact_url(before.base_url):
        del given["base_url"]  # sent back as it was read, so it is unchanged
    spec = replace(before, **given)
    name = row.name if changes.name is UNSET else changes.name
    values = ProviderSecrets(
        earlier.api_key if changes.api_key is UNSET else changes.api_key,
        earlier.headers if changes.headers is UNSET else changes.headers,
    )
    issues: list[Issue] = []
    if spec.address != before.address:
        # Otherwise anyone who may change a provider could have its key sent to an address of their own.
        kept = {
            "api_key": earlier.api_key is not None and changes.api_key is UNSET,
            "headers": bool(earlier.headers) and changes.headers is UNSET,
        }
        issues = [
            Issue(field, "must be sent again when the provider's address changes")
            for field, is_kept in kept.items()
            if is_kept
        ]
    return name, _checked(name, spec, values, issues), values


def _checked(name: str, spec: ProviderSpec, values: ProviderSecrets, more: Sequence[Issue] = ()) -> ProviderSpec:
    """The spec, with what it records about the secrets, if it can work.

    Raises `InvalidRequest`, which names the field and never contains a secret.
    """
    issues = [
        Issue(f"options.{option}", "is not an option: it has its own field, or only the server may set it")
        for option in spec.options
        if option in _NOT_OPTIONS
    ]
    if values.api_key is not None and values.api_key.startswith("env:"):
        issues.append(Issue("api_key", "must be the key itself: a workspace cannot use the server's environment"))
    if REDACTED in (spec.base_url or ""):
        issues.append(Issue("base_url", f"must be sent in full: {REDACTED} stands for what was not shown"))
    elif spec.base_url is not None:
        try:
            parse(spec.base_url)
        except InvalidAddress as error:
            issues.append(Issue("base_url", str(error)))
    issues += [Issue(f"headers.{header}", REFUSAL) for header in values.headers if frames_request(header)]
    issues += more
    if issues:
        raise invalid(issues)
    _try_out(name, spec, values)
    return replace(spec, has_api_key=values.api_key is not None, header_names=tuple(sorted(values.headers)))


def _try_out(name: str, spec: ProviderSpec, values: ProviderSecrets) -> None:
    """Builds the provider once, so that settings that cannot work are rejected when they are sent."""
    try:
        build_provider(settings_of(name, spec, values), transport=AiohttpTransport(), environ={})
    except NotAvailable as missing:
        raise invalid([Issue("api_key" if values.api_key is None else "family", str(missing))]) from None
    except WeftlineError as error:
        raise invalid([_issue(name, error)]) from None


_FIELDS = frozenset({"family", "base_url", "models", "api_key", "headers"})
"""The settings that have a field of their own; all others are options."""


def _issue(name: str, error: WeftlineError) -> Issue:
    """Converts a fault worded for the configuration file to the corresponding field here."""
    key = str(error.details.get("key", "")).removeprefix(f"providers.{name}").lstrip(".")
    field = key.partition("[")[0]
    if field not in _FIELDS:
        field = f"options.{key}" if key else "name"
    return Issue(field, error.issues[0].message if error.issues else error.message)


def _shown(row: ProviderRow) -> Provider:
    damaged = ""
    try:
        spec = spec_of(row)
    except StoreError as error:
        damaged, spec = error.message, ProviderSpec(family="")
    return Provider(
        row.id,
        row.name,
        spec.family,
        spec.base_url and redact_url(spec.base_url),
        [model if isinstance(model, str) else ProvidedModel(**asdict(model)) for model in spec.models],
        spec.any_model,
        spec.max_concurrency,
        spec.tokens_per_minute,
        spec.options,
        spec.has_api_key,
        spec.header_names,
        iso(row.created_at),
        iso(row.updated_at),
        error_code(damaged),
    )
