"""What models are offered besides the conversation, as a digest: a replay tells by it whether that has changed."""

from __future__ import annotations

from hashlib import blake2b

from weftline.runtime.toolbox import Toolbox


def offered_digest(system: str | None, toolbox: Toolbox) -> str:
    return blake2b((system or "").encode(errors="replace") + toolbox.declared, digest_size=16).hexdigest()
