"""The models of an engine: those it was given, those with keys in the environment, and objects that runs bring."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog, build_catalog, usual_providers

if TYPE_CHECKING:
    from weftline.net.transport import AiohttpTransport

_SPARE = 64
"""How many unused model objects stay in the catalog, since the next run often brings the same one."""


class Models:
    """Resolves an engine's models.

    Without `given`, the providers whose keys are in the environment are added on demand.
    """

    def __init__(self, given: Catalog | None) -> None:
        self._given = given
        self.catalog = _fresh(given)
        self._usual: Catalog | None = None
        """The providers whose keys are in the environment, once they were needed."""
        self._transport: AiohttpTransport | None = None
        self._named: dict[int, tuple[Provider, str]] = {}
        """By the object's `id()`: the object, kept alive so that its id stays unique, and its name in the catalog."""
        self._offered: set[str] = set()
        self._in_use: dict[str, set[int]] = {}
        self._users: Counter[int] = Counter()
        self._spare: dict[int, None] = {}
        """Objects that runs brought along and no run uses now, longest unused first."""
        self._unpriced: set[str] = set()

    def add_usual(self) -> None:
        """Adds the providers whose keys are in the environment, unless models were given."""
        if self._given is not None or self._usual is not None:
            return
        from weftline.net.transport import AiohttpTransport  # a script with its own model needs no HTTP

        self._transport = AiohttpTransport()
        self._usual = build_catalog(usual_providers(), transport=self._transport)
        self.catalog.include(self._usual)

    def offer(self, provider: Provider, name: str) -> None:
        """Adds a model object under a name, permanently.

        An object may have several names, as the next process may register its agents in another order.
        """
        if name not in self._offered:
            self._offered.add(name)
            self.catalog.add(provider, name=name)
            self._named.setdefault(id(provider), (provider, name))

    def name_of(self, provider: Provider) -> str | None:
        known = self._named.get(id(provider))
        return None if known is None else known[1]

    def use(self, provider: Provider, *, by: str) -> str:
        """Returns the name of a model object that `by` brings along. It is valid until `by` is released."""
        key = id(provider)
        if key not in self._named:
            self.offer(provider, self._name(provider))
        held = self._in_use.setdefault(by, set())
        if key not in held:
            held.add(key)
            self._users[key] += 1
            self._spare.pop(key, None)
        return self._named[key][1]

    def _name(self, provider: Provider) -> str:
        """Returns a free name for an object that users gave none: that of its class, which they know."""
        name = base = type(provider).__name__
        number = 1
        while name in self._offered or self.catalog.has(name):
            number += 1
            name = f"{base}-{number}"
        return name

    def release(self, by: str) -> None:
        """Releases the objects that `by` brought along, and removes the longest unused ones beyond `_SPARE`."""
        for key in self._in_use.pop(by, ()):
            self._users[key] -= 1
            if self._users[key] <= 0:
                del self._users[key]
                self._spare[key] = None
        while len(self._spare) > _SPARE:
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            _, name = self._named.pop(oldest)
            self._offered.discard(name)
            self.catalog.remove(name)

    def warn_unpriced(self, ids: Iterable[str | None]) -> None:
        """Warns, once for each, about models whose cost cannot be limited since their price is unknown."""
        for named in self.catalog.unpriced(ids):
            if named not in self._unpriced:
                self._unpriced.add(named)
                text = f"The price of the model {named!r} is not known: max_cost_usd does not limit what it spends."
                warnings.warn(text, UserWarning, stacklevel=2)

    async def aclose(self) -> None:
        """Closes what was opened here, and removes what was added."""
        if self._usual is not None:
            await self._usual.aclose()
        if self._transport is not None:
            await self._transport.aclose()
        self._usual = self._transport = None
        self.catalog = _fresh(self._given)
        for gone in (self._named, self._offered, self._in_use, self._users, self._spare):
            gone.clear()


def _fresh(given: Catalog | None) -> Catalog:
    return Catalog() if given is None else given.copy()
