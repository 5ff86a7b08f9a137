"""The models of each workspace: what the server offers to everyone, and the providers that the workspace added.

catalogs = WorkspaceCatalogs(base, own=load, transport=transport)
model = (await catalogs.load(workspace)).resolve("mine:gpt-5.5")
await catalogs.refresh(workspace)  # after its providers were changed
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.net.transport import AiohttpTransport, Transport
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog, close_provider
from weftline.providers.families import NotAvailable, ProviderSettings, build_provider
from weftline.providers.redacting import RedactingProvider
from weftline.text.redaction import Redactor


class OwnProvider(Struct, frozen=True):
    """A provider that a workspace added, as it is stored."""

    id: str
    version: int
    """Changes with each update."""
    settings: ProviderSettings
    problem: str = ""
    """Why it cannot be used, if that is already known."""


LoadOwn: TypeAlias = Callable[[int], Awaitable[Sequence[OwnProvider]]]
"""Reads the providers that a workspace added, by the workspace's key."""


class WorkspaceCatalogs:
    """Catalogs by workspace, each built once and kept until `refresh`.

    An unchanged provider is kept, with what its throttle has learned; one that was changed or deleted still completes
    its calls in progress. Without `own` every workspace has the catalog `base`.
    """

    def __init__(self, base: Catalog, *, own: LoadOwn | None = None, transport: Transport | None = None) -> None:
        self.base = base
        self._load = own
        self._transport = transport
        self._own_transport: AiohttpTransport | None = None
        self._catalogs: dict[int, Catalog] = {}
        self._loading = asyncio.Lock()
        self._built: dict[str, tuple[int, Provider]] = {}
        self._retired: list[Provider] = []

    def of(self, workspace: int) -> Catalog:
        """Returns the models that this workspace may use, as last loaded; only `base` before that."""
        return self._catalogs.get(workspace, self.base)

    def loaded(self, workspace: int) -> Catalog | None:
        """Returns what `load` would, if there is nothing to read."""
        return self.base if self._load is None else self._catalogs.get(workspace)

    async def load(self, workspace: int) -> Catalog:
        """Returns the models that this workspace may use. Its own providers are read the first time."""
        if self._load is None:
            return self.base
        found = self._catalogs.get(workspace)
        if found is None:
            async with self._loading:
                found = self._catalogs.get(workspace)
                while found is None:
                    base, found = self.base, await self._build(await self._load(workspace))
                    if base is self.base:
                        self._catalogs[workspace] = found
                    else:
                        found = None  # made of models that were replaced in the meantime
        return found

    def rebase(self, base: Catalog) -> None:
        """Offers other models to everyone. Runs in memory keep those that they have."""
        self.base = base
        self._catalogs.clear()

    async def refresh(self, workspace: int | None = None) -> None:
        """Reloads the catalogs in memory, of one workspace or of all, after providers have changed."""
        if self._load is None:
            return
        async with self._loading:
            for key in [key for key in self._catalogs if workspace in (None, key)]:
                self._catalogs[key] = await self._build(await self._load(key))

    async def aclose(self) -> None:
        """Closes the providers that workspaces added. The owner of `base` closes its own."""
        for _, provider in self._built.values():
            await close_provider(provider)
        for provider in self._retired:
            await close_provider(provider)
        self._built.clear()
        self._retired.clear()
        if self._own_transport is not None:
            await self._own_transport.aclose()

    async def _build(self, rows: Sequence[OwnProvider]) -> Catalog:
        if not rows:
            return self.base
        catalog = self.base.copy()
        for row in rows:
            settings = row.settings
            try:
                provider = self._provider(row)
            except (NotAvailable, WeftlineError) as error:
                catalog.add_unavailable(settings.name, family=settings.family, reason=str(error))
                continue
            any_model = not settings.models if settings.any_model is None else settings.any_model
            catalog.add(provider, name=settings.name, any_model=any_model, source="workspace_provider", own=row.id)
            await asyncio.sleep(0)  # it may have hundreds of models: yield to other tasks
        return catalog

    def _provider(self, row: OwnProvider) -> Provider:
        known = self._built.get(row.id)
        if known is not None:
            if known[0] == row.version:
                return known[1]
            self._retired.append(known[1])
            del self._built[row.id]
        if row.problem:
            raise NotAvailable(row.problem)
        transport = self._transport
        if transport is None:
            transport = self._own_transport = self._own_transport or AiohttpTransport()
        # The server's environment is not the workspace's: keys are never taken from there.
        provider = RedactingProvider(
            build_provider(row.settings, transport=transport, environ={}), _secrets_of(row.settings)
        )
        self._built[row.id] = (row.version, provider)
        return provider


def _secrets_of(settings: ProviderSettings) -> list[str]:
    """Returns what only the provider may see. Not every header counts, as models may mention their values."""
    key = settings.api_key or ""
    parts = key.split(":") if settings.family == "bedrock" else ()
    headers = settings.options.get("headers")
    in_headers = Redactor.of_environment(cast("dict[str, str]", headers)).secrets if isinstance(headers, dict) else ()
    return [key, *parts, *in_headers, *Redactor.of_request(settings.base_url or "", {}).secrets]
