"""Streams with a profile: reads what is needed before the first frame."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Protocol

from weftline.api.parsing import off_loop
from weftline.details.projection import NEEDED_HEADS, DetailProjection, facts_of
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import decode_fact
from weftline.runtime.engine import Engine
from weftline.server.display_hints import DisplayHints
from weftline.server.large import LargeResponses
from weftline.server.sse import View, profiled
from weftline.wire.damage import unreadable
from weftline.wire.details import ProfiledFrames

_MANY = 2**31 - 1


class Hosts(Protocol):
    """The server, as this module needs it."""

    large: LargeResponses
    hints: DisplayHints

    @property
    def engine(self) -> Engine: ...


async def profile_view(app: Hosts, key: int, run_id: str, types: frozenset[str], *, workspace: str) -> View:
    """Returns the view of a stream with these types. It may begin at any entry of the run.

    Raises `RateLimited` if there is no room for what has to be read.
    """
    async with app.large.room_to_work(workspace, await app.engine.stored.logs.log_size(key)):
        return await _view(app.engine, key, run_id, types, app.hints)


async def _view(engine: Engine, key: int, run_id: str, types: frozenset[str], hints: DisplayHints) -> View:
    row, first = await engine.stored.row(key), await engine.stored.entry(key, 1)
    thread = None if row is None else await engine.stored.session_id(row.listed_under)
    created = None if first is None else first.body
    try:
        facts = await off_loop(partial(facts_of, run_id, created=created, thread=thread), size=len(created or b""))
    except UNREADABLE:
        raise unreadable(run_id) from None
    projection = DetailProjection(facts)
    for head in await engine.stored.logs.heads(key, kinds=NEEDED_HEADS):
        with suppress(*UNREADABLE):  # the stream reports it when it gets there
            projection.learn(decode_fact.decode(head))
    for one in await engine.stored.newest_facts(key, kinds=projection.needed, limit=_MANY, max_bytes=_MANY):
        with suppress(*UNREADABLE):
            projection.learn_whole(decode_fact.decode(one.head), one.body)
    return profiled(ProfiledFrames(projection, types, show=hints.with_hint))
