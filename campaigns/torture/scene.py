"""The whole scene: sets everything up, lets it go wrong for a while, waits until all is settled, and compares."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from pathlib import Path
from random import Random

from aiohttp import web

from campaigns.torture.check_hooks import undelivered
from campaigns.torture.clients import Clients
from campaigns.torture.evidence import Evidence
from campaigns.torture.host import Host
from campaigns.torture.ledger import Ledger
from campaigns.torture.logs import read_logs
from campaigns.torture.mishaps import Mishaps
from campaigns.torture.model import FakeModel
from campaigns.torture.orders import order
from campaigns.torture.receivers import Receivers
from campaigns.torture.tools import executions
from campaigns.torture.volume import Volume

_SETTLE_S = 300.0
_WORKSPACE = "acme"


class Scene:
    """One torture in `folder`, with `load` orders at a time. `keep` leaves a copy of the store there."""

    def __init__(self, folder: Path, *, seed: int, load: int = 16, keep: bool = False) -> None:
        self._keep = keep
        self._folder = folder
        self._seed = seed
        self._load = load
        self._ledger = Ledger()
        self._numbers = itertools.count(1)
        self._webhooks: list[str] = []
        self._over = False

    async def play(self, *, seconds: float, mishaps: int = 3) -> Evidence:
        """Continues for that time, or for that many mishaps if they take longer, and then until everything is settled.

        Bounded: anything unsettled some minutes after the last mishap is a fault.
        """
        receivers = Receivers(self._ledger, seed=self._seed)
        outside = web.Application()
        outside.add_routes([*FakeModel(self._ledger, seed=self._seed).routes(), *receivers.routes()])
        runner = web.AppRunner(outside, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        disk = self._folder / "disk"
        disk.mkdir()
        volume = Volume(disk)
        host = Host(self._folder, self._ledger, volume, outside=address)
        try:
            if not await host.start():
                return Evidence(self._seed, self._ledger, [], [], [], volume.kind)
            key = await asyncio.to_thread(host.process.create_key, _WORKSPACE)
            clients = Clients(self._ledger, address=host.process.url, workspace=_WORKSPACE, key=key)
            try:
                await self._subscribe(clients, receivers, address)
                await self._suffer(host, clients, receivers, seconds=seconds, mishaps=mishaps)
            finally:
                await clients.close()
            await host.stop()
            logs = await read_logs(host.process.db)
            return Evidence(self._seed, self._ledger, logs, executions(host.notes), self._webhooks, volume.kind)
        finally:
            host.process.close()
            (self._folder / "server.log").write_text("".join(host.log))
            if self._keep:
                shutil.copytree(disk, self._folder / "kept", dirs_exist_ok=True)
            await runner.cleanup()
            volume.close()

    async def _subscribe(self, clients: Clients, receivers: Receivers, address: str) -> None:
        for name in ("one", "two"):
            status, reply = await clients.request("POST", "/webhooks", {"url": f"{address}/hooks/{name}"})
            assert status == 201, reply
            self._webhooks.append(reply["id"])
            receivers.secrets[reply["id"]] = reply["secret"]

    async def _suffer(
        self, host: Host, clients: Clients, receivers: Receivers, *, seconds: float, mishaps: int
    ) -> None:
        until_s = time.monotonic() + seconds
        fate = Mishaps(host, clients, self._ledger, seed=self._seed)
        try:
            async with asyncio.timeout(seconds + _SETTLE_S), asyncio.TaskGroup() as tasks:
                for number in range(self._load):
                    tasks.create_task(self._keep_asking(clients, number))
                await fate.go_on(until_s=until_s, at_least=mishaps)
                self._over = True
            runs = [run for runs in self._ledger.created.values() for run in runs]
            async with asyncio.timeout(_SETTLE_S):
                while undelivered(self._ledger, runs, self._webhooks):
                    receivers.received.clear()
                    await receivers.received.wait()
        except TimeoutError:
            open_ = sorted({view.run for view in self._ledger.views if not view.ended})
            self._ledger.fault(f"not everything settled in time; these runs have not ended: {open_}")

    async def _keep_asking(self, clients: Clients, number: int) -> None:
        random = Random(f"{self._seed}/client/{number}")
        first = True
        while first or not self._over:
            first = False
            count = random.choice((1, 1, 1, 2, 3))
            orders = [order(self._seed, next(self._numbers)) for _ in range(count)]
            if count == 1:
                await clients.run(orders[0])
            else:
                await clients.session(orders)
