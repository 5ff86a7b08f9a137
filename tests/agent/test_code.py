"""The tool `code`: a model writes code that calls the agent's tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from weftline import Agent, Engine, code, tool
from weftline.events import AwaitOpened
from weftline.messages import joined_text
from weftline.sandbox import Code, Host, Language, Outcome, Sandbox, Succeeded
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolContext
from weftline.tools.builtin.code import CodeTool
from weftline.tools.stored_code import CodeSpec, StoredCodeTool

from .kit import asked, scripted

sent: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool(effect="read", concurrent=True)
def price(sku: str) -> dict[str, int]:
    """What an article costs."""
    return {"cents": len(sku) * 100}


@tool(effect="once")
def send(sku: str, pieces: int = 1) -> str:
    """Sends an article."""
    if sku == "lost":
        raise ValueError("there is none")
    sent.append((sku, pieces))
    return f"sent {sku}"


@tool(effect="once", confirm="Send {sku} as a gift?")
def gift(sku: str) -> str:
    """Sends a gift."""
    sent.append((f"gift {sku}", 1))
    return f"gave {sku}"


@tool(effect="read", terminal=True)
def submit(text: str) -> str:
    """Ends the run."""
    return text


class OneAtATime:
    """An engine whose code ends when it is told to."""

    languages: frozenset[Language] = frozenset({"typescript"})

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.three = asyncio.Event()
        """Set when three pieces of code are there."""
        self.begun = self.given = 0

    def check(self, code: Code) -> None:
        self.given += 1
        if self.given == 3:
            self.three.set()

    async def execute(self, code: Code, host: Host) -> Outcome:
        self.begun += 1
        await self.go.wait()
        return Succeeded(1)

    async def close(self) -> None: ...


def coder(*turns: Any, tools: Any = (price, send, gift), **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    return scripted(*turns, tools=[*tools, code(**options)], name="coder")


TEN = """
const skus: string[] = ["a", "bb", "ccc", "dddd", "e", "ff"];
const prices = await Promise.all(skus.map((sku) => price({sku})));
let total = 0;
for (const [n, sku] of skus.slice(0, 4).entries()) {
  total += prices[n].cents;
  await send({sku, pieces: n + 1});
}
console.log("sent", 4);
export default {total, dear: skus.filter((_, n) => prices[n].cents > 250)};
"""


@pytest.mark.requirement("sandbox.bridge.calls")
async def test_ten_calls_from_code_cost_one_turn() -> None:
    agent, model = coder(calls("code", code=TEN))
    result = await agent.run("Go.")
    assert (result.turns, len(model.requests)) == (2, 2)
    *nested, parent = result.calls
    assert parent.result == '{"total": 1000, "dear": ["ccc", "dddd"]}\n\nLogged:\nsent 4'
    assert [call.name for call in nested] == ["price"] * 6 + ["send"] * 4
    assert {call.parent_call for call in nested} == {parent.id}
    assert sent == [("a", 1), ("bb", 2), ("ccc", 3), ("dddd", 4)]


async def test_python_calls_tools_with_keywords_and_failures_are_exceptions() -> None:
    source = """
first, second = price(sku="a"), price("bb")
total = (await first)["cents"] + (await second)["cents"]
try:
    await send(sku="lost")
except Exception as error:
    print("failed:", error)
default = [total, await send("x", pieces=2)]
"""
    agent, _ = coder(calls("code", code=source), calls("code", code="await send(sku='y')"), languages=["python"])
    result = await agent.run("Go.")
    said = [call.result for call in result.calls if call.name == "code"]
    assert said[0].startswith('[300, "sent x"]\n\nLogged:\nfailed: ')
    assert "there is none" in said[0]
    assert said[1] == "null"
    assert sent == [("x", 2), ("y", 1)]


async def test_model_reads_what_went_wrong_and_what_had_been_called() -> None:
    turns = [
        calls("code", code="await send({sku: 'x'});\nnull.y"),
        calls("code", code="await send({sku: 'lost'})"),
        calls("code", code="await send({pieces: 'many'})"),
        calls("code", code="export default 1 +"),
    ]
    agent, _ = coder(*turns)
    result = await agent.run("Go.")
    failed, uncaught, invalid, broken = [call for call in result.calls if call.name == "code"]
    assert not any([failed.ok, uncaught.ok, invalid.ok, broken.ok])
    assert failed.result.startswith("The code failed: TypeError: Cannot read properties of null")
    assert '(line 2, column 6)\n\nCalls that it made:\nsend({"sku":"x"}): done' in failed.result
    assert uncaught.result.startswith("The code failed: ToolError: ValueError: there is none")
    assert 'send({"sku":"lost"}): failed' in uncaught.result
    assert "sku" in invalid.result
    assert broken.result.startswith("The code was not run: SyntaxError: Expression expected")


UNAWAITED = {
    "typescript": "for (let n = 1; n <= 5; n++) send({sku: 'x', pieces: n});\nexport default 'left'",
    "python": "for n in range(1, 6):\n    send(sku='x', pieces=n)\ndefault = 'left'",
}


@pytest.mark.parametrize("language", UNAWAITED)
async def test_unawaited_calls_are_executed_in_order_before_the_result(language: Any) -> None:
    agent, _ = coder(calls("code", code=UNAWAITED[language]), languages=[language])
    result = await agent.run("Go.")
    assert sent == [("x", n) for n in range(1, 6)]
    assert [call.name for call in result.calls] == ["send"] * 5 + ["code"]
    assert result.calls[-1].result == "left"


async def test_people_are_asked_about_unawaited_calls() -> None:
    agent, _ = coder(calls("code", code="gift({sku: 'a'}); gift({sku: 'b'}); export default 1"))
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        async for event in run:
            if isinstance(event, AwaitOpened):
                await (run.approve(event.id) if event.call_id.endswith(".1") else run.deny(event.id))
        result = await run.result()
    assert sent == [("gift a", 1)]
    *gifts, last = result.calls
    # Which of the two answers comes first is not said.
    assert {call.id.rpartition(".")[2]: call.how for call in gifts} == {"1": "returned", "2": "denied"}
    assert (last.name, last.how) == ("code", "returned")


async def test_code_does_not_go_on_after_call_that_person_refused() -> None:
    agent, _ = coder(calls("code", code="await gift({sku: 'x'}); await send({sku: 'x'})"))
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        await run.deny(event.id, "Not to them.")
        result = await run.result()
    assert sent == []
    assert result.calls[-1].result.startswith("The code failed: ToolError: ")
    assert "Not to them." in result.calls[-1].result


async def test_of_many_calls_model_reads_first_and_last() -> None:
    source = "for (let n = 0; n < 100; n++) await price({sku: `${n}`});\nawait send({sku: 'lost'})"
    agent, _ = coder(calls("code", code=source))
    result = await agent.run("Go.")
    lines = result.calls[-1].result.partition("Calls that it made:\n")[2].split("\n")
    assert len(lines) == 41
    assert lines[19:22] == ['price({"sku":"19"}): done', "… (61 more calls: 61 done)", 'price({"sku":"81"}): done']
    assert lines[-1] == 'send({"sku":"lost"}): failed'


async def test_code_waiting_for_a_person_keeps_its_time_and_randomness(tmp_path: Path) -> None:
    source = """
const at = [Date.now(), new Date().getTime(), Math.random(), new Date() instanceof Date, new Date(0).getTime()];
await send({sku: JSON.stringify(at)});
export default [await gift({sku: "x"}), at[3], at[4], Date().includes("GMT")];
"""
    agent, _ = coder(calls("code", code=source))
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        await run.approve(event.id)
        result = await run.result()
    assert result.calls[-1].result == '["gave x", true, 0, true]'
    assert [sku.partition("[")[0] for sku, _ in sent] == ["", "gift x"]


class Values:
    """Tools that return something else than a text, and one that returns a text that looks like it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

        @tool(effect="read")
        def count(n: int) -> Any:
            """Counts."""
            return n + 1

        @tool(effect="read")
        def look(what: str) -> Any:
            """Looks."""
            return {"large": 2**53 + 1, "half": 0.5, "yes": True, "nothing": None, "text": "300"}[what]

        @tool(effect="once")
        def keep(value: Any) -> str:
            """Keeps."""
            self.asked.append(value)
            return "kept"

        self.tools: list[Any] = [count, look, keep, gift]


VALUES = {
    "typescript": """
const kinds = ["large", "half", "yes", "nothing", "text"];
const found = await Promise.all(kinds.map((what) => look({what})));
const n = await count({n: 41});
await keep({value: [n + 1, found[0] + 1n]});
await gift({sku: "x"});
export default [n + 1, found[0] + 1n, ...found.slice(1), typeof found[0]];
""",
    "python": """
found = [await look(what=what) for what in ["large", "half", "yes", "nothing", "text"]]
n = await count(n=41)
await keep(value=[n + 1, found[0] + 1])
await gift(sku="x")
default = [n + 1, found[0] + 1, *found[1:]]
""",
}


@pytest.mark.parametrize("language", VALUES)
async def test_code_gets_what_a_tool_returns_again_from_the_log(language: Any, tmp_path: Path) -> None:
    first, second = Values(), Values()
    turn = calls("code", code=VALUES[language], language=language)
    async with Engine(tmp_path, agents=[coder(turn, tools=first.tools, languages=VALUES)[0]]) as engine:
        run = await engine.start(engine.agents["coder"], "Go.")
        event = await asked(run)
    async with Engine(tmp_path, agents=[coder(turn, tools=second.tools, languages=VALUES)[0]]) as engine:
        again = engine.attach(run.id)
        await again.approve(event.id)
        result = await again.result()
    assert (first.asked, second.asked) == ([[43, 2**53 + 2]], [])
    seen = [43, 2**53 + 2, 0.5, True, None, "300", *(["bigint"] if language == "typescript" else [])]
    assert result.calls[-1].result == json.dumps(seen)


async def test_no_clock_of_code_runs() -> None:
    source = """
const clock = new Intl.DateTimeFormat("en", {minute: "numeric", second: "numeric", fractionalSecondDigits: 3});
const then = clock.format(new Date());
for (let n = 0; n < 1e7; n++);
const parts = clock.formatToParts().map((part) => part.value).join("");
export default [clock.format() === then, parts === then, clock.format(0), typeof WeakRef, typeof FinalizationRegistry];
"""
    agent, _ = coder(calls("code", code=source))
    result = await agent.run("Go.")
    assert result.calls[0].result == '[true, true, "00:00.000", "undefined", "undefined"]'


async def test_code_that_takes_too_long_is_ended() -> None:
    agent, _ = coder(calls("code", code="while (true) {}"), timeout_s=0.2)
    result = await agent.run("Go.")
    assert result.calls[0].result == (
        "The code was stopped: TerminatedError: The code reached its limit of 0.2 seconds,"
        " not counting the time it waited for calls."
    )


def described(tools: Any, **options: Any) -> CodeTool:
    bare = CodeTool(Sandbox(engines=[]), languages=("typescript",), timeout_s=1.0, only=None, **options)
    return bare.of({one.spec.name: one for one in [*tools, bare]}, display_names={}, hidden=["gift"])


async def test_the_description_lists_the_tools_that_code_may_call() -> None:
    text = described([price, send, gift, submit]).spec.description
    assert "function price(args: {sku: string}): Promise<any>" in text
    assert "function send(args: {sku: string; pieces?: number}): Promise<any>" in text
    assert "gift" not in text  # it is withheld
    assert "submit" not in text  # it would end the run
    assert "function code" not in text


async def test_only_the_tools_that_were_named_are_functions() -> None:
    turns = [calls("code", code="export default [typeof price, typeof send]")]
    agent, _ = scripted(*turns, tools=[price, send, code(tools=[price])], name="coder")
    result = await agent.run("Go.")
    assert result.calls[0].result == '["function", "undefined"]'


async def test_a_tool_that_the_agent_does_not_have_is_named() -> None:
    agent, _ = scripted("Hm.", tools=[price, code(tools=["prize"])], name="coder")
    with pytest.raises(Exception, match=r"code: the agent has no tool 'prize'. Did you mean 'price'\?"):
        await agent.run("Go.")


def test_impossible_setting_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match=r"'typescipt' is not a language for code"):
        code(languages=cast(Any, ["typescipt"]))
    with pytest.raises(ValueError, match="at least one language"):
        code(languages=[])
    with pytest.raises(ValueError, match="timeout_s must be a positive number of seconds, not 0"):
        code(timeout_s=0)
    with pytest.raises(ValueError, match="memory_limit_bytes must be at least"):
        code(memory_limit_bytes=5)
    with pytest.raises(TypeError, match="5 is neither the name of a tool nor a tool"):
        code(tools=cast(Any, [5]))


async def test_without_the_extra_the_model_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(memory_limit_bytes: int) -> Sandbox:
        return Sandbox(engines=[])

    monkeypatch.setattr("weftline.tools.builtin.code.new_sandbox", none)
    agent, _ = coder(calls("code", code="1"))
    result = await agent.run("Go.")
    assert result.calls[0].result == "Code cannot be run here: This sandbox has no engine for typescript."
    assert not result.calls[0].ok


async def test_model_learns_of_calls_failing_after_the_code() -> None:
    agent, _ = coder(calls("code", code="send({sku: 'lost'}); send({sku: 'x'}); export default 'left'"))
    result = await agent.run("Go.")
    assert result.calls[-1].result == (
        'left\n\nFailed calls that the code did not await:\nsend({"sku":"lost"}): ValueError: there is none'
    )
    assert sent == [("x", 1)]


async def test_ongoing_call_of_failed_code_is_not_reported_as_unmade() -> None:
    source = "const one = send({sku: 'a'}); send({sku: 'b'}); await one; throw new Error('no')"
    agent, _ = coder(calls("code", code=source))
    result = await agent.run("Go.")
    told = result.calls[-1].result.partition("Calls that it made:\n")[2].split("\n")
    assert told[0] == 'send({"sku":"a"}): done'
    # Where it got to by then is a matter of luck; that it was not made is never said.
    unsure = "no result when the code ended; it may have been carried out"
    assert told[1] in ('send({"sku":"b"}): done', f'send({{"sku":"b"}}): {unsure}')


async def test_waiting_for_a_place_is_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OneAtATime()
    sandbox = Sandbox(engines=[engine], max_running=1)

    def new_sandbox(memory_limit_bytes: int) -> Sandbox:
        return sandbox

    monkeypatch.setattr("weftline.tools.builtin.code.new_sandbox", new_sandbox)
    agent, _ = coder(calls("code", code="export default 1"), timeout_s=0.001)
    stored = StoredCodeTool(CodeSpec("one", "export default 1", timeout_s=0.001), secrets={}, sandbox=sandbox)
    sandbox.run_code("export default 1")
    run = asyncio.create_task(agent.run("Go."))
    call = asyncio.create_task(stored.ask(b"{}", ToolContext("r", "c", "k", "one", "w")))
    await engine.three.wait()
    await asyncio.sleep(0.02)  # many times as long as the code may run
    engine.go.set()
    assert (await run).calls[-1].result == "1"
    assert joined_text((await call).parts) == "1"


async def test_code_without_a_turn_says_that_it_did_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftline.tools.stored_code.MAX_WAIT_S", 0.001)
    engine = OneAtATime()
    async with Sandbox(engines=[engine], max_running=1) as sandbox:
        stored = StoredCodeTool(CodeSpec("one", "export default 1"), secrets={}, sandbox=sandbox)
        sandbox.run_code("export default 1")
        output = await stored.ask(b"{}", ToolContext("r", "c", "k", "one", "w"))
        assert "The code did not begin" in joined_text(output.parts)
        assert output.is_error and not output.in_doubt
        assert engine.begun == 1
