"""The world outside the engine: a ledger of what its model and tools did, and the lives of the server process.

Everything here belongs to one life of the server process. When that ends, whatever is still running does nothing and
counts nothing, as if its process were gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from msgspec import Struct, field

from campaigns.simulation.trace import Trace
from weftline.kernel.bodies import PolicyBody, encode
from weftline.kernel.entries import Effect
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.state import CallModel, Command, ConsultPolicy, State
from weftline.messages import Message, Usage
from weftline.runtime.carry_out import carry_out
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.services import Outcome, Services, Sink

BELOW = "/"
"""Separates the tag of a run from the part that identifies a run below it."""


class Basis(Struct, frozen=True):
    """What a model request is based on: the first `version` facts of the run's log, the last of which permits it."""

    version: int
    turn: int
    attempt: int
    memory: int
    """Which working set it was made from: a run gets a new one every time it is loaded."""
    at: int
    """The wall clock when it was decided on."""


class Asked(Struct):
    """One request to the model."""

    number: int
    tag: str
    life: int
    basis: Basis
    messages: tuple[Message, ...]
    """The conversation as the model got it."""
    reported: Usage | None = None
    ended_s: float = 0.0
    ended: str = ""
    """`done`, `failed`, `aborted` or `crashed`; empty while it is running."""


class FromCode(Struct):
    """A call that code asked for: the `number`th of its parent, counted from 0."""

    run_id: str
    parent: str
    number: int
    tool: str
    args: str
    life: int
    received: str | None = None
    """The text that it received, if any."""


class Execution(Struct):
    """One execution of a server tool."""

    number: int
    run_id: str
    call_id: str
    tool: str
    effect: Effect
    key: str
    args: bytes
    turn: int
    attempt: int
    life: int
    ended: str = ""


class Manners(Struct):
    """The ways in which a history's model and tools behave."""

    errors: float = 0.0
    slow: float = 0.0
    """How often something takes longer than its time limit."""
    long: float = 0.0
    """How often something takes some seconds."""
    stubborn: float = 0.0
    """How often a tool continues for a while after it was cancelled."""
    turns: int = 3
    """The number of turns after which the model answers at the latest."""


class Ledger(Struct):
    """Everything the world saw, over all lives."""

    asked: list[Asked] = field(default_factory=list[Asked])
    executions: list[Execution] = field(default_factory=list[Execution])
    from_code: list[FromCode] = field(default_factory=list[FromCode])
    happened: dict[str, str] = field(default_factory=dict[str, str])
    """Effects that took place, by idempotency key."""
    effects: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """How often each of them took place, by tool and key: a harmless call that ran ahead of a lost turn may have the
    key of another tool's call in the turn that replaced it.
    """
    fenced: set[str] = field(default_factory=set[str])
    """Keys of calls that a tool has declared will not happen."""


class Witness:
    """Called at the moment something begins; the checks live elsewhere."""

    def model_asked(self, asked: Asked) -> None: ...

    def tool_began(self, execution: Execution) -> None: ...


class Life:
    """One life of the server process. `deploy` is the version of the code that it runs."""

    def __init__(
        self,
        number: int,
        *,
        deploy: int,
        rng: Random,
        ledger: Ledger,
        trace: Trace,
        manners: Manners,
        witness: Witness,
        crash: Callable[[str], None],
    ) -> None:
        self.number = number
        self.deploy = deploy
        self.dead = False
        self.rng = rng
        self.ledger = ledger
        self.trace = trace
        self.manners = manners
        self.witness = witness
        self.crash = crash
        self.bases: dict[str, Basis] = {}
        """By tag of the run: what its latest request is based on."""
        self._memories: dict[int, WorkingSet] = {}

    async def check(self) -> None:
        """Never returns once the process is gone."""
        if self.dead:
            await asyncio.get_running_loop().create_future()

    async def pass_time(self, max_s: float) -> None:
        """Lets some time pass, seldom too much."""
        manners, roll = self.manners, self.rng.random()
        if roll < manners.slow:
            delay_s = 200.0
        elif roll < manners.slow + manners.long:
            delay_s = self.rng.random() * 8.0
        else:
            delay_s = self.rng.random() ** 3 * max_s
        await asyncio.sleep(delay_s)
        await self.check()

    async def carry_out(
        self, command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        """The engine's seam: records what a model request is based on, since the request itself does not contain it."""
        if isinstance(command, CallModel):
            # Kept, so that no two have the same id during this life.
            self._memories[id(work)] = work
            memory = list(self._memories).index(id(work))
            self.bases[work.plan.name] = Basis(
                state.version, command.turn, command.attempt, memory, services.clock.now_us()
            )
        if isinstance(command, ConsultPolicy):
            return await self._judged(command)
        return await carry_out(command, state, work, services, sink)

    async def _judged(self, command: ConsultPolicy) -> Outcome:
        """The decision of the run's policy engine; agents have no code in the simulation."""
        await self.pass_time(0.3)
        rng = self.rng
        head = PolicyDecided(
            command.turn,
            allowed=rng.choice((None, None, ("look", "save", "pay", "jot"), ())),
            calls_left=rng.choice((None, None, 1, 50)),
            failures_left=rng.choice((None, None, 1, 50)),
            disable_tools=rng.random() < 0.1,
            failed=rng.random() < 0.1,
        )
        return Outcome(Draft(head, encode(PolicyBody())))
