"""The policy of a spec: what it means, and that laying one over another only makes it tighter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from weftline.errors import InvalidRequest
from weftline.kernel.policy import PolicyRule, TagClause
from weftline.spec.door import parse_run
from weftline.spec.groups import policy_within
from weftline.spec.merge import with_agent, with_session
from weftline.spec.plan import plan_from_spec

tags = st.lists(st.sampled_from("abc"), max_size=2)
counts = st.sampled_from([0, 1, 2, 5])
policies = st.fixed_dictionaries(
    {},
    optional={
        "maxToolCalls": counts,
        "perTurnMaxToolCalls": counts,
        "timeBudgetMs": counts,
        "toolTimeoutMs": counts,
        "perToolTimeoutMs": st.dictionaries(st.sampled_from(["a", "*", "b*", "bc", "bc*"]), counts, max_size=3),
        "restrictToTool": st.sampled_from("ab"),
        "allowedTags": tags,
        "deniedTags": tags,
        "tagClauses": st.lists(st.fixed_dictionaries({}, optional={"allowedAny": tags, "deniedAny": tags}), max_size=2),
        "interruptsAllowed": st.booleans(),
    },
)


def rule_of(policy: dict[str, Any]) -> PolicyRule | None:
    return plan_from_spec(msgspec.json.encode({"prompt": "x", "policy": policy})).limits.policy


def test_a_policy_is_part_of_the_limits_of_the_plan() -> None:
    rule = rule_of(
        {
            "maxToolCalls": 3,
            "timeBudgetMs": 1500,
            "planTimeoutMs": 0,
            "perToolTimeoutMs": {"web_*": 200, "x": 0},
            "allowedTags": [],
            "tagClauses": [{"deniedAny": ["costly"]}],
        }
    )
    assert rule == PolicyRule(
        max_tool_calls=3,
        time_budget_us=1_500_000,
        per_tool_timeout_us={"web_*": 200_000},
        allowed_tags=(),
        tag_clauses=(TagClause(None, ("costly",)),),
    )
    assert rule_of({"maxToolCalls": 0}) is None


@given(policies, policies)
@example({"perToolTimeoutMs": {"bc": 5}}, {"toolTimeoutMs": 1})
@example({"perToolTimeoutMs": {"bc": 5}}, {"perToolTimeoutMs": {"b*": 1}})
def test_of_two_policies_the_tighter_limits_hold(own: dict[str, Any], above: dict[str, Any]) -> None:
    laid = policy_within(Raw(msgspec.json.encode(own)), Raw(msgspec.json.encode(above)))
    assert laid is not None
    both = rule_of(msgspec.json.decode(laid)) or PolicyRule()
    for rule in (rule_of(own), rule_of(above)):
        if rule is None:
            continue
        for name in ("max_tool_calls", "per_turn_max_tool_calls", "time_budget_us", "tool_timeout_us"):
            before, after = getattr(rule, name), getattr(both, name)
            assert before is None or (after is not None and after <= before)
        for tool in ("a", "b", "bc", "bcd", "c"):
            before, after = rule.tool_timeout_s(tool, None), both.tool_timeout_s(tool, None)
            assert before is None or (after is not None and after <= before)
        for tool in "ab":
            for known in (frozenset[str](), frozenset("a"), frozenset("bc"), frozenset("abc")):
                assert rule.allows(tool, known) or not both.allows(tool, known)
    allowed = [one.get("interruptsAllowed") for one in (own, above, msgspec.json.decode(laid))]
    assert (False in allowed[:2]) == (allowed[2] is False)


def test_request_can_only_tighten_its_policy() -> None:
    stored = msgspec.json.encode({"policy": {"maxToolCalls": 5, "timeBudgetMs": 1000}})
    merged = with_agent(stored, b'{"prompt":"x","policy":{"maxToolCalls":9,"timeBudgetMs":400}}')
    assert msgspec.json.decode(merged)["policy"]["maxToolCalls"] == 5
    assert msgspec.json.decode(merged)["policy"]["timeBudgetMs"] == 400
    assert msgspec.json.decode(with_agent(stored, b'{"prompt":"x"}'))["policy"]["maxToolCalls"] == 5
    message = b'{"prompt":"x","policy":{"maxToolCalls":9}}'
    assert msgspec.json.decode(with_session(stored, message))["policy"]["maxToolCalls"] == 5


@pytest.mark.requirement("run.policy.missing_fields")
@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"onMissingFields": "ask"}, "policy.onMissingFields"),
        ({"onMissingFields": "await_clarification", "interruptsAllowed": False}, "policy"),
    ],
)
def test_rule_for_what_is_missing_that_cannot_be_is_refused(policy: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_run(msgspec.json.encode({"prompt": "x", "policy": policy}))
    assert [issue["path"] for issue in error.value.details["issues"]] == [path]
    assert rule_of({"onMissingFields": "finalize"}) == PolicyRule(on_missing_fields="finalize")
    assert rule_of({"onMissingFields": "resume"}) is None
