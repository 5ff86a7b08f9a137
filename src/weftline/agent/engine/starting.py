"""Starting an engine's runs: their code, their plan, and their models.

Models are those that the engine was given, those with keys in the environment, and objects that runs bring.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from weftline.agent.definition import Definition
from weftline.agent.options import LocalSpec, RunOptions, check_deps, fields_of_spec, parts_of, reminders_of
from weftline.agent.planning.plans import own_tools, plan_of, require_text, subagents_of, with_overrides
from weftline.agent.planning.sources import NO_DEPS, AgentTools, Setup
from weftline.agent.settings import Settings
from weftline.engine_options import engine_options
from weftline.errors import Conflict, InvalidRequest
from weftline.labels import checked_metadata
from weftline.messages import Blob, Text, User
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.net.transport import AiohttpTransport
from weftline.plan import RunPlan
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

            forget_logins = self.tools.pool.forget_logins
            return app_beside(host, self.store, self.catalogs, logins_changed=forget_logins)

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
        self.folder = Catalog()
        """The models that a folder of agents brings."""
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

    def include_folder(self) -> None:
        """Adds what a folder brings; what the engine was given goes first."""
        self.catalog.include(self.folder)

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
        self.include_folder()
        for gone in (self._named, self._offered, self._in_use, self._users, self._spare):
            gone.clear()


def _fresh(given: Catalog | None) -> Catalog:
    return Catalog() if given is None else given.copy()


_NO_SETTINGS = Settings()


class Starter:
    def __init__(
        self,
        tools: AgentTools,
        models: Models,
        *,
        durable: bool,
        register: Callable[[Definition[Any, Any]], None],
    ) -> None:
        self._tools = tools
        self._models = models
        self._durable = durable
        self._register = register
        self._next = 0
        self.catalogs: WorkspaceCatalogs | None = None
        """The catalogs of a durable engine that is open."""

    def carried_by(self, agent: Definition[Any, Any], options: RunOptions[Any]) -> str:
        """Returns the name that the run's code is registered under."""
        own = "deps" in options or "hooks" in options
        if self._durable:
            if own:
                given = " and ".join([f"{name}=" for name in ("deps", "hooks") if name in options])
                raise InvalidRequest(f"A durable run cannot be given {given}: the next process would not have it.")
            require_text(options.get("instructions"))
            if agent.name is None:
                raise InvalidRequest("A durable agent needs a name: Agent(…, name='billing').")
            if self._tools.find(agent.name) is None:
                self._register(agent)
            elif self._tools.find(agent.name) is not agent:
                raise Conflict(f"Another agent is registered under the name {agent.name!r}.")
            return agent.name
        self._next += 1
        name = f"{agent.name or 'agent'} {self._next}"
        deps = options.get("deps", NO_DEPS)
        if deps is NO_DEPS and isinstance(agent.deps, type):
            raise InvalidRequest(f"The agent's deps are of the type {agent.deps.__name__}: give the run deps=….")
        if deps is not NO_DEPS:
            check_deps(agent.deps, deps)
        setup = Setup(
            with_overrides(agent, options),
            owner=agent,
            deps=deps,
            hooks=options.get("hooks", ()),
            behavior=options.get("behavior"),
        )
        self._tools.register(name, setup)
        return name

    async def plan(
        self, agent: Definition[Any, Any], prompt: str | None, options: RunOptions[Any], *, code: str
    ) -> tuple[RunPlan, tuple[Blob, ...]]:
        given = tuple(options.get("messages", ()))
        files = options.get("files", ())
        if prompt is None and not given and "thread" not in options:
            raise InvalidRequest("A run needs a prompt, or messages to continue from.")
        messages, blobs = given, tuple[Blob, ...]()
        if prompt is not None or files:
            parts, blobs = (
                await asyncio.to_thread(parts_of, prompt, tuple(files)) if files else ((Text(prompt or ""),), ())
            )
            messages = (*given, User(parts))
        tools = options.get("tools")
        only = None
        if self._durable and tools is not None:
            only = await self._tools.names_of(own_tools(agent, tools))
        asked = LocalSpec(
            conversation=messages,
            given=len(given),
            limits=options.get("limits"),
            policy=options.get("policy"),
            budget=options.get("budget"),
            hooks=options.get("hooks", ()),
            behavior=options.get("behavior"),
            only=only,
            metadata=checked_metadata(options.get("metadata")),
            requested_by=options.get("requested_by", ""),
            engine=engine_options(
                memo=options.get("memo"),
                search_attributes=options.get("search_attributes"),
                task_queue=options.get("task_queue"),
                retry_policy=options.get("retry_policy"),
            ),
            reminders=reminders_of(options.get("reminders", ())),
            **options.get("settings", _NO_SETTINGS).fields,
            **fields_of_spec(options),
        )
        plan = plan_of(
            with_overrides(agent, {"instructions": options["instructions"]}) if "instructions" in options else agent,
            asked,
            code=code,
            name=None if self._durable else agent.name or "",
            model=await self.model_id(options.get("model", agent.present_model), by=code),
            durable=self._durable,
        )
        if plan.limits.max_cost_nusd is not None:
            self._models.warn_unpriced(plan.all_models)
        return plan, blobs

    async def child_model(self, agent: Definition[Any, Any], code: str) -> str | None:
        model = await self.model_id(agent.present_model, by=code)
        if agent.limits.max_cost_usd is not None:
            self._models.warn_unpriced((model, *agent.fallbacks))
        return model

    async def model_id(self, model: str | Provider | None, *, by: str = "") -> str | None:
        """Returns the id of a model.

        A model object that a run in memory brings along is kept as long as the run, `by`, needs it.
        """
        if model is None or isinstance(model, str):
            self._models.add_usual()
            return model
        name = self._models.name_of(model) if self._durable else self._models.use(model, by=by)
        if name is None:
            raise InvalidRequest(
                "A durable run cannot be given a model as an object: the next process would not have it."
                " Give it to the agent, or name one of the engine's models."
            )
        if self.catalogs is not None:
            await self.catalogs.refresh()
        return f"provider:{name}"

    def offer_own(self, agent: Definition[Any, Any], name: str) -> None:
        """Offers the model objects of a durable agent and its subagents, under names that every process gives them."""
        if self._durable and agent.model is not None and not isinstance(agent.model, str):
            self._models.offer(agent.model, f"agent-{name}")
        for tool, below in subagents_of(agent).items():
            self.offer_own(below, f"{name}.{tool}")
