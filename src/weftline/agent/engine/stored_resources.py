"""The part that a durable engine shares with a server on the same store: the tools and providers that clients stored
there, and the socket over which commands reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.net.transport import AiohttpTransport
from weftline.providers.catalog import Catalog
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.tool_calls.tool_source import DialledTools
from weftline.server.own_socket import OwnSocket
from weftline.store.base import Store
from weftline.tools.base import Tool
from weftline.workspace.context import Workspaces
from weftline.workspace.providers import own_providers

if TYPE_CHECKING:
    from weftline.runtime.engine import Engine as Runtime
    from weftline.server.app import App


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
