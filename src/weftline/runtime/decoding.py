"""Decodes the entries of a batch, and tells those of newer code from damaged ones.

A reader decodes each entry, and what it needs of the body, under one `except UNREADABLE` that calls
`require_skippable`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import DecodeError

from weftline.errors import end_of_newer_code, entry_damaged
from weftline.kernel.damage import observations_are_readable
from weftline.kernel.entries import Fact, decode_fact
from weftline.runtime.engine import EntryBatch
from weftline.store.rows import Item


def facts_in(batch: EntryBatch) -> Iterator[Fact]:
    """Returns the facts of a batch, one for each item that has a head; those of a commit are already decoded.

    `next` raises one of `UNREADABLE` for a fact that cannot be decoded, and continues after it.
    """
    if batch.heads is not None:
        return iter(batch.heads)
    return map(decode_fact.decode, [item.head for item in batch.items if item.head])


def check_observations(item: Item) -> None:
    """Raises `DecodeError` if the observations of an item cannot be decoded."""
    if not observations_are_readable(item.kind, item.body, item.count):
        raise DecodeError(item.kind)


def require_skippable(batch: EntryBatch, item: Item) -> None:
    """Returns if a reader may skip an item that it cannot decode: newer code may have written it.

    Raises `StoreError` (`log_damaged`) if it is damaged, and `Conflict` (`unsupported_run`) if it is the end of the
    run: readers that wait for that would never get it.
    """
    if not batch.newer:
        raise entry_damaged(batch.run_id, item.seq) from None
    if batch.ended and item.last_seq >= batch.last_seq:
        raise end_of_newer_code(batch.run_id) from None
