"""How long people may take, what an approval is good for, and what a deploy means to a run: over the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weftline import Agent, Budget
from weftline import Limits as AgentLimits
from weftline.agent.planning.plans import client_plan
from weftline.errors import InvalidRequest
from weftline.kernel.entries import Limits
from weftline.spec.door import parse_run
from weftline.spec.merge import forked, with_agent, with_session
from weftline.spec.plan import plan_from_spec, read_spec

STRICT = {"timeoutMs": 5000, "onExpired": "end", "grantTtlMs": 1000, "fourEyes": True}
LOOSE = {"timeoutMs": 9000, "onExpired": "deny", "grantTtlMs": 9000, "fourEyes": False}


def limits_of(**spec: Any) -> Limits:
    return plan_from_spec(parse_run(msgspec.json.encode({"prompt": "x", **spec})).spec).limits


def test_they_are_part_of_the_limits_of_the_plan() -> None:
    limits = limits_of(awaits=STRICT, onDeploy="pin")
    assert (limits.await_timeout_us, limits.on_await_expired) == (5_000_000, "end")
    assert (limits.grant_ttl_us, limits.four_eyes, limits.on_deploy) == (1_000_000, True, "pin")
    assert limits_of() == limits_of(awaits={}) == limits_of(awaits=None, onDeploy=None) == limits_of(onDeploy="adopt")
    assert limits_of(onDeploy="ask").on_deploy == "ask"


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        ({"awaits": {"timeoutMs": 0}}, "awaits.timeoutMs", "must be at least 1"),
        ({"awaits": {"timeoutMs": 1.5}}, "awaits.timeoutMs", "must be an integer"),
        ({"awaits": {"grantTtlMs": 10**12}}, "awaits.grantTtlMs", "must be at most"),
        ({"awaits": {"onExpired": "ask"}}, "awaits.onExpired", "'deny' or 'end'"),
        ({"awaits": {"fourEyes": "yes"}}, "awaits.fourEyes", "must be true or false"),
        ({"awaits": {"timeout": 5}}, "awaits.timeout", "is not a known field"),
        ({"awaits": []}, "awaits", "must be a JSON object"),
        ({"onDeploy": "hope"}, "onDeploy", "'adopt', 'ask' or 'pin'"),
    ],
)
def test_rules_that_cannot_be_are_refused(spec: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        limits_of(**spec)
    named = {issue["path"]: issue["message"] for issue in error.value.details["issues"]}
    assert words in named[path]


def test_request_can_only_tighten_the_rules_above_it() -> None:
    stored = msgspec.json.encode({"awaits": STRICT, "onDeploy": "ask"})
    loose = msgspec.json.encode({"prompt": "x", "awaits": LOOSE, "onDeploy": "adopt"})
    changes = msgspec.json.encode({"awaits": LOOSE, "onDeploy": "adopt"})
    for merged in (
        with_agent(stored, loose),
        with_session(stored, loose),
        forked(stored, changes, in_session=False),
        with_agent(msgspec.json.encode({"awaits": LOOSE}), b'{"awaits":%s,"onDeploy":"ask"}' % enc(STRICT)),
    ):
        kept = msgspec.json.decode(merged)
        assert (kept["awaits"], kept["onDeploy"]) == (STRICT, "ask")
    assert msgspec.json.decode(with_agent(stored, b'{"onDeploy":"pin"}'))["onDeploy"] == "pin"


def enc(value: object) -> bytes:
    return msgspec.json.encode(value)


def limits_with(agent: Agent[Any, Any], **spec: Any) -> Limits:
    sent = enc({"prompt": "x", **spec})
    return client_plan(agent, read_spec(sent), code="payments", model=None).limits


def test_nor_can_it_loosen_those_of_an_agent_in_python() -> None:
    own = AgentLimits(await_timeout_s=60, grant_ttl_s=3600, four_eyes=True, on_deploy="ask")
    agent = Agent("scripted:x", name="payments", limits=own)
    quiet = limits_with(agent)
    assert (quiet.await_timeout_us, quiet.grant_ttl_us) == (60_000_000, 3_600_000_000)
    assert (quiet.on_await_expired, quiet.four_eyes, quiet.on_deploy) == ("deny", True, "ask")
    tight = limits_with(agent, awaits=STRICT | {"fourEyes": False}, onDeploy="pin")
    assert (tight.await_timeout_us, tight.grant_ttl_us) == (5_000_000, 1_000_000)
    assert (tight.on_await_expired, tight.four_eyes, tight.on_deploy) == ("end", True, "pin")


@pytest.mark.parametrize(
    ("own_s", "sent_ms", "limit_s"),
    [(2, None, 2), (2, 600_000, 2), (2, 1_000, 1), (None, 600_000, 600), (None, 1_000, 1), (None, None, 300)],
)
def test_client_cannot_extend_external_tools_of_a_python_agent(
    own_s: float | None, sent_ms: int | None, limit_s: int
) -> None:
    own = AgentLimits() if own_s is None else AgentLimits(external_timeout_s=own_s, on_external_timeout="report")
    agent = Agent("scripted:x", name="payments", limits=own)
    budgets = {} if sent_ms is None else {"localToolTimeoutMs": sent_ms}
    limits = limits_with(agent, budgets=budgets)
    assert limits.local_timeout_us == limit_s * 1_000_000
    assert limits.on_local_timeout == ("end" if own_s is None else "report")


@pytest.mark.parametrize("field", ["budgets.localToolTimeoutMs", "awaits.grantTtlMs"])
def test_time_that_equals_default_counts_when_it_is_sent(field: str) -> None:
    agent = Agent("scripted:x", name="slow", limits=AgentLimits(external_timeout_s=3600, grant_ttl_s=7200))
    group, name = field.split(".")
    default_ms = 300_000 if group == "budgets" else 900_000
    limits = limits_with(agent, **{group: {name: default_ms}})
    assert (limits.local_timeout_us if group == "budgets" else limits.grant_ttl_us) == default_ms * 1000


def test_a_request_without_on_exceeded_keeps_that_of_its_agent() -> None:
    stored, own = enc({"budget": {"tokens": 5, "onExceeded": "stop"}}), enc({"budget": {"usd": 4}})
    for merged in (
        with_agent(stored, own),
        with_session(stored, own),
        forked(stored, own, in_session=False),
    ):
        assert msgspec.json.decode(merged)["budget"] == {"usd": 4.0, "tokens": 5, "onExceeded": "stop"}
    agent = Agent("scripted:x", name="thrifty", budget=Budget(tokens=5, on_exceeded="stop"))
    for budget, expected in (({"usd": 4}, "stop"), ({"usd": 4, "onExceeded": "ask"}, "ask")):
        rule = limits_with(agent, budget=budget).budget
        assert rule is not None and (rule.tokens, rule.on_exceeded) == (5, expected)
