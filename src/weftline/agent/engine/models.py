"""The models of an engine: those it was given, those with keys in the environment, and objects that runs bring."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.net.transport import AiohttpTransport
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog, build_catalog, usual_providers
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.tool_calls.tool_source import DialledTools
from weftline.store.base import Store
from weftline.tools.base import Tool
from weftline.workspace.context import Workspaces
from weftline.workspace.providers import own_providers

if TYPE_CHECKING:
    from weftline.runtime.engine import Engine as Runtime
    from weftline.server.app import App
    from weftline.server.own_socket import OwnSocket


logger = logging.getLogger(__name__)


class StoredResources:
    """The stored tools and providers.

    `own` has the tools of this process that runs may name; more can be added to it.
    """

    def __init__(self, store: Store, workspaces: Workspaces, *, models: Catalog, own: Mapping[str, Tool]) -> None:
        self.store = store
        self.own_socket: OwnSocket | None = None
        """Where commands beside this process, such as `weftline approve`, reach it."""
        self._workspaces = workspaces
        egress = egress_from({})
        self._transport = AiohttpTransport(check=egress.check)
        self.dialer = Dialer(egress)
        self.catalogs = WorkspaceCatalogs(models, own=partial(own_providers, workspaces), transport=self._transport)
        self.tools = DialledTools(own, records=store.records, vault=store.vault, dialer=self.dialer)

    async def listen(self, host: Runtime) -> None:
        """Lets commands reach the runs of `host`. If that is impossible, the log says so and the runs go on."""

        from weftline.server.own_socket import OwnSocket

        def app() -> App:
            from weftline.server.local_serving import app_beside  # only a command needs it

            made = app_beside(host, self.store, self.catalogs)
            made.logins_changed = self.tools.forget_logins
            return made

        self.own_socket = OwnSocket(self.store, app)
        await self.own_socket.start()

    async def aclose(self) -> None:
        await self.tools.aclose()
        await self.catalogs.aclose()
        await self._transport.aclose()


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
