"""The providers that a workspace brought, as the API and the command line see them: what they accept and show.

Keys and header values go in and never come out: a provider that is read shows whether it has a key, and the names of
its headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from weftline.config import provider_settings
from weftline.errors import StoreError, WeftlineError
from weftline.net.transport import AiohttpTransport
from weftline.providers.families import NotAvailable, ProviderSettings, build_provider
from weftline.providers.workspace import OwnProvider
from weftline.store.secrets import Vault
from weftline.store.sqlite import keys, providers
from weftline.store.sqlite.providers import ProviderRow, ProviderSecrets
from weftline.wire.requests import Issue, invalid
from weftline.wire.responses import iso
from weftline.wire.tool_refs import Headers

MAX_BODY_BYTES = 256 * 1024
_TAKEN_OPTIONS = frozenset(
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
"""Arguments of a family that are not options: they have fields of their own, or are the server's."""
_Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Count = Annotated[int, Field(ge=1, le=2**53)]


class OfferedModel(BaseModel):
    """A model that a provider is to offer. What is absent is unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: _Id
    label: Annotated[str, StringConstraints(max_length=256)] = ""
    contextWindowTokens: _Count | None = None
    maxOutputTokens: _Count | None = None
    vision: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None


class ProviderModel(BaseModel):
    """The body of a provider to create or change."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    family: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    baseUrl: Annotated[str, StringConstraints(max_length=2048)] | None = None
    apiKey: Annotated[str, StringConstraints(min_length=1, max_length=8192)] | None = Field(default=None, repr=False)
    headers: Headers | None = Field(default=None, repr=False)
    models: Annotated[list[_Id | OfferedModel], Field(max_length=500)] = []
    anyModel: bool | None = None
    maxConcurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokensPerMinute: _Count | None = None
    options: dict[str, Any] = {}


_check = TypeAdapter(ProviderModel).validate_python
_SECRET = ("apiKey", "headers")


class Draft(Struct, frozen=True):
    """A valid provider to store."""

    name: str
    spec: bytes
    values: ProviderSecrets


def parse_provider(
    fields: dict[str, Any], *, known: ProviderRow | None = None, values: ProviderSecrets | None = None
) -> Draft:
    """The provider that `fields` describe, laid over `known` and its secrets when that is to be changed.

    Raises `InvalidRequest`, which names the field and never holds a secret.
    """
    whole = {**_fields(known), **fields} if known is not None else fields
    try:
        model = _check(whole)
    except ValidationError as error:
        raise invalid(_issues(error)) from None
    earlier = values or ProviderSecrets()
    secrets = ProviderSecrets(
        model.apiKey if "apiKey" in fields else earlier.api_key,
        dict(model.headers or {}) if "headers" in fields else earlier.headers,
    )
    faults = _faults(model)
    if known is not None and _address(whole) != _address(_fields(known)):
        # Otherwise whoever may change a provider could have its key sent to an address of their own.
        kept = {"apiKey": earlier.api_key is not None, "headers": bool(earlier.headers)}
        faults += [
            Issue(name, "must be sent again when the provider gets another address")
            for name, present in kept.items()
            if present and name not in fields
        ]
    if faults:
        raise invalid(faults)
    shown = {name: value for name, value in model.model_dump(exclude_unset=True).items() if name not in _SECRET}
    shown |= {"hasApiKey": secrets.api_key is not None, "headerNames": sorted(secrets.headers)}
    spec = msgspec.json.encode(shown)
    _try_out(model.name, spec, secrets)
    return Draft(model.name, spec, secrets)


def shown_provider(row: ProviderRow) -> dict[str, Any]:
    """A provider as the outside sees it."""
    stored: dict[str, Any] = msgspec.json.decode(row.spec)
    return {
        "id": row.id,
        "name": row.name,
        "family": stored["family"],
        "baseUrl": stored.get("baseUrl"),
        "models": stored.get("models", []),
        "anyModel": stored.get("anyModel"),
        "maxConcurrency": stored.get("maxConcurrency"),
        "tokensPerMinute": stored.get("tokensPerMinute"),
        "options": stored.get("options", {}),
        "hasApiKey": stored["hasApiKey"],
        "headerNames": stored["headerNames"],
        "createdAt": iso(row.created_at),
        "updatedAt": iso(row.updated_at),
    }


def own_providers(db: apsw.Connection, vault: Vault, workspace: int) -> Sequence[OwnProvider]:
    """The providers of a workspace, ready to be built; one whose key cannot be read says so."""
    found: list[OwnProvider] = []
    for row in providers.of_workspace(db, workspace):
        fault, values = "", ProviderSecrets()
        try:
            values = providers.open_secrets(vault, row)
        except StoreError as error:
            fault = error.message
        found.append(OwnProvider(row.id, row.version, _settings(row.name, row.spec, values), fault))
    return found


def create(db: apsw.Connection, *, workspace: str, provider: dict[str, Any], now: int) -> dict[str, Any]:
    draft = parse_provider(provider)
    return shown_provider(store_new(db, workspace=keys.known_workspace(db, workspace), draft=draft, now=now))


def listed(db: apsw.Connection, *, workspace: str) -> list[dict[str, Any]]:
    return [shown_provider(row) for row in providers.of_workspace(db, keys.known_workspace(db, workspace))]


def show(db: apsw.Connection, *, workspace: str, id: str) -> dict[str, Any]:
    return shown_provider(providers.known(db, id, workspace=keys.known_workspace(db, workspace)))


def delete(db: apsw.Connection, *, workspace: str, id: str) -> str:
    return providers.delete_provider(db, id=id, workspace=keys.known_workspace(db, workspace))


def store_new(db: apsw.Connection, *, workspace: int, draft: Draft, now: int) -> ProviderRow:
    return providers.create_provider(
        db, workspace=workspace, name=draft.name, spec=draft.spec, values=draft.values, now=now
    )


def store_changed(
    db: apsw.Connection, *, workspace: int, id: str, fields: dict[str, Any], vault: Vault, now: int
) -> ProviderRow:
    row = providers.known(db, id, workspace=workspace)
    draft = parse_provider(fields, known=row, values=providers.open_secrets(vault, row))
    return providers.update_provider(db, row=row, name=draft.name, spec=draft.spec, values=draft.values, now=now)


def _address(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What decides where requests go."""
    options: dict[str, Any] = fields.get("options") or {}
    return fields.get("family"), fields.get("baseUrl"), options.get("profile")


def _fields(row: ProviderRow) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.json.decode(row.spec)
    return {name: stored[name] for name in ProviderModel.model_fields if name in stored}


def _settings(name: str, spec: bytes, values: ProviderSecrets) -> ProviderSettings:
    """Raises `WeftlineError` (`bad_config`)."""
    stored: dict[str, Any] = msgspec.json.decode(spec)
    table: dict[str, Any] = {
        "family": stored["family"],
        "base_url": stored.get("baseUrl"),
        "models": [_model(one) for one in stored.get("models", [])],
        "any_model": stored.get("anyModel"),
        "max_concurrency": stored.get("maxConcurrency"),
        "tokens_per_minute": stored.get("tokensPerMinute"),
        **stored.get("options", {}),
    }
    if values.headers:
        table["headers"] = values.headers
    settings = provider_settings(name, table)
    return replace(settings, api_key=values.api_key, key_env=())


def _model(stored: Any) -> Any:
    if isinstance(stored, str):
        return stored
    names = {"contextWindowTokens": "context_window_tokens", "maxOutputTokens": "max_output_tokens"}
    return {names.get(name, name): value for name, value in stored.items()}


def _try_out(name: str, spec: bytes, values: ProviderSecrets) -> None:
    """Builds the provider once, so that settings which cannot work are refused when they are sent."""
    try:
        build_provider(_settings(name, spec, values), transport=AiohttpTransport(), environ={})
    except NotAvailable as missing:
        raise invalid([Issue("apiKey" if values.api_key is None else "family", str(missing))]) from None
    except WeftlineError as error:
        raise invalid([_issue(name, error)]) from None


def _faults(model: ProviderModel) -> list[Issue]:
    """What the shapes alone do not tell."""
    faults = [
        Issue(f"options.{name}", "is not an option; it has a field of its own, or is the server's to set")
        for name in model.options
        if name in _TAKEN_OPTIONS
    ]
    if model.apiKey is not None and model.apiKey.startswith("env:"):
        faults.append(Issue("apiKey", "must be the key itself: the server's environment is not the workspace's"))
    return faults


def _issue(name: str, error: WeftlineError) -> Issue:
    """A fault in the words of the configuration file, at the field that has it here."""
    key = str(error.details.get("key", "")).removeprefix(f"providers.{name}").lstrip(".")
    place = _PLACES.get(key.partition("[")[0], f"options.{key}" if key else "name")
    return Issue(place, error.message.partition(": ")[2] or error.message)


_PLACES = {"family": "family", "base_url": "baseUrl", "models": "models", "api_key": "apiKey", "headers": "headers"}
"""The settings that have a field of their own; all others are options."""


def _issues(error: ValidationError) -> list[Issue]:
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(step) for step in problem["loc"] if step != "[key]")
        found.append(Issue(path, problem["msg"]))
    return found
