"""The epochs of one owner."""

from __future__ import annotations

from weftline.store.outcomes import Claims
from weftline.store.rows import Write


def _write(epoch: int) -> Write:
    return Write(1, epoch, base_seq=1, base_version=0, items=[], version=0, status="", due_at=None)


def test_claim_lasts_until_its_holder_releases_it() -> None:
    claims = Claims(7)
    first = claims.claim(1)
    second = claims.claim(1)
    claims.release(1, first)
    assert claims.stale(_write(first)) and not claims.stale(_write(second))
    claims.release(1, claims.next_epoch())
    assert not claims.stale(_write(first))


def test_fence_lasts_as_long_as_earlier_claim_and_no_longer() -> None:
    claims = Claims(7)
    first, second, third = (claims.claim(1) for _ in range(3))
    for epoch in (third, second):
        claims.release(1, epoch)
        assert claims.stale(_write(first)) and claims.stale(_write(second)) and not claims.stale(_write(third))
    claims.release(1, first - 1)
    assert claims.stale(_write(first)), "an epoch from before the claim has released it"
    claims.release(1, first)
    claims.release(1, first)
    assert not claims.stale(_write(first)), "a run without claims is remembered"
