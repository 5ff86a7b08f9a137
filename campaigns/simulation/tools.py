"""The tools of the simulation: every kind of effect, and some harmful ones."""

from __future__ import annotations

import asyncio
from random import Random

from msgspec import Raw

from campaigns.simulation.world import Execution, FromCode, Life
from weftline.failure import Hint
from weftline.kernel.bodies import AskBody, Peer
from weftline.kernel.entries import Effect
from weftline.messages import joined_text
from weftline.providers.base import ToolSpec
from weftline.text.canonical import canonical_value
from weftline.tools.arguments import object_args
from weftline.tools.asking import Ask
from weftline.tools.base import (
    PLAIN,
    ClientKind,
    Happened,
    Reconciled,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
    Traits,
    Unknown,
    WillNotHappen,
)

CLIENT_TOOL = "ask"
SERVER_TOOLS = ("look", "scan", "save", "move", "shift", "pay", "send")
ASKING = ("refund", "rent")
"""A person has to approve each of their calls."""
ASKS_A_QUESTION = "consult"
ASKS_BACK = "inquire"
"""Asks a person something while it runs, and the answer is its result."""
LACKS = "fill"
"""Fails because something is missing that a person may know."""
CODE = "code"
"""Asks for calls of the run's other tools while it runs."""
SUBAGENTS = ("delegate", "hire", "appoint")
"""Their calls are executed by child runs. A person has to approve each call of the last one."""
BOOKKEEPING = "jot"
"""No cap counts its calls."""
KILLER = "kill"
SLOW_KILLER = "kill_later"
BROKEN = "broken"
SHAKY = "shaky"
SLOW_KILL_S = 10.0

_SCHEMA = Raw(b'{"type":"object","properties":{"n":{"type":"integer"},"deploy":{"type":"integer"}}}')


def sim_tools(life: Life) -> dict[str, Tool]:
    # A deploy may also change what a tool says about itself.
    shift: Effect = "once" if life.deploy == 2 else "reconcile"
    tools = [
        SimTool(life, "look", "read"),
        SimTool(life, "scan", "read", concurrent=True),
        SimTool(life, "save", "idempotent", concurrent=True),
        SimTool(life, "move", "reconcile"),
        SimTool(life, "shift", shift, concurrent=True),
        SimTool(life, "pay", "once"),
        SimTool(life, "send", "once", concurrent=True),
        AskingTool(life, "refund", "once"),
        AskingTool(life, "rent", "idempotent", concurrent=True),
        AskingTool(life, ASKS_A_QUESTION, "read", concurrent=True),
        InquiringTool(life, ASKS_BACK, "idempotent", concurrent=True),
        LackingTool(life, LACKS, "idempotent"),
        BookkeepingTool(life, BOOKKEEPING, "idempotent", concurrent=True),
        SimCode(life, CODE, "read"),
        SubagentTool(life, "delegate", "idempotent"),
        SubagentTool(life, "hire", "idempotent", concurrent=True),
        ApprovedAgent(life, "appoint", "idempotent", concurrent=True),
        SimTool(life, KILLER, "read"),
        SimTool(life, SLOW_KILLER, "read"),
        SimTool(life, BROKEN, "read"),
        SimTool(life, SHAKY, "read"),
    ]
    return {tool.spec.name: tool for tool in tools}


class RuntimeBug(BaseException):
    """Stands for a bug of the runtime: an error in a tool's own code only fails its call, but this fails the driver."""


class SimTool:
    client: ClientKind | None = None
    peer: Peer | None = None
    timeout_s: float | None = None
    traits = PLAIN

    def __init__(self, life: Life, name: str, effect: Effect, *, concurrent: bool = False) -> None:
        self._life = life
        self._fails = name in (BROKEN, SHAKY)
        self.spec = ToolSpec(name, name, _SCHEMA)
        self.effect: Effect = effect
        self.concurrent = concurrent

    async def prepare(self, args: str) -> bytes:
        """Each deploy has its own default, so that arguments prepared twice are detected."""
        if self._fails:
            self._fails = self.spec.name == BROKEN
            raise RuntimeBug("simulated: a bug of the runtime")
        known, _ = object_args(args)
        return canonical_value({**known, "deploy": self._life.deploy})

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        life, rng = self._life, self._life.rng
        await life.check()
        self._fails = self.spec.name == SHAKY  # once more, now that something has ended
        execution = self._begin(args, context)
        try:
            await life.pass_time(0.6)
            if self.spec.name in (KILLER, SLOW_KILLER):
                await asyncio.sleep(SLOW_KILL_S if self.spec.name == SLOW_KILLER else 0.0)
                life.crash("a tool kills the process")
                await asyncio.sleep(3600)
            life.ledger.happened[context.idempotency_key] = f"{self.spec.name} {execution.number}"
            life.ledger.effects[self.spec.name, context.idempotency_key] += 1
            await life.pass_time(0.4)
            if rng.random() < 0.1:
                execution.ended = "failed"
                if rng.random() < 0.2:
                    raise asyncio.CancelledError  # cancelled within the tool, not the tool itself
                raise ToolFailed(f"{self.spec.name} {execution.number}")
            execution.ended = "returned"
            return self._result(execution)
        except asyncio.CancelledError:
            if not life.dead and rng.random() < life.manners.stubborn:
                await asyncio.sleep(1.0)
            raise
        finally:
            execution.ended = execution.ended or ("crashed" if life.dead else "cut")
            life.trace.note(f"tool: execution {execution.number} {execution.ended}")

    def _result(self, execution: Execution) -> ToolOutput:
        return ToolOutput.of(f"{self.spec.name} {execution.number}")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        life = self._life
        await life.pass_time(0.3)
        result = life.ledger.happened.get(context.idempotency_key)
        if result is not None:
            return Happened(ToolOutput.of(result))
        if life.rng.random() < 0.2:
            return Unknown()
        life.ledger.fenced.add(context.idempotency_key)
        return WillNotHappen()

    def _begin(self, args: bytes, context: ToolContext) -> Execution:
        life = self._life
        execution = Execution(
            len(life.ledger.executions),
            context.run_id,
            context.call_id,
            self.spec.name,
            self.effect,
            context.idempotency_key,
            args,
            context.turn,
            context.attempt,
            life.number,
        )
        life.ledger.executions.append(execution)
        life.trace.note(
            f"tool: {context.metadata.get('tag')} {self.spec.name} {context.call_id} attempt {context.attempt}"
            f" is execution {execution.number}"
        )
        life.witness.tool_began(execution)
        return execution


class BookkeepingTool(SimTool):
    traits = Traits(bookkeeping=True)


class SubagentTool(SimTool):
    traits = Traits(is_agent=True)


class InquiringTool(SimTool):
    def _result(self, execution: Execution) -> ToolOutput:
        if self._life.rng.random() < 0.3:
            return super()._result(execution)
        execution.ended = "asked"
        return ToolOutput((), asks=AskBody(f"{self.spec.name} {execution.number}?"))


class LackingTool(SimTool):
    def _result(self, execution: Execution) -> ToolOutput:
        if self._life.rng.random() < 0.3:
            return super()._result(execution)
        execution.ended = "failed"
        hint = Hint("missing_fields", missing_fields=("n",), clarifying_question=f"Which {execution.number}?")
        raise ToolFailed(f"{self.spec.name} {execution.number}", kind="invalid_call", hint=hint)


class SimCode(SimTool):
    """The same call makes the same requests whenever it is executed, and later requests depend on earlier results."""

    traits = Traits(host=True)

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        life, further = self._life, context.further
        assert further is not None
        await life.check()
        execution = self._begin(args, context)
        script = Random(f"{context.metadata['tag']} {context.turn} {context.call_id} {args!r}")
        names = context.metadata["callable"].split(",")
        asked: list[FromCode] = []
        carry = 0

        async def ask(name: str, n: int) -> str:
            one = FromCode(context.run_id, context.call_id, len(asked), name, f'{{"n":{n}}}', life.number)
            asked.append(one)
            life.ledger.from_code.append(one)
            output = await further.ask(name, one.args)
            one.received = joined_text(output.parts)
            return one.received

        try:
            for _ in range(script.randrange(1, 4)):
                await life.pass_time(0.2)
                chosen = [script.choice(names) for _ in range(script.choice((1, 1, 2, 3)))]
                results = await asyncio.gather(*[ask(name, (carry + place) % 4) for place, name in enumerate(chosen)])
                carry = len("".join(results))
            execution.ended = "returned"
            return ToolOutput.of(f"{self.spec.name} {execution.number}")
        finally:
            execution.ended = execution.ended or ("crashed" if life.dead else "cut")
            life.trace.note(f"tool: execution {execution.number} {execution.ended}")


class AskingTool(SimTool):
    """People are asked about its calls."""

    def asks_people(self, args: bytes) -> Ask | None:
        kind = "question" if self.spec.name == ASKS_A_QUESTION else "confirm"
        return Ask(f"{self.spec.name} {args.decode()}?", kind)


class ApprovedAgent(AskingTool):
    traits = Traits(is_agent=True)
