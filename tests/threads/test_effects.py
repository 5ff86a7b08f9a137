"""Effects of a served folder: scheduled by tools, endpoints and clients, and run outside of any run."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import new_secret
from server.kit import Api, Json, check_error
from weftline.testing import ServerProcess

from .folders import SMALL, write

_numbers = itertools.count(1)
SCRIPTS = {
    "desk": {"turns": [{"tool_calls": [{"name": "plan", "args": {"number": 7}}]}, {"text": "{{tool_results.0}}"}]}
}
FILES = {
    **SMALL,
    "scripts.json": json.dumps(SCRIPTS),
    "agents/prompts/tone.py": """
prompt = define_prompt(name="tone", model="fast", tool_description="x", prompt="Be kind.", tools=["plan"])
""",
    "agents/tools/plan.py": """
@define_tool(effect="idempotent")
async def plan(state: ThreadState, number: int) -> str:
    '''Plans.'''
    await state.schedule_effect("note", {"text": str(number)})
    return await state.schedule_effect("note", {"text": "late"}, delay_ms=86_400_000)
""",
    "agents/effects/note.py": """
@define_effect
async def note(state: ThreadState, text: str, times: int = 1) -> str:
    '''Notes a text.'''
    noted = await state.get_value("noted") or []
    assert state.execution is None and state.idempotency_key.startswith("eff_")
    await state.set_value("noted", [*noted, text * times])
    return "nobody reads this"
""",
    "agents/effects/plainly.py": """
@define_effect
def plainly(state: SyncThreadState) -> None:
    '''Notes that it ran in a thread.'''
    import threading
    state.set_value("thread", threading.current_thread() is not threading.main_thread())
""",
    "agents/effects/fails.py": """
@define_effect
async def fails(state: ThreadState) -> None:
    '''Fails.'''
    raise ValueError("no " + await state.env("KEY"))
""",
    "agents/effects/slow.py": """
import asyncio

@define_effect(timeout_s=0.05)
async def slow(state: ThreadState) -> None:
    '''Takes too long.'''
    await asyncio.Event().wait()
""",
    "agents/effects/waits.py": """
import asyncio

@define_effect
async def waits(state: ThreadState) -> None:
    '''Never ends.'''
    await state.set_value("begun", True)
    await asyncio.Event().wait()
""",
    "agents/effects/dies.py": """
import os, signal

@define_effect
async def dies(state: ThreadState) -> None:
    '''Kills the server.'''
    await state.set_value("deaths", (await state.get_value("deaths") or 0) + 1)
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "agents/api/plan.post.py": """
@define_thread_endpoint
async def plan(request, state, params):
    said = await request.json()
    try:
        return await state.schedule_effect(said["name"], said.get("args"), delay_ms=said.get("delay", 0))
    except Exception as error:
        return type(error).__name__
""",
    "agents/api/listed.py": """
@define_thread_endpoint
def listed(request, state, params):
    return state.get_scheduled_effects(request.query.get("name"))
""",
    "agents/api/cancel/[id].delete.py": """
@define_thread_endpoint
async def cancel(request, state, params):
    return await state.remove_scheduled_effect(params["id"])
""",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("folder") / "desk", FILES)


@pytest.fixture(scope="module")
def serving(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("served"), arguments=(str(desk),)) as running:
        yield running


@pytest.fixture
async def api(serving: ServerProcess) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(serving, http, f"team-{next(_numbers)}")


def joined(server: ServerProcess, http: aiohttp.ClientSession, slug: str) -> Api:
    return Api(http, server.url, slug, new_secret(server.db, slug, name="test"))


async def thread(api: Api) -> str:
    made = await api.post("threads", {"agentId": "tone", "env": {"KEY": "secret-1234"}})
    assert made.status == 201, made.body
    return f"threads/{made.json['id']}"


async def schedule(api: Api, thread: str, name: str, **given: Any) -> str:
    made = await api.post(f"{thread}/effects", {"name": name, **given})
    assert made.status == 201, made.body
    return made.json["id"]


async def listed(api: Api, thread: str, query: str = "") -> list[Json]:
    return (await api.get(f"{thread}/effects{query}")).json["effects"]


async def settled(api: Api, thread: str, id: str) -> Json:
    """The effect once it is over."""
    async with asyncio.timeout(60):
        while True:
            shown = (await api.get(f"{thread}/effects/{id}")).json
            if shown["status"] not in ("pending", "running"):
                return shown


async def value(api: Api, thread: str, key: str) -> Any:
    found = await api.get(f"{thread}/values/{key}")
    return found.json["value"] if found.status == 200 else None


@pytest.mark.requirement("thread.effect.schedule")
async def test_effect_that_a_tool_schedules_runs_with_its_arguments(api: Api) -> None:
    made = await thread(api)
    run = await api.send(made.removeprefix("threads/"))
    await api.events(run)
    late = (await api.snapshot(run))["finalText"]
    [later, now] = await listed(api, made)
    assert (await settled(api, made, now["id"]))["status"] == "executed"
    assert await value(api, made, "noted") == ["7"]
    assert (later["id"], later["status"], later["args"]) == (late, "pending", {"text": "late", "times": 1})
    assert (await settled(api, made, await schedule(api, made, "plainly")))["status"] == "executed"
    assert await value(api, made, "thread") is True


BAD = [
    ({"name": "nothing"}, 404, "not_found", "NotFound"),
    ({"name": "note"}, 400, "invalid_request", "InvalidRequest"),
    ({"name": "note", "args": {"text": 1}}, 400, "invalid_request", "InvalidRequest"),
    ({"name": "note", "args": {"text": "a", "more": 1}}, 400, "invalid_request", "InvalidRequest"),
    ({"name": "note", "args": {"text": "a"}, "delay": -1}, 400, "invalid_request", "InvalidRequest"),
    ({"name": "note", "args": {"text": "a"}, "delay": 1.5}, 400, "invalid_request", "InvalidRequest"),
]


@pytest.mark.requirement("thread.effect.validate")
@pytest.mark.parametrize(("body", "status", "code", "error"), BAD)
async def test_what_cannot_run_is_refused_when_it_is_scheduled(
    api: Api, body: Json, status: int, code: str, error: str
) -> None:
    made = await thread(api)
    sent = {**body, "delayMs": body.get("delay", 0)}
    sent.pop("delay", None)
    check_error(await api.post(f"{made}/effects", sent), status, code)
    assert (await api.post(f"{made}/plan", body)).json == error
    assert await listed(api, made) == []


@pytest.mark.requirement("thread.effect.list")
async def test_effects_are_listed_for_clients_and_handlers(api: Api) -> None:
    made = await thread(api)
    args = {"text": "a"}
    first = await schedule(api, made, "note", args=args, delayMs=3_600_000)
    second = await schedule(api, made, "plainly", delayMs=3_600_000)
    assert [one["id"] for one in await listed(api, made)] == [second, first]
    assert [one["id"] for one in await listed(api, made, "?name=note")] == [first]
    assert await listed(api, made, "?status=failed") == []
    page = (await api.get(f"{made}/effects?limit=1")).json
    assert [one["id"] for one in page["effects"]] == [second]
    [last] = await listed(api, made, f"?limit=1&cursor={page['nextCursor']}")
    assert last["id"] == first
    [seen] = (await api.get(f"{made}/listed?name=note")).json
    assert (seen["id"], seen["name"], seen["args"]) == (first, "note", {"text": "a", "times": 1})
    assert seen["status"] == "pending" and seen["scheduledAt"] - seen["createdAt"] == 3_600_000_000
    other = await thread(api)
    assert await listed(api, other) == [] and (await api.get(f"{other}/listed")).json == []
    check_error(await api.get(f"{other}/effects/{first}"), 404, "not_found")


@pytest.mark.requirement("thread.effect.cancel")
async def test_only_a_pending_effect_can_be_cancelled(api: Api) -> None:
    made, other = await thread(api), await thread(api)

    async def cancelled(id: str, *, of: str = made) -> bool:
        return (await api.call("DELETE", f"{of}/cancel/{id}")).json

    waiting = await schedule(api, made, "note", args={"text": "a"}, delayMs=300)
    assert not await cancelled(waiting, of=other)
    assert await cancelled(waiting) and not await cancelled(waiting)
    done = await schedule(api, made, "plainly")
    await settled(api, made, done)
    running = await schedule(api, made, "waits")
    async with asyncio.timeout(60):
        while not await value(api, made, "begun"):
            pass
    assert [await cancelled(one) for one in (done, running, "eff_nothing")] == [False] * 3
    check_error(await api.call("DELETE", f"{made}/effects/eff_nothing"), 404, "not_found")
    assert (await api.call("DELETE", f"{made}/effects/{running}")).json == {"canceled": False}
    last = await schedule(api, made, "note", args={"text": "b"}, delayMs=60_000)
    assert (await api.call("DELETE", f"{made}/effects/{last}")).json == {"canceled": True}
    await asyncio.sleep(0.4)
    assert await value(api, made, "noted") is None
    assert {one["status"] for one in await listed(api, made)} == {"canceled", "executed", "running"}


async def test_effect_that_fails_or_takes_too_long_says_so(api: Api) -> None:
    made = await thread(api)
    failed = await settled(api, made, await schedule(api, made, "fails"))
    assert (failed["status"], failed["error"]) == ("failed", "ValueError: no [redacted]")
    slow = await settled(api, made, await schedule(api, made, "slow"))
    assert (slow["status"], slow["error"]) == ("failed", "TimeoutError: it took longer than 0.05 s")


async def test_request_with_a_key_schedules_once(api: Api) -> None:
    made = await thread(api)
    body, once = {"name": "note", "args": {"text": "a"}, "delayMs": 60_000}, {"Idempotency-Key": "k"}
    first, again = [await api.post(f"{made}/effects", body, headers=once) for _ in range(2)]
    assert first.json["id"] == again.json["id"]
    other = await api.post(f"{made}/effects", {**body, "delayMs": 0}, headers=once)
    check_error(other, 409, "idempotency_conflict")
    said = {"name": "note", "args": {"text": "b"}, "delay": 60_000}
    ids = [(await api.post(f"{made}/plan", said, headers=once)).json for _ in range(2)]
    assert ids[0] == ids[1] and len(await listed(api, made)) == 2


async def test_end_of_thread_cancels_what_is_pending(api: Api) -> None:
    made = await thread(api)
    await schedule(api, made, "note", args={"text": "a"}, delayMs=60_000)
    await api.call("DELETE", made)
    assert [one["status"] for one in await listed(api, made)] == ["canceled"]
    check_error(await api.post(f"{made}/effects", {"name": "plainly"}), 409, "thread_ended")


@pytest.mark.requirement("thread.effect.apart")
async def test_slow_effects_of_a_workspace_hold_up_no_others(api: Api, serving: ServerProcess) -> None:
    made = await thread(api)
    for _ in range(12):
        await schedule(api, made, "waits")
    other = joined(serving, api.http, f"team-{next(_numbers)}")
    elsewhere = await thread(other)
    assert (await settled(other, elsewhere, await schedule(other, elsewhere, "plainly")))["status"] == "executed"
    run = await api.send(made.removeprefix("threads/"))
    await api.events(run)
    assert (await api.snapshot(run))["status"] == "succeeded"
    statuses = [one["status"] for one in await listed(api, made, "?name=waits")]
    assert (statuses.count("running"), statuses.count("pending")) == (8, 4)


@pytest.mark.requirement("thread.effect.restart")
async def test_effects_run_after_the_process_died_and_the_one_that_kills_it_does_not(
    desk: Path, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, arguments=(str(desk),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            made = await thread(api)
            due = await schedule(api, made, "note", args={"text": "a"}, delayMs=1_500)
            waiting = await schedule(api, made, "waits")
            with suppress(aiohttp.ClientError):
                deadly = await schedule(api, made, "dies")
            for _ in range(3):
                assert await asyncio.to_thread(server.wait) < 0
                server.start()
            api = Api(http, server.url, "acme", api.key)
            [deadly] = [one["id"] for one in await listed(api, made, "?name=dies")]
            dead = await settled(api, made, deadly)
            assert (dead["status"], dead["error"].partition(":")[0]) == ("failed", "worker_error")
            assert await value(api, made, "deaths") == 3
            assert (await settled(api, made, due))["status"] == "executed"
            assert await value(api, made, "noted") == ["a"]
            assert (await api.get(f"{made}/effects/{waiting}")).json["status"] == "running"
