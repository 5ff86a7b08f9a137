"""Streams that show something else than the plain events: a profile, or the operator's own display hints for calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from msgspec import Raw
from msgspec.structs import replace

from weftline.api.snapshots import projection_of
from weftline.events.classes import AnyEvent, CallOpened
from weftline.events.frames import ProfiledFrames, Show
from weftline.runtime.engine import Engine
from weftline.server.large import LargeResponses
from weftline.server.sse import View, profiled
from weftline.tools.titles import hint_from


def shown_with(templates: Mapping[str, str]) -> Show | None:
    """Returns what changes events to have the operator's hints instead of the tools', by tool; None if there are none.

    A template has arguments in braces. If it fails, the event is unchanged. The log is not changed.
    """

    def show(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, CallOpened) or event.name not in templates:
            return event
        # The events of a stream have arguments as they are stored.
        hint = hint_from(templates[event.name], bytes(cast("Raw", event.args)), tool=event.name)
        return replace(event, display_hint=hint) if hint else event

    return show if templates else None


class Hosts(Protocol):
    """The server, as this module needs it."""

    large: LargeResponses
    show: Show | None

    @property
    def engine(self) -> Engine: ...


async def profile_view(app: Hosts, key: int, run_id: str, types: frozenset[str], *, workspace: str) -> View:
    """Returns the view of a stream with these types. It may begin at any entry of the run.

    Raises `RateLimited` if there is no room for what has to be read.
    """
    async with app.large.room_to_work(workspace, await app.engine.stored.logs.log_size(key)):
        projection = await projection_of(app.engine, key, run_id)
    return profiled(ProfiledFrames(projection, types, show=app.show))
