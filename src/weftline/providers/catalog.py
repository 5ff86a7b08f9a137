"""The models that a server offers, and what the model that a request names means.

catalog = build_catalog(usual_providers(), transport=transport)
model = catalog.resolve("anthropic:claude-sonnet-4-5")
async for chunks in model.provider.stream(ModelRequest(model.vendor_id, messages)):
    ...
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

from msgspec import Struct

from weftline.errors import InvalidRequest, WeftlineError
from weftline.messages import Usage
from weftline.net.transport import Transport
from weftline.providers.base import ModelInfo, Provider
from weftline.providers.families import FAMILIES, NotAvailable, ProviderSettings, Source, build_provider
from weftline.providers.listing import Lists
from weftline.providers.offers import Generates, streaming
from weftline.providers.pricing import UNPRICED, Price, PriceOverride, Prices
from weftline.text.suggestions import did_you_mean

MAX_CANDIDATES: Final = 20
_REMEMBERED: Final = 1024
_CLOSE: Final = 0.75
"""How alike the names of two providers are if one may be meant by the other; many share half of their letters."""
_BY_FAMILY: Final = {"claude": "anthropic", "gemini": "google", "gpt": "openai", "o3": "openai", "o4": "openai"}
"""Whose models begin like this, for a hint."""


class Entry(Struct, frozen=True):
    """A model of the catalog. `provider` makes or serves it; requests name it by `id`."""

    id: str
    label: str
    provider: str
    vendor_model_id: str
    source: Source
    context_window_tokens: int | None
    pricing: Price | None
    """Only for the platform's models: the prices of a workspace's own provider are unknown."""
    max_output_tokens: int | None = None
    vision: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None
    icon: str | None = None
    offer: str = ""
    """The provider's name in the configuration; empty for one that a workspace added, which names it itself."""


class ResolvedModel(Struct, frozen=True):
    provider: Provider
    vendor_id: str
    catalog_id: str
    entry: Entry


class UnavailableProvider(Struct, frozen=True):
    """A provider whose models are not in the catalog, and why."""

    name: str
    family: str
    reason: str


class _Offer(Struct, frozen=True):
    name: str
    provider: Provider
    any_model: bool
    source: Source
    entries: dict[str, Entry]
    """By vendor id; the first is the provider's default."""
    own: str = ""
    """The id of a provider that the workspace added."""


class Catalog:
    """Models by id. Ids are `<provider name>:<vendor model id>`."""

    def __init__(self, *, default_model: str | None = None, prices: Prices | None = None) -> None:
        self._default_model = default_model
        self._prices = prices or Prices()
        self._offers: dict[str, _Offer] = {}
        self._by_id: dict[str, tuple[_Offer, Entry]] = {}
        self._own: dict[str, _Offer] = {}
        self._known: dict[str | None, ResolvedModel] = {}
        self._unavailable: list[UnavailableProvider] = []
        self._unpriced: set[str] = set()

    async def preload(self) -> None:
        """Loads the price table in a thread if a model may be in it, as the first price would block the loop."""
        if not UNPRICED.issuperset([offer.provider.name.lower() for offer in self._offers.values()]):
            await self._prices.preload()

    def price(self, entry: Entry) -> Price | None:
        """Returns the list price of a model, whoever serves it; None if it is unknown."""
        return self._prices.price(provider=entry.provider, model=entry.vendor_model_id, offer=entry.offer)

    def cost_usd(self, usage: Usage, model: ResolvedModel) -> float | None:
        """Returns the cost of a model call; None if its price is unknown."""
        if model.catalog_id in self._unpriced:
            return None
        entry = model.entry
        cost = self._prices.cost_usd(usage, provider=entry.provider, model=model.vendor_id, offer=entry.offer)
        if cost is None and self.price(entry) is None:
            self._unpriced.add(model.catalog_id)
        return cost

    def add(
        self,
        provider: Provider | Generates,
        *,
        name: str | None = None,
        any_model: bool = False,
        source: Source = "workspace_provider",
        own: str = "",
    ) -> None:
        """Offers a provider's models. With `any_model`, ids that it does not list are accepted too.

        `own` is the id of a provider that the workspace added: it replaces the server's provider of the same name, and
        `provider:<id>` names it too.
        """
        provider = streaming(provider)
        name = name or provider.name
        present = self._offers.get(name)
        if present is not None:
            if not own or present.own:
                raise ValueError(f"There are two providers named {name!r}.")
            for entry in present.entries.values():
                del self._by_id[entry.id]
        offer = _Offer(name, provider, any_model, source, {}, own)
        # A provider needs only a name and `stream` (or `generate`); the rest is optional.
        listing = getattr(provider, "models", None)
        infos: Sequence[ModelInfo] = listing() if listing is not None else ()
        for info in infos:
            offer.entries[info.vendor_id] = entry = self._entry(offer, info)
            self._by_id[entry.id] = (offer, entry)
        self._offers[name] = offer
        if own:
            self._own[own] = offer
        self._known.clear()

    @property
    def names(self) -> list[str]:
        """The names of its providers, with those that are not available."""
        return [*self._offers, *[one.name for one in self._unavailable]]

    def has(self, name: str) -> bool:
        """Returns True if there is a provider of this name."""
        return name in self._offers

    def remove(self, name: str) -> None:
        """Removes what was added under a name."""
        for entry in self._offers.pop(name).entries.values():
            self._by_id.pop(entry.id, None)
            self._unpriced.discard(entry.id)
        self._known.clear()

    def copy(self) -> Catalog:
        """A copy of the catalog, to which providers can be added."""
        other = Catalog(default_model=self._default_model, prices=self._prices)
        other._offers.update(self._offers)
        other._by_id.update(self._by_id)
        other._own.update(self._own)
        other._unavailable += self._unavailable
        return other

    def beyond(self, other: Catalog) -> list[Provider]:
        """Returns the providers that another catalog does not have."""
        return [offer.provider for name, offer in self._offers.items() if not other.has(name)]

    def include(self, other: Catalog) -> None:
        """Adds what another catalog offers, unless this one has a provider of the same name."""
        for name, offer in other._offers.items():
            if name not in self._offers:
                self._offers[name] = offer
                self._by_id.update({entry.id: (offer, entry) for entry in offer.entries.values()})
        self._unavailable += other._unavailable
        self._known.clear()

    def add_unavailable(self, name: str, *, family: str, reason: str) -> None:
        self._unavailable.append(UnavailableProvider(name, family, reason))

    def entries(self) -> Sequence[Entry]:
        return [entry for _, entry in self._by_id.values()]

    def unavailable(self) -> Sequence[UnavailableProvider]:
        """Returns the providers that are not available, with the reason: a missing key or extra."""
        return tuple(self._unavailable)

    @property
    def default_id(self) -> str | None:
        """The id of the model for a request without one: the configured one, else the first provider's first."""
        if self._default_model is not None:
            # The workspace's own provider of that name may not have the model.
            with suppress(WeftlineError):
                return self.resolve(self._default_model).catalog_id
        for offer in self._offers.values():
            # Scripts are for tests and demos, so they must be named explicitly.
            if offer.entries and offer.provider.name != "scripted":
                return next(iter(offer.entries.values())).id
        return None

    def check_default(self) -> None:
        """Raises `WeftlineError` (`invalid_model`) if the configured default is not available, with the reason."""
        default = self._default_model
        if default is None:
            return
        try:
            self.resolve(default)
        except WeftlineError as error:
            raise InvalidRequest(f"default_model: {error.message}", code=error.code, **error.details) from None

    def unused_prices(self) -> list[PriceOverride]:
        """Returns the configured prices for models that no configured provider has."""
        return [override for override in self._prices.overrides if not self._may_be_used(override)]

    def _may_be_used(self, override: PriceOverride) -> bool:
        name = override.provider.lower()
        offers = self._offers.values()
        of_it = [offer for offer in offers if name in (offer.name.lower(), offer.provider.name.lower())]
        if not of_it:
            # It may lack a key today, or workspaces may bring their own.
            return name in {*FAMILIES, *(one.name.lower() for one in (*self._unavailable, *usual_providers()))}
        return any(offer.any_model or override.model in offer.entries for offer in of_it)

    def resolve(self, model_id: str | None) -> ResolvedModel:
        """Resolves a model id; None means the default.

        Tried in this order: an id of the catalog, `platform:<id>` or `provider:<name or id>`; `provider:<name or
        id>:<vendor id>`; a bare vendor id that exactly one provider lists, those of the workspace before those of the
        platform; `<provider>:<vendor id>`; a bare vendor id when exactly one provider that the workspace brought takes
        any. Raises `WeftlineError` (`invalid_model`, with `candidates`) for an id that names nothing or more than one
        model.
        """
        known = self._known.get(model_id)
        if known is None:
            known = self._look_up(model_id)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[model_id] = known
        return known

    def _look_up(self, model_id: str | None) -> ResolvedModel:
        if model_id is None:
            default = self.default_id
            if default is None:
                raise self._invalid("No model was named and there is no default model.", self._by_id)
            return self.resolve(default)
        found = self._exact(model_id) or self._of_named_provider(model_id)
        if found is None:
            matches = self._by_vendor_id(model_id) or self._by_prefix(model_id) or self._by_any_model(model_id)
            if len(matches) > 1:
                ids = [match.catalog_id for match in matches]
                raise self._invalid(f"The model {model_id!r} is ambiguous.", ids)
            found = matches[0] if matches else None
        if found is None:
            nearest = self._nearest(model_id)
            named = model_id.partition(":")[0]
            for absent in self._unavailable:
                if absent.name == named and named not in self._offers:
                    raise self._invalid(f"The model {model_id!r} is not available: {absent.reason}", nearest)
            near = did_you_mean(model_id, nearest[:5])
            known = sorted({*self._offers, *(one.name for one in self._unavailable)})
            if ":" in model_id and named not in (*known, *self._own, "platform", "provider"):
                near = did_you_mean(_BY_FAMILY.get(named, named), known, cutoff=_CLOSE)
                there_are = f"known are {', '.join(known)}" if known else "there are none"
                why = f"there is no provider {named!r}; {there_are}"
                raise self._invalid(f"There is no model {model_id!r}: {why}.{near}", nearest)
            if not near and ":" not in model_id:
                provider = next((name for start, name in _BY_FAMILY.items() if model_id.startswith(start)), "PROVIDER")
                near = f" A model is named with its provider, as in '{provider}:{model_id[:100]}'."
            raise self._invalid(f"There is no model {model_id!r}.{near}", nearest)
        return found

    def unpriced(self, ids: Iterable[str | None]) -> list[str]:
        """Returns those of these models whose cost cannot be limited, since their price is unknown."""
        found: list[str] = []
        for model_id in ids:
            with suppress(WeftlineError):  # an unknown model is refused elsewhere, with a better message
                model = self.resolve(model_id)
                if model.provider.name != "scripted" and self.price(model.entry) is None:  # scripted ones cost nothing
                    found.append(f"{model.provider.name}:{model.vendor_id}")
        return found

    def lister(self, name: str) -> Lists:
        """Returns the provider of that name, to list its models. Raises `WeftlineError` if it cannot list them."""
        offer = self._named(name)
        if offer is None:
            raise InvalidRequest(f"There is no provider {name!r}; known are {', '.join(self._offers) or 'none'}.")
        if not hasattr(offer.provider, "list_models"):
            raise InvalidRequest(f"The provider {name!r} cannot list its models.")
        return cast("Lists", offer.provider)

    async def aclose(self) -> None:
        for offer in self._offers.values():
            await close_provider(offer.provider)

    def _entry(self, offer: _Offer, info: ModelInfo) -> Entry:
        provider = offer.provider.name.lower()
        platform = offer.source == "platform_offering"
        named = "" if offer.own else offer.name
        return Entry(
            id=f"{offer.name}:{info.vendor_id}",
            label=info.label or info.vendor_id,
            provider=provider,
            vendor_model_id=info.vendor_id,
            source=offer.source,
            context_window_tokens=info.context_window_tokens,
            pricing=self._prices.price(provider=provider, model=info.vendor_id, offer=named) if platform else None,
            max_output_tokens=info.max_output_tokens,
            vision=info.vision,
            reasoning=info.reasoning,
            tools=info.tools,
            icon=info.icon,
            offer=named,
        )

    def _exact(self, model_id: str) -> ResolvedModel | None:
        known = self._by_id.get(model_id)
        if known is not None:
            return _resolved(*known)
        kind, _, rest = model_id.partition(":")
        if kind == "platform":
            offered = [
                (offer, entry)
                for offer, entry in self._by_id.values()
                if offer.source == "platform_offering" and rest in (entry.id, entry.vendor_model_id)
            ]
            return _resolved(*offered[0]) if len(offered) == 1 else None
        if kind == "provider":
            offer = self._named(rest)
            if offer is not None and offer.entries:
                return _resolved(offer, next(iter(offer.entries.values())))
            known = self._by_id.get(rest)
            return _resolved(*known) if known is not None else None
        return None

    def _of_named_provider(self, model_id: str) -> ResolvedModel | None:
        kind, _, rest = model_id.partition(":")
        if kind != "provider":
            return None
        name, _, vendor_id = rest.partition(":")
        offer = self._named(name)
        return self._of_offer(offer, vendor_id) if offer is not None else None

    def _named(self, name: str) -> _Offer | None:
        return self._own.get(name) or self._offers.get(name)

    def _by_vendor_id(self, model_id: str) -> list[ResolvedModel]:
        offers = [offer for offer in self._offers.values() if model_id in offer.entries]
        nearest = (
            [offer for offer in offers if offer.own]
            or [offer for offer in offers if offer.source == "workspace_provider"]
            or offers
        )
        return [_resolved(offer, offer.entries[model_id]) for offer in nearest]

    def _by_any_model(self, model_id: str) -> list[ResolvedModel]:
        """Returns matches among providers that accept any model. An id with a colon names a specific provider."""
        offers = [offer for offer in self._own.values() if offer.any_model and ":" not in model_id]
        return [found for offer in offers if (found := self._of_offer(offer, model_id)) is not None]

    def _by_prefix(self, model_id: str) -> list[ResolvedModel]:
        prefix, _, vendor_id = model_id.partition(":")
        named = self._offers.get(prefix)
        offers = [named] if named else [one for one in self._offers.values() if one.provider.name.lower() == prefix]
        found = [one for offer in offers if (one := self._of_offer(offer, vendor_id)) is not None]
        listed = [one for one in found if one.catalog_id in self._by_id]
        return listed or found

    def _of_offer(self, offer: _Offer, vendor_id: str) -> ResolvedModel | None:
        entry = offer.entries.get(vendor_id)
        if entry is None and vendor_id and offer.any_model:
            entry = self._entry(offer, ModelInfo(vendor_id))
        return _resolved(offer, entry) if entry is not None else None

    def _nearest(self, model_id: str) -> list[str]:
        ids = list(self._by_id)
        near = difflib.get_close_matches(model_id, ids, n=5, cutoff=0.4)
        return list(dict.fromkeys([*near, *ids]))

    def _invalid(self, message: str, candidates: Iterable[str]) -> WeftlineError:
        return InvalidRequest(message, code="invalid_model", candidates=list(candidates)[:MAX_CANDIDATES])


def _resolved(offer: _Offer, entry: Entry) -> ResolvedModel:
    return ResolvedModel(offer.provider, entry.vendor_model_id, entry.id, entry)


async def close_provider(provider: Provider) -> None:
    """Closes a provider that has something to close."""
    close = getattr(provider, "aclose", None)
    if close is not None:
        await close()


def usual_providers() -> Sequence[ProviderSettings]:
    """Returns the providers that need only their usual environment variable.

    A user with a gateway has set another variable for the vendor's library; then neither the key nor prompts may be
    sent to the vendor.
    """
    usual = ProviderSettings
    google = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    return (
        usual(name="anthropic", family="anthropic", key_env=("ANTHROPIC_API_KEY",), base_url_env="ANTHROPIC_BASE_URL"),
        usual(name="openai", family="openai_responses", key_env=("OPENAI_API_KEY",), base_url_env="OPENAI_BASE_URL"),
        usual(name="google", family="google", key_env=google, base_url_env="GOOGLE_GEMINI_BASE_URL"),
        *(
            usual(name=name, family="openai_chat", key_env=(f"{name.upper()}_API_KEY",), options={"profile": name})
            for name in ("openrouter", "groq", "cerebras", "xai", "deepseek", "mistral")
        ),
        usual(
            name="azure",
            family="openai_chat",
            key_env=("AZURE_OPENAI_API_KEY",),
            base_url_env="AZURE_OPENAI_ENDPOINT",
            options={"profile": "azure"},
        ),
        usual(name="bedrock", family="bedrock", key_env=("AWS_BEARER_TOKEN_BEDROCK",)),
        *(
            usual(
                name=name,
                family="openai_chat",
                key_env=(f"{name.upper()}_API_KEY",),
                keyless=True,
                base_url_env=f"{name.upper()}_BASE_URL",
                options={"profile": name},
            )
            for name in ("ollama", "vllm")
        ),
    )


def build_catalog(
    settings: Iterable[ProviderSettings],
    *,
    transport: Transport,
    default_model: str | None = None,
    prices: Prices | None = None,
    scripted: Provider | None = None,
    environ: Mapping[str, str] | None = None,
    check_default: bool = True,
) -> Catalog:
    """Builds a catalog of the providers that can be used; the others are in `unavailable()`.

    Raises `WeftlineError`: `bad_config` for invalid settings and, with `check_default`, `invalid_model` for a default
    that is not available.
    """
    catalog = Catalog(default_model=default_model, prices=prices)
    for one in settings:
        try:
            provider = build_provider(one, transport=transport, environ=os.environ if environ is None else environ)
        except NotAvailable as missing:
            catalog.add_unavailable(one.name, family=one.family, reason=str(missing))
            continue
        any_model = not one.models if one.any_model is None else one.any_model
        catalog.add(provider, name=one.name, any_model=any_model, source=one.source)
    if scripted is not None:
        catalog.add(scripted)
    if check_default:
        catalog.check_default()
    return catalog
