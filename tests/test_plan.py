"""The stored plan: what is written is read back, and what this code does not know is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, DecodeError, Raw
from msgspec.structs import replace

from weftline.engine_options import RetryPolicy, engine_options
from weftline.kernel.context import CompactionRule
from weftline.kernel.control import Digests, LeaseRule
from weftline.kernel.entries import Limits, RunCreated
from weftline.kernel.policy import BudgetRule, PolicyRule, TagClause
from weftline.messages import (
    Assistant,
    File,
    Image,
    OutputSchema,
    Sampling,
    System,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    User,
)
from weftline.plan import (
    PLAN_VERSION,
    A2ALocalRef,
    A2ARef,
    LocalRef,
    McpLocalEntry,
    McpLocalRef,
    McpRef,
    ParentCall,
    PlanContent,
    RunPlan,
    ServerRef,
    StoredRef,
    agent_of,
    decode_content,
    decode_plan,
    encode_plan,
    limits_of,
    may_name_agent,
)
from weftline.reminders import Reminder
from weftline.trace_context import Trace

PLANS = Path(__file__).parent / "fixtures" / "plans"
"""One file per version, as that version wrote it; `python tests/test_plan.py` writes today's. One that a release has
written is never changed: what changes the bytes below is a new version."""

VERSION_1 = RunPlan(
    v=1,
    messages=(
        System("Be kind."),
        User((Text("What is this?"), Image("image/png", data="iVBORw0KGgo="), File("text/plain", url="https://f"))),
        Assistant((Text("A cat."), ToolCall("c1", "recall", '{"q": "cats"}'))),
        ToolResults((ToolResult("c1", "recall", (Text("They purr."),)),)),
        User.of("Tell me more. 🐈"),
    ),
    name="cats",
    agent_id="agent_1",
    model="openai:gpt-5",
    fallbacks=("anthropic:claude-opus-4-5",),
    system="Be brief.",
    reasoning=50,
    tools=(
        LocalRef("ask", "Asks.", Raw(b'{ "type":"object","properties":{} }'), Raw(b'{"type":"object"}'), True),
        A2ALocalRef("peer", Raw(b'{"name":"Peer","x":1.0}'), "A peer."),
        McpLocalRef("files", (McpLocalEntry("read", Raw(b'{"name":"read"}')),), Raw(b'{"version": "1"}')),
        A2ARef("remote", "https://a/card", "Remote.", "ctx_1"),
        McpRef("docs", "https://m/mcp", ("search",)),
        StoredRef("tool_1"),
        ServerRef("@demo/weather"),
    ),
    output_schema=OutputSchema("report", Raw(b'{"type":"object", "minimum":1.0}')),
    limits=Limits(
        max_tool_turns=7,
        on_max_tool_turns="finalize",
        loop_soft=0,
        loop_hard=9,
        tool_budgets={"recall": 4},
        local_timeout_us=1_500_000,
        on_local_timeout="report",
        max_retries=5,
        fallbacks=1,
        in_doubt_followup="allow",
        interrupts_allowed=False,
    ),
    metadata={"team": "zoo"},
)
VERSION_2 = replace(
    VERSION_1,
    v=2,
    messages=(
        *VERSION_1.messages,
        User((Image("image/png", name="cat.png", blob="ab" * 32, size=68), Text("And this?"))),
        User((File("application/pdf", blob="cd" * 32, size=9_000), Text("And this?"))),
    ),
    sampling=Sampling(0.5, 0.9, ("END", "\n\n"), 1_000),
)
VERSION_3 = replace(
    VERSION_2,
    v=3,
    limits=replace(VERSION_2.limits, max_turns=9, max_cost_nusd=5_000_000, output_retries=2, check_output=True),
    given=2,
    code="billing",
)
VERSION_4 = replace(
    VERSION_3,
    v=4,
    limits=replace(
        VERSION_3.limits,
        await_timeout_us=60_000_000,
        on_await_expired="end",
        grant_ttl_us=1_000_000,
        await_gate=True,
        nobody_to_ask=True,
        four_eyes=True,
        in_doubt="ask",
        compaction=CompactionRule(keep_turns=2, at_tokens=50_000, model="openai:gpt-5"),
    ),
    requested_by="key:ann",
)
VERSION_5 = replace(
    VERSION_4,
    v=5,
    limits=replace(
        VERSION_4.limits,
        policy=PolicyRule(
            max_tool_calls=3,
            time_budget_us=60_000_000,
            per_tool_timeout_us={"web_*": 1_000_000},
            allowed_tags=("safe",),
            tag_clauses=(TagClause(None, ("costly",)),),
        ),
    ),
)
VERSION_6 = replace(
    VERSION_5,
    v=6,
    tools=(*VERSION_5.tools, LocalRef("pay", effect="once")),
    limits=replace(
        VERSION_5.limits,
        on_deploy="pin",
        leases=LeaseRule("fallback", {"ask": "weather"}),
        budget=BudgetRule(nusd=1_000_000_000, tokens=9_000, calls=7, on_exceeded="stop"),
    ),
    digests=Digests("5f1c", "0b7e", "a901", given=True),
)
VERSION_7 = replace(
    VERSION_6,
    v=7,
    metadata={"team": "zoo", "ticket": {"id": 7}},
    labels={"tenant": "acme"},
    reminders=(Reminder(id="brief", text="Be brief.", max_per_run=2), Reminder(id="a", text="b", tier="safety")),
    stream_arguments=True,
    turn_id="turn-7",
    asked_by=ParentCall("lead", "call_0_0", "helper", Raw(b'{"task":"Help."}')),
    own_policy=PolicyRule(max_tool_calls=3),
    model_result_limit_bytes=65_536,
    trace=Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True, False),
    engine=engine_options(
        memo={"ticket": 7},
        search_attributes={"Customer": "c1", "Since": datetime(2026, 1, 31, tzinfo=UTC), "Tags": ["a", "b"]},
        task_queue="gpu",
        retry_policy=RetryPolicy(max_attempts=3, initial_interval_s=0.5, backoff_coefficient=2.0),
    ),
)
VERSION_8 = replace(VERSION_7, v=8, limits=Limits())
EXAMPLE = replace(VERSION_7, v=9, on_thread=True, models=("demo", None))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe = st.none() | texts
raws = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
).flatmap(lambda value: st.sampled_from([None, 2]).map(lambda indent: Raw(json.dumps(value, indent=indent).encode())))
maybe_raws = st.just(UNSET) | raws
parts = st.builds(Text, texts) | st.builds(Image, texts, data=maybe, url=maybe) | st.builds(File, texts, name=maybe)
messages = (
    st.builds(System, texts)
    | st.builds(User, st.lists(parts, max_size=3).map(tuple), st.booleans())
    | st.builds(Assistant, st.lists(st.builds(Text, texts) | st.builds(ToolCall, texts, texts), max_size=3).map(tuple))
    | st.builds(ToolResults, st.lists(st.builds(ToolResult, texts, texts, st.just(())), max_size=2).map(tuple))
)
refs = st.one_of(
    st.builds(LocalRef, texts, texts, maybe_raws, maybe_raws, st.booleans()),
    st.builds(A2ALocalRef, texts, raws, maybe),
    st.builds(
        McpLocalRef,
        texts,
        st.lists(st.builds(McpLocalEntry, texts, raws), max_size=3).map(tuple),
        maybe_raws,
    ),
    st.builds(A2ARef, texts, texts, maybe, maybe),
    st.builds(McpRef, texts, texts, st.none() | st.lists(texts, max_size=3).map(tuple)),
    st.builds(StoredRef, texts),
    st.builds(ServerRef, texts),
)
counts = st.integers(0, 2**60)
limits = st.builds(
    Limits,
    max_tool_turns=counts,
    on_max_tool_turns=st.sampled_from(["error", "finalize"]),
    tool_budgets=st.dictionaries(texts, counts, max_size=3),
    local_timeout_us=counts,
    fallbacks=counts,
)
plans = st.builds(
    RunPlan,
    messages=st.lists(messages, max_size=4).map(tuple),
    name=texts,
    agent_id=maybe,
    model=maybe,
    fallbacks=st.lists(texts, max_size=3).map(tuple),
    system=maybe,
    reasoning=st.none() | st.integers(0, 100),
    sampling=st.builds(
        Sampling,
        st.none() | st.floats(0, 2),
        st.none() | st.floats(0, 1),
        st.lists(texts, max_size=2).map(tuple),
        st.none() | st.integers(1, 10_000),
    ),
    tools=st.lists(refs, max_size=4).map(tuple),
    output_schema=st.none() | st.builds(OutputSchema, texts, raws),
    limits=limits,
    metadata=st.dictionaries(texts, texts, max_size=3),
    given=counts,
    code=maybe,
)


@given(plans)
def test_a_plan_is_read_back_as_it_was_written(plan: RunPlan) -> None:
    stored = encode_plan(plan)
    again = decode_plan(stored, plan.limits)
    assert again == plan
    assert encode_plan(again) == stored


def test_a_plan_keeps_its_bytes_inside_another_document() -> None:
    body = msgspec.json.encode({"plan": Raw(encode_plan(EXAMPLE))})
    assert decode_plan(msgspec.json.decode(body, type=dict[str, Raw])["plan"], EXAMPLE.limits) == EXAMPLE


def test_every_field_is_stored_defaults_too() -> None:
    """A default that changes in a later release does not reach a run that was created before."""
    stored = msgspec.json.decode(encode_plan(RunPlan(messages=())))
    assert set(stored) == set(PlanContent.__struct_fields__)
    assert set(msgspec.json.decode(msgspec.json.encode(Limits()))) == set(Limits.__struct_fields__)
    assert stored["v"] == PLAN_VERSION


def test_the_limits_are_those_of_the_head() -> None:
    assert "limits" not in msgspec.json.decode(encode_plan(EXAMPLE))
    head = msgspec.json.encode(RunCreated(1, EXAMPLE.limits))
    assert decode_plan(encode_plan(EXAMPLE), limits_of(head)) == EXAMPLE
    assert decode_plan((PLANS / "v7.json").read_bytes(), Limits(max_tool_turns=1)).limits.max_tool_turns == 1


def test_the_example_of_version_1_is_read() -> None:
    assert decode_content((PLANS / "v1.json").read_bytes()) == VERSION_1
    assert decode_content((PLANS / "v2.json").read_bytes()) == VERSION_2
    assert decode_content((PLANS / "v3.json").read_bytes()) == VERSION_3
    assert decode_content((PLANS / "v4.json").read_bytes()) == VERSION_4
    assert decode_content((PLANS / "v5.json").read_bytes()) == VERSION_5
    assert decode_content((PLANS / "v6.json").read_bytes()) == VERSION_6
    assert decode_content((PLANS / "v7.json").read_bytes()) == VERSION_7
    assert decode_content((PLANS / "v8.json").read_bytes()) == VERSION_8


def test_each_version_has_left_an_example_that_is_still_read() -> None:
    examples = {path.stem: decode_content(path.read_bytes()) for path in PLANS.glob("*.json")}
    assert {f"v{version}" for version in range(1, PLAN_VERSION + 1)} == examples.keys()
    assert all(f"v{plan.v}" == name for name, plan in examples.items())


def test_todays_code_writes_the_example_of_todays_version() -> None:
    assert encode_plan(EXAMPLE) == (PLANS / f"v{PLAN_VERSION}.json").read_bytes()


@pytest.mark.parametrize("version", [PLAN_VERSION + 1, 99, 0, -1])
def test_a_plan_of_another_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(DecodeError, match=f"version {version}"):
        decode_content(msgspec.json.encode({**msgspec.json.decode(encode_plan(EXAMPLE)), "v": version}))


def put(fields: Any, *path: str | int, value: Any = 1) -> bytes:
    place = fields
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(
    "path",
    [
        ("x",),
        ("output_schema", "x"),
        ("tools", 2, "tools", 0, "x"),
        *(("tools", index, "x") for index in range(7)),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_field_that_this_code_does_not_know_is_refused(path: tuple[str | int, ...]) -> None:
    with pytest.raises(DecodeError):
        decode_content(put(msgspec.json.decode(encode_plan(EXAMPLE)), *path))


def test_a_limit_that_this_code_does_not_know_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_content(put(msgspec.json.decode((PLANS / "v7.json").read_bytes()), "limits", "x"))
    with pytest.raises(DecodeError):
        limits_of(put(msgspec.json.decode(msgspec.json.encode(RunCreated(1, Limits()))), "limits", "x"))


def test_unknown_kind_of_tool_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_content(put(msgspec.json.decode(encode_plan(EXAMPLE)), "tools", 0, "kind", value="telepathy"))


@pytest.mark.parametrize("stored", [b"", b"{", b"[]", b'{"messages":[]}', b'{"v":"1","messages":[]}', b"\xff"])
def test_value_that_is_not_a_plan_is_refused(stored: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_content(stored)


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.json")), ids=lambda path: path.stem)
def test_a_plan_that_may_not_name_an_agent_has_none(path: Path) -> None:
    assert agent_of(path.read_bytes()) is not None
    assert may_name_agent(path.read_bytes())


def test_nothing_else_that_plan_has_is_taken_for_its_agent() -> None:
    schema = Raw(b'{"default":{"a":"b","code":"x","digests":{"code":null}}}')
    plan = RunPlan(messages=(User.of('"code":"x"'),), tools=(LocalRef("a", "", schema),), metadata={"code": "1"})
    rests = replace(plan, digests=Digests("5f1c", "0b7e", "a901"))
    for one in (replace(plan, tools=(), metadata={}), replace(rests, metadata={})):
        assert not may_name_agent(encode_plan(one))
    for one in (plan, rests):
        assert may_name_agent(encode_plan(replace(one, code="billing")))
        assert may_name_agent(encode_plan(replace(one, agent_id="agent_1")))


if __name__ == "__main__":
    (PLANS / f"v{PLAN_VERSION}.json").write_bytes(encode_plan(EXAMPLE))
