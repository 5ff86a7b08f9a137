"""What is kept of a run's log in memory, and for whom."""

from __future__ import annotations

from weftline.runtime.engine import EntryBatch
from weftline.runtime.hub import Hub
from weftline.store.memory import MemoryStore
from weftline.store.rows import Item


def batch(seq: int, *, ended: bool = False) -> EntryBatch:
    return EntryBatch("run_1", [Item(0, "note", b"{}", b"", seq=seq)], size=10, last_seq=seq, ended=ended)


def hub_with_a_run() -> Hub:
    hub = Hub(MemoryStore().log)
    hub.publish(1, batch(1), workspace=7)
    hub.publish(1, batch(2, ended=True), workspace=7)
    return hub


async def test_new_run_stays_in_memory_until_it_is_read() -> None:
    hub = hub_with_a_run()
    reader = hub.follow(1, "run_1", after=0, workspace=7)
    found = await reader.next()
    assert found is not None and [one.last_seq for one in found] == [1, 2]
    assert await reader.next() is None
    assert hub.owner(1) == ("run_1", 7)
    reader.close()
    assert hub.owner(1) is None


async def test_a_reader_that_goes_away_leaves_the_run_to_others() -> None:
    hub = hub_with_a_run()
    hub.follow(1, "run_1", after=0, workspace=7).close()
    assert hub.owner(1) == ("run_1", 7)


async def test_a_server_that_stops_has_not_shown_everything() -> None:
    hub = Hub(MemoryStore().log)
    hub.publish(1, batch(1), workspace=7)
    reader = hub.follow(1, "run_1", after=0, workspace=7)
    await reader.next()
    hub.end_all()
    assert await reader.next() is None
    reader.close()
    assert hub.owner(1) == ("run_1", 7)


async def test_stream_that_is_opened_while_server_stops_ends_like_others() -> None:
    hub = Hub(MemoryStore().log)
    hub.publish(1, batch(1), workspace=7)
    hub.end_all()
    late = hub.follow(1, "run_1", after=0, workspace=7)
    found = await late.next()
    assert found is not None and [one.last_seq for one in found] == [1]
    assert await late.next() is None
    await hub.until_ended(1, "run_1", after=1)
