"""The server tool of the demo. It notes every payment in a file, so that the demo can count them afterwards."""

from __future__ import annotations

import os

import weftline


@weftline.tool(effect="once")
def pay_baker(cake: str, euros: float, context: weftline.ToolContext) -> str:
    """Pays the baker for a cake. Money moves, so this must never happen twice.

    Args:
        cake: Which cake.
        euros: The price.
    """
    ledger = os.open(os.environ["WEFTLINE_DEMO_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, f"{context.run_id} {context.idempotency_key}\n".encode())
        os.fsync(ledger)
    finally:
        os.close(ledger)
    return f"{euros:.2f} EUR paid for the {cake} cake"
