"""Model providers that a workspace has added, ready to be built. `cases/providers.py` adds and changes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weftline.config import provider_settings
from weftline.errors import LOG_DAMAGED, StoreError
from weftline.kernel.damage import UNREADABLE
from weftline.providers.families import ProviderSettings
from weftline.providers.workspace import OwnProvider
from weftline.store.records import providers
from weftline.store.records.providers import ProviderRow
from weftline.store.sealing import Vault
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)


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


_decode_spec = msgspec.json.Decoder(ProviderSpec).decode
_decode_secrets = msgspec.json.Decoder(ProviderSecrets).decode


def spec_of(row: ProviderRow) -> ProviderSpec:
    """As callers see it: without the secrets in its address."""
    if not row.damaged:
        with suppress(*UNREADABLE):
            return _decode_spec(row.spec)
    raise StoreError(f"The provider {row.id} is damaged: its {row.damaged or 'spec'} cannot be read.", code=LOG_DAMAGED)


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
        values = opened(vault, row)
    except StoreError as error:
        problem = error.message
    return OwnProvider(row.id, row.version, settings_of(row.name, spec, values), problem)


def opened(vault: Vault, row: ProviderRow) -> ProviderSecrets:
    """Raises `StoreError` if they were encrypted with another key."""
    if row.secrets is None:
        return ProviderSecrets()
    return _decode_secrets(vault.open(row.secrets, place=f"provider:{row.id}"))


def settings_of(name: str, spec: ProviderSpec, values: ProviderSecrets) -> ProviderSettings:
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
