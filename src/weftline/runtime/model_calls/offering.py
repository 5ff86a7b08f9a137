"""A digest of what models are given besides the conversation, by which a replay finds out whether it has changed."""

from __future__ import annotations

from hashlib import blake2b

from weftline.runtime.tool_calls.toolbox import Toolbox


def offered_digest(system: str | None, toolbox: Toolbox) -> str:
    return blake2b((system or "").encode(errors="replace") + toolbox.declared, digest_size=16).hexdigest()
