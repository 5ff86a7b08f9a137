"""Streams with a profile: reads what is needed before the first frame."""

from __future__ import annotations

from typing import Protocol

from weftline.api.detail_projection import projection_of
from weftline.api.display_hints import DisplayHints
from weftline.runtime.engine import Engine
from weftline.server.large import LargeResponses
from weftline.server.sse import View, profiled
from weftline.wire.details import ProfiledFrames


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
        projection = await projection_of(app.engine, key, run_id)
    return profiled(ProfiledFrames(projection, types, show=app.hints.with_hint))
