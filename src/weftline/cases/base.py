"""What a use case is given: the host that it works on, its caller, and what was sent; and what the caller may access.

The signature of a case declares its route; `weftline.server.case` reads it. Runs and sessions of another workspace or
agent do not exist for a caller. docs/auth.md has the rule, which holds for every way in; `weftline.workspace.agents`
has its part for agents.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Meta, Struct

from weftline.api.principal import Principal
from weftline.errors import Conflict, InvalidRequest, NotFound, no_such_run
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.store.records.pages import RowPage
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey, RunRow
from weftline.wire.limits import ID_PATTERN
from weftline.wire.responses import Warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.work.turns import FairSemaphore
from weftline.workspace import agents, threads
from weftline.workspace.agents import owns
from weftline.workspace.context import Workspaces

Fields = TypeVar("Fields")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Rooms(Protocol):
    """Limits how much is read for responses at the same time."""

    def room_to_work(self, workspace: str, size: int) -> AbstractAsyncContextManager[None]:
        """Reserves room for a request that reads this many bytes and sends few."""
        ...


class Host(Protocol):
    """The server, as use cases need it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def workspaces(self) -> Workspaces: ...
    @property
    def large(self) -> Rooms: ...
    @property
    def pages(self) -> FairSemaphore:
        """Limits how many pages of lists are built at once."""
        ...


def require_accepting(on: Host, by: Principal) -> None:
    """Raises `Unavailable` while the engine takes no work; the operator may prepare a store that is held."""
    if not by.operator:
        on.engine.require_accepting()


OF_SESSION: TypeAlias = Annotated[str, "Of this session."]
OF_AGENT: TypeAlias = Annotated[str, Meta(pattern=f"^{ID_PATTERN}$"), "Of this agent, by its id or slug."]
Limit: TypeAlias = Annotated[int, "The maximum number of items on a page."]
Cursor: TypeAlias = Annotated[str, "`nextCursor` of the page before."] | None


class Page(Struct, frozen=True):
    """The part of a list that is asked for: up to `limit` items, after the one with the key `after`."""

    after: int
    limit: int
    seal: Callable[[int], str]

    def next_cursor(self, page: RowPage[Any]) -> str | None:
        """Returns the cursor of the next page; None if this is the last."""
        return None if page.more_after is None else self.seal(page.more_after)


class SentBody(Struct, Generic[Fields], frozen=True):
    """A body that was sent: its valid fields, the fields that nobody knows, and its bytes."""

    fields: Fields
    unknown: Sequence[UnknownField]
    raw: bytes


class Sent(Struct, Generic[Fields], frozen=True):
    """A request. `Sent[None]` has no body."""

    read: Callable[[], Awaitable[SentBody[Fields]]]
    """Returns the body. A case first finds what the request is about, so that nobody sends a body for nothing."""
    warn: Callable[[Sequence[UnknownField]], Warnings]
    """Returns the warnings about unknown fields; raises if they are refused."""
    root: str = ""
    """The path that the server is mounted at."""


class Repeatable(Sent[Fields], Generic[Fields], frozen=True, kw_only=True):
    """A request that may be sent again with the same `Idempotency-Key`."""

    once: Callable[[str, bytes], Awaitable[IdempotencyKey | None]]
    """Returns the key, for requests of this kind with this body; None if it has none."""
    key: Callable[[], str]
    """Returns the key alone; empty if it has none."""


class Encoded(Struct, Generic[Fields], frozen=True):
    """A response that has been encoded already, as it may be large."""

    body: bytes


async def find_run(on: Host, by: Principal, run_id: str) -> RunRow:
    """Returns the run. Raises `NotFound` if it does not exist or belongs to somebody else."""
    row = await on.engine.stored.find(run_id, workspace=by.workspace)
    if not owns(by, row.agent):
        raise no_such_run()
    return row


async def locate_run(on: Host, by: Principal, run_id: str) -> int:
    """Returns the key of the run, without reading its row unless necessary."""
    if by.agents:
        return (await find_run(on, by, run_id)).key
    return await on.engine.locate(run_id, workspace=by.workspace)


async def hide_run(on: Host, by: Principal, error: Conflict) -> None:
    """Hides the run with which a new one collides, if the caller may not see it.

    Raises `NotFound` for an id that the caller chose, as at any other route; otherwise the error loses the run's id.
    """
    run_id = error.details.get("run_id")
    if run_id is None:
        return
    try:
        row = await on.engine.stored.find(run_id, workspace=by.workspace)
        if owns(by, row.agent):
            return
    except NotFound:
        pass
    if error.code == "run_exists":
        raise no_such_run() from None
    del error.details["run_id"]


async def find_session(on: Host, by: Principal, session_id: str) -> ThreadRow:
    """Returns the session. Raises `NotFound` as `find_run` does."""
    if not session_id.strip():
        raise InvalidRequest("The id of the session is blank.", code="blank_thread")
    return await find_thread(on, by, session_id, called="session")


async def find_thread(on: Host, by: Principal, thread_id: str, *, called: str = "thread") -> ThreadRow:
    """Returns the thread with this UUID or session id. Raises `NotFound` as `find_run` does."""
    row = None
    if _UUID.fullmatch(thread_id):
        row = await threads.by_uuid(on.workspaces, thread_id)
    elif (known := ids.parse(thread_id, prefix="ses_")) is not None:
        row = await threads.by_key_and_salt(on.workspaces, *known)
    if row is None or row.workspace != by.workspace or not owns(by, row.agent):
        raise NotFound(f"There is no such {called}.")
    return row


async def owners(
    at: Workspaces, by: Principal, *, session_id: str | None, agent_id: str | None
) -> tuple[int | None, tuple[str, ...]]:
    """Returns the thread and the agents that a list is for.

    The thread is None for all, 0 for one that does not exist; no agents means all. Raises `InvalidRequest` for a value
    that cannot match anything.
    """
    thread: int | None = None
    if session_id is not None:
        parsed = ids.parse(session_id, prefix="ses_")
        if parsed is None or parsed[0] >= 2**63:
            raise unusable("sessionId", "is not a session id")
        try:
            if by.workspace:
                thread = (await threads.find(at, by, parsed[0], salt=parsed[1])).key
            else:
                row = await threads.by_key(at, parsed[0])
                thread = row.key if row.salt == parsed[1] else 0
        except NotFound:
            thread = 0
    if agent_id is not None and not re.fullmatch(ID_PATTERN, agent_id):
        raise unusable("agentId", "is neither the id nor the slug of an agent")
    if agent_id is not None and not by.workspace:
        return thread, (agent_id, *await agents.ids_by_slug(at, agent_id))
    if agent_id is not None:
        agent_id = await agents.id_of(at, by.workspace, agent_id)
    return thread, _agents(by, agent_id)


def _agents(by: Principal, wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return by.agents
    # Another agent's items are not listed: no agent has this id.
    return (wanted,) if owns(by, wanted) else ("",)


def unusable(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {problem}.", issues=[{"path": name, "message": problem}])
