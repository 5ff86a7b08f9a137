"""Which of several gates decides about a call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline import hook, skills, tool
from weftline.agent.behavior import Exceeded, Ruling
from weftline.agent.context import RunInfo
from weftline.agent.hooking.calling import Hooks
from weftline.agent.running.code import AgentCode
from weftline.agent.running.disclosure import Disclosure, Withheld
from weftline.agent.running.frame import Frame
from weftline.behaviors import Behavior, ToolBudget
from weftline.hooks import ToolGate
from weftline.messages import Text, ToolResult
from weftline.runtime.agent_code.code import Gated, PendingCall
from weftline.testing import calls
from weftline.text.canonical import canonical_value, digest
from weftline.tools import Skill
from weftline.tools.base import ToolContext

from .kit import scripted

ARGS = canonical_value({"at": "a"})
STRICT = Skill(name="strict", description="Strict.", body="Only that.", allowed_tools=("other",))


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return at


@hook(ToolGate)
def blocks(gate: ToolGate) -> None:
    gate.block("policy")


@hook(ToolGate)
def answers(gate: ToolGate) -> None:
    gate.answer("from the policy")


@hook(ToolGate)
def raises(gate: ToolGate) -> None:
    raise RuntimeError("no")


async def gated(
    *, policy: list[Any], refuses: bool, spent: bool, seen: bool, locked: bool, known: bool, fits: bool
) -> Gated:
    """What becomes of a call of `look` if these gates have something to say."""
    found = skills(STRICT)
    await found.open()
    memory: dict[str, Any] = {}
    if refuses:
        memory["skills"] = {"active": [{"name": "strict", "via": "model"}]}
    if seen:
        memory["dedup:look"] = {"hash": digest(ARGS), "call": "c1"}
    decide = Behavior(
        tool_budgets={"look": ToolBudget(0 if spent else 9, lambda exceeded: Ruling("block", "budget"))},
        dedup_tools={"look": None},
    )
    withheld = [Withheld("look", "look", "", "{}")] if locked else []
    frame = Frame(
        behavior=decide, disclosure=Disclosure(withheld, search="tool_search"), skills=[found], tools=["look", "other"]
    )
    code = AgentCode(
        RunInfo(id="run_1"),
        hooks=Hooks(policy),
        frame=frame,
        output=None,
        instructions=None,
        deps=None,
    )
    call = PendingCall(
        turn=0,
        index=0,
        id="c2",
        name="look",
        raw_args='{"at": "a"}',
        args=ARGS,
        problem="" if fits else "at: wrong",
        tool=look if known else None,
        result_of=lambda id: ToolResult(id, "look", (Text("seen before"),)),
    )
    context: ToolContext = ToolContext("run_1", "c2", "key", "look", "default", state=memory)
    return await code.ask_gates(call, context)


@pytest.mark.requirement("loop.gate.order", "loop.call.blocked", "loop.call.substituted")
@given(
    st.lists(st.sampled_from([blocks, answers]), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
async def test_the_first_gate_with_a_word_to_say_decides(
    policy: list[Any], refuses: bool, spent: bool, seen: bool, locked: bool, known: bool, fits: bool
) -> None:
    found = await gated(policy=policy, refuses=refuses, spent=spent, seen=seen, locked=locked, known=known, fits=fits)
    text = "".join(part.text for part in found.parts if isinstance(part, Text))
    if blocks in policy:
        expected = ("blocked", "policy", False)
    elif answers in policy:
        expected = ("answered", "from the policy", False)
    elif refuses:
        expected = ("blocked", "strict", False)
    elif spent:
        expected = ("blocked", "budget", False)
    elif seen and known and fits:
        expected = ("answered", "seen before", True)
    elif locked:
        expected = ("blocked", "tool_search", True)
    elif not known:
        expected = ("unknown", "Unknown tool: look", False)
    elif not fits:
        expected = ("invalid", "at: wrong", False)
    else:
        expected = ("ok", "", False)
    assert (found.verdict, found.yields) == (expected[0], expected[2])
    assert expected[1] in text
    assert text.startswith("Blocked: ") == (found.verdict == "blocked")
    assert text.count("Blocked: ") <= 1


@pytest.mark.requirement("loop.gate.fail_closed")
async def test_a_gate_that_raises_blocks_whatever_the_others_say() -> None:
    found = await gated(
        policy=[answers, raises], refuses=False, spent=False, seen=True, locked=False, known=True, fits=True
    )
    assert found.verdict == "blocked"


@pytest.mark.requirement("loop.gate.order")
async def test_skill_rules_precede_budgets_and_repeated_results() -> None:
    found = skills(STRICT)
    one = calls("look", at="a")
    behavior = Behavior(tool_budgets={"look": 1}, dedup_tools={"look": None})
    agent, _ = scripted(one, one, calls("skills_use", name="strict"), one, tools=[look, found], behavior=behavior)
    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["returned", "budget", "returned", "blocked"]
    assert "strict" in result.calls[3].result


@pytest.mark.requirement("loop.call.counts_snapshot", "loop.budget.function")
async def test_a_functions_budget_holds_among_calls_at_the_same_time() -> None:
    ran: list[int] = []

    @tool(effect="read", concurrent=True)
    async def work(n: int) -> str:
        ran.append(n)
        return str(n)

    def decide(exceeded: Exceeded) -> Ruling:
        return Ruling("block")

    turn: dict[str, Any] = {"tool_calls": [{"name": "work", "args": {"n": n}} for n in range(5)]}
    agent, _ = scripted(turn, turn, tools=[work], behavior=Behavior(tool_budgets={"work": ToolBudget(3, decide)}))
    snapshots: list[int] = []
    agent.on(ToolGate)(lambda gate: snapshots.append(gate.counts.get("work", 0)))
    result = await agent.run("Go.")
    assert ran == [0, 1, 2]
    assert snapshots == [0] * 5 + [3] * 5
    assert [call.how for call in result.calls].count("blocked") == 7
