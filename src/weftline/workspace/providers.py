"""Model providers that a workspace adds.

API keys and header values are never returned: reading a provider shows whether it has a key, and the names of its
headers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from weftline.config import provider_settings
from weftline.errors import LOG_DAMAGED, Conflict, InvalidRequest, Issue, NotFound, StoreError, WeftlineError, invalid
from weftline.framing import REFUSAL, frames_request
from weftline.kernel.damage import UNREADABLE
from weftline.net.address import InvalidAddress, parse
from weftline.net.transport import AiohttpTransport
from weftline.providers.families import NotAvailable, ProviderSettings, build_provider
from weftline.providers.workspace import OwnProvider
from weftline.store.database import Query
from weftline.store.records import providers
from weftline.store.records.pages import RowPage
from weftline.store.records.providers import ProviderColumns, ProviderRow
from weftline.store.sealing import Vault
from weftline.text.redaction import REDACTED, redact_url
from weftline.workspace.context import Change, Workspaces

logger = logging.getLogger(__name__)

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


class OfferedModel(Struct, frozen=True):
    """A model that a provider should offer. Fields that are UNSET or None are unknown."""

    id: str
    label: str | UnsetType = UNSET
    context_window_tokens: int | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    vision: bool | UnsetType | None = UNSET
    reasoning: bool | UnsetType | None = UNSET
    tools: bool | UnsetType | None = UNSET


class ProviderSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider as it is stored, without its name and its secrets."""

    family: str
    base_url: str | None = None
    models: tuple[str | OfferedModel, ...] = ()
    any_model: bool | None = None
    max_concurrency: int | None = None
    tokens_per_minute: int | None = None
    options: dict[str, Any] = {}
    has_api_key: bool = False
    header_names: tuple[str, ...] = ()

    @property
    def address(self) -> tuple[str, str | None, object]:
        """The fields that determine where requests go."""
        return self.family, self.base_url, self.options.get("profile")


class ProviderSecrets(Struct, frozen=True, omit_defaults=True):
    api_key: str | None = None
    headers: dict[str, str] = {}
    base_url: str | None = None
    """The complete address, if the one in the spec is redacted."""

    def __repr__(self) -> str:
        return "ProviderSecrets(…)"


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


MAX_PER_WORKSPACE = 50
MAX_MODELS_PER_WORKSPACE = 5_000


class _Listed(Struct):
    """The models in a provider's spec."""

    models: list[Raw] = []


_decode_models = msgspec.json.Decoder(_Listed).decode
_decode_spec = msgspec.json.Decoder(ProviderSpec).decode
_decode_secrets = msgspec.json.Decoder(ProviderSecrets).decode


def spec_of(row: ProviderRow) -> ProviderSpec:
    """As callers see it: without the secrets in its address."""
    if not row.damaged:
        with suppress(*UNREADABLE):
            return _decode_spec(row.spec)
    raise StoreError(f"The provider {row.id} is damaged: its {row.damaged or 'spec'} cannot be read.", code=LOG_DAMAGED)


async def create(at: Workspaces, workspace: int, name: str, spec: ProviderSpec, values: ProviderSecrets) -> ProviderRow:
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


async def change(at: Workspaces, workspace: int, id: str, changes: ProviderChanges) -> ProviderRow:
    """Changes a provider, by its id or name. If its address changes, its secrets must be given again."""

    def query() -> Query[ProviderRow]:
        row = yield from _existing(id, workspace=workspace)
        name, spec, values = _changed(row, _open(at.vault, row), changes)
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


async def delete(at: Workspaces, workspace: int, id: str) -> str:
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


async def page(at: Workspaces, workspace: int, *, after: int = 0, limit: int) -> RowPage[ProviderRow]:
    """The next providers with a key above `after`, oldest first: as many as fit, and at least one."""
    return await at.records.read(providers.page(workspace=workspace, after=after, limit=limit), heavy=True)


async def own_providers(at: Workspaces, workspace: int) -> Sequence[OwnProvider]:
    """The providers of a workspace, ready to be built; one whose key cannot be read reports this.

    A damaged one is left out, as if it had been removed, so that the others are not affected.
    """
    rows = await at.records.read(providers.of_workspace(workspace), heavy=True)
    if not rows:
        return ()
    # Thousands of models take a while to check.
    return await asyncio.to_thread(lambda: [own for row in rows if (own := _own(at.vault, row)) is not None])


def _own(vault: Vault, row: ProviderRow) -> OwnProvider | None:
    problem, values = "", ProviderSecrets()
    try:
        spec = spec_of(row)
    except StoreError as error:
        logger.warning("%s", error.message)
        return None
    try:
        values = _open(vault, row)
    except StoreError as error:
        problem = error.message
    return OwnProvider(row.id, row.version, _settings(row.name, spec, values), problem)


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


def _open(vault: Vault, row: ProviderRow) -> ProviderSecrets:
    """Raises `StoreError` if they were encrypted with another key."""
    if row.secrets is None:
        return ProviderSecrets()
    return _decode_secrets(vault.open(row.secrets, place=f"provider:{row.id}"))


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


def _settings(name: str, spec: ProviderSpec, values: ProviderSecrets) -> ProviderSettings:
    """Raises `WeftlineError` (`bad_config`)."""
    table: dict[str, Any] = {
        "family": spec.family,
        "base_url": values.base_url or spec.base_url,
        "models": msgspec.to_builtins(list(spec.models)),
        "any_model": spec.any_model,
        "max_concurrency": spec.max_concurrency,
        "tokens_per_minute": spec.tokens_per_minute,
        **spec.options,
    }
    if values.headers:
        table["headers"] = values.headers
    return replace(provider_settings(name, table), api_key=values.api_key, key_env=())


def _try_out(name: str, spec: ProviderSpec, values: ProviderSecrets) -> None:
    """Builds the provider once, so that settings that cannot work are rejected when they are sent."""
    try:
        build_provider(_settings(name, spec, values), transport=AiohttpTransport(), environ={})
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
