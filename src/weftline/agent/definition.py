"""The definition of an agent: everything that its runs start from. It holds no run and no connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypedDict, TypeVar, overload

from weftline.agent import argument_checks
from weftline.agent.agent_tools import AgentTool, check_names, merged, name_of, to_tool
from weftline.agent.behavior import Behavior, check_dedup
from weftline.agent.context import Entered, RunContext, RunInfo
from weftline.agent.hooking.calling import Hook, check_hook, point_of
from weftline.agent.hooks import OutputReady, Point
from weftline.agent.options import check_parts
from weftline.agent.output import OutputType
from weftline.agent.preset import Preset
from weftline.agent.prompting import Prompt, checked_prompts
from weftline.agent.settings import Budget, Limits, Policy, PolicyEngine, Settings, check_policy
from weftline.errors import Conflict, short_traceback
from weftline.providers.base import Provider
from weftline.text.suggestions import did_you_mean, missing_attribute, our_name

if TYPE_CHECKING:
    from typing_extensions import TypeForm, Unpack
    from typing_extensions import TypeVar as DefaultTypeVar

    from weftline.agent.engine.observing import RunObserver
    from weftline.runtime.agent_code.seats import Seat
    from weftline.runtime.engine import Engine
    from weftline.store.records.threads import ThreadRow
    from weftline.workspace.context import Workspaces

    OutputT = DefaultTypeVar("OutputT", default=str)
    DepsT = DefaultTypeVar("DepsT", default=object)
else:
    OutputT = TypeVar("OutputT")
    DepsT = TypeVar("DepsT")

P = TypeVar("P", bound=Point)
R = TypeVar("R")
D = TypeVar("D")


class OnThread(Protocol):
    """The threads of an agent whose runs all have one: opens that of a run, as long as the run is in memory.

    `check` and `begin` are those of `weftline.workspace.code_agents.ThreadRules`.
    """

    def __call__(
        self, at: Workspaces, engine: Engine, info: RunInfo, entered: Entered, /
    ) -> AbstractAsyncContextManager[Any]: ...
    async def check(self, at: Any, workspace: int, /, *, user: str | None, env: Mapping[str, str]) -> None: ...
    async def begin(self, at: Any, engine: Any, row: Any, /) -> None: ...
    async def state(self, at: Workspaces, engine: Engine, row: ThreadRow, /) -> Any:
        """Returns the thread's state for code outside of runs."""
        ...


Instructions: TypeAlias = str | Callable[[RunContext[D]], str | Awaitable[str]]


class CommonOptions(TypedDict, total=False):
    """The options of an agent that do not depend on the type of its deps."""

    name: str | None
    description: str
    settings: Settings | None
    limits: Limits | None
    policy: Policy | None
    policy_engine: PolicyEngine | None
    budget: Budget | None
    fallbacks: Sequence[str]
    behavior: Behavior | None
    tool_aliases: Mapping[str, str] | None
    preset: Preset | None
    eager: bool
    prompts: Sequence[Prompt]


class Registers(Protocol[P, D]):
    """Registers a function of a point, and optionally of the run's context."""

    @overload
    def __call__(self, fn: Callable[[P], R], /) -> Callable[[P], R]: ...
    @overload
    def __call__(self, fn: Callable[[P, RunContext[D]], R], /) -> Callable[[P, RunContext[D]], R]: ...


class Definition(Generic[OutputT, DepsT]):
    # Four overloads, by `output` and by what `deps` is: mypy infers nothing from a type or factory that are one union.
    # `= ...` in them: from an empty tuple a type checker would infer that the deps are of an unknown type.
    @overload
    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        instructions: Instructions[DepsT] | None = None,
        deps: type[DepsT] | None = None,
        tools: Sequence[AgentTool[DepsT]] = ...,
        hooks: Sequence[Hook[Any, DepsT]] = ...,
        **others: Unpack[CommonOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        instructions: Instructions[DepsT] | None = None,
        deps: Callable[[RunInfo], AbstractAsyncContextManager[DepsT]],
        tools: Sequence[AgentTool[DepsT]] = ...,
        hooks: Sequence[Hook[Any, DepsT]] = ...,
        **others: Unpack[CommonOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        output: TypeForm[OutputT],
        instructions: Instructions[DepsT] | None = None,
        deps: type[DepsT] | None = None,
        tools: Sequence[AgentTool[DepsT]] = ...,
        hooks: Sequence[Hook[Any, DepsT]] = ...,
        **others: Unpack[CommonOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        output: TypeForm[OutputT],
        instructions: Instructions[DepsT] | None = None,
        deps: Callable[[RunInfo], AbstractAsyncContextManager[DepsT]],
        tools: Sequence[AgentTool[DepsT]] = ...,
        hooks: Sequence[Hook[Any, DepsT]] = ...,
        **others: Unpack[CommonOptions],
    ) -> None: ...
    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        output: Any = str,
        name: str | None = None,
        description: str = "",
        instructions: Any = None,
        deps: Any = None,
        tools: Sequence[AgentTool[DepsT]] = (),
        hooks: Sequence[Hook[Any, DepsT]] = (),
        settings: Settings | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        policy_engine: PolicyEngine | None = None,
        budget: Budget | None = None,
        fallbacks: Sequence[str] = (),
        behavior: Behavior | None = None,
        tool_aliases: Mapping[str, str] | None = None,
        preset: Preset | None = None,
        eager: bool = False,
        prompts: Sequence[Prompt] = (),
        **unknown: Any,
    ) -> None:
        for option in unknown:
            with short_traceback:
                raise TypeError(
                    our_name("Agent", option) or f"an Agent has no option {option!r}.{did_you_mean(option, _options())}"
                )
        check_parts(
            {
                "model": model,
                "name": name,
                "instructions": instructions,
                "settings": settings,
                "limits": limits,
                "behavior": behavior,
                "budget": budget,
                "preset": preset,
            }
        )
        argument_checks.deps(deps)
        if fallbacks != ():
            argument_checks.texts("fallbacks", fallbacks, such_as="['openai:gpt-5-mini']")
        base = preset or Preset()
        name = base.name or None if name is None else name
        if name is not None and not name.strip():
            raise ValueError("an agent's name must not be empty")
        _check_names(tools)
        tools = tuple([to_tool(one) for one in merged(base.tools, tools)])
        self.model = model
        self.name = name
        self.description = description
        """What other agents and clients read about the agent when it is served."""
        self.instructions: Instructions[DepsT] | None = (
            base.instructions or None if instructions is None else instructions
        )
        self.deps = deps
        self.tools = tools
        self.tool_aliases = {**(base.tool_aliases or {}), **(tool_aliases or {})}
        self.behavior = (behavior or Behavior()).over(base.behavior)
        self.settings = (settings or Settings()).over(base.settings)
        self.limits = limits or base.limits or Limits()
        check_policy(policy)
        self.policy = policy
        self.policy_engine = policy_engine
        self.budget = budget
        self.fallbacks = tuple(fallbacks)
        self.eager = eager
        """Whether an engine opens the toolsets as soon as it knows the agent, rather than on the first run."""
        self.prompts = checked_prompts(prompts)
        """The templates that `RunContext.render` fills in."""
        self.hooks: list[Hook[Any]] = [*base.all_hooks, *hooks]
        for one in self.hooks:
            check_hook(one)
        self.on_thread: OnThread | None = None
        """For an agent of a folder, whose runs all have a thread: opens it for the run's tools and hooks."""
        self.seats: tuple[Seat, ...] = ()
        """Who may speak in its runs, if they have more than one speaker or rules for when a turn is over."""
        self.max_side_turns: int | None = None
        self.observers: list[RunObserver] = []
        """Called with the logs of its runs when they have ended."""
        _check_tools(tools, self.tool_aliases, self.behavior)
        self._connect_skills(tools)
        self._output_kind = output
        self._output: OutputType[Any] | None = None
        self._overridden: ContextVar[Provider | str | None] = ContextVar(f"model of {name}", default=None)

    def __repr__(self) -> str:
        return f"<Agent {self.name or 'unnamed'}>"

    if not TYPE_CHECKING:  # a type checker would assume that every name exists

        def __getattr__(self, name):
            with short_traceback:
                raise missing_attribute("agent", self, name)

    @property
    def output_type(self) -> OutputType[Any] | None:
        """The type of the answer; None for plain text."""
        if self._output_kind is str:
            return None
        if self._output is None:
            self._output = OutputType(self._output_kind)
        return self._output

    @property
    def present_model(self) -> str | Provider | None:
        """The agent's model, or the one that an `override` has put in its place."""
        overridden = self._overridden.get()
        return self.model if overridden is None else overridden

    def with_overrides(
        self,
        *,
        instructions: str | Callable[[RunContext[Any]], str | Awaitable[str]] | None = None,
        tools: Sequence[AgentTool[DepsT]] | None = None,
    ) -> Self:
        """Returns the same agent with other instructions or tools, for one run. The tools are checked."""
        other = copy(self)
        if instructions is not None:
            other.instructions = instructions
        if tools is not None:
            _check_names(tools)
            other.tools = tuple([to_tool(one) for one in tools])
            _check_tools(other.tools, self.tool_aliases, self.behavior)
            self._connect_skills(other.tools)
        return other

    def _connect_skills(self, tools: Sequence[AgentTool[Any]]) -> None:
        toolsets = [one for one in tools if hasattr(one, "open")]
        if toolsets:  # most agents have none, and do not need the imports of skills
            from weftline.agent.hooking.skill_hooks import connect_skills

            connect_skills(toolsets, self)

    @overload
    def on(
        self, point: type[OutputReady[Any]], *, fail_closed: bool = False
    ) -> Registers[OutputReady[OutputT], DepsT]: ...
    @overload
    def on(self, point: type[P], *, fail_closed: bool = False) -> Registers[P, DepsT]: ...
    @overload
    def on(self, point: str, *, fail_closed: bool = False) -> Registers[Any, DepsT]: ...
    def on(self, point: type[Any] | str, *, fail_closed: bool = False) -> Any:
        """Registers the decorated function as a hook of all runs that start from now on; see `hook`."""

        found = point_of(point)

        def register(fn: Any) -> Any:
            self.hooks.append(Hook(found, fn, fail_closed=fail_closed))
            return fn

        return register

    @contextmanager
    def override(self, *, model: Provider | str) -> Generator[None]:
        """Runs that start inside the block use this model."""
        token = self._overridden.set(model)
        try:
            yield
        finally:
            self._overridden.reset(token)


def _options() -> list[str]:
    """Returns the names of an agent's options."""
    parameters = signature(Definition.__init__).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] + ["model"]


def _check_names(tools: Sequence[AgentTool[Any]]) -> None:
    """Checks the tools' names. Those of toolsets are unknown until the toolsets are opened."""
    prefixes = [prefix for one in tools if (prefix := getattr(one, "prefix", None))]
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise ValueError(f"two MCP servers of the agent are named {prefix.rstrip('_')!r}: give one another name=")
    alone = [one for one in tools if not hasattr(one, "prefix")]
    names = [name for one in alone if (name := name_of(one))]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two tools of the agent are named {name!r}")
        for prefix in prefixes:
            if name.startswith(prefix):
                raise ValueError(
                    f"the tool {name!r} could clash with a tool of the MCP server whose tools are {prefix}…"
                )


def _check_tools(tools: Sequence[AgentTool[Any]], aliases: Mapping[str, str], behavior: Behavior) -> None:
    """Checks what is known about tools before they are opened. The rest is checked before the first model call."""
    known = {name: one for one in tools if not hasattr(one, "open") and (name := name_of(one))}
    try:
        check_names(known, aliases)
        for name in behavior.dedup_tools or {}:
            if name in known:
                check_dedup(name, getattr(known[name], "effect", "once"))
    except Conflict as error:
        raise ValueError(error.message) from None
