"""Threads for forks: copies that nothing which happens on them can be told of at their origin."""

from __future__ import annotations

import secrets

from msgspec.json import decode, encode

from weftline.store.database import Query
from weftline.store.records import threads as rows
from weftline.store.records.threads import NewThread
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_state import copy_state


class Branches:
    """Threads for forks."""

    def __init__(self, at: Workspaces) -> None:
        self._at = at

    async def branch(self, thread: int) -> int:
        """A new thread with the settings, values and text variables of another one, without its messages.

        It belongs to no A2A context.
        """
        at = self._at
        row = await threads.by_key(at, thread)
        metadata = decode(row.metadata, type=dict[str, str])
        metadata.pop(threads.CONTEXT_KEY, None)
        new = NewThread(
            workspace=row.workspace,
            salt=secrets.token_hex(6),
            name=row.name,
            agent=row.agent,
            spec=await threads.spec(at, row),
            metadata=encode(metadata).decode(),
            secrets=await threads.sealed_headers(at, row),
            user=row.user,
            keeps=row.keeps,
        )
        now = at.clock.now_us()

        def query() -> Query[int]:
            made = yield from rows.insert(new, now=now)
            yield from copy_state(at, row, made)
            yield from rows.mark_branch(made, now=now)
            return made.key

        return await at.records.write(query())

    async def remove_unused(self, thread: int) -> None:
        """Removes a thread if no run was ever created on it."""
        await self._at.records.write(rows.remove_unused(thread))
