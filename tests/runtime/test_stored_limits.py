"""The limits of a run are stored once, in the head of its first entry."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from runtime.kit import TIMEOUT_S, MoodyStore, engine_on, plan
from weftline.kernel.bodies import decode_created, encode
from weftline.kernel.entries import RULES, Limits, RunCreated
from weftline.plan import decode_plan, encode_plan, limits_of
from weftline.store.memory import MemoryDisk
from weftline.testing.store.subject import read_log


async def test_runs_are_stored_with_their_own_limits() -> None:
    store = MoodyStore(MemoryDisk())
    engine, _ = engine_on(store, {"hello": {"turns": [{"text": "Hi."}]}})
    usual, few = Limits(), Limits(max_tool_turns=2, tool_budgets={"look": 1})
    async with engine as it, asyncio.timeout(TIMEOUT_S):
        space = await it.workspace("acme")
        for limits in (usual, usual, few, usual):
            asked = replace(plan("hello"), limits=limits)
            key = await it.locate(await it.create(space, asked), workspace=space)
            first = (await read_log(store.log, key))[0]
            stored = bytes(decode_created(first.body).plan)
            assert first.head == encode(RunCreated(RULES, limits))
            assert b'"limits"' not in first.body
            assert limits_of(first.head) == limits
            assert stored == encode_plan(decode_plan(stored, limits))
