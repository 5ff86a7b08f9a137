"""A workspace's model providers as JSON. Keys and header values are never returned."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from weftline.api.validation import refused
from weftline.errors import StoreError
from weftline.store.records.providers import ProviderRow
from weftline.text.redaction import redact_url
from weftline.wire.errors import error_code
from weftline.wire.models import Headers
from weftline.wire.responses import Time, iso
from weftline.workspace.providers import OfferedModel, ProviderChanges, ProviderSecrets, ProviderSpec, spec_of

MAX_BODY_BYTES = 256 * 1024
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


_Fields = TypeVar("_Fields", bound=_ProviderFields)


def parse_provider(fields: dict[str, Any]) -> tuple[str, ProviderSpec, ProviderSecrets]:
    """Parses a provider to create: its name, its settings and its secrets. Raises `InvalidRequest`."""
    sent = _checked(ProviderModel, fields)
    spec = ProviderSpec(
        family=sent.family,
        base_url=sent.baseUrl,
        models=_models(sent),
        any_model=sent.anyModel,
        max_concurrency=sent.maxConcurrency,
        tokens_per_minute=sent.tokensPerMinute,
        options=sent.options,
    )
    return sent.name, spec, ProviderSecrets(sent.apiKey, dict(sent.headers or {}))


def parse_provider_changes(fields: dict[str, Any]) -> ProviderChanges:
    """Parses changes to a provider. Raises `InvalidRequest`."""
    sent = _checked(ProviderChangesModel, fields)
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


def provider_json(row: ProviderRow) -> Provider:
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


def _checked(model: type[_Fields], fields: dict[str, Any]) -> _Fields:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise refused(error, model, fields) from None


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
