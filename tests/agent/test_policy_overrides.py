"""The policy of one run, in the library and over HTTP, field by field.

It takes the place of its agent's. Over HTTP that is for those who may change the agent: see docs/policies.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from weftline import Agent, Engine
from weftline.agent.options import LocalSpec
from weftline.agent.planning.plans import plan_of
from weftline.errors import InvalidRequest
from weftline.kernel.entries import Limits
from weftline.kernel.policy import PolicyRule
from weftline.kernel.policy import TagClause as ClauseRule
from weftline.policies import Policy, TagClause
from weftline.spec.door import parse_run
from weftline.spec.merge import with_agent
from weftline.spec.plan import plan_from_spec
from weftline.testing import ScriptedModel

CLAUSE, WIRE_CLAUSE = TagClause(("a",), ("b",)), {"allowedAny": ["a"], "deniedAny": ["b"]}
FIELDS: list[tuple[str, Any, Any, str, Any, Any, Any]] = [
    # the field, the agent's value, the run's; the same over HTTP; what the run's log has
    ("per_turn_max_tool_calls", 9, 2, "perTurnMaxToolCalls", 9, 2, {"per_turn_max_tool_calls": 2}),
    ("max_tool_calls", 9, 2, "maxToolCalls", 9, 2, {"max_tool_calls": 2}),
    (
        "max_consecutive_failed_tool_calls",
        9,
        2,
        "maxConsecutiveFailedToolCalls",
        9,
        2,
        {"max_consecutive_failed_tool_calls": 2},
    ),
    ("time_budget_s", 9, 2, "timeBudgetMs", 9000, 2000, {"time_budget_us": 2_000_000}),
    ("plan_timeout_s", 9, 2, "planTimeoutMs", 9000, 2000, {"plan_timeout_us": 2_000_000}),
    ("tool_timeout_s", 9, 2, "toolTimeoutMs", 9000, 2000, {"tool_timeout_us": 2_000_000}),
    ("finalizer_grace_s", 9, 2, "finalizerGraceMs", 9000, 2000, {"finalizer_grace_us": 2_000_000}),
    (
        "per_tool_timeout_s",
        {"a": 9},
        {"a": 2},
        "perToolTimeoutMs",
        {"a": 9000},
        {"a": 2000},
        {"per_tool_timeout_us": {"a": 2_000_000}},
    ),
    ("restrict_to_tool", None, "look", "restrictToTool", None, "look", {"restrict_to_tool": "look"}),
    ("allowed_tags", None, ["a"], "allowedTags", None, ["a"], {"allowed_tags": ("a",)}),
    ("denied_tags", None, ["a"], "deniedTags", None, ["a"], {"denied_tags": ("a",)}),
    ("tag_clauses", None, [CLAUSE], "tagClauses", None, [WIRE_CLAUSE], {"tag_clauses": (ClauseRule(("a",), ("b",)),)}),
    ("interrupts_allowed", None, False, "interruptsAllowed", None, False, {}),
]

LOOSER: dict[str, list[Any]] = {
    "restrict_to_tool": ["other"],
    "restrictToTool": ["other"],
    "allowed_tags": [["a", "b"], []],
    "allowedTags": [["a", "b"], []],
    "denied_tags": [["b"], []],
    "deniedTags": [["b"], []],
    "tag_clauses": [[TagClause(("c",))], []],
    "tagClauses": [[{"allowedAny": ["c"]}], []],
    "interrupts_allowed": [True],
    "interruptsAllowed": [True],
}
"""Of fields that an agent need not have: what takes the place of the value above."""


def library(agents: dict[str, Any] | None, own: dict[str, Any] | None) -> Limits:
    agent = Agent("m", policy=None if agents is None else Policy(**agents))
    return plan_of(agent, LocalSpec(policy=None if own is None else Policy(**own)), code="a", model="m").limits


def http(agents: dict[str, Any] | None, own: dict[str, Any] | None) -> Limits:
    above = {} if agents is None else {"policy": agents}
    body = parse_run(encode({"prompt": "x"} | ({} if own is None else {"policy": own})))
    return plan_from_spec(with_agent(encode(above), body.spec, replaces=True)).limits


@pytest.mark.requirement("run.policy.overrides")
async def test_run_has_a_policy_fixed_at_its_start(tmp_path: Path) -> None:
    for name, agents, own, wire_name, wire_agents, wire_own, stored in FIELDS:
        rule = PolicyRule(**stored) if stored else None
        for limits_of, key, above, value in ((library, name, agents, own), (http, wire_name, wire_agents, wire_own)):
            found = limits_of(None if above is None else {key: above}, {key: value})
            assert found.policy == rule, key
            assert found.interrupts_allowed is (name != "interrupts_allowed"), key
            # The other way round, too: the run's value is taken, not the tighter one.
            for looser in [above] if above is not None else LOOSER.get(key, []):
                other = limits_of({key: value}, {key: looser})
                want = limits_of(None, {key: looser})
                assert (other.policy, other.interrupts_allowed) == (want.policy, want.interrupts_allowed), key
            # What is left out, None or zero leaves the agent's value.
            tight = limits_of({key: value}, None)
            assert (tight.policy, tight.interrupts_allowed) == (found.policy, found.interrupts_allowed), key
            for nothing in (None, 0) if isinstance(value, int) and value is not False else (None,):
                assert limits_of({key: value}, {key: nothing}) == tight, key
    for wrong in ({"max_tool_calls": -1}, {"tool_timeout_s": -1}, {"per_tool_timeout_s": {"a": -1}}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            library(None, wrong)
    for wrong in ({"maxToolCalls": -1}, {"toolTimeoutMs": -1}, {"perToolTimeoutMs": {"a": -1}}, {"maxCalls": 1}):
        with pytest.raises(InvalidRequest, match=f"policy.{next(iter(wrong))}"):
            http(None, wrong)
    with pytest.raises(TypeError, match="max_calls"):
        library(None, {"max_calls": 1})
    agent = Agent(ScriptedModel(["Done."]), name="a", policy=Policy(max_tool_calls=5))
    async with asyncio.timeout(60), Engine(tmp_path, agents=[agent]) as engine:
        before = await engine.start(agent, "Go.", policy=Policy(plan_timeout_s=9))
        agent.policy = Policy(max_tool_calls=2)
        after = await engine.start(agent, "Go.")
        kept = [(await run.entries(limit=1)).entries[0].head for run in (before, after)]
        found = [head["limits"]["policy"] for head in kept if head is not None]
        assert [(one["max_tool_calls"], one["plan_timeout_us"]) for one in found] == [(5, 9_000_000), (2, None)]
        await before.result()
        await after.result()
