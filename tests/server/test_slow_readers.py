"""A reader that does not keep up: nothing is read ahead for it, little is kept, and it gets every byte once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.api.snapshots import projection_of
from weftline.config import Config
from weftline.events.classes import AnyEvent, RunStarted
from weftline.events.frames import ProfiledFrames
from weftline.events.wire import TYPES
from weftline.kernel.notes import TEXT_DELTA
from weftline.messages import User
from weftline.net.transport import AiohttpTransport
from weftline.plan import RunPlan
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import parse_scripts
from weftline.runtime.engine import EntryBatch, OwnedEngine
from weftline.runtime.hub import PAGE_BYTES, QUEUE_BYTES, Hub
from weftline.runtime.ids import parse
from weftline.runtime.new_engine import new_engine
from weftline.server.corked import WRITE_BYTES, Corked
from weftline.server.http import FLOW, Request
from weftline.server.sse import Backlog, View, profiled, send_events, view_with
from weftline.store.memory import MemoryStore
from weftline.store.rows import Item, Page
from weftline.trace_context import RequestInfo

TIMEOUT_S = 60
_WORDS = b'", "'.join(b"word %d" % number for number in range(4000))
SCRIPTS = b'{"long": {"turns": [{"deltas": ["%s"]}]}, "short": {"turns": [{"text": "Hi."}]}}' % _WORDS


class Client:
    """Takes bytes until `room` is used up, then none until there is room again."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.got = bytearray()
        self.ended = False
        self.write_paused = False
        self.paused = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def send(self, message: Any) -> None:
        body: bytes = message.get("body", b"")
        self.got += body
        self.room -= len(body)
        self.ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self.room <= 0 and not self.ended:
            self.write_paused = True
            self.paused.set()
            self._writable.clear()

    async def drain(self) -> None:
        await self._writable.wait()

    def take(self, room: int) -> None:
        self.room = room
        self.write_paused = False
        self.paused.clear()
        self._writable.set()

    async def receive(self) -> Any:
        await asyncio.get_running_loop().create_future()

    def request(self) -> Request:
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], FLOW: self}
        return Request(scope, self.receive, self.send, RequestInfo("req_1"))


class Reads:
    """Counts the pages that are read from the log."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        page = store.log.page

        async def counted(key: int, *, after: int, max_bytes: int) -> Page | None:
            self.count += 1
            return await page(key, after=after, max_bytes=max_bytes)

        monkeypatch.setattr(store.log, "page", counted)


class World:
    """An engine with one run of some thousand events that has ended."""

    def __init__(self, engine: OwnedEngine, store: MemoryStore, run_id: str) -> None:
        self.engine = engine
        self.store = store
        self.run_id = run_id
        parsed = parse(run_id, prefix="run_")
        assert parsed is not None
        self.key = parsed[0]

    def stream(self, client: Client, backlog: Backlog, view: View | None = None) -> asyncio.Task[None]:
        follower = self.engine.follow(self.key, self.run_id)
        sending = send_events(client.request(), self.engine, self.key, follower, backlog, view=view or view_with(None))
        return asyncio.create_task(sending)

    async def whole(self) -> bytes:
        client = Client(2**60)
        await self.stream(client, Backlog())
        return bytes(client.got)


@asynccontextmanager
async def new_world() -> AsyncGenerator[World]:
    transport = AiohttpTransport()
    models = Config().catalog(transport=transport, scripted=ScriptedProvider(parse_scripts(SCRIPTS)))
    store = MemoryStore()
    plan = RunPlan(model="scripted:long", messages=(User.of("go"),))
    async with new_engine(store, models=models) as engine:
        run_id = await engine.create(await engine.workspace("acme"), plan)
        it = World(engine, store, run_id)
        await it.whole()
        yield it
    await transport.aclose()


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with new_world() as it:
        yield it


@pytest.mark.requirement("run.log.read")
async def test_server_reads_nothing_from_clients_that_do_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, backlog, client = Reads(world.store, monkeypatch), Backlog(0), Client(10_000)
    sending = world.stream(client, backlog)
    for _ in range(20):
        await asyncio.wait_for(client.paused.wait(), TIMEOUT_S)
        before, got = reads.count, len(client.got)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (reads.count, len(client.got), backlog.held) == (before, got, 0)
        client.take(1)
        await asyncio.sleep(0)
    client.take(2**60)
    await asyncio.wait_for(sending, TIMEOUT_S)
    assert client.got == await world.whole()


async def test_buffers_of_slow_clients_are_bounded_together(world: World) -> None:
    backlog = Backlog(300_000)
    clients = [Client(5000) for _ in range(50)]
    sending = [world.stream(client, backlog) for client in clients]
    for client in clients:
        await asyncio.wait_for(client.paused.wait(), TIMEOUT_S)
    assert 0 < backlog.held <= backlog.max_bytes
    whole = await world.whole()
    for client in clients:
        client.take(2**60)
    await asyncio.wait_for(asyncio.gather(*sending), TIMEOUT_S)
    assert backlog.held == 0
    assert all(client.got == whole for client in clients)


@given(rooms=st.lists(st.integers(1, 60_000), min_size=1, max_size=40), budget=st.sampled_from([0, 20_000, 10**9]))
def test_however_client_stops_and_goes_on_it_gets_same_bytes(rooms: list[int], budget: int) -> None:
    async def read() -> None:
        async with new_world() as world:
            client = Client(rooms[0])
            sending = world.stream(client, Backlog(budget))
            for room in [*rooms[1:], 2**60]:
                waiting = asyncio.create_task(client.paused.wait())
                await asyncio.wait({waiting, sending}, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                client.take(room)
            await asyncio.wait_for(sending, TIMEOUT_S)
            assert client.ended and client.got == await world.whole()

    asyncio.run(read())


def batch(seq: int, size: int) -> EntryBatch:
    item = Item(1, TEXT_DELTA, b"", b"x" * size, seq=seq)
    return EntryBatch("run_1", [item], size=item.size, last_seq=seq, ended=False)


async def test_busy_reader_keeps_a_short_queue() -> None:
    follower = Hub(MemoryStore().log).follow(1, "run_1", after=0)
    follower.behind = False
    waiting = asyncio.create_task(cast("Any", follower.next()))
    await asyncio.sleep(0)
    follower.push(batch(1, 10 * QUEUE_BYTES))
    assert [one.last_seq for one in await waiting] == [1]
    follower.push(batch(2, QUEUE_BYTES // 2))
    assert not follower.behind
    follower.push(batch(3, QUEUE_BYTES))
    assert follower.behind and follower.last_seq == 1


async def test_rewinding_reader_remembers_the_server_end() -> None:
    follower = Hub(MemoryStore().log).follow(1, "run_1", after=0)
    follower.behind = False
    follower.push(batch(1, 10))
    assert await follower.next() is not None
    follower.end()
    follower.rewind(0)
    assert await follower.next() is None


@pytest.mark.parametrize("kind", ["plain", "profiled"])
async def test_frames_stay_with_batch_only_if_other_streams_have_them(world: World, kind: str) -> None:
    engine, batches, shown = world.engine, list[EntryBatch](), list[AnyEvent]()

    def show(event: AnyEvent) -> AnyEvent:
        shown.append(event)
        return event

    leave = engine.observe(batches.append)
    plan = RunPlan(model="scripted:short", messages=(User.of("go"),))
    run = World(engine, world.store, await engine.create(await engine.workspace("acme"), plan))
    common, clients, streams = view_with(show), [Client(2**60) for _ in range(3)], list[asyncio.Task[None]]()
    for client in clients:
        view = common
        if kind == "profiled":
            view = profiled(ProfiledFrames(await projection_of(engine, run.key, run.run_id), TYPES, show=show))
        streams.append(run.stream(client, Backlog(), view))
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*streams)
    leave()
    assert clients[0].got == clients[1].got == clients[2].got
    assert sum(isinstance(event, RunStarted) for event in shown) == (1 if kind == "plain" else 3)
    assert [len(batch.views) for batch in batches] == [1 if kind == "plain" else 0] * len(batches)


async def test_rows_of_log_are_no_larger_than_page_of_it(world: World) -> None:
    page = await world.store.log.page(world.key, after=0, max_bytes=2**30)
    assert page is not None and len(page.items) > 3
    assert max(item.size for item in page.items if not item.head) <= PAGE_BYTES


class Transport:
    def __init__(self) -> None:
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, *, high: int) -> None: ...


async def test_small_writes_are_merged_and_large_ones_not_delayed() -> None:
    transport = Transport()
    corked = Corked(cast("asyncio.Transport", transport), asyncio.get_running_loop(), stall_timeout_s=300)
    for _ in range(3):
        corked.write(b"x" * 10)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [30]
    for _ in range(100):
        corked.write(b"x" * (WRITE_BYTES // 4))
    assert sum(transport.writes) == 30 + 100 * (WRITE_BYTES // 4)
