"""Names of tools in words."""

from __future__ import annotations


def titled(name: str) -> str:
    """`look_up` is `Look up`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]
