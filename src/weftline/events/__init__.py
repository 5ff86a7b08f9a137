"""The events of a run, for the library, the client and replays.

    async with agent.stream("Plan a week.") as run:
        async for event in run:
            match event:
                case TextDelta(text=text):
                    print(text, end="")
                case _:
                    pass

Each event is one entry of the run's log, and `seq` is its position there: a cursor to continue from. Importing the
classes loads nothing of what makes, encodes or reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weftline.events.classes import *  # noqa: F403

if not TYPE_CHECKING:  # a type checker would assume that every name exists
    from weftline.text.public_pages import helping

    __getattr__ = helping(__name__)
