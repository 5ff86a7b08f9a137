"""The facts of a run that this version can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from weftline.errors import LOG_DAMAGED, StoreError, WeftlineError
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT, Fact, decode_fact
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.rows import RunRow


async def known_facts(log: LogReader, key: int, *, kinds: Sequence[str]) -> list[Fact]:
    """The facts of these kinds, in order. Those that only newer code can read are left out.

    Raises `StoreError` (`log_damaged`) if one cannot be read although this version knows the format of the log.
    """
    heads = await log.heads(key, kinds=kinds)
    try:
        return [decode_fact.decode(head) for head in heads]
    except UNREADABLE:
        row = await _row(log, key)  # read after the heads: the format is that of all of them
        if row is None or row.format <= FORMAT:
            run_id = "(unreadable)" if row is None else ids.run_id(row.key, row.salt)
            raise StoreError(f"The log of run {run_id} is damaged: a fact cannot be read.", code=LOG_DAMAGED) from None
    return list(_readable(heads))


async def _row(log: LogReader, key: int) -> RunRow | None:
    with suppress(WeftlineError):
        return await log.run(key)
    return None


def _readable(heads: Sequence[bytes]) -> Iterator[Fact]:
    for head in heads:
        with suppress(*UNREADABLE):
            yield decode_fact.decode(head)
