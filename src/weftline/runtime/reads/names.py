"""Public names of keys: workspace slugs and session ids. Neither ever changes, so each is read once."""

from __future__ import annotations

from collections import OrderedDict

from weftline.runtime import ids
from weftline.store.database import Database
from weftline.store.records import threads, workspaces

_KEPT = 4096


class StoredNames:
    def __init__(self, records: Database) -> None:
        self._records = records
        self._workspaces: dict[int, str] = {}
        self._sessions: OrderedDict[int, str] = OrderedDict()

    async def workspace(self, key: int) -> str:
        slug = self._workspaces.get(key)
        if slug is None:
            slug = self._workspaces[key] = await self._records.read(workspaces.slug_of(key)) or ""
        return slug

    async def session(self, thread: int) -> str | None:
        cached = self._sessions.get(thread)
        if cached is None:
            row = await self._records.read(threads.by_key(thread))
            if row is None:
                return None
            cached = self._sessions[thread] = ids.session_id(row.key, row.salt)
            if len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        return cached
