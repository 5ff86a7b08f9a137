"""Orders, and a bank: a file with a line for each payment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

_ORDERS = {"1001": "2 tins of Assam, 31.00 EUR, delivered broken"}


def find(number: str) -> str:
    return _ORDERS.get(number, f"There is no order {number}.")


def pay(ledger: str, order: str, cents: int, *, once: str) -> str:
    """Pays, and returns the receipt. With DESK_DIES the process dies when it has paid, as in the demo."""
    line = json.dumps({"order": order, "cents": cents, "key": once})
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    if os.environ.get("DESK_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return line


def payment_for(ledger: str, order: str) -> str | None:
    path = Path(ledger)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line for line in lines if json.loads(line)["order"] == order), None)
