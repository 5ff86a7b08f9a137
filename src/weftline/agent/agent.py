"""`Agent`: a model, instructions, tools and hooks under one name."""

# pyright: reportPrivateUsage=false
# An agent, its runs and its engine know each other.

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from weftline.agent.definition import Definition, DepsT, OutputT
from weftline.errors import short_traceback

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import Unpack

    from weftline.agent._sync import SyncRun
    from weftline.agent.engine.engine import Engine
    from weftline.agent.options import RunOptions
    from weftline.agent.results import RunResult
    from weftline.agent.run import Run
    from weftline.agent.subagents import Subagent

# Imported on the first run, so that a program that only defines agents starts without the runtime.


class Agent(Definition[OutputT, DepsT]):
    """A model, instructions, tools and hooks under one name.

        agent = Agent("anthropic:claude-sonnet-4-5", instructions="Be brief.", tools=[weather])
        print(agent.run_sync("Do I need an umbrella in Lyon?").text)

    docs/library.md has examples of everything.

    Args:
        model: An id such as `"openai:gpt-5"`, or a provider. It can be left to each run.
        output: The type of the answer, any that pydantic supports; `RunResult.output` is a value of it. Default: str.
        name: Required for durable runs and for a server, which find the agent by it.
        description: What callers read about the agent, over MCP and A2A.
        instructions: The system prompt, or a function that returns it for each run.
        deps: What tools, hooks and instructions need: a type, whose value is passed to each run (`run(…, deps=…)`), or
            a factory that creates one for each run, an async context manager.
        tools: Functions, tools and toolsets.
        hooks: Functions that are called at points of each run; see `hook`.
        settings: Temperature, reasoning and the like.
        limits: How far a run may go.
        policy: Limits on calls, failures and time, and tool filters.
        policy_engine: Code that decides about the calls of each turn.
        budget: What each run may spend.
        fallbacks: Ids of models to try, in order, if a model call fails.
        behavior: How the agent goes about its runs.
        tool_aliases: Other names for tools, which the model sees.
        preset: Defaults for an agent that does not set them itself.
        eager: Whether an engine opens the agent's toolsets as soon as it knows the agent.
        prompts: Templates that tools and hooks can render, and that can be overridden at run time.
    """

    async def run(
        self, prompt: str | None = None, *, engine: Engine | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> RunResult[OutputT]:
        """Runs the agent and waits for its answer; see `RunOptions` for what can be set for one run.

        Without an `engine` the run is in memory and belongs to the caller: if the awaiting task is cancelled, so is the
        run. With a durable engine, cancelling the task only stops the waiting.

        Raises:
            RunFailed: if the run failed; the subclass says how.
        """
        with short_traceback:
            host = await _host(engine)
            run = await host._start_alone(self, prompt, options)
            async with host._owned(run):
                return await run.result()

    @asynccontextmanager
    async def stream(
        self, prompt: str | None = None, *, engine: Engine | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AsyncGenerator[Run[OutputT]]:
        """Starts the agent and yields its run, to watch it. Leaving the block ends a run in memory."""
        with short_traceback:
            host = await _host(engine)
            run = await host.start(self, prompt, **options)
        async with host._owned(run):
            yield run

    async def warmup(self, *, engine: Engine | None = None) -> None:
        """Opens the agent's toolsets before its first run needs them; see `Engine.warmup`.

        Without an `engine` they are opened for its runs in memory, on this event loop.
        """
        await (await _host(engine)).warmup(self)

    def as_tool(
        self,
        description: str,
        *,
        name: str | None = None,
        args: type[BaseModel] | None = None,
        prompt_id: str | None = None,
        template: str | None = None,
        text: str | None = None,
        prompt: Callable[..., str] | None = None,
        check: Callable[..., str | None] | None = None,
        instructions: str | None = None,
        inherit_policy: bool = False,
    ) -> Subagent:
        """The agent as a tool of another agent. Each call is a run of its own, a child of the run that made it.

        The child's prompt comes from `prompt_id`, `template`, `text` or `prompt`, the first of these that is given.
        Without any, it is the task that the other agent's model writes, or with `args` the arguments as JSON.

        Args:
            description: What the other agent's model reads about it.
            name: What that model calls it; by default the agent's own name.
            args: A pydantic model of the arguments that the tool takes.
            prompt_id: One of the calling agent's `prompts`, filled in with the arguments.
            template: The child's prompt, with arguments in braces: `"Find out about {topic}."`. Without `args` each of
                these is a string.
            text: The child's prompt, whatever the arguments are.
            prompt: A function that returns the child's prompt. Without `args` its parameters are the tool's.
            check: A function of the arguments that it names, called before the child is created. It returns what is
                wrong with them, for the other agent's model to read, or None.
            instructions: Instructions for the child, instead of the agent's own.
            inherit_policy: Whether the policy that the calling run was started with holds for the child, too, within
                the agent's own. That of the calling agent never does.

        Raises:
            ValueError: for both a template and a text, and for a template with anything but arguments in it.
        """
        from weftline.agent.subagents import as_tool

        return as_tool(
            self,
            description,
            name=name,
            args=args,
            prompt_id=prompt_id,
            template=template,
            text=text,
            prompt=prompt,
            check=check,
            instructions=instructions,
            inherit_policy=inherit_policy,
        )

    def run_sync(
        self, prompt: str | None = None, *, engine: Engine | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> RunResult[OutputT]:
        """`run` for code without an event loop."""
        from weftline.agent.sync import blocking

        with short_traceback:
            return blocking(lambda: self.run(prompt, engine=engine, **options), engine=engine)

    def stream_sync(
        self, prompt: str | None = None, *, engine: Engine | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractContextManager[SyncRun[OutputT]]:
        """`stream` for code without an event loop."""
        from weftline.agent._sync import SyncRun
        from weftline.agent.sync import watched

        return watched(lambda: self.stream(prompt, engine=engine, **options), SyncRun[OutputT], engine=engine)


async def _host(engine: Engine | None) -> Engine:
    """Returns the given engine, or the in-memory engine of the running loop."""
    if engine is None:
        from weftline.agent.engine.in_memory import in_memory

        return await in_memory()
    if not hasattr(engine, "_start_alone"):
        raise TypeError(
            f"engine must be an Engine that is open, such as Engine('./data') in a with block, not {engine!r}"
        )
    return engine
