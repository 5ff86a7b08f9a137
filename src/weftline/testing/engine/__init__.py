"""A conformance suite for engines: checks what every engine promises its clients (`runtime/engine.py`).

It needs a `Subject` around an engine on a new, empty store, started with the models, tools and limits of a `World`:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_engine_conforms(check):
        world = World()
        subject = await MySubject.create(models=world.models(), tools=world.tools(), limits=world.limits)
        try:
            await check(Bench(subject, world))
        finally:
            await subject.close()

`weftline.testing.engine.faults` has a store that a subject can kill, or make refuse writes.

Every broken promise is an `AssertionError`.
"""

from __future__ import annotations

from weftline.testing.engine import (
    answering,
    asking,
    children,
    controlling,
    crashing,
    creating,
    following,
    leasing,
    naming,
    restarting,
    stopping,
    threads,
    timing,
    upkeep,
)
from weftline.testing.engine.bench import Bench, Check, Subject
from weftline.testing.engine.world import World

__all__ = ["CHECKS", "Bench", "Check", "Subject", "World"]

CHECKS: tuple[Check, ...] = (
    *creating.CHECKS,
    *naming.CHECKS,
    *following.CHECKS,
    *answering.CHECKS,
    *leasing.CHECKS,
    *asking.CHECKS,
    *controlling.CHECKS,
    *threads.CHECKS,
    *timing.CHECKS,
    *stopping.CHECKS,
    *restarting.CHECKS,
    *crashing.CHECKS,
    *children.CHECKS,
    *upkeep.CHECKS,
)
"""Every promise, each checked on a new engine."""
