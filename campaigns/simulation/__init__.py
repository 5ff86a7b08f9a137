"""A seeded simulation of the core: the real engine in a world of its own.

    from campaigns.simulation import simulate

    simulate(7)

Engine, driver, kernel and log are the real ones, on a store in memory; time, commits, reads, crashes, the model, tools
and clients belong to the world, and one seed decides all of it. A broken promise is raised as `Violation` with a trace
of the history. `python -m campaigns.simulation --seeds 1000` runs as many as you like.
"""

from __future__ import annotations

from campaigns.simulation.history import Histories, simulate
from campaigns.simulation.server import Build
from campaigns.simulation.trace import Violation

__all__ = ["Build", "Histories", "Violation", "simulate"]
