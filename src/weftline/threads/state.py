"""The `ThreadState` of tools, hooks and endpoints: one thread, for as long as a call, request or run lasts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.json import decode
from msgspec.structs import asdict

from weftline import prompts
from weftline.agent.context import Entered
from weftline.errors import Conflict, NotFound, invalid_field
from weftline.runtime import thread_messages as messages
from weftline.runtime.agent_code.seats import name_of
from weftline.runtime.engine import Engine
from weftline.runtime.thread_messages import Changes
from weftline.store.records.thread_effects import EffectFilter
from weftline.store.records.thread_files import FileRow
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.records.threads import ThreadRow
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import PromptDefinition
from weftline.threads.env import Defaults, Env
from weftline.threads.execution import Execution
from weftline.threads.packages import package_of
from weftline.threads.registry import Registry
from weftline.threads.speakers import Speaker, seat_of
from weftline.threads.thread import (
    AttachmentRef,
    EnvType,
    ExecutionState,
    FileChunk,
    FileRecord,
    FileStats,
    FindResult,
    GrepLine,
    GrepResult,
    MessagesResult,
    Order,
    ScheduledEffect,
    SubagentRegistryEntry,
    ThreadMessage,
    ToolAttachment,
)
from weftline.workspace import thread_effects as effects
from weftline.workspace import thread_files as files
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_messages import said
from weftline.workspace.thread_search import find_files, grep_files
from weftline.workspace.thread_state import json_problem, set_thread_env, set_value, value_of

if TYPE_CHECKING:
    from typing import Unpack

    from weftline.threads.thread import MessageUpdates, NewMessage, WriteFileOptions

T = TypeVar("T")


class LiveThread:
    """A thread. Once its scope is over, every method raises `Conflict` (`scope_ended`)."""

    def __init__(
        self,
        at: Workspaces,
        row: ThreadRow,
        registry: Registry,
        *,
        speakers: Mapping[str, Speaker],
        entered: Entered,
        engine: Engine,
        flow_id: str = "",
        host: Any = None,
    ) -> None:
        """`speakers` are those of the run, the first of them first; `entered` gives access to it, and `flow_id` is its
        id.
        """
        self._at = at
        self._engine = engine
        self._row = row
        self._speakers = speakers
        self._entered = entered
        self._flow_id = flow_id
        self._entry: Defaults = {}
        self._registry = registry.seen_from(package_of(self.speaker.agent))
        self._host = host
        self.loop = asyncio.get_running_loop()
        self._context: dict[str, Any] = {}
        self._key = self._caller = ""
        self._created = 0
        """How many things the call has created."""
        self._over = False
        self.attachments: list[AttachmentRef | ToolAttachment] = []
        """Those of the result that a tool has returned."""
        self.options: Mapping[str, Any] = {}
        """The static options of a tool's entry in its prompt."""

    # Scopes

    @contextmanager
    def during(
        self,
        key: str,
        *,
        env: Defaults | None = None,
        options: Mapping[str, Any] | None = None,
        package: str | None = None,
        caller: str = "",
    ) -> Generator[LiveThread]:
        """The thread for one call or handler. `key` is the same for each attempt at it, `caller` names its code.

        `package` is that of the code, whose own names come first; None for that of the agent.
        """
        state = copy(self)
        if package is not None:
            state._registry = self._registry.seen_from(package)
            state._host = None if package else self._host  # no package can rely on what a host has
        state._key, state._created, state._caller = key, 0, caller
        state.options = options or {}
        state._entry, state.attachments = env or {}, []
        try:
            yield state
        finally:
            state._over = True

    def end(self) -> None:
        self._over = True

    def _open(self) -> None:
        if self._over:
            raise Conflict("The call that this state was for is over.", code="scope_ended")

    @property
    def speaker(self) -> Speaker:
        """Who speaks in the run now."""
        inside = self._entered.inside
        name = "" if inside is None else name_of(inside.now)
        if name not in self._speakers:
            name = seat_of(self._row.seat_agent or "")
        return self._speakers.get(name) or next(iter(self._speakers.values()))

    # Identity

    @property
    def thread_id(self) -> str:
        return self._row.uuid

    @property
    def agent_id(self) -> str:
        return self.speaker.agent.name

    @property
    def user_id(self) -> str | None:
        return self._row.user

    @property
    def created_at(self) -> int:
        return self._row.created_at

    @property
    def terminated(self) -> int | None:
        return self._row.ended_at

    @property
    def children(self) -> tuple[SubagentRegistryEntry, ...]:
        return ()

    @property
    def context(self) -> dict[str, Any]:
        return self._context

    @property
    def execution(self) -> ExecutionState | None:
        inside = self._entered.inside
        if inside is None or inside.now.ended:
            return None
        caller = self._caller or "a hook"
        return Execution(inside, self._flow_id, self.speaker, caller=caller, loop=self.loop)

    @property
    def idempotency_key(self) -> str:
        return self._key

    @property
    def host(self) -> Any:
        return self._host

    # Definitions

    def get_model_names(self) -> list[str]:
        return self._registry.names("model")

    def get_prompt_names(self) -> list[str]:
        return self._registry.names("prompt")

    def get_agent_names(self) -> list[str]:
        return self._registry.names("agent")

    async def load_model(self, name: str, /) -> ModelDefinition:
        return self._registry.model(name)

    async def load_prompt(self, name: str, /) -> PromptDefinition:
        return self._registry.prompt(name)

    async def load_agent(self, name: str, /) -> AgentDefinition:
        return self._registry.agent(name)

    # Messages

    async def get_messages(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        order: Order = "asc",
        include_silent: bool = True,
        max_depth: int | None = None,
    ) -> MessagesResult:
        self._open()
        if limit < 0 or offset < 0:
            raise invalid_field("limit" if limit < 0 else "offset", "must not be negative.")
        wanted = MessageFilter(
            thread=self._row.key,
            limit=limit,
            offset=offset,
            newest_first=order == "desc",
            with_silent=include_silent,
            max_depth=max_depth,
        )
        rows, total = await self._engine.messages.page(wanted, within=True)
        return MessagesResult(messages=tuple([self._message(row) for row in rows]), total=total)

    async def get_message(self, id: str, /) -> ThreadMessage | None:
        self._open()
        row = await self._engine.messages.one(self._row.key, id, within=True)
        return None if row is None else self._message(row)

    async def inject_message(self, content: str, /, **fields: Unpack[NewMessage]) -> ThreadMessage:
        self._open()
        row = await self._engine.messages.inject(self._row.key, self._new_message(content, fields))
        return self._message(row)

    async def update_message(self, id: str, /, **updates: Unpack[MessageUpdates]) -> ThreadMessage:
        self._open()
        _require_no_files(updates)
        changes = Changes(
            text=updates.get("content"), silent=updates.get("silent"), metadata=updates.get("metadata", {})
        )
        return self._message(await self._engine.messages.update(self._row.key, id, changes))

    async def delete_message(self, id: str, /) -> bool:
        self._open()
        return await self._engine.messages.delete(self._row.key, id)

    def _new_message(self, content: str, fields: NewMessage) -> messages.NewMessage:
        _require_no_files(fields)
        return messages.NewMessage(
            role=fields.get("role", "user"),
            text=content,
            silent=fields.get("silent", False),
            metadata=fields.get("metadata", {}),
            origin=self._origin(),
        )

    def _origin(self) -> str | None:
        """Names what a call creates, the same for each attempt at it; None outside calls."""
        if not self._key:
            return None
        self._created += 1
        return blake2b(f"{self._key}/{self._created}".encode(), digest_size=16).hexdigest()

    def _message(self, row: MessageRow) -> ThreadMessage:
        fields = said(row, created_at=self._row.created_at).fields
        fields["attachments"] = tuple([AttachmentRef(**asdict(one)) for one in fields["attachments"]])
        return ThreadMessage(**fields)

    # Variables and values

    @property
    def variables(self) -> Env:
        speaker = self.speaker
        defaults = (speaker.agent.env, self._entry, speaker.prompt.env)
        return Env(self._at, self._row, defaults=defaults, scoped=speaker.scoped)

    async def env(self, name: str, /) -> str:
        self._open()
        return await self.variables.get(name)

    async def env_type(self, name: str, /) -> EnvType:
        self._open()
        return await self.variables.type_of(name)

    async def set_env(self, name: str, value: str, /, *, type: EnvType | None = None) -> None:
        self._open()
        if not isinstance(cast(object, value), str):
            raise invalid_field("value", f"the variable {name} must be a string.")
        if cast(object, type) not in (None, "text", "secret"):
            raise invalid_field("type", "must be 'text' or 'secret'.")
        await set_thread_env(self._at, self._row, name, value, type=type)

    async def get_value(self, key: str, /) -> Any:
        self._open()
        return await value_of(self._at, self._row.key, key)

    async def set_value(self, key: str, value: Any, /) -> None:
        self._open()
        if problem := json_problem(value):
            raise TypeError(f"{key!r} cannot be kept: {problem}, which has no JSON form")
        await set_value(self._at, self._row.key, key, value)

    # Effects

    async def schedule_effect(self, name: str, args: Mapping[str, Any] | None = None, /, delay_ms: int = 0) -> str:
        self._open()
        effects.check_delay(delay_ms)
        definition = self._registry.effect(name)
        final, made = await definition.final_args(args), self._origin()
        origin = None if made is None else bytes.fromhex(made)
        row = await effects.schedule(self._at, self._row, definition.name, final, delay_ms=delay_ms, origin=origin)
        return row.id

    async def get_scheduled_effects(self, name: str | None = None, /) -> list[ScheduledEffect]:
        self._open()
        known = None if name is None else self._registry.find("effect", name)
        wanted = name if known is None else known.name  # one of a package has a longer name
        rows = await effects.page(self._at, EffectFilter(thread=self._row.key, name=wanted))
        return [
            ScheduledEffect(
                id=row.id,
                name=row.name,
                args=decode(row.args),
                scheduled_at=row.due_at,
                created_at=row.created_at,
                status=row.status,
            )
            for row in rows
        ]

    async def remove_scheduled_effect(self, id: str, /) -> bool:
        self._open()
        return await effects.cancel(self._at, self._row, id)

    # Files

    async def write_file(
        self,
        path: str,
        data: bytes | str | AsyncIterable[bytes],
        mime_type: str | None = None,
        /,
        **about: Unpack[WriteFileOptions],
    ) -> FileRecord:
        self._open()
        if isinstance(data, str):
            data, mime_type = data.encode(), mime_type or files.guessed(path) or "text/plain"
        said = files.About(
            mime_type=mime_type or "",
            width=about.get("width"),
            height=about.get("height"),
            metadata=about.get("metadata", {}),
            thumbnail=about.get("thumbnail"),
        )
        location, size = about.get("location"), about.get("size", 0)
        if location is not None:
            if data != b"":
                raise invalid_field("data", "must be empty for a file that is elsewhere.")
            return _record(await files.register(self._at, self._row, path, location, size, about=said))
        return _record(await files.write(self._at, self._row, path, data, about=said))

    async def read_file(self, path: str, /) -> bytes | None:
        self._open()
        return await files.read(self._at, self._row, path)

    async def read_file_stream(self, path: str, /) -> AsyncIterator[FileChunk] | None:
        self._open()
        if await files.stat(self._at, self._row, path) is None:
            return None
        return self._chunks(path)

    async def _chunks(self, path: str) -> AsyncGenerator[FileChunk]:
        async with files.opened(self._at, self._row, path) as found:
            if found is None:
                raise NotFound(f"The file {path} was removed.")
            index, before = 0, b""
            async for piece in found.pieces:
                if index or before:
                    yield FileChunk(data=before, index=index)
                    index += 1
                before = piece
            yield FileChunk(data=before, index=index, is_last=True)

    async def stat_file(self, path: str, /) -> FileRecord | None:
        self._open()
        found = await files.stat(self._at, self._row, path)
        return None if found is None else _record(found)

    async def readdir_file(self, path: str, /) -> list[FileRecord]:
        self._open()
        return [_record(one) for one in await files.entries(self._at, self._row, path)]

    async def mkdir_file(self, path: str, /) -> FileRecord:
        self._open()
        return _record(await files.make_folder(self._at, self._row, path))

    async def rmdir_file(self, path: str, /) -> bool:
        self._open()
        return await files.remove_folder(self._at, self._row, path)

    async def unlink_file(self, path: str, /) -> bool:
        self._open()
        return await files.remove_file(self._at, self._row, path)

    async def get_file_stats(self) -> FileStats:
        self._open()
        found = await files.totals(self._at, self._row)
        return FileStats(file_count=found.files, total_size=found.bytes)

    async def grep_files(self, pattern: str, /) -> list[GrepResult]:
        self._open()
        found = await grep_files(self._at, self._row, pattern)
        return [
            GrepResult(path=one.path, matches=tuple([GrepLine(line.line, line.text) for line in one.matches]))
            for one in found
        ]

    async def find_files(self, pattern: str, /) -> FindResult:
        self._open()
        found = await find_files(self._at, self._row, pattern)
        return FindResult(paths=tuple(found), total=len(found))

    async def attached(self) -> list[AttachmentRef]:
        """Writes what is new of `attachments`, and returns all of them as files of the thread.

        Raises `NotFound` for one that refers to a file that does not exist.
        """
        found: list[AttachmentRef] = []
        for one in self.attachments:
            if isinstance(one, ToolAttachment):
                made = await files.attach(self._at, self._row, one.name, one.data, mime_type=one.mime_type)
                found.append(AttachmentRef(path=made.path, name=one.name, mime_type=made.mime_type))
                continue
            known = await files.stat(self._at, self._row, one.path)
            if known is None or known.is_folder:
                raise NotFound(prompts.calls.no_such_attachment(one.path))
            given = AttachmentRef(
                path=known.path,
                name=one.name or known.name,
                mime_type=one.mime_type or known.mime_type,
                width=one.width or known.width,
                height=one.height or known.height,
            )
            found.append(given)
        return found

    async def get_file_thumbnail(self, path: str, /) -> bytes | None:
        self._open()
        return await files.thumbnail(self._at, self._row, path)


def _record(file: FileRow) -> FileRecord:
    return FileRecord(
        path=file.path,
        name=file.name,
        mime_type=file.mime_type,
        storage="local" if file.location is None else "url",
        size=file.size,
        is_directory=file.is_folder,
        metadata=decode(file.metadata),
        width=file.width,
        height=file.height,
        created_at=file.created_at,
        location=file.shown_location,
    )


def _require_no_files(fields: Mapping[str, Any]) -> None:
    if fields.get("attachments"):
        raise invalid_field("attachments", "messages cannot have files yet.")


class BlockingThread:
    """The same thread for a plain function: each method blocks the function's own thread until it is done."""

    def __init__(self, state: LiveThread) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def blocking(*args: Any, **options: Any) -> Any:
            found = self._wait(value(*args, **options))
            return self._pieces(cast("AsyncIterator[Any]", found)) if isinstance(found, AsyncIterator) else found

        return blocking

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._state.loop).result()

    def _pieces(self, pieces: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(pieces, None)

        while (piece := self._wait(following())) is not None:
            yield piece
