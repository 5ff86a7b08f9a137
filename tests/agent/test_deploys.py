"""Runs that other code than before carries on."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from weftline import Agent, Engine, Limits, hook, tool
from weftline.agent.options import RunOptions
from weftline.agent.running.asking import Await
from weftline.errors import Conflict, InvalidRequest
from weftline.events import AwaitOpened
from weftline.hooks import ToolGate
from weftline.kernel.bodies import decode_created
from weftline.kernel.control import Change, DeployAdopted, Digests, Part
from weftline.kernel.entries import decode_fact
from weftline.messages import ToolResults
from weftline.plan import PlanContent, decode_content
from weftline.providers.catalog import Catalog
from weftline.runtime import ids
from weftline.runtime.deploys import question
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import Tool
from weftline.tools.digests import declared, source_of


def catalog(model: ScriptedModel) -> Catalog:
    models = Catalog()
    models.add(model, name="lab")
    return models


@tool(effect="idempotent")
def pay(amount: int) -> str:
    """Pays."""
    return f"Paid {amount}."


@tool(effect="idempotent", name="pay")
def pay_otherwise(amount: int) -> str:
    """Pays."""
    return f"Paid all of {amount}."


@tool(effect="read", name="pay")
def pay_again(amount: int) -> str:
    """Pays."""
    return f"Paid {amount}."


def paying(**options: Any) -> Tool:
    """The tool `pay`, with other options."""

    @tool(effect="idempotent", **options)
    def pay(amount: int) -> str:
        """Pays."""
        return f"Paid {amount}."

    return pay


@hook(ToolGate)
def look(gate: ToolGate) -> None:
    if gate.tool == "shell":
        gate.block("Not here.")


def billing(**options: Any) -> Agent[str, object]:
    options = {"instructions": "Pay.", "tools": [pay], **options}
    return Agent("lab:script", name="billing", **options)


async def plan_of(engine: Engine, run_id: str) -> PlanContent:
    created = await (await engine.runtime()).stored.logs.entry(ids.key_of(run_id), 1)
    assert created is not None
    return decode_content(decode_created(created.body).plan)


async def digests(folder: Path, agent: Agent[str, object], **options: Any) -> Digests:
    """What a run of the agent records, in a store of its own."""
    model = ScriptedModel(["Done."])
    async with Engine(folder, agents=[agent], models=catalog(model), **options) as engine:
        run = await engine.start(agent, "Go.")
        await run.result()
        found = (await plan_of(engine, run.id)).digests
    assert found is not None
    return found


def changed(one: Digests, other: Digests) -> set[str]:
    return {part for part in ("prompt", "tools", "code") if getattr(one, part) != getattr(other, part)}


@pytest.mark.requirement("run.deploy.digest")
async def test_run_records_its_dependencies_and_each_changes_alone(tmp_path: Path) -> None:
    number = iter(range(100))

    async def of(agent: Agent[str, object], **options: Any) -> Digests:
        return await digests(tmp_path / str(next(number)), agent, **options)

    before = await of(billing())
    assert before == await of(billing()) and len({before.prompt, before.tools, before.code}) == 3
    assert changed(before, await of(billing(instructions="Pay at once."))) == {"prompt"}
    assert changed(before, await of(billing(tools=[pay_again]))) == {"tools"}, "its effect"
    assert changed(before, await of(billing(tools=[pay_otherwise]))) == {"code"}, "its source"
    assert changed(before, await of(billing(hooks=[look]))) == {"code"}, "a hook"
    rules: list[dict[str, Any]] = [
        {"confirm": "Pay {amount}?"},
        {"confirm": "Pay {amount} now?"},
        {"confirm": "Pay {amount}?", "approvers": ["user:ann"]},
        {"confirm": "Pay {amount}?", "approvers": ["user:ben"]},
        {"in_doubt": "ask"},
        {"tags": ["costly"]},
        {"bookkeeping": True},
        {"terminal": True},
    ]
    assert len({declared(paying(**rule)) for rule in [{}, *rules]}) == len(rules) + 1, "each of its rules"
    assert before == await of(billing(tools=[paying()]))
    assert changed(before, await of(billing(tools=[paying(**rules[0])]))) == {"tools"}
    version = await of(billing(), code_version="1")
    assert changed(before, version) == {"code"}, "the operator's word in place of the source"
    assert version == await of(billing(tools=[pay_otherwise]), code_version="1")
    assert changed(version, await of(billing(), code_version="2")) == {"code"}


_PROGRAM = """
from weftline import Agent, tool
from weftline.agent.planning.digests import AgentDigests
from weftline.plan import RunPlan

{padding}
def outside():
    @tool(effect="read")
    def find(word: str, most: int = 3) -> str:
        \"\"\"Finds a word.\"\"\"
        found = [word] * most

        return ", ".join(found)
    return find

agent = Agent("lab:script", name="finder", instructions=lambda context: "Find.", tools=[outside()])
print(AgentDigests().of(agent, RunPlan(messages=())))
"""


@pytest.mark.requirement("run.deploy.digest")
def test_equal_definitions_have_equal_digests_in_every_process_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, elsewhere = tmp_path / "a.py", tmp_path / "folder" / "b.py"
    elsewhere.parent.mkdir()
    here.write_text(_PROGRAM.format(padding=""))
    elsewhere.write_text(_PROGRAM.format(padding="import os\n\n# in another file, further down\n"))
    runpy.run_path(str(here))
    done = subprocess.run([sys.executable, elsewhere.name], cwd=elsewhere.parent, capture_output=True, timeout=60)
    assert done.stdout.startswith(b"Digests(") and done.stdout.decode() == capsys.readouterr().out


def test_the_source_of_what_has_none_is_its_name() -> None:
    space: dict[str, Any] = {"__name__": "typed"}
    exec("def typed_in(): return 1", space)
    assert source_of(space["typed_in"]) == "typed.typed_in"
    assert source_of(len) == "builtins.len"
    assert source_of(partial(look.fn)) == source_of(look.fn) != ""


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (["tools"], "The tools of this run have changed."),
        (["code"], "The code of this run has changed."),
        (["prompt", "tools", "code"], "The prompt, tools and code of this run have changed."),
    ],
)
def test_people_are_asked_in_words(parts: list[Part], says: str) -> None:
    assert question({part: Change("a", "b") for part in parts}).startswith(says)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="on_deploy must be one of adopt, pin, ask"):
        Limits(on_deploy="forget")  # pyright: ignore[reportArgumentType]


# Another process


class Stops:
    """A tool that hangs in the first process, so that the run is left under way."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

        @tool(effect="idempotent", name="pay")
        async def hangs(amount: int) -> str:
            """Pays."""
            self.begun.set()
            await asyncio.Event().wait()
            return ""

        self.tool = hangs


async def left_behind(
    folder: Path, model: ScriptedModel, *, given: RunOptions[object] | None = None, **options: Any
) -> str:
    """The id of a run that a process left in the middle of a call of `pay`."""
    stops = Stops()
    agent = billing(tools=[stops.tool], **options)
    async with Engine(folder, agents=[agent], models=catalog(model), drain_s=0) as engine:
        run = await engine.start(agent, "Go.", **(given or RunOptions()))
        await stops.begun.wait()
        return run.id


async def adoptions(engine: Engine, run_id: str) -> list[DeployAdopted]:
    log = engine.store.log
    heads = await log.heads(ids.key_of(run_id), kinds=["deploy.adopted"])
    found = [decode_fact.decode(head) for head in heads]
    return [one for one in found if isinstance(one, DeployAdopted)]


@pytest.mark.requirement("run.deploy.adopt")
async def test_run_continues_with_new_prompt_and_tools(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), calls("look_up"), "Done."])
    run_id = await left_behind(tmp_path, model)

    @tool(effect="read")
    def look_up() -> str:
        """Looks up."""
        return "Found."

    today = billing(instructions="Pay and look up.", tools=[pay, look_up])
    async with Engine(tmp_path, agents=[today], models=catalog(model)) as engine:
        before = (await plan_of(engine, run_id)).digests
        result = await engine.attach(run_id).result()
        (adopted,) = await adoptions(engine, run_id)
        again = await digests(tmp_path / "now", today)
    assert [call.result for call in result.calls] == ["Paid 5.", "Found."]
    assert [request.system for request in model.requests] == ["Pay.", "Pay and look up.", "Pay and look up."]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["pay"], ["pay", "look_up"], ["pay", "look_up"],
    ]  # fmt: skip
    assert before is not None
    assert adopted.changed == {
        part: Change(getattr(before, part), getattr(again, part)) for part in ("prompt", "tools", "code")
    }


@pytest.mark.requirement("run.deploy.adopt")
async def test_request_settings_stay_and_missing_tools_are_errors(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    run_id = await left_behind(tmp_path, model, given={"instructions": "Only this once."})
    today = billing(instructions="Something else.", tools=[])
    async with Engine(tmp_path, agents=[today], models=catalog(model)) as engine:
        assert (await engine.attach(run_id).result()).text == "Done."
        (adopted,) = await adoptions(engine, run_id)
    assert adopted.changed.keys() == {"tools", "code"}
    first, last = model.requests
    assert first.system == last.system == "Only this once."
    assert list(last.messages[: len(first.messages)]) == list(first.messages), "what was said stays"
    results = [one for message in last.messages if isinstance(message, ToolResults) for one in message.results]
    assert [one.is_error for one in results] == [True]


async def test_a_run_that_the_deploy_does_not_change_says_nothing(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    stops = Stops()
    agent = billing(tools=[stops.tool])
    async with Engine(tmp_path, agents=[agent], models=catalog(model), drain_s=0, code_version="1") as engine:
        run = await engine.start(agent, "Go.")
        await stops.begun.wait()
    async with Engine(tmp_path, agents=[billing()], models=catalog(model), code_version="1") as engine:
        assert (await engine.attach(run.id).result()).text == "Done."
        assert await adoptions(engine, run.id) == []


async def test_each_deploy_is_compared_with_the_one_before(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), calls("pay", amount=6), "Done."])
    run_id = await left_behind(tmp_path, model)
    stops = Stops()
    second = billing(instructions="Second.", tools=[pay_otherwise])
    held = asyncio.Event()

    @second.on(ToolGate)
    async def hold(gate: ToolGate) -> None:
        if gate.args["amount"] == 6:
            held.set()
            await asyncio.Event().wait()

    async with Engine(tmp_path, agents=[second], models=catalog(model), drain_s=0) as engine:
        await held.wait()
    third = billing(instructions="Third.", tools=[pay_otherwise], hooks=second.hooks[:0])
    async with Engine(tmp_path, agents=[third], models=catalog(model)) as engine:
        await engine.attach(run_id).result()
        first_change, second_change = await adoptions(engine, run_id)
    assert first_change.changed.keys() >= {"prompt", "code"}
    assert second_change.changed.keys() == {"prompt", "code"}
    assert second_change.changed["prompt"].before == first_change.changed["prompt"].after
    assert [request.system for request in model.requests] == ["Pay.", "Second.", "Third."]
    assert not stops.begun.is_set()


@pytest.mark.requirement("run.deploy.pin")
async def test_pinned_run_waits_for_code_that_it_began_with(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    stops = Stops()
    agent = billing(tools=[stops.tool], limits=Limits(on_deploy="pin"))
    async with Engine(tmp_path, agents=[agent], models=catalog(model), drain_s=0) as engine:
        run_id = (await engine.start(agent, "Go.")).id
        await stops.begun.wait()
        before = await log_of(engine, run_id)
    for other in (billing(instructions="Other.", tools=[stops.tool]), billing(tools=[pay_otherwise])):
        async with Engine(tmp_path, agents=[other], models=catalog(model)) as engine:
            assert await engine.unclaimed() == [run_id]
            assert await log_of(engine, run_id) == before, "neither failed nor adopted"
            free = await engine.start(other, "Go on.")  # others are not held up
            await free.cancel()
    stops.begun.clear()
    async with Engine(tmp_path, agents=[billing(tools=[stops.tool])], models=catalog(model), drain_s=0) as engine:
        await stops.begun.wait()
        assert await engine.unclaimed() == []
        assert await adoptions(engine, run_id) == []


async def log_of(engine: Engine, run_id: str) -> Sequence[Any]:
    page = await engine.store.log.page(ids.key_of(run_id), after=0, max_bytes=2**20)
    assert page is not None
    return page.items


@pytest.mark.requirement("run.deploy.ask")
@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_run_asks_before_it_goes_on_with_other_code(tmp_path: Path, answer: str) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    asks = Limits(on_deploy="ask")
    run_id = await left_behind(tmp_path, model, limits=asks)
    today = billing(instructions="Other.", limits=asks)
    async with Engine(tmp_path, agents=[today], models=catalog(model)) as engine:
        question = await asked(engine, run_id)
        run = engine.attach(run_id)
        assert (question.run_id, question.kind, question.name) == (run_id, "deploy", "")
        assert question.args.keys() == {"prompt", "code"} and question.args["prompt"].keys() == {"before", "after"}
        assert question.question.startswith("The prompt and code of this run have changed.")
        assert await run.status() == "paused" and len(model.requests) == 1
        with pytest.raises(InvalidRequest, match="deploy cannot be answered"):
            await run.answer(question.id, "yes")
        with pytest.raises(InvalidRequest, match="args"):
            await run.approve(question.id, args={})
        if answer == "deny":
            await run.deny(question.id, "Not this one.", by="ann")
            result = await run.result()
            assert (result.status, len(model.requests)) == ("cancelled", 1)
            assert await adoptions(engine, run_id) == []
            return
        await run.approve(question.id, by="ann")
        assert (await run.result()).text == "Done."
        (adopted,) = await adoptions(engine, run_id)
        assert adopted.changed.keys() == {"prompt", "code"}
        assert await engine.awaits() == []
    assert [request.system for request in model.requests] == ["Pay.", "Other."]


async def asked(engine: Engine, run_id: str, *, times: int = 1) -> Await:
    """The open question of the run, once it has asked that often."""
    seen = 0
    async for event in engine.attach(run_id).events():
        seen += isinstance(event, AwaitOpened)
        if seen == times:
            break
    (question,) = await engine.awaits()
    return question


@pytest.mark.requirement("run.deploy.ask")
async def test_deploy_approval_is_for_that_deploy_and_survives_restart(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    asks = Limits(on_deploy="ask")
    run_id = await left_behind(tmp_path, model, limits=asks)
    second = billing(instructions="Second.", limits=asks)
    async with Engine(tmp_path, agents=[second], models=catalog(model)) as engine:
        before = await asked(engine, run_id)
    third = billing(instructions="Third.", limits=asks)
    async with Engine(tmp_path, agents=[third], models=catalog(model)) as engine:
        run = engine.attach(run_id)
        assert await asked(engine, run_id) == before
        await run.approve(before.id)
        now = await asked(engine, run_id, times=2)
        assert now.id != before.id and now.args["prompt"] != before.args["prompt"]
        await run.approve(now.id)
        assert (await run.result()).text == "Done."
    assert [request.system for request in model.requests] == ["Pay.", "Third."]


@pytest.mark.requirement("run.deploy.ask")
async def test_nobody_is_asked_about_run_that_deploy_does_not_change(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    asks, stops = Limits(on_deploy="ask"), Stops()
    agent = billing(tools=[stops.tool], limits=asks)
    async with Engine(tmp_path, agents=[agent], models=catalog(model), drain_s=0, code_version="1") as engine:
        run = await engine.start(agent, "Go.")
        await stops.begun.wait()
    today = billing(limits=asks)
    async with Engine(tmp_path, agents=[today], models=catalog(model), code_version="1") as engine:
        assert (await engine.attach(run.id).result()).text == "Done."
        assert await adoptions(engine, run.id) == []


@pytest.mark.requirement("run.deploy.ask")
async def test_run_that_is_cancelled_while_it_asks_withdraws_its_question(tmp_path: Path) -> None:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    asks = Limits(on_deploy="ask")
    run_id = await left_behind(tmp_path, model, limits=asks)
    async with Engine(tmp_path, agents=[billing(instructions="Other.", limits=asks)], models=catalog(model)) as engine:
        question = await asked(engine, run_id)
        await engine.attach(run_id).cancel()
        assert (await engine.attach(run_id).result()).status == "cancelled"
        assert await engine.awaits() == []
        with pytest.raises(Conflict, match="no longer needs this answer"):
            await engine.attach(run_id).approve(question.id)


def test_a_code_version_is_a_text() -> None:
    with pytest.raises(TypeError, match="code_version must be a str, not int"):
        Engine(code_version=cast(Any, 5))
