"""Display names of tools."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1024)
def titled(name: str) -> str:
    """Returns `Look up` for `look_up`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]
