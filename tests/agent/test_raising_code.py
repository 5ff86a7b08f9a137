"""Whatever an agent's own code raises, wherever it is called: its own call or run fails, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self, TypeAlias

import pytest
from pydantic import AfterValidator, BaseModel

from weftline import Agent, Engine, Limits, RunFailed, ToolContext, skills, tool
from weftline.agent import hooks as points
from weftline.behaviors import Behavior, Compaction, ToolBudget
from weftline.hooks import AwaitGate, ToolGate
from weftline.prompts.compaction import SUMMARIZE
from weftline.providers.base import Chunk, ModelRequest
from weftline.runs import AgentFailed, InvalidOutput, ProviderFailed
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill, ToolQuestion, toolset
from weftline.tools.base import Tool

from .kit import asked

pytestmark = pytest.mark.usefixtures("no_ctrl_c")

ERRORS = [RuntimeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError]
each_error = pytest.mark.parametrize("error", ERRORS)
Raises: TypeAlias = Callable[..., NoReturn]
Made: TypeAlias = Agent[Any, Any]


def kept(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Runs a scenario in a loop of its own. What ends the loop would otherwise end all tests."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await scenario

    try:
        return asyncio.run(bounded())
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise AssertionError(f"the loop was ended by {error!r}") from None


def raising(error: type[BaseException]) -> Raises:
    def raises(*args: Any, **keywords: Any) -> NoReturn:
        raise error("broken")

    return raises


async def outcome(agent: Made, raises: Raises | None = None) -> str:
    """How the agent's last call ended, or what its run has failed as, while another run goes on beside it."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go.wait()
        return "waited"

    async with Engine() as engine:
        if raises is not None:
            await engine.observe(raises)
        beside = await engine.start(Agent(ScriptedModel([calls("wait"), "Done."]), name="beside", tools=[wait]), "Go.")
        await begun.wait()
        try:
            result = await (await engine.start(agent, "Go.")).result()
            how = result.calls[-1].how if result.calls else result.status
        except RunFailed as failed:
            how = type(failed).__name__
        go.set()
        other = await beside.result()
        assert (other.text, [call.how for call in other.calls]) == ("Done.", ["returned"])
        assert (await engine.start(Agent(ScriptedModel(["Later."]), name="later"), "Go.")).id
    return how


def pay_tool(**options: Any) -> Tool:
    @tool(**options)
    async def pay() -> str:
        """Pays."""
        return "paid"

    return pay


def payer(*tools: Any, **options: Any) -> Made:
    return Agent(ScriptedModel([calls("pay"), "Done.", "Done."]), name="payer", tools=tools or [pay_tool()], **options)


def hooked(point: type[points.Point], **options: Any) -> Callable[[Raises], Made]:
    def made(raises: Raises) -> Made:
        agent = payer(**options)
        agent.on(point)(lambda at: raises())
        return agent

    return made


# Tools


def body(raises: Raises) -> Made:
    @tool
    async def pay() -> str:
        """Pays."""
        raises()

    return payer(pay)


def body_in_thread(raises: Raises) -> Made:
    @tool
    def pay() -> str:
        """Pays."""
        raises()

    return payer(pay)


def own_class(raises: Raises) -> Made:
    pay: Any = pay_tool()

    async def invoke(args: bytes, context: ToolContext) -> Any:
        raises()

    pay.invoke = invoke
    return payer(pay)


def validator(raises: Raises) -> Made:
    def checked(amount: int) -> int:
        raises()

    @tool
    async def pay(amount: Annotated[int, AfterValidator(checked)]) -> str:
        """Pays."""
        return "paid"

    return Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])


def result_attribute(raises: Raises) -> Made:
    class Odd:
        def __iter__(self) -> Any:
            raises()

    @tool
    async def pay() -> Any:
        """Pays."""
        return Odd()

    return payer(pay)


def late(raises: Raises) -> Made:
    @tool(effect="read", timeout_s=0.01)
    async def pay(context: ToolContext) -> str:
        """Pays."""
        context.on_cancel.append(raises)
        await asyncio.Event().wait()
        return "paid"

    return payer(pay)


def stale(raises: Raises) -> Made:
    """Its validators accept the arguments when they are prepared, and break when the call begins."""
    begins: list[points.ToolBefore] = []

    def checked(amount: int) -> int:
        return raises() if begins else amount

    @tool
    async def pay(amount: Annotated[int, AfterValidator(checked)]) -> str:
        """Pays."""
        return "paid"

    agent: Made = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])
    agent.on(points.ToolBefore)(begins.append)
    return agent


# The agent


def deps_enter(raises: Raises) -> Made:
    @asynccontextmanager
    async def deps(run: Any) -> AsyncGenerator[int]:
        raises()
        yield 1

    return payer(deps=deps)


def deps_exit(raises: Raises) -> Made:
    @asynccontextmanager
    async def deps(run: Any) -> AsyncGenerator[int]:
        yield 1
        raises()

    return payer(deps=deps)


def output(raises: Raises) -> Made:
    def checked(n: int) -> int:
        raises()

    class Answer(BaseModel):
        n: Annotated[int, AfterValidator(checked)]

    return Agent(ScriptedModel(['{"n": 1}', '{"n": 1}']), name="payer", output=Answer)


def briefed(**options: Any) -> Made:
    child = Agent(ScriptedModel(["Paid."]), name="child")
    model = ScriptedModel([calls("pay", task="x"), "Done."])
    return Agent(model, name="payer", tools=[child.as_tool("Pays.", name="pay", **options)])


def briefing(raises: Raises) -> Made:
    def prompt(task: str) -> str:
        raises()

    return briefed(prompt=prompt)


def briefing_check(raises: Raises) -> Made:
    def check(task: str) -> str | None:
        raises()

    return briefed(check=check)


def child_output(raises: Raises) -> Made:
    """Its validators accept the answer in the child, and break in the parent."""
    seen: list[int] = []

    def once(value: int) -> int:
        seen.append(value)
        return value if len(seen) == 1 else raises()

    class Answer(BaseModel):
        n: Annotated[int, AfterValidator(once)]

    child = Agent(ScriptedModel(['{"n": 1}']), name="child", output=Answer)
    model = ScriptedModel([calls("pay", task="x"), "Done."])
    return Agent(model, name="payer", tools=[child.as_tool("Pays.", name="pay")])


def gate_with_broken_validator(raises: Raises) -> Made:
    def checked(amount: int) -> int:
        return amount if amount == 1 else raises()

    @tool
    async def pay(amount: Annotated[int, AfterValidator(checked)]) -> str:
        """Pays."""
        return "paid"

    agent: Made = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])

    @agent.on(ToolGate)
    def more(gate: ToolGate) -> None:
        gate.args = {"amount": 2}

    return agent


def approval_with_broken_validator(raises: Raises) -> Made:
    def checked(amount: int) -> int:
        return amount if amount == 1 else raises()

    @tool(confirm="Pay?")
    async def pay(amount: Annotated[int, AfterValidator(checked)]) -> str:
        """Pays."""
        return "paid"

    agent: Made = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])

    @agent.on(AwaitGate)
    def more(gate: AwaitGate) -> None:
        gate.approve(args={"amount": 2})

    return agent


def policy(raises: Raises) -> Made:
    async def engine(turn: Any) -> Any:
        raises()

    return payer(policy_engine=engine)


def policy_in_thread(raises: Raises) -> Made:
    return payer(policy_engine=raises)


def hasher(raises: Raises) -> Made:
    return payer(pay_tool(effect="read"), behavior=Behavior(dedup_tools={"pay": raises}))


def ruling(raises: Raises) -> Made:
    return payer(behavior=Behavior(tool_budgets={"pay": ToolBudget(0, on_exceed=raises)}))


def decay(raises: Raises) -> Made:
    return payer(behavior=Behavior(thinking_decay=raises, reasoning_budget_tokens=1024))


class Offering:
    """A toolset."""

    def __init__(self, *, opens: Callable[..., object] = bool, closes: Callable[..., object] = bool) -> None:
        self._opens, self._closes = opens, closes

    async def open(self) -> Sequence[Tool]:
        self._opens()
        return [pay_tool()]

    async def close(self) -> None:
        self._closes()


class Reachable(Offering):
    """A toolset of a server. Its tools can be missing."""

    name = prefix = "peer"

    def stand_in(self, error: Exception) -> Sequence[Tool]:
        return [pay_tool()]


def skill_handlers(raises: Raises) -> Made:
    found = skills(Skill(name="paying", description="How to pay.", body="Pay."))
    for handlers in (found.on_resolve, found.on_catalog, found.on_activate, found.on_deactivate):
        handlers.append(raises)
    model = ScriptedModel([calls("skills_use", name="paying"), "Done."])
    return Agent(model, name="payer", tools=[found])


class Watcher:
    traces = False

    def __init__(self, raises: Raises) -> None:
        self._raises = raises

    async def ended(self, run: Any, facts_of: Any) -> None:
        self._raises()


def observer(raises: Raises) -> Made:
    agent = payer()
    agent.observers.append(Watcher(raises))
    return agent


# The model


class Broken(ScriptedModel):
    """A provider with a part that raises."""

    def __init__(self, raises: Raises, part: str, *turns: Any) -> None:
        super().__init__([*turns, "Done."])
        self._raises, self._part = raises, part
        if part in ("response_metadata", "classify_error"):
            setattr(self, part, raises)

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if self._part == "stream":
            self._raises()
        return Answer(super().stream(request), self._part, self._raises, summarizes=request.system == SUMMARIZE)


class Answer:
    """A stream of one answer."""

    def __init__(
        self, chunks: AsyncIterator[Sequence[Chunk]], part: str, raises: Raises, *, summarizes: bool = False
    ) -> None:
        self._chunks, self._part, self._raises, self._summarizes = chunks, part, raises, summarizes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Chunk]:
        if self._part == "classify_error":
            raise OSError("down")
        if self._part == "chunks" or (self._part == "summary" and self._summarizes):
            self._raises()
        return await anext(self._chunks)

    async def aclose(self) -> None:
        if self._part == "closing":
            self._raises()


def model(part: str) -> Callable[[Raises], Made]:
    return lambda raises: Agent(Broken(raises, part), name="payer", limits=Limits(max_retries=0))


def summary(raises: Raises) -> Made:
    model = Broken(raises, "summary", calls("pay"), calls("pay"))
    behavior = Behavior(compaction=Compaction(at_turns=1, keep_turns=0))
    limits = Limits(max_retries=0, loop_soft=0)
    return Agent(model, name="payer", tools=[pay_tool(effect="read")], behavior=behavior, limits=limits)


PLACES: Mapping[str, tuple[Callable[[Raises], Made], str]] = {
    "a tool": (body, "failed"),
    "a tool in a thread": (body_in_thread, "failed"),
    "a tool of another class": (own_class, "failed"),
    "a validator": (validator, "invalid"),
    "a validator, later": (stale, "not_run"),
    "a result": (result_attribute, "failed"),
    "on_cancel": (late, "timeout"),
    "confirm": (lambda raises: payer(pay_tool(confirm=raises)), "blocked"),
    "adapt": (lambda raises: payer(*toolset("s", pay_tool(), adapt=raises)), "invalid"),
    "materialize": (lambda raises: payer(*toolset("s", pay_tool(), materialize=raises)), "failed"),
    "telemetry": (lambda raises: payer(*toolset("s", pay_tool(), telemetry=raises)), "returned"),
    "prompt of a subagent": (briefing, "failed"),
    "check of a subagent": (briefing_check, "failed"),
    "output of a subagent": (child_output, "failed"),
    "instructions": (lambda raises: payer(instructions=raises), AgentFailed.__name__),
    "entering deps": (deps_enter, AgentFailed.__name__),
    "exiting deps": (deps_exit, "returned"),
    "output": (output, InvalidOutput.__name__),
    "tool_gate": (hooked(points.ToolGate), "blocked"),
    "arguments of a gate": (gate_with_broken_validator, "blocked"),
    "arguments of an approval": (approval_with_broken_validator, "denied"),
    "tool_before": (hooked(points.ToolBefore), "returned"),
    "tool_transform": (hooked(points.ToolTransform), "returned"),
    "before_model": (hooked(points.BeforeModel), "returned"),
    "after_model": (hooked(points.AfterModel), "returned"),
    "text_streamed": (hooked(points.TextStreamed), "returned"),
    "turn_ended": (hooked(points.TurnEnded), "returned"),
    "run_ended": (hooked(points.RunEnded), "returned"),
    "policy_engine": (policy, "blocked"),
    "policy_engine in a thread": (policy_in_thread, "blocked"),
    "dedup_tools": (hasher, "returned"),
    "tool_budgets": (ruling, "blocked"),
    "thinking_decay": (decay, "returned"),
    "opening tools": (lambda raises: payer(Offering(opens=raises)), AgentFailed.__name__),
    "closing tools": (lambda raises: payer(Offering(closes=raises)), "returned"),
    "opening tools of a server": (lambda raises: payer(Reachable(opens=raises)), "returned"),
    "skills": (skill_handlers, "returned"),
    "observers of an agent": (observer, "returned"),
    "opening a model's stream": (model("stream"), ProviderFailed.__name__),
    "a model's stream": (model("chunks"), ProviderFailed.__name__),
    "closing a model's stream": (model("closing"), "succeeded"),
    "classify_error": (model("classify_error"), ProviderFailed.__name__),
    "a summary": (summary, "returned"),
    "response_metadata": (model("response_metadata"), "succeeded"),
}


@each_error
@pytest.mark.parametrize("place", PLACES)
def test_agent_exception_fails_only_its_call_or_run(place: str, error: type[BaseException]) -> None:
    made, expected = PLACES[place]
    assert kept(outcome(made(raising(error)))) == expected


@each_error
def test_an_observer_of_the_engine_that_raises_concerns_no_run(error: type[BaseException]) -> None:
    assert kept(outcome(payer(), raising(error))) == "returned"


@each_error
def test_a_reconcile_that_raises_leaves_the_call_in_doubt(tmp_path: Path, error: type[BaseException]) -> None:
    raises = raising(error)

    async def reconcile() -> Any:
        raises()

    async def scenario() -> list[str]:
        begun = asyncio.Event()

        @tool(reconcile=reconcile)
        async def pay() -> str:
            """Pays."""
            begun.set()
            await asyncio.Event().wait()
            return "paid"

        agent = payer(pay)
        async with Engine(tmp_path, agents=[agent], drain_s=0) as engine:
            run = await engine.start(agent, "Go.")
            await begun.wait()
        async with Engine(tmp_path, agents=[payer(pay)]) as engine:
            return [call.how for call in (await engine.attach(run.id).result()).calls]

    assert kept(scenario()) == ["in_doubt"]


@each_error
def test_validator_that_raises_for_persons_arguments_leaves_question_open(error: type[BaseException]) -> None:
    raises = raising(error)

    def checked(amount: int) -> int:
        return amount if amount == 1 else raises()

    @tool(confirm="Pay?")
    async def pay(amount: Annotated[int, AfterValidator(checked)]) -> str:
        """Pays."""
        return "paid"

    async def scenario() -> list[str]:
        agent = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])
        async with Engine() as engine:
            run = await engine.start(agent, "Go.")
            question = await asked(run)
            with pytest.raises(RuntimeError):
                await run.approve(question.id, args={"amount": 2})
            await run.approve(question.id)
            return [call.how for call in (await run.result()).calls]

    assert kept(scenario()) == ["returned"]


@each_error
def test_validator_that_raises_for_persons_answer_leaves_question_open(error: type[BaseException]) -> None:
    raises = raising(error)

    def checked(value: int) -> int:
        return value if value == 1 else raises()

    @tool
    async def pay() -> Annotated[int, AfterValidator(checked)]:
        """Pays."""
        raise ToolQuestion("How much?")

    async def scenario() -> list[str]:
        agent = payer(pay)
        async with Engine() as engine:
            run = await engine.start(agent, "Go.")
            question = await asked(run)
            with pytest.raises(RuntimeError):
                await run.answer(question.id, 2)
            await run.answer(question.id, 1)
            return [call.how for call in (await run.result()).calls]

    assert kept(scenario()) == ["returned"]
