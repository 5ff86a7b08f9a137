"""Named crash points: see `weftline.store.crashpoints`, where they are hit."""

from weftline.store.crashpoints import POINTS, WRITES, arm

__all__ = ["POINTS", "WRITES", "arm"]
