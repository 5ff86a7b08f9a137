"""What an engine is told about a run: kept and shown, or refused before there is a run."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent.kit import workspace_of
from weftline import Agent, Engine
from weftline.behaviors import RetryPolicy
from weftline.errors import InvalidRequest
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel

from .kit import Api, Json, check_error

PATIENCE_S = 60
SINCE = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
MEMO = {"ticket": 7, "by": {"name": "Ann", "vip": True}, "none": None}
ATTRIBUTES = {"Customer": "c1", "Vip": True, "Orders": 3, "Score": 1.0, "Since": SINCE, "Tags": ["a", "b"]}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"memo": [1]}, "memo: must be a mapping, not list"),
    ({"memo": {"at": SINCE}}, "memo: is not JSON"),
    ({"memo": {"much": "x" * 20_000}}, "memo: has more than 16384 bytes as JSON"),
    ({"metadata": {"note": ["\0"]}}, "metadata: contains U+0000"),
    ({"search_attributes": {"Customer": None}}, "search_attributes.Customer: must be a string, a number"),
    ({"search_attributes": {"Customer": {"id": 1}}}, "search_attributes.Customer: must be a string, a number"),
    ({"search_attributes": {"Price": Decimal(1)}}, "not Decimal"),
    ({"search_attributes": {"Tags": ["a", 1]}}, "search_attributes.Tags: is a list with something other than strings"),
    ({"search_attributes": {"Since": SINCE.replace(tzinfo=None)}}, "is a time without a time zone"),
    ({"search_attributes": {"Orders": 2**63}}, "has more than 64 bits"),
    ({"search_attributes": {"Score": float("nan")}}, "must be a number"),
    ({"search_attributes": {"Customer": "x" * 1025}}, "at most 1024 characters"),
    ({"search_attributes": {"two words": "x"}}, "'two words' is not a name"),
    ({"search_attributes": {f"A{n}": n for n in range(33)}}, "has 33 entries; at most 32 are allowed"),
    ({"search_attributes": "x"}, "search_attributes: must be a mapping, not str"),
    ({"search_attributes": {"SessionID": "customer"}}, "can only be given to a run with a thread or session"),
    ({"search_attributes": {"SessionID": "other"}, "thread": "customer"}, "must be the id of the run's own thread"),
    ({"task_queue": 7}, "task_queue: must be a string of at most 255 characters"),
    ({"retry_policy": {"max_attempts": 3}}, "retry_policy: must be a RetryPolicy"),
    ({"retry_policy": RetryPolicy(max_attempts=-1)}, "max_attempts must be a whole number from 0"),
    ({"retry_policy": RetryPolicy(initial_interval_s=-1)}, "initial_interval_s must be a number of seconds from 0"),
    ({"retry_policy": RetryPolicy(backoff_coefficient=-1)}, "backoff_coefficient must be a number from 0 to 100"),
]


@pytest.mark.requirement("run.start.engine_options")
async def test_engine_options_are_kept_or_refused_early(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Done."]), name="a")
    retry = RetryPolicy(max_attempts=3, backoff_coefficient=0.5)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        await (await engine.start(agent, "Go.", thread="customer")).result()
        for options, words in WRONG:
            with pytest.raises(InvalidRequest) as refused:
                await engine.start(agent, "Go.", **options)
            assert words in refused.value.message
        assert (
            await (await engine.runtime()).stored.logs.count_runs(RunFilter(workspace=await workspace_of(engine))) == 1
        )
        options: dict[str, Any] = {"memo": MEMO, "search_attributes": ATTRIBUTES, "task_queue": "gpu"}
        told = await engine.start(agent, "Go.", **options, retry_policy=retry)
        named = await engine.start(agent, "Go.", thread="customer", search_attributes={"SessionID": "customer"})
        thread = (await named.snapshot()).thread
        assert thread is not None
        await engine.start(agent, "Go.", thread="customer", search_attributes={"SessionID": thread})
        part = await engine.start(agent, "Go.", retry_policy=RetryPolicy(initial_interval_s=2), memo={})
        none = await engine.start(
            agent, "Go.", memo={}, search_attributes={}, task_queue="", retry_policy=RetryPolicy()
        )
        await named.result()
        assert not (await (await engine.fork(named.id, agent, turn=0)).snapshot()).search_attributes
        ids = [run.id for run in (told, named, part, none)]
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        first, second, third, last = [await engine.attach(id).snapshot() for id in ids]
    assert (first.memo, first.search_attributes, first.task_queue) == (MEMO, ATTRIBUTES, "gpu")
    kinds = [type(value) for value in first.search_attributes.values()]
    assert kinds == [str, bool, int, float, datetime, list]
    assert first.retry_policy == RetryPolicy(max_attempts=3, backoff_coefficient=1.0), "0 is as the engine has it"
    assert second.search_attributes == {"SessionID": "customer"}
    assert third.retry_policy == RetryPolicy(initial_interval_s=2.0)
    for run in (third, last):
        assert (run.memo, run.search_attributes, run.task_queue) == ({}, {}, "")
    assert last.retry_policy == RetryPolicy()


@pytest.mark.requirement("run.start.engine_options")
async def test_clients_tell_the_engine_the_same(api: Api) -> None:
    since = {"datetime": (SINCE + timedelta(0)).isoformat()}
    spec = {"modelId": "scripted:hello", "prompt": "x"}
    attributes = {"Customer": "c1", "Vip": True, "Orders": 3, "Since": since, "Tags": ["a", "b"]}
    retry = {"maxAttempts": 3, "backoffCoefficient": 0.5}
    run = await api.start("hello", memo=MEMO, searchAttributes=attributes, taskQueue="gpu", retryPolicy=retry)
    shown = (await api.get(f"agent-runs/{run}/snapshot")).json
    assert (shown["memo"], shown["searchAttributes"], shown["taskQueue"]) == (MEMO, attributes, "gpu")
    assert shown["retryPolicy"] == {"maxAttempts": 3, "initialIntervalMs": 0, "backoffCoefficient": 1.0}
    session = await api.session("hello")
    own = await api.send(session, searchAttributes={"SessionID": session})
    assert (await api.get(f"agent-runs/{own}/snapshot")).json["searchAttributes"] == {"SessionID": session}
    before = [one["id"] for one in (await api.get("agent-runs")).json["runs"]]
    kinds = 'must be a string, a number, true, false, an array of strings, or {"datetime": "2026-01-31T12:00:00Z"}'
    refused: list[tuple[Json, str]] = [
        ({"memo": [1]}, "memo: must be a JSON object"),
        (
            {"searchAttributes": {"Customer": None, "Since": {"datetime": "soon"}}},
            f"searchAttributes.Customer: {kinds}; searchAttributes.Since: {kinds}",
        ),
        (
            {"searchAttributes": {"Tags": ["a", 1]}},
            "searchAttributes.Tags: is a list with something other than strings",
        ),
        (
            {"searchAttributes": {"SessionID": session}},
            "The search attribute SessionID is wrong: can only be given to a run with a thread or session.",
        ),
        ({"taskQueue": 7}, "taskQueue: must be a string"),
        ({"retryPolicy": {"maxAttempts": -1}}, "retryPolicy.maxAttempts: must be at least 0"),
        ({"retryPolicy": {"attempts": 1}}, "retryPolicy.attempts: "),
    ]
    for wrong, words in refused:
        error = await api.post("agent-runs", {**spec, **wrong})
        assert check_error(error, 400, "invalid_request")["message"].startswith(words)
    elsewhere = {"prompt": "x", "searchAttributes": {"SessionID": "ses_1000000000000000"}}
    check_error(await api.post(f"agent-sessions/{session}/messages", elsewhere), 400, "invalid_request")
    check_error(
        await api.post("agent-sessions", {"modelId": "scripted:hello", "memo": {"a": 1}}), 400, "invalid_request"
    )
    assert [one["id"] for one in (await api.get("agent-runs")).json["runs"]] == before
