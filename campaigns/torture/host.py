"""The server under torture: one process after another on the same store and the same port."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Literal

from campaigns.torture.ledger import Ledger, Life, now_us
from campaigns.torture.tools import SOURCE
from campaigns.torture.volume import Volume
from weftline.testing.process import ServerProcess

_DRAIN_S = 2
_STOP_S = 90.0
_IO_ERROR = 70
"""The exit code of a server after a commit whose outcome on the disk is unknown."""
_CONFIG = """
[providers.fake]
family = "openai_chat"
base_url = "{address}/v1"
api_key = "env:TORTURE_KEY"
models = ["torture"]
max_concurrency = 1000

[server]
allow_private_egress = true
webhook_retry_s = [{waits}]
"""


class Host:
    """Everything that happens to the process goes through here, so that the ledger knows each of its lives."""

    def __init__(self, folder: Path, ledger: Ledger, volume: Volume, *, outside: str) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.volume = volume
        self._ledger = ledger
        waits = ", ".join(["0.1", "0.2", "0.5"] + ["1"] * 47)
        self.process = ServerProcess(
            folder,
            tools=SOURCE,
            config=_CONFIG.format(address=outside, waits=waits),
            env={"TORTURE_NOTES": str(self.notes)},
            arguments=("--drain", str(_DRAIN_S), "--log-level", "warning"),
        )
        self.process.db = volume.folder / "store"
        self.log: list[str] = []

    @property
    def running(self) -> bool:
        return self.process.running

    async def start(self) -> bool:
        """Starts the next process. Returns False if it was killed before it was ready."""
        life = Life(len(self._ledger.lives) + 1, now_us())
        self._ledger.lives.append(life)
        try:
            await asyncio.to_thread(self.process.start, env=self._env(life))
        except RuntimeError as error:
            if life.how != "killed":
                self._ledger.fault(f"life {life.number} did not start: {error}")
                self.over("died")
            return False
        return True

    def _env(self, life: Life) -> dict[str, str]:
        return {"TORTURE_LIFE": str(life.number), "TORTURE_KEY": f"life-{life.number}"}

    async def kill(self) -> None:
        life = self._ledger.life
        life.how = "killed"
        await asyncio.to_thread(self.process.kill)
        self.over("killed")

    async def stop(self, *, twice: bool = False) -> None:
        """SIGTERM; the process must end on its own, and cleanly."""
        os.kill(self.process.pid, signal.SIGTERM)
        if twice:
            await asyncio.sleep(0.05)
            if self.process.running:
                os.kill(self.process.pid, signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self.process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self._ledger.fault(f"life {self._ledger.life.number} did not stop on SIGTERM")
            await self.kill()
            return
        if code != 0:
            self._ledger.fault(f"life {self._ledger.life.number} ended with {code} on SIGTERM")
        self.over("stopped")

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    async def second(self) -> None:
        """Checks that another server on the same store is rejected while this one is alive."""
        life = self._ledger.life
        command = [sys.executable, "-m", "weftline", "serve", "--db", str(self.process.db), "--port", "0"]
        other = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **self._env(life)}
        )
        try:
            async with asyncio.timeout(_STOP_S):
                _, output = await other.communicate()
        except TimeoutError:
            other.kill()
            await other.wait()
            self._ledger.fault("a second server on the same store was not refused")
            return
        if other.returncode == 0 or b"in use" not in output:
            self._ledger.fault(f"a second server ended with {other.returncode}: {output[-300:]!r}")

    async def died_within(self, seconds: float) -> bool:
        """Whether the process ends on its own in that time, which is allowed only on a full disk."""
        try:
            code = await asyncio.to_thread(self.process.wait, seconds)
        except subprocess.TimeoutExpired:
            return False
        life = self._ledger.life
        if code != _IO_ERROR or not life.full:
            output = "".join(list(self.process.log)[-20:])
            self._ledger.fault(f"life {life.number} ended by itself with {code}: {output}")
        self.over("died")
        return True

    def over(self, how: Literal["killed", "stopped", "died"]) -> None:
        """Called when the process has ended: its life is closed, and its log output is examined."""
        life = self._ledger.life
        life.how = how
        life.ended_us = now_us()
        output, self.process.log = list(self.process.log), deque(maxlen=self.process.log.maxlen)
        self.log += output
        for number, line in enumerate(output):
            if line.startswith("Traceback"):
                excerpt = "".join(output[max(0, number - 2) : number + 30])
                self._ledger.fault(f"life {life.number} was surprised: {excerpt}")
                return  # one of them is enough
