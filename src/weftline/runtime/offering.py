"""What models are offered besides the conversation, as a digest: a replay tells by it whether that has changed."""

from __future__ import annotations

from hashlib import blake2b

from weftline.runtime.toolbox import Toolbox


def offered_digest(system: str | None, toolbox: Toolbox) -> str:
    found = blake2b((system or "").encode(errors="replace"), digest_size=16)
    for spec in toolbox.specs:
        for text in (spec.name.encode(), spec.description.encode(errors="replace"), bytes(spec.parameters)):
            found.update(b"%d " % len(text))
            found.update(text)
    return found.hexdigest()
