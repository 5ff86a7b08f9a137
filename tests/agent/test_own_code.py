"""Code of an agent's that fails, hangs or edits in unexpected ways: the run ends or goes on, and nothing is dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from weftline import Agent, Engine, WeftlineError, tool
from weftline.hooks import OutputReady, ResultsStored, RunStarted, ToolGate, TurnEnded
from weftline.runs import InvalidOutput
from weftline.testing import ScriptedModel, calls


@tool
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


async def cancelled_inside() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def test_a_gate_that_lets_a_cancellation_escape_blocks_the_call() -> None:
    agent = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), tools=[pay])
    asked: list[int] = []

    @agent.on(ToolGate)
    async def broken(gate: ToolGate) -> None:
        asked.append(1)
        await cancelled_inside()

    result = await agent.run("Go.")
    assert ([call.how for call in result.calls], len(asked)) == (["blocked"], 1)


@pytest.mark.usefixtures("no_ctrl_c")
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=type)
async def test_a_gate_that_exits_the_program_blocks_the_call(error: BaseException) -> None:
    agent = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), tools=[pay])

    @agent.on(ToolGate)
    def leaves(gate: ToolGate) -> None:
        raise error

    assert [call.how for call in (await agent.run("Go.")).calls] == ["blocked"]


async def test_an_edit_in_place_counts() -> None:
    agent = Agent(ScriptedModel([calls("pay", amount=500), "Done."]), tools=[pay])

    @agent.on(ToolGate)
    def less(gate: ToolGate) -> None:
        args: Any = gate.args
        args["amount"] = 1

    assert (await agent.run("Go.")).calls[0].result == "paid 1"


async def test_block_without_reason_blocks_and_rejection_without_words_rejects() -> None:
    model = ScriptedModel([calls("pay", amount=500), "No.", "Yes."])
    agent = Agent(model, tools=[pay])
    agent.on(ToolGate)(lambda gate: gate.block(None))  # type: ignore[arg-type]

    @agent.on(OutputReady)
    def yes(answer: OutputReady[str]) -> None:
        if answer.output == "No.":
            answer.reject("")

    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["blocked"]
    assert result.text == "Yes."


class Picky(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def looks_up(cls, value: int) -> int:
        return {1: 1}[value]


async def test_validator_of_answer_that_fails_has_it_given_again() -> None:
    agent = Agent(ScriptedModel(['{"n": 2}', '{"n": 1}']), output=Picky)
    assert (await agent.run("Go.")).output.n == 1


async def test_a_run_knows_whether_it_was_begun_before() -> None:
    seen: list[bool] = []
    agent = Agent(ScriptedModel(["Done."]))
    agent.on(RunStarted)(lambda at: seen.append(at.resumed))
    await agent.run("Go.")
    assert seen == [False]


@pytest.mark.parametrize("misspelt", [{"limit": 1}, {"kee": "k"}, {"dep": 3}])
async def test_an_option_that_there_is_not_is_refused(misspelt: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"a run has no option '{next(iter(misspelt))}'.*Did you mean"):
        await Agent(ScriptedModel(["x"])).run("Go.", **misspelt)


async def test_same_key_and_input_are_same_run_in_memory_too() -> None:
    agent = Agent(ScriptedModel(["x"]))
    async with Engine() as engine:
        first = await engine.start(agent, "Go.", key="k")
        assert (await engine.start(agent, "Go.", key="k")).id == first.id


async def test_model_object_of_durable_agent_is_found_by_next_process(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="idempotent")
    async def wait() -> str:
        """Waits the first time."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "ok"

    def billing() -> Agent:
        return Agent(ScriptedModel([calls("wait"), "Done."]), name="billing", tools=[wait])

    agent = billing()
    async with Engine(tmp_path, agents=[agent], drain_s=0) as engine:
        run = await engine.start(agent, "Go.")
        with pytest.raises(WeftlineError, match="as an object"):
            await engine.start(agent, "Go.", model=ScriptedModel(["x"]))
        await begun.wait()
    later = Engine(tmp_path, agents=[billing()])
    async with later:
        assert (await later.attach(run.id).result()).text == "Done."
    async with later:  # opened again, it still has the model
        assert (await later.start(later.agents["billing"], "Go.")).id


async def test_a_model_whose_key_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(WeftlineError, match="ANTHROPIC_API_KEY"):
        await Agent("anthropic:claude-sonnet-4-5").run("Go.")


async def test_a_rejected_answer_fails_with_the_words_of_the_rejection() -> None:
    agent = Agent(ScriptedModel(['{"n": 1}', '{"n": 1}']), output=Picky)

    @agent.on(OutputReady)
    def never(answer: OutputReady[Picky]) -> None:
        answer.reject("The number is taken.")

    with pytest.raises(InvalidOutput, match=r"The number is taken\.") as caught:
        await agent.run("Go.")
    assert caught.value.result.text == '{"n": 1}'


FENCED = '```json\n{"n": 1}\n```'


@pytest.mark.parametrize("text", [FENCED, '\n```\n{"n": 1}```\n', '```JSON\r\n{"n": 1}\r\n```'])
async def test_an_answer_in_a_code_fence_is_taken(text: str) -> None:
    model = ScriptedModel([text])
    result = await Agent(model, output=Picky).run("Go.")
    assert (result.output.n, result.text, len(model.requests)) == (1, '{"n": 1}', 1)


@pytest.mark.parametrize("text", [f"Here it is:\n{FENCED}", f"{FENCED}\n{FENCED}", '```json\n{"n": 1}'])
async def test_only_a_fence_around_the_whole_answer_is_taken_off(text: str) -> None:
    with pytest.raises(InvalidOutput):
        await Agent(ScriptedModel([text, text]), output=Picky).run("Go.")


async def test_a_fenced_answer_can_be_watched_as_it_grows() -> None:
    async with Agent(ScriptedModel([FENCED]), output=Picky).stream("Go.") as run:
        assert [partial async for partial in run.partials()][-1] == {"n": 1}


async def test_plain_text_keeps_its_fences() -> None:
    assert (await Agent(ScriptedModel([FENCED])).run("Go.")).text == FENCED


async def test_end_of_turn_is_told_by_process_that_sees_it(tmp_path: Path) -> None:
    begun = asyncio.Event()
    told: list[tuple[str, int]] = []

    @tool(effect="idempotent")
    async def wait() -> str:
        """Waits the first time."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "ok"

    def billing() -> Agent:
        agent = Agent(ScriptedModel([calls("wait"), "Done."]), name="billing", tools=[wait])
        agent.on(ResultsStored)(lambda at: told.append(("results", at.turn)))
        agent.on(TurnEnded)(lambda at: told.append(("turn", at.turn)))
        return agent

    agent = billing()
    async with Engine(tmp_path, agents=[agent], drain_s=0) as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
    assert told == []
    async with Engine(tmp_path, agents=[billing()]) as engine:
        await engine.attach(run.id).result()
    assert told == [("results", 0), ("turn", 0), ("turn", 1)]
