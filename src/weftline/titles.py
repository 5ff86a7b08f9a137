"""Display names of tools."""

from __future__ import annotations


def titled(name: str) -> str:
    """Returns `Look up` for `look_up`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]
