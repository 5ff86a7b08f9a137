"""Prepares the details of a run for a reader that begins anywhere in its log."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from weftline.details.projection import NEEDED_HEADS, DetailProjection, facts_of
from weftline.errors import entry_damaged
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import decode_fact
from weftline.runtime.engine import Engine
from weftline.work.heavy import in_turn

_MANY = 2**31 - 1
_DECODE_ON_LOOP_BYTES = 16 * 1024


async def projection_of(engine: Engine, key: int, run_id: str) -> DetailProjection:
    """Returns a projection that can begin at any entry of the run.

    Raises `StoreError` (`log_damaged`) if the first entry is unreadable. Other unreadable entries are reported when the
    reader gets to them.
    """
    stored = engine.stored
    row, first = await stored.row(key), await stored.entry(key, 1)
    thread = None if row is None else await stored.session_id(row.listed_under)
    created = None if first is None else first.body
    read = partial(facts_of, run_id, created=created, thread=thread)
    try:
        facts = read() if len(created or b"") <= _DECODE_ON_LOOP_BYTES else await in_turn(read)
    except UNREADABLE:
        raise entry_damaged(run_id, 1) from None
    projection = DetailProjection(facts)
    for head in await stored.logs.heads(key, kinds=NEEDED_HEADS):
        with suppress(*UNREADABLE):
            projection.learn(decode_fact.decode(head))
    for one in await stored.newest_facts(key, kinds=projection.needed, limit=_MANY, max_bytes=_MANY):
        with suppress(*UNREADABLE):
            projection.learn_whole(decode_fact.decode(one.head), one.body)
    return projection
