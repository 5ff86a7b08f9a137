"""The response that lists models, as types and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

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
