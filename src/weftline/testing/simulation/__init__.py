"""A seeded simulation of the core: the real engine in a world of its own.

    from weftline.testing.simulation import simulate

    simulate(7)

Engine, driver, kernel, log and the store's transactions are the real ones; time, commits, crashes, the model, tools and
clients are the world's, and one seed decides all of it. A broken promise is raised as `Violation` with a trace of the
history. `python -m weftline.testing.simulation --seeds 1000` runs as many as you like.
"""

from __future__ import annotations

from weftline.testing.simulation.history import Histories, simulate
from weftline.testing.simulation.trace import Violation

__all__ = ["Histories", "Violation", "simulate"]
