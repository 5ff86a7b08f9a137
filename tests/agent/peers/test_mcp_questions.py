"""What MCP servers ask people during a call is an await of the run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.kit import workspace_of
from server.tools.peers import serving
from server.tools.test_mcp_revisions import REFUSALS, modern
from weftline import Agent, Engine, Limits, Run, mcp
from weftline.agent.running.asking import Await
from weftline.errors import Conflict
from weftline.events import ChildEnded
from weftline.kernel.bodies import decode_created
from weftline.plan import decode_plan, limits_of
from weftline.testing import ScriptedModel, calls
from weftline.tools.mcp.asking import Caller, Form, Question, caller_of
from weftline.workspace import workspaces

from .small import Small, model, offered

AGE = '{"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}'
SURE = '{"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}'


async def asked(engine: Engine, run: Run[Any], count: int = 1) -> list[Await]:
    """What the run asks people, once it asks that much."""
    async with asyncio.timeout(30):
        async for _ in run:
            if len(found := await engine.awaits(run_id=run.id)) >= count:
                return found
    raise AssertionError("it has not asked")


@pytest.mark.requirement("loop.mcp.tools")
async def test_server_question_is_an_await_and_gets_its_answer(tmp_path: Path) -> None:
    scripted = model(calls("small__ask", what=""))
    agent = Agent(scripted, tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        assert question.kind == "question"
        assert question.question == "small asks: Who are you?\n- name (text, optional)"
        await run.answer(question.id, {"name": "Ann"})
        result = await run.result()
    outer = result.calls[-1]
    assert '"action": "accept"' in outer.result and '"name": "Ann"' in outer.result
    assert "small__question" not in offered(scripted)
    # The model reads of its own call only.
    assert [one.name for one in scripted.requests[1].messages[-1].results] == ["small__ask"]  # type: ignore[union-attr]


async def test_a_person_who_declines_declines_to_the_server(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        await run.deny(question.id, "None of their business.")
        result = await run.result()
    assert '"action": "decline"' in result.calls[-1].result


async def test_an_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path, env={"FORM": AGE}).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (first,) = await asked(engine, run)
        await run.answer(first.id, "old")
        (second,) = await asked(engine, run)
        assert "The last answer did not fit: age " in second.question
        await run.answer(second.id, "41")
        result = await run.result()
    assert '"content": {"age": 41}' in result.calls[-1].result


DEFAULTS = (
    '{"type": "object", "properties": {"name": {"type": "string", "default": "Ann"}, "age": {"type": "integer",'
    ' "default": 30}, "size": {"type": "number"}}, "required": ["name", "age"]}'
)


@pytest.mark.parametrize(("said", "sent"), [({}, 30), ("name:\nage: 41", 41), ({"age": None}, 30)])
async def test_omitted_edit_values_have_their_defaults(tmp_path: Path, said: Any, sent: int) -> None:
    agent = Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path, env={"FORM": DEFAULTS}).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        assert '- age (integer, 30 by default)\n- name (text, "Ann" by default)\n' in question.question
        await run.answer(question.id, said)
        result = await run.result()
    assert json.loads(result.calls[-1].result)["content"] == {"name": "Ann", "age": sent}


def forty_one(question: Question) -> dict[str, Any]:
    return {"age": 41}


async def test_omitted_parameter_has_its_default(tmp_path: Path) -> None:
    small = Small(tmp_path, env={"FORM": DEFAULTS}, on_elicit=forty_one)
    result = await Agent(model(calls("small__ask", what="")), tools=[small.tools]).run("Go.")
    assert json.loads(result.calls[-1].result)["content"] == {"name": "Ann", "age": 41}


async def test_one_choice_is_a_choice(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path, env={"FORM": SURE}).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        assert question.options == ("yes", "no")
        await run.answer(question.id, "no")
        result = await run.result()
    assert '"content": {"sure": false}' in result.calls[-1].result


async def test_server_learns_that_nobody_can_be_asked(tmp_path: Path) -> None:
    result = await Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path).tools]).run("Go.")
    assert result.status == "succeeded" and '"action": "decline"' in result.calls[-1].result


async def test_a_model_cannot_call_what_puts_questions_to_people(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__question", message="Your password?")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert result.calls[0].how == "unknown"


async def test_repeatable_call_waits_in_the_store_and_asks_the_same(tmp_path: Path) -> None:
    small = Small(tmp_path)

    def agent(*turns: Any) -> Agent[Any, str]:
        return Agent(ScriptedModel(turns), tools=[small.tools], name="curious")

    first = agent(calls("small__wonder", what="x"))
    async with Engine(tmp_path / "db", agents=[first]) as engine:
        run = await engine.start(first, "Go.")
        (question,) = await asked(engine, run)
    second = agent("Done.")
    async with Engine(tmp_path / "db", agents=[second]) as engine:
        run = engine.attach(run.id, second)
        assert [one.id for one in await engine.awaits(run_id=run.id)] == [question.id]
        await run.answer(question.id, {"name": "Ann"})
        result = await run.result()
    assert '"name": "Ann"' in result.calls[-1].result
    assert small.calls == ["wonder x", "wonder x"]


async def test_call_that_must_not_repeat_is_not_interrupted_by_questions(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__ask", what="x")), tools=[small.tools], name="asker")
    async with Engine(tmp_path / "db", agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        await run.answer(question.id, {"name": "Ann"})
        result = await run.result()
    assert result.calls[-1].how == "returned" and small.calls == ["ask x"]


@pytest.mark.parametrize("name", ["ask", "wonder"])
async def test_whoever_thinks_about_answer_does_not_use_up_runs_time(tmp_path: Path, name: str) -> None:
    agent = Agent(model(calls(f"small__{name}", what="x")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        async with asyncio.timeout(30):
            while (await run.snapshot()).status != "paused":  # noqa: ASYNC110  (once its driver has left)
                await asyncio.sleep(0.001)
        await run.answer(question.id, {"name": "Ann"})
        assert (await run.result()).calls[-1].how == "returned"


async def test_question_during_several_runs_is_put_to_nobody(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="1")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "One.")
        (question,) = await asked(engine, run)
        with agent.override(model=model(calls("small__ask", what="2"))):
            other = await agent.run("Two.", engine=engine)
        assert "perhaps for another run" in other.calls[-1].result
        assert "Who are you?" not in other.calls[-1].result
        await run.answer(question.id, {"name": "Ann"})
        result = await run.result()
    assert '"name": "Ann"' in result.calls[-1].result
    assert "Who are you?" not in result.calls[-1].result


async def test_runs_of_two_workspaces_with_same_id_are_two_runs(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="1")), tools=[Small(tmp_path).tools], name="asker")
    async with Engine(tmp_path / "db", agents=[agent]) as engine:
        run = await engine.start(agent, "One.", run_id="same")
        (question,) = await asked(engine, run)
        host = await engine.runtime()
        first = await host.stored.logs.entry(await host.locate("same", workspace=await workspace_of(engine)), 1)
        others = await workspaces.ensure(engine.workspaces, "others")
        assert first is not None and others != await workspace_of(engine)
        plan = decode_plan(decode_created(first.body).plan, limits_of(first.head))
        await host.create(others, plan, run_id="same")
        key = await host.locate("same", workspace=others)
        follower = host.follow(key, "same", workspace=others)
        async with asyncio.timeout(30):
            while await follower.next() is not None:
                pass
        follower.close()
        [closed] = await host.stored.logs.facts(key, kinds=("call.closed",))
        assert b"perhaps for another run" in closed.body
        await run.answer(question.id, {"name": "Ann"})
        result = await run.result()
    assert '"name": "Ann"' in result.calls[-1].result


async def test_question_of_an_interrupted_call_reaches_nobody(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="1")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "One.")
        await asked(engine, run)
        await run.cancel()
        with agent.override(model=model(calls("small__ask", what="2"))):
            other = await agent.run("Two.", engine=engine)
    assert "perhaps for another run" in other.calls[-1].result


def test_question_owner_is_clear_while_one_run_calls() -> None:
    one, again, other = (Caller(run, print) for run in ("run_1", "run_1", "run_2"))
    assert caller_of([one, again]) is one and caller_of([one], {"run_1"}) is one
    assert caller_of([one, other]) is None and caller_of([other], {"run_1"}) is None and caller_of([]) is None


async def test_a_cancelled_run_closes_the_question(tmp_path: Path) -> None:
    agent = Agent(model(calls("small__ask", what="")), tools=[Small(tmp_path).tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (question,) = await asked(engine, run)
        await run.cancel()
        assert await engine.awaits() == []
        with pytest.raises(Conflict):
            await run.answer(question.id, "late")


async def test_servers_of_the_newest_revision_ask_too() -> None:
    async with serving(modern(REFUSALS["unknown method"], [])) as server:
        bank = mcp(f"{server.url}/mcp", name="bank", revision="2026-07-28")
        agent = Agent(model(calls("bank__pay", ask=1)), tools=[bank])
        async with Engine() as engine:
            run = await engine.start(agent, "Go.")
            (question,) = await asked(engine, run)
            assert "Really?" in question.question
            await run.answer(question.id, "Ann")
            result = await run.result()
    assert result.calls[-1].result == "paid, accept"


async def test_request_for_model_is_run_below_with_runs_own_model(tmp_path: Path) -> None:
    scripted = model(calls("small__think", what=""), "Because.")
    agent = Agent(scripted, instructions="Keep this to yourself.", tools=[Small(tmp_path, on_sample="model").tools])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        below = [event async for event in run.events() if isinstance(event, ChildEnded)]
    assert '"text": "Because."' in result.calls[-1].result
    asked = scripted.requests[1]
    assert (asked.messages[-1].text, list(asked.tools)) == ("Why?", [])  # type: ignore[union-attr]
    assert asked.system is not None and "10 tokens" in asked.system and "Keep this" not in asked.system
    assert [one.status for one in below] == ["succeeded"] and below[0].usage.output > 0


async def test_without_a_model_to_ask_the_server_is_told_so(tmp_path: Path) -> None:
    agent = Agent(
        model(calls("small__think", what="")),
        tools=[Small(tmp_path, on_sample="model").tools],
        limits=Limits(max_depth=0),
    )
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert "The model could not be asked." in result.calls[-1].result


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ('{"name": "Ann", "age": 41}', {"name": "Ann", "age": 41}),
        ("name: Ann\nage: 41", {"name": "Ann", "age": 41}),
        ("name: Ann\nage: old\nsize: 3", {"name": "Ann", "age": "old"}),
        ("Ann", {}),
    ],
)
def test_several_values_are_an_object_or_lines(said: str, values: dict[str, Any]) -> None:
    form = Form("?", {"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}})
    assert form.values(said) == values


def test_words_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="on_sample must be 'model' or a function, not 'mine'"):
        mcp("server", on_sample="mine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_elicit must be 'ask', 'decline' or a function, not 'maybe'"):
        mcp("server", on_elicit="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize("said", ["[" * 100_000, f"[{'1e300,' * 6_000}1]", f"[{'[],' * 200_000}1]"])
def test_answer_that_costs_too_much_to_read_is_text(said: str) -> None:
    for kind in ("string", "number"):
        assert Form("?", {"properties": {"one": {"type": kind}}}).values(said) == {"one": said}
