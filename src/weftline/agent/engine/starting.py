"""Starting an engine's runs: their code, plan and model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weftline.agent.definition import Definition
from weftline.agent.engine.models import Models
from weftline.agent.options import LocalSpec, RunOptions, check_deps, fields_of_spec, parts_of, reminders_of
from weftline.agent.planning.overrides import own_tools, require_text, with_overrides
from weftline.agent.planning.plans import plan_of, subagents_of
from weftline.agent.planning.sources import NO_DEPS, AgentTools, Setup
from weftline.agent.settings import Settings
from weftline.engine_options import engine_options
from weftline.errors import Conflict, InvalidRequest
from weftline.labels import checked_metadata
from weftline.messages import Blob, Text, User
from weftline.plan import RunPlan
from weftline.providers.base import Provider

if TYPE_CHECKING:
    from weftline.providers.workspace import WorkspaceCatalogs

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
            self._models.warn_unpriced((plan.model, *plan.fallbacks))
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
