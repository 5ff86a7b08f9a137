"""The cost of model calls, in US dollars.

Prices come from overrides or else from the `genai-prices` package (the extra `prices`). A model in neither has no
price: its cost is None, never 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from weftline.messages import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo as PricedModel
    from genai_prices.types import Provider as PricedProvider

_PER: Final = Decimal(1_000_000)
_PACKAGE_IDS = {"xai": "x-ai", "azure-openai": "azure", "bedrock": "aws"}
UNPRICED = frozenset({"scripted"})
"""Families that cost nothing."""


class Price(Struct, frozen=True, omit_defaults=True):
    """US dollars per million tokens. None means unknown; tokens without a cache price cost the input price."""

    input_per_1m_usd: float | None = None
    output_per_1m_usd: float | None = None
    cache_read_per_1m_usd: float | None = None
    cache_write_per_1m_usd: float | None = None

    def cost_usd(self, usage: Usage) -> float | None:
        """Returns the cost of `usage`; None if the price of some tokens is unknown."""
        fresh = usage.input - usage.cached - usage.cache_write
        total = Decimal(0)
        for tokens, price in (
            (fresh, self.input_per_1m_usd),
            (usage.cached, _first(self.cache_read_per_1m_usd, self.input_per_1m_usd)),
            (usage.cache_write, _first(self.cache_write_per_1m_usd, self.input_per_1m_usd)),
            (usage.output, self.output_per_1m_usd),
        ):
            if tokens <= 0:
                continue
            if price is None:
                return None
            total += tokens * Decimal(str(price)) / _PER
        return float(total)


class PriceOverride(Struct, frozen=True):
    """The price of one model, which takes precedence over other sources.

    `provider` is a provider's name in the configuration, or a family, for all of its providers.
    """

    provider: str
    model: str
    price: Price


def unused_price(override: PriceOverride) -> str:
    return (
        f"[[prices]]: the price of {override.model!r} for {override.provider!r} is not used: no such provider has this"
        " model"
    )


class Prices:
    """The prices that this server uses.

    >>> prices = Prices([PriceOverride("lab", "llama", Price(input_per_1m_usd=0.2, output_per_1m_usd=0.4))])
    >>> prices.cost_usd(Usage(input=1_000_000, output=500_000), provider="lab", model="llama")
    0.4
    """

    def __init__(self, overrides: Iterable[PriceOverride] = ()) -> None:
        self.overrides = tuple(overrides)
        self._overrides = {(row.provider.lower(), row.model): row.price for row in self.overrides}

    async def preload(self) -> None:
        """Loads the price table in a thread, so that the first price does not block the event loop."""
        await asyncio.to_thread(_package)

    def price(self, *, provider: str, model: str, offer: str = "") -> Price | None:
        """Returns the list price of a model: its lowest tier, if prices grow with the size of the prompt.

        `provider` is the family, whose prices are known; `offer` is the provider's name in the configuration.
        """
        override = self._override(provider, model, offer)
        if override is not None:
            return override
        found = _find(provider, model)
        if found is None:
            return None
        listed = found[1].get_prices(datetime.now(tz=UTC))
        price = Price(
            input_per_1m_usd=_dollars(listed, "input_mtok"),
            output_per_1m_usd=_dollars(listed, "output_mtok"),
            cache_read_per_1m_usd=_dollars(listed, "cache_read_mtok"),
            cache_write_per_1m_usd=_dollars(listed, "cache_write_mtok"),
        )
        return None if price == Price() else price

    def cost_usd(self, usage: Usage, *, provider: str, model: str, offer: str = "") -> float | None:
        """Returns the cost of `usage`, tiers included; None if the model, or a price that is needed, is unknown."""
        override = self._override(provider, model, offer)
        if override is not None:
            return override.cost_usd(usage)
        # The package treats tokens without a price as free; for us their cost is unknown.
        price = self.price(provider=provider, model=model)
        if price is None or price.cost_usd(usage) is None:
            return None
        found = _find(provider, model)
        if found is None:
            return None
        from genai_prices import Usage as PricedUsage

        priced = PricedUsage(
            input_tokens=usage.input,
            cache_read_tokens=usage.cached,
            cache_write_tokens=usage.cache_write,
            output_tokens=usage.output,
        )
        try:
            return float(found[1].calc_price(priced, found[0]).total_price)
        except ValueError:
            # The package cannot split this mix of counts, so the list price is used.
            return price.cost_usd(usage)

    def _override(self, provider: str, model: str, offer: str) -> Price | None:
        named = self._overrides.get((offer.lower(), model)) if offer else None
        return named if named is not None else self._overrides.get((provider.lower(), model))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _package() -> Any:
    """Returns the package's current table, or None if the extra is not installed."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    return get_snapshot()


def _find(provider: str, model: str) -> tuple[PricedProvider, PricedModel] | None:
    name = provider.lower()
    if name in UNPRICED or not model:
        return None
    table = _package()
    if table is None:
        return None
    try:
        return table.find_provider_model(model, None, _PACKAGE_IDS.get(name, name), None)
    except LookupError:
        return None


def _dollars(prices: object, name: str) -> float | None:
    value: Any = getattr(prices, name, None)
    value = getattr(value, "base", value)
    return None if value is None else float(value)
