"""The whole of it: sets everything up, lets it go wrong for a while, waits until all is settled, and compares."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter
from pathlib import Path
from random import Random

from aiohttp import web
from msgspec import Struct

from weftline.testing.torture.check_hooks import check_hooks, undelivered
from weftline.testing.torture.check_model import check_model
from weftline.testing.torture.check_runs import check_runs
from weftline.testing.torture.check_tools import check_tools
from weftline.testing.torture.clients import Clients
from weftline.testing.torture.host import Host
from weftline.testing.torture.ledger import Ledger
from weftline.testing.torture.logs import RunLog, read_logs
from weftline.testing.torture.mishaps import Mishaps
from weftline.testing.torture.model import FakeModel
from weftline.testing.torture.orders import order
from weftline.testing.torture.receivers import Receivers
from weftline.testing.torture.tools import executions
from weftline.testing.torture.volume import Volume

_SETTLE_S = 300.0
_WORKSPACE = "acme"


class Report(Struct, frozen=True):
    seed: int
    counts: dict[str, int]
    faults: list[str]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", *[f"{count:8}  {name}" for name, count in self.counts.items()]]
        lines += [f"FAULT: {fault}" for fault in self.faults]
        return "\n".join([*lines, f"{len(self.faults)} faults"])


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

    async def play(self, *, seconds: float) -> Report:
        """Bounded: what has not settled some minutes after the last mishap is a fault."""
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
                return self._report([], 0)
            key = await asyncio.to_thread(host.process.create_key, _WORKSPACE)
            clients = Clients(self._ledger, address=host.process.url, workspace=_WORKSPACE, key=key)
            try:
                await self._subscribe(clients, receivers, address)
                await self._suffer(host, clients, receivers, seconds=seconds)
            finally:
                await clients.close()
            await host.stop()
            logs = await read_logs(host.process.db)
            return self._compare(logs, host)
        finally:
            host.process.kill()
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

    async def _suffer(self, host: Host, clients: Clients, receivers: Receivers, *, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        mishaps = Mishaps(host, clients, self._ledger, seed=self._seed)
        try:
            async with asyncio.timeout(seconds + _SETTLE_S), asyncio.TaskGroup() as tasks:
                for number in range(self._load):
                    tasks.create_task(self._keep_asking(clients, number, until_s=until_s))
                await mishaps.go_on(until_s=until_s)
            runs = [run for runs in self._ledger.created.values() for run in runs]
            async with asyncio.timeout(_SETTLE_S):
                while undelivered(self._ledger, runs, self._webhooks):
                    receivers.heard.clear()
                    await receivers.heard.wait()
        except TimeoutError:
            open_ = sorted({view.run for view in self._ledger.views if not view.ended})
            self._ledger.fault(f"not all was settled in time; these runs have not ended: {open_}")

    async def _keep_asking(self, clients: Clients, number: int, *, until_s: float) -> None:
        random = Random(f"{self._seed}/client/{number}")
        while time.monotonic() < until_s:
            count = random.choice((1, 1, 1, 2, 3))
            orders = [order(self._seed, next(self._numbers)) for _ in range(count)]
            if count == 1:
                await clients.run(orders[0])
            else:
                await clients.session(orders)

    def _compare(self, logs: list[RunLog], host: Host) -> Report:
        ledger = self._ledger
        ran = executions(host.notes)
        for fault in itertools.chain(
            check_runs(ledger, logs),
            check_model(ledger, logs),
            check_tools(ledger, logs, ran),
            check_hooks(ledger, logs, self._webhooks),
        ):
            ledger.fault(fault)
        return self._report(logs, len(ran))

    def _report(self, logs: list[RunLog], ran: int) -> Report:
        ledger = self._ledger
        ends = Counter(f"runs {log.row.status}" for log in logs)
        lives = Counter(f"processes {life.how}" for life in ledger.lives)
        counts = {
            **dict(sorted(ends.items())),
            "sessions": len(ledger.sessions),
            "model requests": len(ledger.asked),
            "tool executions": ran,
            "client results accepted": len(ledger.answered),
            "frames read": sum(len(view.frames) for view in ledger.views),
            "webhook deliveries": len(ledger.deliveries),
            **dict(sorted(lives.items())),
            **{f"mishap: {kind}": count for kind, count in sorted(ledger.mishaps.items())},
        }
        return Report(self._seed, counts, ledger.faults)
