"""The logs of an engine's runs: entries, a page at a time, open questions, and runs whose owners have left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.json import Decoder, decode

from weftline.agent.engine.observing import FactsOf
from weftline.agent.running.asking import Await, to_await
from weftline.errors import LOG_DAMAGED, InvalidRequest, NotFound
from weftline.events.project_details import facts_of
from weftline.kernel.bodies import decode_created
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, AwaitKind, CallStarted, decode_fact
from weftline.kernel.policy import PARTS
from weftline.messages import Usage
from weftline.plan import RunPlan, agent_of, decode_plan, limits_of
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.runtime.reads import finding
from weftline.store.base import LogReader
from weftline.store.memory import MemoryStore
from weftline.store.records.threads import ThreadFilter, ThreadRow
from weftline.store.rows import AwaitFilter, Item, RunFilter, RunRow
from weftline.workspace import agents, threads
from weftline.workspace.context import Workspaces

_PAGE = 200
_UNFINISHED = ("queued", "running", "paused")
_MANY = 2**31 - 1
RunStatus: TypeAlias = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run in a list. See `Engine.runs`; `Engine.attach(id)` has the rest."""

    id: str
    status: RunStatus
    agent: str | None
    """The name of an agent in code, or the id of a stored one."""
    thread_id: str | None
    """The id of its thread; a child run has that of the topmost run above it."""
    parent: str | None
    """The run whose call it executes."""
    name: str
    metadata: dict[str, Any]
    created_at: datetime
    started_at: datetime | None
    """When a model was first called."""
    ended_at: datetime | None
    text: str | None
    """Its answer, once it has succeeded; the partial one, if the output was truncated."""
    error: str | None
    code: str | None
    """Of a failed run: the class of its error. Also `log_damaged` and `unsupported_run`, of one that cannot be read."""
    turns: int
    """Like usage and cost, known once it has ended."""
    usage: Usage
    cost_usd: float | None


class ListedThread(Struct, frozen=True, kw_only=True):
    """A thread in a list. See `Engine.threads`; `Engine.thread(id)` has its messages and events."""

    id: str
    name: str
    agent: str | None
    metadata: dict[str, str]
    created_at: datetime
    last_used_at: datetime
    ended_at: datetime | None
    """When it was ended. It accepts no further runs then."""
    code: str | None = None
    """`log_damaged` if it cannot be read."""


class RunQuery(Struct, frozen=True, kw_only=True):
    """What listed runs must match; see `Engine.runs`."""

    status: RunStatus | None
    thread: str | None
    children: bool
    agent: str | None
    metadata: Mapping[str, Any]
    id_prefix: str | None


async def page_of_runs(
    host: Engine, at: Workspaces, workspace: int, query: RunQuery, *, before: int | None
) -> tuple[list[ListedRun], int | None]:
    """Returns a page of runs, and the key below which the next one begins; None after the last.

    No index has the agents and the metadata of runs of code: these filters read the beginning of every run.
    """
    status, prefix = query.status, query.id_prefix
    if status is not None and status not in get_args(RunStatus):
        raise InvalidRequest(f"status: {status!r} is not one of {', '.join(get_args(RunStatus))}.")
    try:
        thread = None if query.thread is None else await _thread_key(at, workspace, query.thread)
    except NotFound:
        return [], None
    wanted = RunFilter(
        workspace=workspace,
        before=before,
        limit=_PAGE,
        statuses=() if status is None else (status,),
        thread=thread,
        with_children=query.children,
    )
    if prefix is None:
        rows = await host.stored.logs.runs(wanted)
    elif finding.is_prefix(prefix):
        rows = await finding.runs_with_prefix(host.stored.logs.runs, prefix, wanted)
    else:
        raise InvalidRequest(f"id_prefix: {prefix!r} is not the beginning of a run's id.")
    names, metadata = await _names_of(at, workspace, query.agent), query.metadata.items()
    found: list[ListedRun] = []
    for row in rows:
        given = await _given(host, row)
        if (not names or given.agent in names) and all(given.metadata.get(key) == value for key, value in metadata):
            found.append(await _listed_run(host, row, given))
    return found, rows[-1].key if len(rows) == wanted.limit else None


async def threads_filter(
    at: Workspaces, workspace: int, *, ended: bool | None, agent: str | None, metadata: Mapping[str, str]
) -> ThreadFilter:
    of = await _names_of(at, workspace, agent)
    return ThreadFilter(workspace=workspace, ended=ended, agents=of, metadata=tuple(metadata.items()), limit=_PAGE)


async def page_of_threads(at: Workspaces, wanted: ThreadFilter) -> tuple[list[ListedThread], int | None]:
    """Like `page_of_runs`, for threads."""
    rows = await threads.page(at, wanted)
    return [_listed_thread(row) for row in rows], rows[-1].key if len(rows) == wanted.limit else None


async def _names_of(at: Workspaces, workspace: int, name: str | None) -> tuple[str, ...]:
    """Returns what stands for an agent in the store: its name and, if it is a stored one, its id."""
    return () if name is None else (name, await agents.id_of(at, workspace, name))


async def _thread_key(at: Workspaces, workspace: int, name: str) -> int:
    """Returns the key of a thread, by its name or id. Raises `NotFound`."""
    given = ids.parse(name, prefix="ses_")
    if given is None:
        return (await threads.named(at, workspace, name)).key
    row = await threads.by_key(at, given[0])
    if row.salt != given[1] or row.workspace != workspace:
        raise NotFound(f"There is no thread {name!r}.")
    return row.key


class _Given(Struct, frozen=True):
    """What a run was started with."""

    agent: str | None
    metadata: dict[str, Any]


class _PlanMetadata(Struct):
    metadata: dict[str, Any] = {}


_decode_plan_metadata = Decoder(_PlanMetadata).decode


async def _given(host: Engine, row: RunRow) -> _Given:
    """Reads what a run was started with, as far as it can still be read."""
    created = await host.stored.logs.entry(row.key, 1)
    try:
        of_client = decode(row.metadata, type=dict[str, Any])
        if created is None:
            return _Given(row.agent, of_client)
        plan = decode_created(created.body).plan
        return _Given(row.agent or agent_of(plan), _decode_plan_metadata(plan).metadata | of_client)
    except UNREADABLE:
        return _Given(row.agent, {})


async def _listed_run(host: Engine, row: RunRow, given: _Given) -> ListedRun:
    from weftline.api.views import run_summary  # with the words of the HTTP API, which few programs need

    run = await run_summary(host.stored, row)
    return ListedRun(
        id=run.id,
        status=run.status,
        agent=given.agent,
        thread_id=run.session_id,
        parent=run.parent,
        name=run.name,
        metadata=given.metadata,
        created_at=_time(run.created_us),
        started_at=None if run.started_us is None else _time(run.started_us),
        ended_at=None if run.finished_us is None else _time(run.finished_us),
        text=run.final_text,
        error=run.error,
        code=run.error_code,
        turns=run.turns,
        usage=run.usage,
        cost_usd=None if run.cost_nusd is None else run.cost_nusd / PARTS["usd"],
    )


def _listed_thread(row: ThreadRow) -> ListedThread:
    return ListedThread(
        id=ids.session_id(row.key, row.salt),
        name=row.name,
        agent=row.agent,
        metadata=decode(row.metadata, type=dict[str, str]),
        created_at=_time(row.created_at),
        last_used_at=_time(row.last_used_at),
        ended_at=None if row.ended_at is None else _time(row.ended_at),
        code=LOG_DAMAGED if row.damaged else None,
    )


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


async def open_awaits(host: Engine, workspace: int, *, root: int | None, kinds: Sequence[AwaitKind]) -> list[Await]:
    found: list[Await] = []
    after = (0, "")
    while page := await host.stored.awaits(
        AwaitFilter(workspace=workspace, after=after, limit=_PAGE, root=root, kinds=tuple(kinds))
    ):
        after = page[-1].run, page[-1].id
        found += [to_await(one) for one in page]
    return found


async def unclaimed_runs(host: Engine, workspace: int, *, knows: Callable[[RunPlan], bool]) -> list[str]:
    """Returns the unfinished runs whose plans `knows` rejects, newest first."""
    found: list[str] = []
    before: int | None = None
    while rows := await host.stored.logs.runs(
        RunFilter(workspace=workspace, statuses=_UNFINISHED, before=before, limit=_PAGE)
    ):
        before = rows[-1].key
        for row in rows:
            created = await host.stored.logs.entry(row.key, 1)
            if created is None:
                continue
            plan = decode_plan(decode_created(created.body).plan, limits_of(created.head))
            if not knows(plan):
                found.append(ids.run_id(row.key, row.salt))
    return found


def facts_around(host: Engine, run_id: str, key: int) -> FactsOf:
    """Returns a function that reads the facts of this run, and of the runs below it, by kind."""

    async def facts_of(run: str, kinds: Sequence[str]) -> Sequence[Item]:
        found = key if run == run_id else ids.key_of(run)
        return await host.stored.logs.newest_facts(found, kinds=kinds, limit=_MANY, max_bytes=_MANY)

    return facts_of


MAX_RETAINED = 64
_STARTED = KIND[CallStarted]


class RecentLogs:
    """The last `MAX_RETAINED` runs without an owner, each with the runs below it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._keys: deque[int] = deque()

    async def add(self, host: Engine, key: int) -> None:
        self._keys.append(key)
        if len(self._keys) > MAX_RETAINED:
            for old in await _with_children(host, self._keys.popleft()):
                self._store.remove_run(old)


async def _with_children(host: Engine, key: int) -> list[int]:
    """Returns a run and all runs below it."""
    found = [key]
    for fact in await host.stored.logs.newest_facts(key, kinds=(_STARTED,), limit=_MANY, max_bytes=_MANY):
        head = decode_fact.decode(fact.head)
        if isinstance(head, CallStarted) and head.child:
            found += await _with_children(host, ids.key_of(head.child))
    return found


_READ_BYTES = 256 * 1024


class LogEntry(Struct, frozen=True, kw_only=True):
    """One entry, as it is stored. `at` is in microseconds since the epoch, UTC. Observations have no head."""

    run_id: str
    seq: int
    at: int
    kind: str
    head: dict[str, Any] | None
    body: Any
    turn_id: str = ""
    """The turn id that the run was started with, or else the run's id."""


class LogPage(Struct, frozen=True):
    """Consecutive entries of a run. The next page is the one after `last_seq`."""

    entries: tuple[LogEntry, ...]
    last_seq: int
    at_tail: bool
    """Whether there were no further entries when the page was read."""


async def log_page(log: LogReader, key: int, run_id: str, *, after: int, limit: int) -> LogPage:
    """Returns a page of a run's log. Raises `InvalidRequest` for a limit below 1."""
    if limit < 1:
        raise InvalidRequest(f"limit must be 1 or more, not {limit}.")
    first = await log.entry(key, 1)
    turn_id = facts_of(run_id, created=None if first is None else first.body, thread=None).turn_id
    found: list[LogEntry] = []
    last = max(after, 0)
    while True:
        page = await log.page(key, after=last, max_bytes=_READ_BYTES)
        if page is None:
            raise NotFound(f"There is no run {run_id!r}.", code="unknown_run")
        for entry in [entry for item in page.items for entry in _entries(run_id, turn_id, item) if entry.seq > last]:
            if len(found) == limit:
                return LogPage(tuple(found), last, at_tail=False)
            found.append(entry)
            last = entry.seq
        last = max(last, page.last_seq)
        if last >= page.upto:
            return LogPage(tuple(found), last, at_tail=True)


def _entries(run_id: str, turn_id: str, item: Item) -> list[LogEntry]:
    if item.head:
        body = decode(item.body) if item.body else None
        head: dict[str, Any] = decode(item.head)
        entry = LogEntry(run_id=run_id, seq=item.seq, at=item.at, kind=item.kind, head=head, body=body, turn_id=turn_id)
        return [entry]
    of_run = partial(LogEntry, run_id=run_id, turn_id=turn_id, at=item.at, kind=item.kind, head=None)
    return [of_run(seq=item.seq + number, body=decode(body)) for number, body in enumerate(item.body.split(b"\n"))]
