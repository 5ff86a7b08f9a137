"""Bugs that the simulation must catch, planted at the seams: the store, `step`, `carry_out`, followers, wake-ups.

Each is what a plausible mistake would do to the part that it is planted in.
"""

from __future__ import annotations

from simulation.planted import budgets, children, commands, leases, people, policies, schedules, steps, storage, waking
from simulation.planted.bug import SEEDS, Bug

__all__ = ["BUGS", "SEEDS", "Bug"]

BUGS: tuple[Bug, ...] = (
    *schedules.BUGS,
    *budgets.BUGS,
    *steps.BUGS,
    *commands.BUGS,
    *storage.BUGS,
    *waking.BUGS,
    *people.BUGS,
    *policies.BUGS,
    *leases.BUGS,
    *children.BUGS,
)
