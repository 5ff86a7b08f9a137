"""Torture: real servers on a real disk, under load, exposed to everything that the world does to servers.

    python -m campaigns.torture --seconds 120 --seed 7

A model, tools, clients and webhook receivers that record everything; a server that is killed, frozen, stopped, doubled
and left without disk space; and at the end a comparison of what they all saw with what the log says. The seed decides
what is done and asked, not how long the machine takes for it.
"""

from __future__ import annotations

from campaigns.torture.evidence import Evidence
from campaigns.torture.scene import Scene

__all__ = ["Evidence", "Scene"]
