"""The catalog of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from weftline.providers.catalog import Entry
from weftline.providers.offers import builtin_tools
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.wire.responses import encode


class Pricing(Struct, frozen=True):
    input_per_1m_usd: float | None = field(default=None, name="inputPer1MUsd")
    output_per_1m_usd: float | None = field(default=None, name="outputPer1MUsd")
    cache_read_per_1m_usd: float | None = field(default=None, name="cacheReadPer1MUsd")


class CatalogModel(Struct, frozen=True, rename="camel"):
    """One model that the workspace may use."""

    id: str
    label: str
    provider: str
    vendor_model_id: str
    source: Literal["workspace_provider", "platform_offering"] = "workspace_provider"
    context_window_tokens: int | None = None
    pricing: Pricing | None = None
    max_output_tokens: int | UnsetType = UNSET
    capabilities: dict[str, bool] | UnsetType = UNSET
    """`vision`, `reasoning`, `tools`, as far as known."""
    icon: str | UnsetType = UNSET
    builtin_tools: tuple[str, ...] | UnsetType = UNSET
    """Tools that the provider itself runs, under its own names."""


class Models(Struct, rename="camel"):
    models: Sequence[CatalogModel]
    default_model_id: str | None


def models_list(models: Sequence[CatalogModel], *, default_model_id: str | None) -> bytes:
    """Returns the models.

    Prices are shown for the platform's models only; a workspace's own key is between it and its vendor.
    """
    listed = [replace(one, pricing=None) if one.source == "workspace_provider" else one for one in models]
    return encode(Models(listed, default_model_id))


PATH = "/api/v1/workspaces/{slug}/models"


async def list_models(app: App, request: Request, principal: Principal) -> Response:
    catalog = await app.models.load(principal.workspace)
    entries = catalog.entries()
    offered: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        if entry.provider not in offered:
            offered[entry.provider] = tuple(await builtin_tools(catalog.resolve(entry.id).provider))
    items = [
        CatalogModel(
            entry.id,
            entry.label,
            entry.provider,
            entry.vendor_model_id,
            entry.source,
            entry.context_window_tokens,
            Pricing(
                entry.pricing.input_per_1m_usd, entry.pricing.output_per_1m_usd, entry.pricing.cache_read_per_1m_usd
            )
            if entry.pricing is not None
            else None,
            UNSET if entry.max_output_tokens is None else entry.max_output_tokens,
            capabilities(entry),
            UNSET if entry.icon is None else entry.icon,
            offered[entry.provider] or UNSET,
        )
        for entry in entries
    ]
    return Response(models_list(items, default_model_id=catalog.default_id))


def capabilities(entry: Entry) -> dict[str, bool] | UnsetType:
    """Returns the known facts about a model, without unknown ones; UNSET if nothing is known."""
    hints = {"vision": entry.vision, "reasoning": entry.reasoning, "tools": entry.tools}
    return {name: hint for name, hint in hints.items() if hint is not None} or UNSET


ROUTES = (
    Route(
        "GET",
        PATH,
        list_models,
        scopes=("models:read",),
        narrowed="yes",
        live=True,
        summary="The available models",
        returns=Models,
    ),
)
