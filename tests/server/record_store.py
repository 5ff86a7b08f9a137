"""Writes a store of this version for later ones to open: `python tests/server/record_store.py`.

It is a backup made with `weftline backup`, packed. A released version's file is never written again.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

STORES = Path(__file__).parents[1] / "fixtures" / "stores"
SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "You said: {{user_messages}}"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "lookup", "args": {}}]}, {"text": "{{all_tool_results}}"}]},
}


async def record(folder: Path) -> Path:
    """A store with an ended run, a session of one exchange, and two runs that wait for their clients."""
    from server.kit import Api, local_tool
    from weftline.testing import ServerProcess

    backup = folder / "backup"
    with ServerProcess(folder, scripts=SCRIPTS) as server:
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", server.create_key())
            await api.events(await api.start("hello", prompt="one", metadata={"kind": "ended"}))
            session = await api.session("hello", metadata={"kind": "talk"})
            await api.events(await api.send(session, "two"))
            for kind in ("waits", "waits too"):
                run = await api.start("ask", tools=[local_tool()], metadata={"kind": kind})
                async with api.stream(run) as stream:
                    await stream.until("local_tool_call")
        command = ["backup", str(backup), "--db", str(server.db)]
        await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "weftline", *command], check=True)
    return backup


def main() -> None:
    from weftline import __version__

    with tempfile.TemporaryDirectory() as folder:
        backup = asyncio.run(record(Path(folder)))
        with tarfile.open(STORES / f"v{__version__}.tar.xz", "w:xz") as packed:
            packed.add(backup, arcname="store")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
