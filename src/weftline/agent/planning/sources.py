"""The source of tools and code for agents' runs: the agents that this process knows, by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec.json import decode
from msgspec.structs import replace

from weftline.agent.agent_tools import Aliases, check_names, is_toolset, name_of
from weftline.agent.behavior import Behavior, check_dedup, resolved
from weftline.agent.context import Entered, RunContext, RunInfo
from weftline.agent.definition import Definition
from weftline.agent.engine.observing import FactsOf
from weftline.agent.hooking import skill_hooks
from weftline.agent.hooking.around_calls import Ancestors
from weftline.agent.hooking.calling import Hook, HookFailed, Hooks
from weftline.agent.hooks import Point
from weftline.agent.options import check_deps
from weftline.agent.planning.digests import AgentDigests, below, joined
from weftline.agent.planning.plans import ChildPlans
from weftline.agent.prompting import Overrides, RunPrompts
from weftline.agent.running.code import AgentCode
from weftline.agent.running.deps import LEAVE_S, OpenToolsets, OwnedDeps
from weftline.agent.running.disclosure import Disclosure, Withheld, place_search, withheld_of
from weftline.agent.running.frame import Frame
from weftline.agent.skills.activation import SKILL_TOOLS
from weftline.agent.skills.allowed import ToolNames
from weftline.agent.skills.toolset import Skills
from weftline.agent.subagents import Subagent
from weftline.errors import Conflict, InvalidRequest, invalid_field
from weftline.kernel.control import Digests
from weftline.plan import RunPlan
from weftline.runtime.engine import Engine
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox, ToolSource
from weftline.tools.base import Tool, Toolset
from weftline.tools.function import labels_needed
from weftline.work.outcomes import attempt
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

NO_DEPS = object()
Place: TypeAlias = tuple[int, str]
"""The workspace of a run, and its id: workspaces may have runs of the same id."""
_MAX_ERRORS = 64
_ABANDONED_S = 1.0
"""How long hooks and deps may take to stop after they were cancelled."""


class Setup:
    """What executes one run, or all runs under a name."""

    def __init__(
        self,
        agent: Definition[Any, Any],
        *,
        deps: object = NO_DEPS,
        hooks: Sequence[Hook[Any]] = (),
        behavior: Behavior | None = None,
        owner: Definition[Any, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.owner = owner or agent
        """The original agent, if `agent` is a variant of it with other tools or instructions for one run."""
        self.deps = deps
        self.hooks = tuple(hooks)
        self.behavior = behavior


class AgentTools:
    """The tools of agents, in addition to those of `others`."""

    def __init__(self, others: ToolSource | None = None) -> None:
        self.others: ToolSource = others or ServerTools({})
        self._setups: dict[str, Setup] = {}
        self._opened = OpenToolsets()
        self.running: dict[Place, AgentCode] = {}
        """The code of runs in memory."""
        self._unfinished: dict[AgentCode, Setup] = {}
        """Code whose deps are not exited yet, with what executes its run. The run may be back in memory before that."""
        self._opening: list[Setup] = []
        """What executes the runs that are about to be opened."""
        self._notifying: set[asyncio.Future[None]] = set()
        self._errors: dict[Place, BaseException] = {}
        self.on_left: Callable[[AgentCode], object] | None = None
        self.facts_around: Callable[[str, int], FactsOf] | None = None
        """Reads the logs of a run (by its id and key) and of the runs below it, for observers."""
        self.code = AgentDigests()
        self.overrides = Overrides()
        """The overrides of agents' prompts."""
        self.workspaces: Workspaces | None = None
        """Where the overrides are stored."""
        self.engine: Engine | None = None
        """Has the threads of agents of folders."""
        self.planner: ChildPlans | None = None
        """Makes the plans of subagents' runs."""

    def register(self, name: str, setup: Setup) -> None:
        present = self._setups.get(name)
        if present is not None and present.agent is not setup.agent:
            raise Conflict(f"There are two agents named {name!r}.")
        self._setups[name] = setup

    def take(self, setups: Mapping[str, Setup]) -> None:
        """Takes these agents instead of those it had. Runs in memory keep theirs."""
        self._setups = dict(setups)

    def uses(self, setups: Mapping[str, Setup]) -> bool:
        """Returns whether a run in memory is executed by one of these."""
        known = {id(one) for one in setups.values()}
        return any(id(one) in known for one in (*self._unfinished.values(), *self._opening))

    def use_version(self, version: str | None) -> None:
        """Sets the version that identifies the code of agents and tools, instead of their source."""
        self.code.version = version
        self.others.use_version(version)

    def forget(self, name: str) -> None:
        self._setups.pop(name, None)

    def find(self, name: str) -> Definition[Any, Any] | None:
        setup = self._setups.get(name)
        return None if setup is None else setup.agent

    @property
    def agents(self) -> dict[str, Definition[Any, Any]]:
        """The registered agents, by name."""
        return {name: setup.agent for name, setup in self._setups.items()}

    def error_of(self, place: Place) -> BaseException | None:
        """Returns what the agent's own code raised in a run that recently failed with it here."""
        code = self.running.get(place)
        return self._errors.get(place) if code is None or code.error is None else code.error

    async def close(self) -> None:
        """Exits the deps of all runs, and closes the toolsets."""
        codes = list(self._unfinished)
        for code in codes:
            code.leave()
        late = await _remaining_after(codes, timeout_s=LEAVE_S)
        for _ in ("the last hooks", "the deps"):
            for code in late:
                code.teardown.abandon()
            late = await _remaining_after(late, timeout_s=_ABANDONED_S)
        await self._opened.close()

    def begin(self, agent: Definition[Any, Any]) -> None:
        """Starts to open the agent's toolsets. Runs that start in the meantime wait for the same opening."""
        _, notify = _listeners(agent, None)
        self._opened.begin([one for one in agent.tools if is_toolset(one)], notify)

    async def warm(self, agent: Definition[Any, Any]) -> None:
        """Opens the agent's toolsets, unless they are open. Raises `HookFailed` if a hook with `fail_closed` fails."""
        refusals, notify = _listeners(agent, None)
        sets = [one for one in agent.tools if is_toolset(one)]
        await self._opened.warm(sets, notify)
        for one in sets:
            await self._opened.tools(one)
        for refusal in refusals[:1]:
            raise refusal

    async def drop(self, toolsets: Sequence[Toolset]) -> None:
        """Closes toolsets that no agent or run uses any more."""
        used = {id(one) for setup in self._setups.values() for one in setup.agent.tools}
        await self._opened.drop([one for one in toolsets if id(one) not in used])

    async def names_of(self, tools: Sequence[Tool | Toolset]) -> list[str]:
        """Returns the names of tools as a plan stores them. Servers are not asked, as they may be unreachable."""
        names: list[str] = []
        for one in tools:
            prefix = getattr(one, "prefix", "")
            names += [f"{prefix}*"] if prefix else [found.spec.name for found in await self._tools_of(one)]
        return names

    # Methods of `ToolSource`

    def knows(self, plan: RunPlan) -> bool:
        return plan.code is None or plan.code in self._setups

    def digests(self, plan: RunPlan) -> Digests | None:
        others = self.others.digests(plan if plan.code is None else replace(plan, code=None))
        agent = None if plan.code is None else self.find(plan.code)
        found = None if agent is None else below(agent, plan.path)
        if found is None:
            return others if plan.code is None else None
        agent, only = found
        if only is None and plan.only is None:
            return joined(self.code.of(agent, plan), others)
        has = [name for name in self.code.names(agent) if (only is None or name in only) and is_among(plan.only, name)]
        return joined(self.code.of(agent, plan, only=has), others)

    def tool_names(self, plan: RunPlan) -> Collection[str] | None:
        """Returns the names of the tools of a run with this plan; None if some are unknown until they are opened."""
        agent = None if plan.code is None else self.find(plan.code)
        found = None if agent is None else below(agent, plan.path)
        if plan.code is None or found is None or any(is_toolset(one) for one in found[0].tools):
            return None
        return {one.spec.name for one in found[0].tools if not is_toolset(one)}

    def required_labels(self, plan: RunPlan) -> frozenset[str]:
        others = self.others.required_labels(plan)
        agent = None if plan.code is None else self.find(plan.code)
        found = None if agent is None else below(agent, plan.path)
        if found is None:
            return others
        agent, only = found
        own = [one for one in agent.tools if not is_toolset(one)]
        needed = [
            labels_needed(one)
            for one in own
            if (only is None or one.spec.name in only) and is_among(plan.only, one.spec.name)
        ]
        return others.union(*needed)

    async def check(self, plan: RunPlan, *, workspace: int) -> None:
        await self.others.check(plan, workspace=workspace)
        agent = None if plan.code is None else self.find(plan.code)
        if agent is None:
            return
        own = {one.spec.name for one in agent.tools if not is_toolset(one)}
        for index, ref in enumerate(plan.tools):
            # Names that are unknown until a toolset is opened are checked then.
            name = getattr(ref, "name", None)
            if name in own:
                raise invalid_field(f"tools[{index}].name", f"the agent {agent.name!r} already has a tool {name!r}.")

    async def check_thread(self, plan: RunPlan, *, workspace: int) -> None:
        agent = None if plan.code is None else self.find(plan.code)
        if agent is not None and agent.on_thread is not None and self.workspaces is not None:
            await agent.on_thread.check(self.workspaces, workspace, user=None, env={})

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        base = await self.others.open(plan, run=run, secrets=secrets)
        if plan.code is None:
            return base
        root = self._setups[plan.code]
        self._opening.append(root)
        try:
            return await self._toolbox_of(root, base, plan, run)
        finally:
            self._opening.remove(root)

    async def _toolbox_of(self, root: Setup, base: Toolbox, plan: RunPlan, run: RunName) -> Toolbox:
        setup, only, observed = root, None, False
        problem: tuple[str, BaseException | None] | None = None
        try:
            setup, only, observed = await self._walk(setup, plan.path)
        except LookupError as error:
            problem = str(error), error
        agent, parent, place = setup.agent, run.parent, (run.workspace, run.id)
        upper = None if parent is None else self.running.get((run.workspace, parent.run))
        info = RunInfo(
            id=run.id,
            agent=agent.name,
            thread_id=run.session_id,
            workspace=run.workspace_slug,
            metadata=plan.metadata,
            labels=plan.labels,
            parent=None if parent is None else parent.run,
            turn_id=plan.turn_id,
            **_asked_by(plan),
            trace_id=None if plan.trace is None else plan.trace.id,
            depth=0 if parent is None else parent.depth,
        )
        tools, deps, owned, entered = dict[str, Tool](base.tools), None, None, Entered()
        toolsets: dict[str, str] = {}
        hooks = Hooks([*agent.hooks, *setup.hooks])
        refusals, notify = _listeners(hooks, RunContext(info, None))
        frame = Frame()
        named_prompts = await self._prompts_of(agent, info, workspace=run.workspace)  # before there are deps to exit
        # A retry would fail in the same way: the run ends, and its log has the error.
        named = f" {agent.name}" if agent.name else ""
        with attempt(logger, "run %s: what its agent%s needs could not be created", run.id, named) as making:
            await self._opened.warm(
                [one for one in agent.tools if is_toolset(one) and may_have(plan.only, one)], notify
            )
            frame = await self._framed(setup, plan, tools, toolsets, only=only)
            if upper is not None and setup.deps is NO_DEPS and isinstance(agent.deps, type):
                deps = upper.context.deps  # the only way to give it any
                check_deps(agent.deps, deps)
            else:
                deps, owned = await _deps(setup, info, self.workspaces, self.engine, entered)
        if (error := making.error) is not None:
            problem = f"What the agent needs could not be created: {type(error).__name__}: {error}", error
        for refusal in refusals[:1]:
            problem = problem or (str(refusal), refusal.__cause__)
        code = AgentCode(
            info,
            owner=setup.owner,
            frame=frame,
            hooks=hooks,
            output=None if plan.output_schema is None else agent.output_type,
            instructions=None if isinstance(agent.instructions, str) or plan.system is not None else agent.instructions,
            newest=agent.instructions,
            deps=deps,
            owned=owned,
            problem=problem,
            plan=plan,
            for_client=plan.agent_id is not None or (upper is not None and upper.for_client),
            planner=None if self.planner is None else partial(self.planner, workspace=run.workspace),
            observed=None if observed or not agent.observers else self._observed(agent, info, key=run.key),
            above=Ancestors(() if upper is None else upper.listeners, child_id=info.id, depth=info.depth),
            on_left=partial(self._left, place),
            prompts=named_prompts,
            seats=agent.seats,
            entered=entered,
        )
        self.running[place] = skill_hooks.runs[run.workspace_slug, run.id] = code
        self._unfinished[code] = root
        return Toolbox(tools, code=code, toolsets=toolsets)

    async def _prompts_of(self, agent: Definition[Any, Any], info: RunInfo, *, workspace: int) -> RunPrompts | None:
        if not agent.prompts:
            return None
        overrides = [] if self.workspaces is None else await self.overrides.of(self.workspaces, workspace)
        return RunPrompts(agent.prompts, overrides, thread=info.thread_id, labels=info.labels)

    def _observed(self, agent: Definition[Any, Any], run: RunInfo, *, key: int) -> Callable[[], Awaitable[None]]:
        async def notify_ended() -> None:
            for one in tuple(agent.observers):
                with attempt(logger, "run %s: its end could not be reported to %r", run.id, one):
                    assert self.facts_around is not None
                    await one.ended(run, self.facts_around(run.id, key))

        return notify_ended

    def ended_unopened(self, plan: RunPlan, *, run: RunName) -> None:
        setup = None if plan.code is None else self._setups.get(plan.code)
        if setup is None or run.parent is not None or not setup.agent.observers:
            return
        info = RunInfo(id=run.id, agent=setup.agent.name, metadata=plan.metadata, labels=plan.labels)
        task = asyncio.ensure_future(self._observed(setup.agent, info, key=run.key)())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def notified(self) -> None:
        """Waits until the observers are notified of the end of runs that were not opened here."""
        await asyncio.gather(*self._notifying)

    def _left(self, place: Place, code: AgentCode) -> None:
        self._unfinished.pop(code, None)
        if code.error is not None:
            self._errors[place] = code.error
            while len(self._errors) > _MAX_ERRORS:
                del self._errors[next(iter(self._errors))]
        if self.on_left is not None:
            self.on_left(code)
        if self.running.get(place) is code:  # the run may be back in memory, with new code
            del self.running[place]

    async def _walk(self, setup: Setup, path: Sequence[str]) -> tuple[Setup, frozenset[str] | None, bool]:
        """Returns the setup at the end of a path of subagents, its tools' names (None for all), and whether it is
        observed.

        It is observed if a run above it is. Raises `LookupError` if the path no longer exists.
        """
        only: frozenset[str] | None = None
        observed = False
        for step in path:
            observed = observed or bool(setup.agent.observers)
            found = await self._subagent(setup.agent, step)
            if found is None:
                raise LookupError(f"The agent {setup.agent.name or 'above'} has no subagent {step!r} any more.")
            if found.agent is not None:
                setup, only = Setup(found.agent), None
            elif found.only is not None:
                only = found.only if only is None else only & found.only
        return setup, only, observed

    async def _subagent(self, agent: Definition[Any, Any], name: str) -> Subagent | None:
        for one in sorted(agent.tools, key=is_toolset):  # toolsets last, as they may have to connect
            for found in await self._tools_of(one):
                if isinstance(found, Subagent) and found.name == name:
                    return found
        return None

    async def _framed(
        self,
        setup: Setup,
        plan: RunPlan,
        tools: dict[str, Tool],
        toolsets: dict[str, str],
        *,
        only: frozenset[str] | None = None,
    ) -> Frame:
        """Adds the agent's tools, or those in `only`, to `tools` and their sets to `toolsets`.

        Returns the frame for them.
        """
        agent = setup.agent
        behavior = resolved(setup.behavior or Behavior.from_stored(plan.behavior), agent.behavior)
        aliases = Aliases(agent.tool_aliases)
        withheld: list[Withheld] = []
        for one in agent.tools:
            if not may_have(plan.only, one):
                continue
            # Only toolsets from outside have this setting.
            lazy = (getattr(one, "disclosure", "eager") or behavior.tool_disclosure) == "lazy"
            for found in await self._tools_of(one):
                name = found.spec.name
                chosen = (only is None or name in only) and is_among(plan.only, name)
                if not chosen and not found.traits.hidden:
                    continue
                if name in tools:
                    raise Conflict(f"Two tools of the agent are named {name!r}.")
                tools[name] = found
                if one is not found and (named := name_of(one)):
                    toolsets[name] = named
                if lazy and not found.traits.hidden:
                    withheld.append(withheld_of(found, aliases=aliases, server=name_of(one) or ""))
        search = place_search(tools, withheld, aliases=aliases, settings=behavior.tool_search)
        for name, one in list(tools.items()):
            if (bind := getattr(one, "of", None)) is not None and one.traits.host:
                tools[name] = bind(tools, display_names=aliases.by_name, hidden=[lazy.name for lazy in withheld])
        check_names(tools, agent.tool_aliases)
        for name in behavior.dedup_tools or {}:
            if name in tools:
                check_dedup(name, tools[name].effect)
        skills = [one for one in agent.tools if isinstance(one, Skills) and has_skills(plan.only)]
        for one in skills:
            one.check_tools(ToolNames(tools, aliases=aliases.by_name))
        return Frame(
            behavior=behavior,
            aliases=aliases,
            disclosure=Disclosure(withheld, search=search),
            skills=skills,
            tools=[name for name, one in tools.items() if not one.traits.hidden],
        )

    async def _tools_of(self, one: Tool | Toolset) -> Sequence[Tool]:
        if is_toolset(one):
            return await self._opened.tools(one)
        return (one,)


def _asked_by(plan: RunPlan) -> dict[str, Any]:
    asked = plan.asked_by
    if asked is None:
        return {}
    args = decode(asked.args)
    return {"parent_agent": asked.agent, "parent_call": asked.id, "tool": asked.tool, "tool_args": args}


def is_among(only: Sequence[str] | None, name: str) -> bool:
    """Whether a plan with this `only` has a tool of this name."""
    return only is None or any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in only)


def has_skills(only: Sequence[str] | None) -> bool:
    return only is None or not SKILL_TOOLS.isdisjoint(only)


def may_have(only: Sequence[str] | None, one: Tool | Toolset) -> bool:
    """Whether a plan with this `only` may include this.

    The tools of most toolsets are unknown until they are opened.
    """
    if only is None or not is_toolset(one):
        return True
    prefix: str = getattr(one, "prefix", "")
    return f"{prefix}*" in only if prefix else any(not name.endswith("*") for name in only)


def _listeners(
    hooks: Definition[Any, Any] | Hooks, context: RunContext[Any] | None
) -> tuple[list[HookFailed], Callable[[Point], Awaitable[None]]]:
    """Returns a list for the errors of hooks with `fail_closed`, and a function that notifies hooks about toolsets."""
    listening = hooks if isinstance(hooks, Hooks) else Hooks(hooks.hooks)
    refusals: list[HookFailed] = []

    async def notify(point: Point) -> None:
        try:
            await listening.watch(point, context)
        except HookFailed as failed:
            refusals.append(failed)

    return refusals, notify


def require_durable(agent: Definition[Any, Any], name: str) -> None:
    """Raises `InvalidRequest` for an agent whose runs the next process could not continue."""
    if isinstance(agent.deps, type):
        raise InvalidRequest(
            f"The deps of the agent {name!r} are a type. Values cannot be stored: give a factory that makes them."
        )


async def _deps(
    setup: Setup, info: RunInfo, at: Workspaces | None, engine: Engine | None, entered: Entered
) -> tuple[object, OwnedDeps | None]:
    """Returns the deps of a run, and their owner if they have to be exited."""
    if setup.deps is not NO_DEPS:
        return setup.deps, None
    on_thread = setup.agent.on_thread
    if on_thread is not None and at is not None and engine is not None:
        owned = OwnedDeps(info.id)
        return await owned.enter(lambda: on_thread(at, engine, info, entered)), owned
    factory = setup.agent.deps
    if factory is None or isinstance(factory, type):
        return None, None
    owned = OwnedDeps(info.id)
    return await owned.enter(lambda: factory(info)), owned


async def _remaining_after(codes: Sequence[AgentCode], *, timeout_s: float) -> list[AgentCode]:
    """Waits for these to leave memory, and returns those that have not."""
    late = [code for code in codes if not code.teardown.left.is_set()]
    waiting = {asyncio.ensure_future(code.teardown.left.wait()): code for code in late}
    if not waiting:
        return []
    _, unfinished = await asyncio.wait(waiting, timeout=timeout_s)
    for one in unfinished:
        one.cancel()
    return [waiting[one] for one in unfinished]
