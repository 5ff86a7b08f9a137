"""Getting a run ready to be driven: its models, its tools, its thread's history, and what an earlier driver left."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Protocol

from weftline.kernel.bodies import decode_message
from weftline.kernel.entries import HistoryPinned
from weftline.messages import Message
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.recovery import adoption
from weftline.runtime.toolbox import ToolSource
from weftline.store.base import LogStore

_CODED_HERE_BYTES = 64 * 1024
"""A hop to a thread costs more than coding so little."""


class Names(Protocol):
    """Public names of keys."""

    async def workspace(self, key: int) -> str: ...
    async def session(self, thread: int) -> str | None: ...


class RunOpener:
    def __init__(self, store: LogStore, *, models: WorkspaceCatalogs, tools: ToolSource, names: Names) -> None:
        self._store = store
        self._models = models
        self._tools = tools
        self._names = names

    async def open(self, run: LiveRun) -> Sequence[Draft]:
        work = run.work
        work.catalog = await self._models.load(run.workspace)
        if not work.opened:
            work.workspace_slug = await self._names.workspace(run.workspace)
            if run.thread is not None:
                work.session_id = await self._names.session(run.thread)
            if work.toolbox is None:
                work.toolbox = await self._tools.open(
                    work.plan, workspace=run.workspace, run=run.key, secrets=work.secrets
                )
        facts: list[Draft] = []
        if run.thread is not None and run.state.history is None:
            messages = await self._store.thread_messages(run.thread)
            size = sum([len(message) for message in messages])
            history = _decoded(messages) if size <= _CODED_HERE_BYTES else await asyncio.to_thread(_decoded, messages)
            work.conversation.begin(history, size=size)
            facts.append(Draft(HistoryPinned(len(messages))))
        if not work.opened:
            await self._load_blobs(run)
        work.opened = True
        if run.state.in_flight:
            epoch = run.log.epoch if run.log.epoch > run.state.epoch else self._store.next_epoch()
            run.log.epoch = epoch
            facts[:0] = adoption(run, epoch)
        return facts

    async def _load_blobs(self, run: LiveRun) -> None:
        """Gets the contents that the conversation names. Those that the run itself brought may not be stored yet."""
        work, contents = run.work, run.work.conversation.contents
        for id in work.conversation.blobs():
            brought = work.blobs.pop(id, None)
            data = brought if brought is not None else await self._store.blob(run.workspace, id)
            contents[id] = await _base64(data or b"")
        work.blobs.clear()


def _decoded(messages: Sequence[bytes]) -> list[Message]:
    return [decode_message(message) for message in messages]


async def _base64(data: bytes) -> str:
    if len(data) <= _CODED_HERE_BYTES:
        return b64encode(data).decode()
    return (await asyncio.to_thread(b64encode, data)).decode()
