"""Which run started which, and the questions to people from the runs below a run."""

from __future__ import annotations

from contextlib import suppress

from msgspec import DecodeError
from msgspec.structs import replace

from weftline.errors import NotFound
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, Parent, RunCreated, decode_fact
from weftline.kernel.state import FOLD, decode_state
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter, OpenAwait, RunRow


async def parent_of(logs: LogReader, row: RunRow) -> str | None:
    """The parent's id; None for a top-level run, and if it can no longer be read."""
    link = await parent_link(logs, row)
    return None if link is None else link.run


async def parent_link(logs: LogReader, row: RunRow) -> Parent | None:
    """The parent, and the call of it that a run executes; None as in `parent_of`.

    It comes from the row's state, or from the first entry's head if the row has no state of the current fold.
    """
    if row.state and row.fold == FOLD:
        if b"parent" not in row.state:
            return None  # nearly always, and cheaper than decoding: a default value is not stored
        try:
            return decode_state(row.state).parent
        except DecodeError:
            pass
    links = [parent_in(head) for head in await logs.heads(row.key, kinds=(KIND[RunCreated],))]
    return links[0] if links else None


def parent_in(created: bytes) -> Parent | None:
    """The parent that the head of a run's first entry names; None as in `parent_of`."""
    try:
        fact = decode_fact.decode(created)
    except UNREADABLE:
        return None
    return fact.parent if isinstance(fact, RunCreated) else None


_BETWEEN = ":"
"""Separates the id of a run below from that of its await, where the await is addressed through a run above."""


async def is_below(store: LogReader, key: int, above: int) -> bool:
    """Returns True if a run was started by another one, directly or through runs in between."""
    while (link := await _created_by(store, key)) is not None:
        key = ids.parent_key(link)
        if key == above:
            return True
    return False


async def awaits_of(store: LogReader, wanted: AwaitFilter) -> list[OpenAwait]:
    """The open questions to people. For a run that is not top-level, those of all runs below it are included too."""
    link = None if not wanted.root else await _created_by(store, wanted.root)
    if link is None or not wanted.root:
        return await store.awaits(wanted)
    of_all = replace(wanted, root=ids.root_key(link))
    found: list[OpenAwait] = []
    while len(found) < wanted.limit:
        page = await store.awaits(of_all)
        found += [one for one in page if one.run == wanted.root or await is_below(store, one.run, wanted.root)]
        if len(page) < wanted.limit:
            break
        of_all = replace(of_all, after=(page[-1].run, page[-1].id))
    return found[: wanted.limit]


async def asked_by(store: LogReader, key: int, await_id: str) -> tuple[int, str]:
    """The run that asks, and the id there. `await_id` is an id of the run's own, or `<run id>:<await id>` for a run
    below.

    Raises `NotFound` (`unknown_await`) if that run is not below it.
    """
    below, between, own = await_id.partition(_BETWEEN)
    if not between:
        return key, await_id
    # A child run always has a generated id.
    parsed = ids.parse(below, prefix="run_")
    row = None if parsed is None else await store.run(parsed[0])
    if row is None or ids.run_id(row.key, row.salt) != below or not await is_below(store, row.key, key):
        raise NotFound("The run has no such await.", code="unknown_await")
    return row.key, own


async def _created_by(store: LogReader, key: int) -> Parent | None:
    for head in await store.heads(key, kinds=(KIND[RunCreated],)):
        with suppress(*UNREADABLE):
            created = decode_fact.decode(head)
            return created.parent if isinstance(created, RunCreated) else None
    return None
