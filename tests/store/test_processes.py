"""Real processes that own a store, are killed, and are followed by others (S2, S7, S8, E6, E10)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from weftline.errors import StoreError
from weftline.store import open_for_reading
from weftline.store.sqlite.store import SqliteStore

from .kit import TIMEOUT_S, line, owned, process

WRITES_UNTIL_KILLED = """
import asyncio, sys
from weftline.store import open_store
from weftline.testing.store import Chain
async def main():
    log = open_store(sys.argv[1]).log
    chain = Chain(1, 1, epoch=log.next_epoch())
    for n in range(100_000):
        write = chain.create(body=b"0") if n == 0 else chain.append(b"%d" % n)
        assert (await log.flush([write]))[0].outcome == "ok"
        print(n, flush=True)
asyncio.run(main())
"""

WRITES_UNTIL_NO_FILE_MAY_GROW = (
    """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
"""
    + WRITES_UNTIL_KILLED
)

OWNS_WITH_A_CHILD = """
import subprocess, sys
from weftline.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
child = subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)
print("owned", flush=True)
child.wait()
"""

STOPS_WHEN_FENCED = """
import asyncio, sys
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import Chain
async def main():
    store = SqliteStore(sys.argv[1])
    print(store.owner_epoch, flush=True)
    sys.stdin.readline()
    await store.log.flush([Chain(1, 1, epoch=store.log.next_epoch()).create()])
    print("told", flush=True)
asyncio.run(main())
"""


@pytest.mark.requirement("run.log.durable_first")
def test_reported_facts_survive_a_kill(tmp_path: Path) -> None:
    """S2, S8: and the next owner needs no cleaning up."""
    path = tmp_path / "store"
    with owned(path) as store:
        assert store.workspace == 1
    with process(WRITES_UNTIL_KILLED, str(path)) as child:
        told = [int(line(child)) for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        assert child.stdout is not None
        told += [int(rest) for rest in child.stdout if rest.endswith("\n")]
        assert child.wait(TIMEOUT_S) == -signal.SIGKILL
    with owned(path) as store:
        assert store.store.log.unclean
        held = [int(body) for body in store.bodies(1)]
        assert held[: len(told)] == told and len(held) <= len(told) + 1


def test_process_whose_log_cannot_grow_ends_without_losing_reports(tmp_path: Path) -> None:
    """S2, S3, F11: an I/O error of the system itself at COMMIT; no writer goes on after it."""
    path = tmp_path / "store"
    with owned(path):
        pass
    with process(WRITES_UNTIL_NO_FILE_MAY_GROW, str(path)) as child:
        out, errors = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == 70 and "unknown" in errors
    told = [int(number) for number in out.split()]
    with owned(path) as store:
        assert store.store.log.unclean
        held = [int(body) for body in store.bodies(1)]
        assert held[: len(told)] == told and 0 < len(told) <= len(held) <= len(told) + 1


@pytest.mark.parametrize(("point", "held"), [("call.closed:before#3", 3), ("call.closed:after#3", 4)])
def test_a_process_dies_at_the_point_it_was_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, held: int
) -> None:
    """S2: before the third append nothing of it is there; after it is durable, though nobody was told."""
    path = tmp_path / "store"
    with owned(path):
        pass
    monkeypatch.setenv("WEFTLINE_CRASH", point)
    with process(WRITES_UNTIL_KILLED, str(path)) as child:
        out, _ = child.communicate(timeout=TIMEOUT_S)
        assert (child.returncode, out.split()) == (-signal.SIGKILL, ["0", "1", "2"])
    with owned(path) as store:
        assert len(store.bodies(1)) == held


@pytest.mark.requirement("run.engine.one_owner")
def test_second_owner_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    """S8, E6: also while a child of the killed owner lives on."""
    path = tmp_path / "store"
    with process(OWNS_WITH_A_CHILD, str(path)) as child:
        assert line(child) == "owned"
        with pytest.raises(StoreError) as refused:
            SqliteStore(path)
        assert refused.value.code == "store_in_use"
        assert str(child.pid) in refused.value.message and socket.gethostname() in refused.value.message
        assert asyncio.run(unfinished(path)) == 0
        child.send_signal(signal.SIGKILL)
        assert child.wait(TIMEOUT_S) == -signal.SIGKILL
        with owned(path) as store:
            assert store.store.log.unclean


async def unfinished(path: Path) -> int:
    reader = open_for_reading(path)
    try:
        return await reader.log.unfinished()
    finally:
        await reader.close()


def test_a_store_can_be_closed_twice(tmp_path: Path) -> None:
    """S8: the second time it may be another owner's already."""
    first = SqliteStore(tmp_path / "store")
    asyncio.run(first.close())
    with owned(tmp_path / "store") as second:
        asyncio.run(first.close())
        assert second.outcomes(second.chain().create()) == ["ok"]


def test_a_second_owner_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    """S8."""
    with owned(tmp_path / "store") as store:
        with pytest.raises(StoreError) as refused:
            SqliteStore(tmp_path / "store")
        assert (refused.value.code, str(os.getpid()) in refused.value.message) == ("store_in_use", True)
        assert store.outcomes(store.chain().create()) == ["ok"]


def test_a_store_knows_whether_it_was_left_cleanly(tmp_path: Path) -> None:
    """S8: and each owner has a higher epoch, one store one id."""
    seen: list[tuple[bool, int]] = []
    ids: set[str] = set()
    for _ in range(3):
        store = SqliteStore(tmp_path / "store")
        seen.append((store.log.unclean, store.owner_epoch))
        ids.add(store.log.id)
        asyncio.run(store.close())
    assert seen == [(False, 1), (False, 2), (False, 3)]
    assert len(ids) == 1


def test_the_owner_is_announced_with_its_socket(tmp_path: Path) -> None:
    """S8."""
    with owned(tmp_path / "store") as store:
        store.store.announce(socket="/run/w.sock")
        owner = json.loads((tmp_path / "store" / "lock").read_bytes())
        assert owner == {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "socket": "/run/w.sock",
            "store": store.store.log.id,
        }


def test_a_process_that_lost_the_store_ends_and_tells_nobody(tmp_path: Path) -> None:
    """S7: the default way to stop is to end the process at once, with a status that says so."""
    path = tmp_path / "store"
    with owned(path):
        pass
    with process(STOPS_WHEN_FENCED, str(path)) as child:
        assert line(child) == "2"
        (path / "lock").unlink()
        with owned(path) as store:
            assert store.store.owner_epoch == 3
            out, _ = child.communicate("go\n", timeout=TIMEOUT_S)
            assert (child.returncode, out) == (70, "")
            assert store.bodies(1) == []
