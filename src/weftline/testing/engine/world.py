"""The models and tools that the suite's runs use, and a record of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect, Fact, TurnCompleted
from weftline.messages import Message
from weftline.plan import RunPlan
from weftline.providers.base import Chunk, ModelRequest, ToolSpec
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.agent_code.code import ChildLimits, PendingCall
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.testing.code import IdleCode
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.asking import Ask
from weftline.tools.base import PLAIN, ClientKind, Reconciled, Tool, ToolContext, ToolOutput, Traits, Unknown


def _calls(*names: str) -> dict[str, object]:
    return {"tool_calls": [{"name": name, "args": {"n": index}} for index, name in enumerate(names)]}


_RESULTS = {"text": "got {{all_tool_results}}"}

PIECES = ("piece ", "by ", "piece ", "by ", "piece")
"""What the model `stream` writes, each piece after the first when it may (`World.write_on`)."""

SCRIPTS: dict[str, object] = {
    "hello": {"turns": [{"deltas": ["hello ", "world"]}]},
    "stream": {"turns": [{"deltas": list(PIECES), "delay_ms": 1}]},
    "ask": {"turns": [{"deltas": ["one ", "moment"]} | _calls("ask"), _RESULTS]},
    "ask_once": {"turns": [_calls("ask_once"), _RESULTS]},
    "ask_three": {"turns": [_calls("ask", "ask", "ask"), _RESULTS]},
    "ask_twice": {"turns": [_calls("ask"), _calls("ask"), _RESULTS]},
    "ask_and_hold": {"turns": [_calls("ask", "hold"), _RESULTS]},
    "hold": {"turns": [_calls("hold"), _RESULTS]},
    "note": {"turns": [_calls("note"), _RESULTS]},
    "linger": {"turns": [_calls("linger", "ask"), _RESULTS]},
    "delegate": {"turns": [_calls("delegate"), _RESULTS]},
    "hold_then_note": {"turns": [_calls("hold", "note"), _RESULTS]},
    "pay": {"turns": [_calls("note", "pay"), _RESULTS]},
    "refund": {"turns": [_calls("refund"), _RESULTS]},
    "refund_twice": {"turns": [_calls("refund"), _calls("refund"), _RESULTS]},
    "refund_three": {"turns": [_calls("refund", "refund", "refund"), _RESULTS]},
    "retry": {"turns": [{"error": {"class": "overloaded"}}, {"text": "at last"}]},
    "refused": {"turns": [{"error": {"class": "auth"}}]},
    "history": {"turns": [{"text": "heard {{user_messages}}"}]},
}
"""The script of each model, by name."""


class Execution(Struct, frozen=True):
    tool: str
    key: str
    args: bytes
    attempt: int


class World:
    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.began = asyncio.Event()
        """Set when `hold` or `pay` has been called."""
        self.released = asyncio.Event()
        """Set when `hold` and `pay` may return."""
        self.returned = asyncio.Event()
        """Set when `linger` has returned."""
        self.opens = asyncio.Event()
        """Set while tools can be opened."""
        self.opens.set()
        self.secrets: list[bytes | None] = []
        """The secrets with which tools were opened."""
        self._written_on = asyncio.Semaphore(0)
        self.watches = False
        """Whether runs that are opened from now on have a watcher, which returns when `released` is set."""

        self.moments: dict[str, Callable[[], None]] = {}
        """What is called when a moment is reached for the next time."""
        self.limits = WorkspaceLimits(max_queued_runs_per_workspace=20, max_streams_per_workspace=50)
        """What a workspace may use, which is little, so that a check can use all of it."""
        self._provider = WorldModel(self)

    def reached(self, moment: str) -> None:
        """Called before a tool does anything (`tool NAME`), and when a model is requested (`model N`, counted from
        1).
        """
        then = self.moments.pop(moment, None)
        if then is not None:
            then()

    def write_on(self) -> None:
        """Lets the model `stream` write its next piece."""
        self._written_on.release()

    async def until_written_on(self, _: float) -> None:
        await self._written_on.acquire()

    @property
    def conversations(self) -> list[tuple[Message, ...]]:
        """The requests to models, in order."""
        return [tuple(request.messages) for request in self._provider.requests]

    def models(self) -> Catalog:
        models = Catalog()
        models.add(self._provider)
        return models

    def tools(self) -> WorldTools:
        return WorldTools(self, {tool.spec.name: tool for tool in _tools(self)})


class WorldModel(ScriptedProvider):
    def __init__(self, world: World) -> None:
        super().__init__(parse_scripts(encode(SCRIPTS)), record=True, sleep=world.until_written_on)
        self._world = world

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self._world.reached(f"model {len(self.requests) + 1}")
        return super().stream(request)


def _tools(world: World) -> list[Tool]:
    return [
        WorldTool(world, "hold", "read"),
        WorldTool(world, "pay", "once"),
        WorldTool(world, "note", "read"),
        Refund(world),
        Linger(world),
        Delegate(world),
    ]


class WorldTools(ServerTools):
    def __init__(self, world: World, tools: Mapping[str, Tool]) -> None:
        super().__init__(tools)
        self._world = world

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        self._world.secrets.append(secrets)
        await self._world.opens.wait()
        toolbox = await super().open(plan, run=run, secrets=secrets)
        if self._world.watches:
            return Toolbox(toolbox.tools, code=Watcher(self._world))
        return Toolbox(toolbox.tools, code=Delegating(plan)) if plan.model == "scripted:delegate" else toolbox


class Watcher(IdleCode):
    """Takes its time once the model has answered."""

    watches = True

    def __init__(self, world: World) -> None:
        self._world = world

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        if any(isinstance(fact, TurnCompleted) for fact in facts):
            self._world.began.set()
            await self._world.released.wait()


class Delegating(IdleCode):
    """Has calls of `delegate` executed by a run of their own, of the model `refund`."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        return replace(self._plan, model="scripted:refund", name="child")


class WorldTool:
    client: ClientKind | None = None
    peer: Peer | None = None
    timeout_s: float | None = None
    concurrent = False
    traits = PLAIN

    def __init__(self, world: World, name: str, effect: Effect) -> None:
        self._world = world
        self._waits = name in ("hold", "pay")
        self.spec = ToolSpec(name, name, Raw(b'{"type":"object"}'))
        self.effect: Effect = effect

    async def prepare(self, args: str) -> bytes:
        return object_args(args)[1]

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        world = self._world
        world.reached(f"tool {context.tool_name}")
        world.executions.append(Execution(context.tool_name, context.idempotency_key, args, context.attempt))
        if self._waits:
            world.began.set()
            await world.released.wait()
        return ToolOutput.of(f"{context.tool_name} is done")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


class Refund(WorldTool):
    """A person is asked about each of its calls, whose argument is a number."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "refund", "once")

    async def prepare(self, args: str) -> bytes:
        given, final = object_args(args)
        if not isinstance(given.get("n"), int):
            raise InvalidArguments("n: a number")
        return final

    def asks_people(self, args: bytes) -> Ask | None:
        return Ask(f"Refund {args.decode()}?")


class Linger(WorldTool):
    """Ignores it if its call is cancelled, and returns when `released` is set."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "linger", "read")

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        self._world.began.set()
        while not self._world.released.is_set():
            with suppress(asyncio.CancelledError):
                await self._world.released.wait()
        self._world.returned.set()
        return ToolOutput.of("linger is done")


class Delegate(WorldTool):
    """See `Delegating`."""

    traits = Traits(is_agent=True)

    def __init__(self, world: World) -> None:
        super().__init__(world, "delegate", "once")
