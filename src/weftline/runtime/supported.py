"""Which runs this version can continue: the others were written by a newer one and are left alone."""

from __future__ import annotations

from weftline.kernel.entries import FORMAT, KNOWN_RULES
from weftline.store.base import DueRun, RunRow


def unsupported(row: RunRow | DueRun) -> str:
    """Why this version must leave an unfinished run alone (what only a newer one knows), or "" if it need not.

    Three numbers decide this: the run's rules, the format of its log, and that of its thread's messages, which an ended
    run no longer needs.
    """
    if row.rules not in KNOWN_RULES:
        return f"rules {row.rules}"
    if row.format > FORMAT:
        return f"log format {row.format}"
    if row.thread_format > FORMAT and row.ended_at is None:
        return f"log format {row.thread_format} of its session"
    return ""
