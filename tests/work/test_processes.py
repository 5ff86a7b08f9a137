"""Work that takes too much is ended, and everything after it goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from weftline.work.processes import GaveUp, Workers
from weftline.work.turns import on_behalf_of

from . import jobs

HERE = jobs.__name__


@pytest.fixture
def workers() -> Workers:
    return Workers(max_processes=1, cpu_s=0.3, idle_s=1.0)


async def test_a_job_returns_what_its_function_does(workers: Workers) -> None:
    assert await workers.run(f"{HERE}:upper", b"abc") == b"ABC"
    large = b"x" * 3_000_000
    assert await workers.run(f"{HERE}:upper", large) == large.upper()


@pytest.mark.parametrize("job", ["spin", "spin_in_a_library", "hoard", "die", "fail"])
async def test_costly_job_is_given_up_and_the_next_one_runs(workers: Workers, job: str) -> None:
    with pytest.raises(GaveUp):
        await workers.run(f"{HERE}:{job}", b"x")
    assert await workers.run(f"{HERE}:upper", b"abc") == b"ABC"


async def test_the_loop_goes_on_meanwhile(workers: Workers) -> None:
    spinning = asyncio.ensure_future(workers.run(f"{HERE}:spin_in_a_library", b""))
    turns = 0
    while not spinning.done():
        await asyncio.wait({spinning}, timeout=0.001)
        turns += 1
    assert turns > 10
    assert isinstance(spinning.exception(), GaveUp)


async def test_owners_take_turns(workers: Workers, tmp_path: Path) -> None:
    done: list[int] = []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def ask(owner: int, job: str, argument: bytes = b"x") -> None:
        on_behalf_of.set(owner)
        await workers.run(f"{HERE}:{job}", argument)
        done.append(owner)

    flood = [asyncio.create_task(ask(1, "wait_for", bytes(pipe)))]  # nothing else is done before it
    flood += [asyncio.create_task(ask(1, "upper")) for _ in range(20)]
    await asyncio.sleep(0)
    late = asyncio.create_task(ask(2, "upper"))
    await asyncio.sleep(0)
    await asyncio.to_thread(pipe.write_bytes, b"x")
    await asyncio.gather(*flood, late)
    assert done.index(2) < 5


async def test_one_owner_leaves_a_process_to_the_others(tmp_path: Path) -> None:
    workers = Workers(max_processes=2, idle_s=1.0)
    pipes = [tmp_path / name for name in ("a", "b", "c")]
    for pipe in pipes:
        os.mkfifo(pipe)

    async def ask(owner: int, job: str, argument: bytes) -> bytes:
        on_behalf_of.set(owner)
        return await workers.run(f"{HERE}:{job}", argument)

    held = [asyncio.create_task(ask(1, "wait_for", bytes(pipe))) for pipe in pipes]
    async with asyncio.timeout(60):
        for _ in range(3):  # more than the processes that are left, one after the other
            assert await ask(2, "upper", b"abc") == b"ABC"
        assert not any(task.done() for task in held)
        for pipe in pipes:  # whose other end is opened when the job's turn has come
            await asyncio.to_thread(pipe.write_bytes, b"x")
        assert await asyncio.gather(*held) == [b"x", b"x", b"x"]
        assert await ask(1, "upper", b"abc") == b"ABC"


async def test_job_that_nobody_waits_for_any_more_is_not_begun(workers: Workers) -> None:
    first = asyncio.create_task(workers.run(f"{HERE}:spin", b""))
    await asyncio.sleep(0)
    second = asyncio.create_task(workers.run(f"{HERE}:spin", b""))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(GaveUp):
        await first
    assert await workers.run(f"{HERE}:upper", b"abc") == b"ABC"
    assert second.cancelled()


async def test_nothing_of_the_servers_environment_goes_along(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    names = (await workers.run(f"{HERE}:environment", b"")).decode().split()
    assert "OPENAI_API_KEY" not in names and "OPENAI_API_KEY" in os.environ
