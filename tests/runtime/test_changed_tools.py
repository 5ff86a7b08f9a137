"""Calls of tools that a deploy has changed: they run with the arguments that the log has, or not at all."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec import Raw
from msgspec.structs import replace
from pydantic import AfterValidator

from runtime.kit import TIMEOUT_S, MoodyStore, engine_on, facts, plan, until
from runtime.test_suspended import run as run_virtually
from weftline import prompts
from weftline.kernel.bodies import decode_created
from weftline.kernel.control import LeaseRule
from weftline.kernel.entries import CallClosed, CallOpened, Fact, Limits, RunEnded, TurnCompleted
from weftline.kernel.state import Command, State
from weftline.messages import ToolResults, joined_text
from weftline.plan import LocalRef, ServerRef, decode_plan
from weftline.providers.scripted import ScriptedProvider
from weftline.runtime.carry_out import carry_out
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.live import WorkingSet
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.services import Outcome, Services, Sink
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter
from weftline.testing.store.subject import read_log
from weftline.text.canonical import digest
from weftline.tools.base import Tool, ToolContext, WillNotHappen
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool

SCRIPTS: dict[str, Any] = {"m": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 1}}]}, {"text": "done"}]}}


def cents(amount: int) -> int:
    return amount * 100 if amount < 100 else amount


class Deploy:
    """One version of the tool `pay`, and what it was called with."""

    def __init__(self, hint: Any = int, *, hangs: bool = False, name: str = "pay", **options: Any) -> None:
        self.ran: list[tuple[int, str]] = []
        self.began = asyncio.Event()

        async def pay(amount: int, context: ToolContext) -> str:
            self.ran.append((amount, context.idempotency_key))
            self.began.set()
            if hangs:
                await asyncio.Event().wait()
            return "paid"

        pay.__annotations__ = {"amount": hint, "context": ToolContext, "return": str}
        self.tool: Tool = tool(name=name, **options)(pay)


CENTS = Annotated[int, AfterValidator(cents)]
CHANGES = pytest.mark.parametrize(
    ("hint", "text"),
    [
        (CENTS, prompts.calls.changed_since_asked("pay")),
        (str, prompts.calls.no_longer_fit("pay", ["/amount: Input should be a valid string"])),
    ],
    ids=["other values", "another type"],
)


class Life:
    """What became of a run in its second process."""

    def __init__(self, heads: list[Fact], provider: ScriptedProvider) -> None:
        self.heads = heads
        self.closed = [head for head in heads if isinstance(head, CallClosed)]
        self.requests = provider.requests

    def result(self, index: int = -1) -> str:
        found = [one for one in self.requests[-1].messages if isinstance(one, ToolResults)]
        return joined_text(found[index].results[0].parts)


async def cut_off(old: Deploy, new: Deploy | None) -> Life:
    """Stops the process while the old tool is under way, and lets the new one continue."""
    disk = MemoryDisk()
    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": old.tool})
    async with asyncio.timeout(TIMEOUT_S):
        await it.start()
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("pay")))
        await old.began.wait()
        await it.stop(drain_s=0)
    it, provider = engine_on(MoodyStore(disk), SCRIPTS, tools={} if new is None else {"pay": new.tool})
    async with it:
        return Life(await facts(it, run_id, space), provider)


async def asked_before(old: Deploy, new: Deploy) -> Life:
    """Stops the process when the old tool has prepared a call that has not begun."""
    disk, prepared, answered = MemoryDisk(), asyncio.Event(), asyncio.Event()

    async def held(command: Command, state: State, work: WorkingSet, services: Services, sink: Sink) -> Outcome | None:
        outcome = await carry_out(command, state, work, services, sink)
        prepared.set()
        await answered.wait()
        return outcome

    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": old.tool}, carry_out=held)
    async with asyncio.timeout(TIMEOUT_S):
        await it.start()
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("pay")))
        await prepared.wait()
        stopping = asyncio.create_task(it.stop())
        await until(lambda: not it.ready)
        answered.set()
        await stopping
    it, provider = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": new.tool})
    async with it:
        life = Life(await facts(it, run_id, space), provider)
    kinds = [type(head) for head in life.heads]
    assert kinds.index(TurnCompleted) < kinds.index(CallOpened)
    return life


@CHANGES
async def test_call_that_was_asked_of_another_version_is_not_made(hint: Any, text: str) -> None:
    old, new = Deploy(), Deploy(hint)
    life = await asked_before(old, new)
    (call,) = next(head.calls for head in life.heads if isinstance(head, TurnCompleted))
    assert call.digest == digest(b'{"amount":1}')
    assert (old.ran, new.ran) == ([], [])
    assert ([head.how for head in life.closed], life.result()) == (["not_run"], text)


async def test_call_asked_of_another_version_with_equal_arguments_is_made() -> None:
    old, new = Deploy(), Deploy(Annotated[int, AfterValidator(abs)])
    life = await asked_before(old, new)
    assert [amount for amount, _ in new.ran] == [1]
    assert ([head.how for head in life.closed], life.result()) == (["returned"], "paid")


@CHANGES
async def test_call_its_tool_cannot_repeat_is_in_doubt(hint: Any, text: str) -> None:
    old, new = Deploy(effect="idempotent", hangs=True), Deploy(hint, effect="idempotent")
    life = await cut_off(old, new)
    assert ([amount for amount, _ in old.ran], new.ran) == ([1], [])
    assert [head.how for head in life.closed] == ["in_doubt"]
    assert life.result() == prompts.calls.changed_since_begun("pay") != text


async def test_call_of_a_missing_tool_is_in_doubt() -> None:
    life = await cut_off(Deploy(effect="idempotent", hangs=True), None)
    assert ([head.how for head in life.closed], life.result()) == (["in_doubt"], prompts.calls.in_doubt("pay"))


async def test_a_call_that_only_reads_is_not_in_doubt() -> None:
    old, new = Deploy(effect="read", hangs=True), Deploy(CENTS, effect="read")
    life = await cut_off(old, new)
    assert ([head.how for head in life.closed], new.ran) == (["not_run"], [])
    assert life.result() == prompts.calls.changed_since_asked("pay")


async def test_repeated_call_has_arguments_and_key_of_first() -> None:
    old, new = Deploy(effect="idempotent", hangs=True), Deploy(Annotated[int, AfterValidator(abs)], effect="idempotent")
    life = await cut_off(old, new)
    assert (new.ran, [head.how for head in life.closed]) == (old.ran, ["returned"])


@CHANGES
async def test_tool_is_not_asked_whether_call_with_other_arguments_happened(hint: Any, text: str) -> None:
    asked: list[object] = []

    def did_it(amount: int) -> WillNotHappen:
        asked.append(amount)
        return WillNotHappen()

    old, new = Deploy(reconcile=did_it, hangs=True), Deploy(hint, reconcile=did_it)
    life = await cut_off(old, new)
    assert (asked, new.ran) == ([], [])
    assert ([head.how for head in life.closed], life.result()) == (["in_doubt"], prompts.calls.in_doubt("pay"))


@pytest.mark.parametrize("edited", [False, True], ids=["as it was", "edited"])
@CHANGES
async def test_an_approved_call_of_another_version_is_not_made(hint: Any, text: str, edited: bool) -> None:
    disk, old, new = MemoryDisk(), Deploy(confirm="Pay {amount}?"), Deploy(hint, confirm="Pay {amount}?")
    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": old.tool})
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("pay")))
        key, question = await it.locate(run_id, workspace=space), await asked(it, space)
        await it.pause(key)
        answer = AwaitAnswer(outcome="approved", args={"amount": 2} if edited else None)
        await it.answer_await(key, question.id, answer, by="key:ann", person_of=as_named)
    it, provider = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": new.tool})
    async with it:
        await it.resume(key)
        life = Life(await facts(it, run_id, space), provider)
    assert (old.ran, new.ran) == ([], [])
    assert ([head.how for head in life.closed], life.result()) == (["not_run"], text)


async def test_an_approved_call_is_made_without_preparing_it_again() -> None:
    """What its version would make of the arguments now does not matter, only that it takes those that it has."""
    prepared: list[str] = []

    class Counted(FunctionTool[..., Any]):
        async def prepare(self, args: str) -> bytes:
            prepared.append(args)
            return await super().prepare(args)

    def pay(amount: int) -> str:
        return f"paid {amount}"

    it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"pay": Counted(pay, confirm="Pay {amount}?")})
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("pay")))
        key, question = await it.locate(run_id, workspace=space), await asked(it, space)
        await it.answer_await(key, question.id, AwaitAnswer(outcome="approved"), by="key:ann", person_of=as_named)
        life = Life(await facts(it, run_id, space), provider)
    assert (life.result(), len(prepared)) == ("paid 1", 1)


def fallen_back(*deploys: Deploy) -> Life:
    """A client claims a call and is never heard of again. Each process but the last is stopped while `spare` runs."""
    lives: list[Life] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock, disk, run_id, space = WallClock(loop), MemoryDisk(), "", 0
        schema = Raw(b'{"type":"object","properties":{"amount":{"type":"integer"}}}')
        limits = Limits(leases=LeaseRule("fallback", {"pay": "spare"}))
        for deploy in deploys:
            it, provider = engine_on(MoodyStore(disk), SCRIPTS, tools={"spare": deploy.tool}, clock=clock)
            await it.start()
            if not run_id:
                space = await it.workspace("acme")
                tools = LocalRef("pay", parameters=schema), ServerRef("spare")
                run_id = await it.create(space, replace(plan("m", *tools), limits=limits))
                await asyncio.sleep(1)
                await it.claim(await it.locate(run_id, workspace=space), "call_0_0", lease_us=2_000_000)
            if deploy is deploys[-1]:
                lives.append(Life(await facts(it, run_id, space), provider))
            else:
                await deploy.began.wait()
            await it.stop(drain_s=0)

    run_virtually(scenario())
    return lives[0]


def test_fallback_runs_with_clients_arguments_or_not_at_all() -> None:
    same, other = Deploy(name="spare"), Deploy(CENTS, name="spare")
    life = fallen_back(same)
    assert ([amount for amount, _ in same.ran], [head.how for head in life.closed]) == ([1], ["returned"])
    life = fallen_back(other)
    assert (other.ran, [head.how for head in life.closed]) == ([], ["failed"])
    assert life.result() == prompts.calls.no_fallback("spare", prompts.calls.FALLBACK_OTHER_ARGUMENTS)


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_fallback_whose_validators_break_has_not_run(effect: str, error: type[BaseException]) -> None:
    def broken(amount: int) -> int:
        raise error("no table.")

    spare = Deploy(Annotated[int, AfterValidator(broken)], name="spare", effect=effect)
    life = fallen_back(spare)
    assert (spare.ran, [head.how for head in life.closed]) == ([], ["failed"])
    assert life.result() == prompts.calls.no_fallback("spare", prompts.calls.fallback_failed("no table"))
    assert isinstance(life.heads[-1], RunEnded) and life.heads[-1].status == "succeeded"


class Hanging(FunctionTool[..., Any, Any]):
    async def prepare(self, args: str) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


def test_fallback_that_hangs_while_it_checks_arguments_has_not_run() -> None:
    spare = Deploy(name="spare")
    spare.tool = Hanging(cents, name="spare", description="Hangs.", timeout_s=5)
    life = fallen_back(spare)
    reason = prompts.calls.fallback_failed(prompts.calls.took_too_long(5))
    assert [head.how for head in life.closed] == ["failed"]
    assert life.result() == prompts.calls.no_fallback("spare", reason)


def test_a_fallback_that_has_changed_does_not_repeat_a_call() -> None:
    options: dict[str, Any] = {"name": "spare", "effect": "idempotent"}
    old, new = Deploy(hangs=True, **options), Deploy(CENTS, **options)
    life = fallen_back(old, new)
    assert ([amount for amount, _ in old.ran], new.ran) == ([1], [])
    assert ([head.how for head in life.closed], life.result()) == (["in_doubt"], prompts.calls.in_doubt("spare"))


async def asked(engine: EmbeddedEngine, space: int) -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := await engine.stored.awaits(AwaitFilter(workspace=space))):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    return found[0]


@pytest.mark.parametrize("outlives", [True, False])
async def test_run_that_may_meet_other_code_stores_tool_digests(outlives: bool) -> None:
    """Whether it may is for the store to say: one without a directory, such as a database server, outlives us too."""

    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    store = MoodyStore(MemoryDisk())
    store.outlives_process = outlives
    it, _ = engine_on(store, {"hello": {"turns": [{"text": "Hi."}]}}, tools={"look": look})
    async with it:
        space = await it.workspace("acme")
        key = await it.locate(await it.create(space, plan("hello", ServerRef("look"))), workspace=space)
        first = (await read_log(store.log, key))[0]
        assert (decode_plan(bytes(decode_created(first.body).plan), Limits()).digests is not None) == outlives
