"""Torture: real servers on a real disk, under load, with everything done to them that the world does.

    python -m weftline.testing.torture --seconds 120 --seed 7

A model, tools, clients and webhook receivers that write everything down; a server that is killed, frozen, stopped,
doubled and left without space on its disk; and at the end a comparison of what they all saw with what the log says.
The seed decides what is done and asked, not how long the machine takes for it.
"""

from __future__ import annotations

from weftline.testing.torture.evidence import Evidence
from weftline.testing.torture.scene import Scene

__all__ = ["Evidence", "Scene"]
