"""The epochs of one owner."""

from __future__ import annotations

from weftline.store.base import Write
from weftline.store.claims import Claims


def _write(epoch: int) -> Write:
    return Write(1, epoch, base_seq=1, base_version=0, items=[], version=0, status="", due_at=None)


def test_a_claim_holds_until_its_holder_releases_it_under_whichever_of_its_epochs() -> None:
    claims = Claims(7)
    first = claims.claim(1)
    second = claims.claim(1)
    claims.release(1, first)
    assert claims.stale(_write(first)) and not claims.stale(_write(second))
    claims.release(1, claims.next_epoch())
    assert not claims.stale(_write(first))
