"""`make demo ARGS=desk`: a folder of agents is served, dies in the middle of a payment, and pays once.

Everything is real but the model, which plays `desk/scripts.json`, and the bank, which is a file.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from weftline.testing import ServerProcess

FOLDER = Path(__file__).parent / "desk"
PATIENCE_S = 120


class Desk:
    """The server of the folder, and what the demo asks of it."""

    def __init__(self, folder: Path) -> None:
        self.bank = folder / "bank.jsonl"
        self.server = ServerProcess(folder, arguments=(str(FOLDER),))
        self.key = ""

    def start(self, **env: str) -> None:
        self.server.start(env=env)
        self.key = self.key or self.server.create_key("demo")

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        request = urllib.request.Request(
            f"{self.server.url}/api/v1/workspaces/demo/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self.key}", "content-type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read())


def play(desk: Desk) -> None:
    desk.start(DESK_DIES="1")
    thread = desk.ask("POST", "threads", {"agentId": "triage", "userId": "ann", "env": {"LEDGER": str(desk.bank)}})[
        "id"
    ]
    print(f"thread    {thread} for ann")
    message, once = {"prompt": "Order 1001 came broken."}, {"idempotency-key": "first"}
    print("ann       Order 1001 came broken.")
    run = ""
    with suppress(OSError):
        run = desk.ask("POST", f"agent-sessions/{thread}/messages", message, **once)["runId"]
    desk.server.wait()
    print(f"killed    the server, while it paid: {len(desk.bank.read_text().splitlines())} payment, no receipt")
    desk.start()
    run = desk.ask("POST", f"agent-sessions/{thread}/messages", message, **once)["runId"]
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{desk.server.url}/api/v1/workspaces/demo/agent-runs/{run}/stream",
            headers={"authorization": f"Bearer {desk.key}"},
        ),
        timeout=PATIENCE_S,
    ) as events:
        events.read()
    snapshot = desk.ask("GET", f"agent-runs/{run}")
    print(f"triage    {snapshot['finalText']}")
    status = desk.ask("GET", f"threads/{thread}/status")
    print(f"status    {json.dumps(status)}")
    payments = [json.loads(line) for line in desk.bank.read_text().splitlines()]
    print(f"bank      {len(payments)} payment of {payments[0]['cents'] / 100:.2f} EUR for order {payments[0]['order']}")
    if len(payments) != 1 or status != {"refunded": "1001", "receipts": 1}:
        sys.exit("A promise was broken.")
    print("Nothing was repeated.")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="weftline-desk-"))
    desk = Desk(folder)
    try:
        play(desk)
    finally:
        desk.server.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
