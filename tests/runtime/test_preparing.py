"""What a tool's own code does while its arguments are prepared concerns that call alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest
from msgspec import Raw
from pydantic import AfterValidator, BeforeValidator

from runtime.kit import TIMEOUT_S, MoodyStore, engine_on, facts, plan, until
from weftline import prompts
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import CallClosed, CallOpened, Effect, RunEnded, TurnCompleted
from weftline.kernel.state import Command, State
from weftline.messages import ToolResults, joined_text
from weftline.plan import ServerRef
from weftline.providers.base import ToolSpec
from weftline.runtime.carry_out import carry_out
from weftline.runtime.ids import idempotency_key
from weftline.runtime.live import WorkingSet
from weftline.runtime.services import Outcome, Services, Sink
from weftline.store.memory import MemoryDisk
from weftline.text.canonical import digest
from weftline.tools.base import PLAIN, ClientKind, Reconciled, Tool, ToolContext, ToolOutput, Unknown
from weftline.tools.decorator import tool


class Own:
    """A tool of one's own making."""

    effect: Effect = "read"
    concurrent = False
    client: ClientKind | None = None
    peer: Peer | None = None
    traits = PLAIN

    def __init__(self, name: str, *, prepared: object = b"{}", timeout_s: float | None = None) -> None:
        self.spec = ToolSpec(name, "", Raw(b'{"type":"object"}'))
        self.timeout_s = timeout_s
        self._prepared = prepared
        self.invoked: list[tuple[bytes, str]] = []

    async def prepare(self, args: str) -> Any:
        if isinstance(self._prepared, BaseException):
            raise self._prepared
        if self._prepared is None:
            await asyncio.Event().wait()
        return self._prepared

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        self.invoked.append((args, context.idempotency_key))
        return ToolOutput.of(f"{self.spec.name} ran")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


async def results_with(bad: Tool, caplog: pytest.LogCaptureFixture, args: object = None) -> list[str]:
    """What the model reads as the results of its calls, of which one is to a tool that cannot prepare it."""
    calls: list[Any] = [{"name": "bad", "args": args or {}}, {"name": "good", "args": {}}]
    scripts: dict[str, Any] = {"m": {"turns": [{"tool_calls": calls}, {"text": "done"}]}}
    it, provider = engine_on(MoodyStore(MemoryDisk()), scripts, tools={"bad": bad, "good": Own("good")})
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("bad"), ServerRef("good")))
        heads = await facts(it, run_id, space)
    assert isinstance(heads[-1], RunEnded)
    assert heads[-1].status == "succeeded"
    (asking, _) = [head for head in heads if isinstance(head, TurnCompleted)]
    assert [call.verdict for call in asking.calls] == ["invalid", "ok"]
    assert [head.how for head in heads if isinstance(head, CallClosed)] == ["invalid", "returned"]
    assert [run_id in line for line in caplog.messages if "the tool bad" in line] == [True]
    message = provider.requests[-1].messages[-1]
    assert isinstance(message, ToolResults)
    return [joined_text(result.parts) for result in message.results]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (KeyError("currency"), "'currency'"),
        (SystemExit(1), "1"),
        (asyncio.CancelledError(), "CancelledError"),
        (TimeoutError("no answer"), "no answer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_tool_that_fails_to_prepare_call_harms_that_call_alone(
    raised: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    results = await results_with(Own("bad", prepared=raised), caplog)
    assert results == [prompts.calls.tool_failed_to_prepare("bad", reason), "good ran"]


async def test_a_validator_that_fails_harms_that_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fails(number: int) -> int:
        raise KeyError(number)

    @tool
    def bad(n: Annotated[int, BeforeValidator(fails)]) -> None: ...

    results = await results_with(bad, caplog, args={"n": 1})
    assert results == [prompts.calls.tool_failed_to_prepare("bad", "1"), "good ran"]


async def test_tool_that_never_ends_to_prepare_call_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    results = await results_with(Own("bad", prepared=None, timeout_s=0.01), caplog)
    assert results == [prompts.calls.tool_failed_to_prepare("bad", "it took longer than 0.01 seconds"), "good ran"]


async def test_validator_of_large_arguments_that_never_returns_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    def hangs(text: str) -> str:
        released.wait(TIMEOUT_S)
        return text

    @tool(timeout_s=0.5)
    def bad(text: Annotated[str, AfterValidator(hangs)]) -> None: ...

    results = await results_with(bad, caplog, args={"text": "x" * 20_000})
    released.set()
    assert results == [prompts.calls.tool_failed_to_prepare("bad", "it took longer than 0.5 seconds"), "good ran"]


@pytest.mark.parametrize("prepared", ["{}", b"[]", b'{"a":', 1])
async def test_non_object_does_not_get_into_the_log(prepared: object, caplog: pytest.LogCaptureFixture) -> None:
    failed, good = await results_with(Own("bad", prepared=prepared), caplog)
    assert failed.startswith("Not executed: bad failed while its arguments were checked: ")
    assert good == "good ran"


async def test_call_runs_with_the_arguments_that_its_code_was_given() -> None:
    """The turn completes while the server stops; the next process has a tool that prepares other arguments."""
    scripts: dict[str, Any] = {"m": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "done"}]}}
    disk, asked, answered = MemoryDisk(), asyncio.Event(), asyncio.Event()

    async def held(command: Command, state: State, work: WorkingSet, services: Services, sink: Sink) -> Outcome | None:
        outcome = await carry_out(command, state, work, services, sink)
        asked.set()
        await answered.wait()
        return outcome

    old, new = Own("pay", prepared=b'{"amount":1}'), Own("pay", prepared=b'{"amount":100}')
    it, _ = engine_on(MoodyStore(disk), scripts, tools={"pay": old}, carry_out=held)
    async with asyncio.timeout(TIMEOUT_S):
        await it.start()
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("m", ServerRef("pay")))
        await asked.wait()
        stopping = asyncio.create_task(it.stop())
        await until(lambda: not it.ready)
        answered.set()
        await stopping
    it, provider = engine_on(MoodyStore(disk), scripts, tools={"pay": new})
    async with it:
        heads = await facts(it, run_id, space)
    kinds = [type(head) for head in heads]
    assert kinds.index(TurnCompleted) < kinds.index(CallOpened)
    (call,) = next(head.calls for head in heads if isinstance(head, TurnCompleted))
    assert call.digest == digest(b'{"amount":1}')
    key = idempotency_key(disk.id, run_id, 0, 0, call.digest)
    assert (old.invoked, new.invoked) == ([], [(b'{"amount":1}', key)])
    assert len(provider.requests) == 1  # the answer of the first process counts
