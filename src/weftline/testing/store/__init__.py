"""A conformance suite for stores: checks that a store keeps the promises of `store/base.py`.

It needs a `Subject` around a new, empty store, and runs on any of them:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_conforms(check):
        subject = await MySubject.create()
        try:
            await check(subject)
        finally:
            await subject.store.close()

Every broken promise is an `AssertionError`.
"""

from __future__ import annotations

from weftline.testing.store import (
    appending,
    awaits,
    blobs,
    booking,
    children,
    claims,
    fencing,
    given_ids,
    impossible,
    large,
    owning,
    queues,
    reading,
    records,
    starting,
)
from weftline.testing.store.subject import Chain, Check, Subject, check_log, read_log

__all__ = ["CHECKS", "Chain", "Check", "Subject", "check_log", "read_log"]

CHECKS: tuple[Check, ...] = (
    *appending.CHECKS,
    *impossible.CHECKS,
    *queues.CHECKS,
    *children.CHECKS,
    *claims.CHECKS,
    *starting.CHECKS,
    *reading.CHECKS,
    *records.CHECKS,
    *blobs.CHECKS,
    *large.CHECKS,
    *awaits.CHECKS,
    *given_ids.CHECKS,
    *booking.CHECKS,
    *owning.CHECKS,
    *fencing.CHECKS,
)
"""Every promise, each checked on a new store."""
