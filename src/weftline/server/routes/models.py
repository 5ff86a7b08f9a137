"""The catalog of models."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from weftline.providers.catalog import Entry
from weftline.providers.offers import builtin_tools
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.wire.model_responses import CatalogModel, Models, Pricing, models_list

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
        summary="The available models",
        returns=Models,
    ),
)
