"""New runs: what is checked before there is one, its key, and its first entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from msgspec import UNSET, Raw
from msgspec.structs import replace

from weftline.engine_options import THREAD_ATTRIBUTE, thread_problem
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel import bodies
from weftline.kernel.bodies import Origin
from weftline.kernel.entries import RULES, Limits, Parent, RunCreated
from weftline.labels import missing_labels, require_possible
from weftline.messages import Blob
from weftline.plan import RunPlan, encode_plan
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.budgets.reserving import check_models
from weftline.runtime.clock import Clock
from weftline.runtime.conversation import Conversation
from weftline.runtime.fleet.fleet import Fleet
from weftline.runtime.live import BEHIND, PARKED, Draft, LiveRun, RunLog, WorkingSet
from weftline.runtime.model_calls.cutting import input_bytes
from weftline.runtime.reads.finding import row_of
from weftline.runtime.tool_calls.children import child_write
from weftline.runtime.tool_calls.preparing import check_fallbacks
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import LogReader, LogStore, Store
from weftline.store.database import Query
from weftline.store.pieces import Split, split
from weftline.store.records import threads
from weftline.store.rows import IdempotencyKey, NewRun, Write, Written
from weftline.trace_context import new_trace, trace_for
from weftline.work.heavy import in_turn


async def add_ended(store: LogStore, write: Write) -> Written:
    """Applies a write that creates ended runs, under an epoch of this owner of the store."""
    for one in (write, *write.children):
        one.epoch = store.next_epoch()
    [written] = await store.flush([write])
    for one in (write, *write.children):
        store.release(one.key, one.epoch)
    return written


Slot: TypeAlias = tuple[int, str, str]
"""Workspace, route and key of a request; or workspace and id of a run, with an empty route in between."""


class CreatedOnce:
    def __init__(self, store: LogReader) -> None:
        self._store = store
        self._creating: dict[Slot, asyncio.Future[None]] = {}

    async def find(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        """The id of the run that was created under the key, even if it is still being created.

        Raises:
            Conflict: `idempotency_conflict`, if the key was used for another request.
        """
        slot = (workspace, idempotency.route, idempotency.key)
        await self._free(slot)
        return await self.created(slot, idempotency.digest)

    async def take(self, workspace: int, idempotency: IdempotencyKey) -> Slot:
        """Waits until no other request with this key is creating a run, then reserves the key for this one.

        `release` must follow.
        """
        return await self._occupy((workspace, idempotency.route, idempotency.key))

    async def take_id(self, workspace: int, run_id: str) -> Slot:
        """The same for the id of a run, if the client chose it.

        Raises:
            Conflict: `run_exists`. Nothing is reserved then.
        """
        slot = await self._occupy((workspace, "", run_id))
        try:
            if await row_of(self._store, run_id, workspace=workspace) is not None:
                raise Conflict(f"There is already a run {run_id!r}.", code="run_exists", run_id=run_id)
        except BaseException:
            self.release(slot)
            raise
        return slot

    async def _occupy(self, slot: Slot) -> Slot:
        await self._free(slot)
        self._creating[slot] = asyncio.get_running_loop().create_future()
        return slot

    def release(self, slot: Slot) -> None:
        self._creating.pop(slot).set_result(None)

    def release_after(self, slots: Iterable[Slot], _: object) -> None:
        """Releases them when a future is done."""
        for slot in slots:
            self.release(slot)

    async def created(self, slot: Slot, digest: bytes) -> str | None:
        """Like `find`, but only for runs that are stored."""
        earlier = await self._store.idempotent(*slot)
        if earlier is None:
            return None
        row = await self._store.run(earlier[1])
        run_id = ids.run_id(row.key, row.salt) if row is not None else ""
        if earlier[0] != digest:
            raise Conflict(
                "This Idempotency-Key was used for another request.", code="idempotency_conflict", run_id=run_id
            )
        return run_id

    async def _free(self, slot: Slot) -> None:
        while (first := self._creating.get(slot)) is not None:
            await asyncio.shield(first)


_ENCODE_ON_LOOP_BYTES = 64 * 1024


class RunCreator:
    """`connect` passes it the fleet, whose driver refers to it, before the first run is created."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        models: WorkspaceCatalogs,
        tools: ToolSource,
        ledger: Ledger,
        require_accepting: Callable[[], None],
        traces: bool = False,
    ) -> None:
        """With `traces`, spans are emitted for runs without agent code."""
        self._store = store
        self._clock = clock
        self._models = models
        self._tools = tools
        self._ledger = ledger
        self._require_accepting = require_accepting
        self._traces = traces
        self._once = CreatedOnce(store.log)
        self._next_key = 0
        self._latest_limits: tuple[Limits, Raw] | None = None
        """Those of the latest run, and encoded."""

    def connect(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def open(self) -> None:
        self._next_key = await self._store.log.last_key() + 1

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True, thread: int | None = None) -> None:
        """Raises `WeftlineError` for models and tools that the workspace lacks, and for settings that a model rejects.

        A plan that names no model needs a default model only if it `runs_now`.
        """
        catalog = self._models.loaded(workspace) or await self._models.load(workspace)
        if plan.model is not None or runs_now:
            account = None
            if self._ledger.active or plan.limits.budget is not None:
                account = Account(self._ledger, key=0, workspace=workspace, thread=thread, plan=plan, parent=None)
            check_models(plan, catalog, account)
        check_fallbacks(plan)
        if plan.tools:
            await self._tools.check(plan, workspace=workspace)
        if (plan.tools or plan.code is not None) and runs_now:
            refusal = missing_labels(self._tools.required_labels(plan), plan.labels)
            if refusal is not None:
                raise refusal

    def _traced(self, plan: RunPlan, *, is_fork: bool) -> RunPlan:
        """The plan with the trace that the run belongs to. A fork does not belong to that of its origin."""
        emitted = plan.trace.spans if plan.trace is not None else self._traces and plan.code is None
        planned = plan.trace if emitted and not is_fork else None
        trace = trace_for(planned or (new_trace() if emitted else None), metadata=plan.metadata.get("traceparent"))
        return plan if trace == plan.trace else replace(plan, trace=trace)

    async def create(
        self,
        workspace: int,
        plan: RunPlan,
        *,
        sent: bytes | None = None,
        thread: int | None = None,
        metadata: str = "{}",
        idempotency: IdempotencyKey | None = None,
        secrets: bytes | None = None,
        blobs: Sequence[Blob] = (),
        origin: Origin | None = None,
        run_id: str | None = None,
        history: Sequence[bytes] = (),
    ) -> str:
        """See `Engine.create`; the options are those of `CreateOptions`."""
        self._require_accepting()
        if run_id is not None:
            require_possible(run_id)
        once, own = self._once, None
        slots: list[Slot] = []
        try:
            if idempotency is not None:
                slots.append(slot := await once.take(workspace, idempotency))
                earlier = await once.created(slot, idempotency.digest)
                if earlier is not None:
                    once.release(slot)
                    return earlier
            if run_id is not None:
                slots.append(await once.take_id(workspace, run_id))
            await self.check(plan, workspace=workspace, thread=thread)
            if plan.on_thread and thread is None:
                await self._tools.check_thread(plan, workspace=workspace)
                thread = own = await self._own_thread(workspace, plan, metadata)
            if plan.engine is not None:
                await self._check_engine(plan, thread)
            plan = self._with_digests(self._traced(plan, is_fork=origin is not None))
            # About as large as the request; encoding many megabytes on the loop would block everybody else.
            large = sent is not None and len(sent) > _ENCODE_ON_LOOP_BYTES
            content = await in_turn(_content, plan, sent, origin, large=True) if large else _content(plan, sent, origin)
            self._require_accepting()
            self._fleet.dispatcher.require_room(workspace)
            new = NewRun(
                ids.new_salt() if run_id is None else ids.given(run_id),
                workspace,
                plan.name,
                metadata,
                created_at=0,  # until its first entry is appended
                rules=RULES,
                thread=thread,
                agent=plan.agent_id,
                idempotency=idempotency,
                secrets=secrets,
                blobs=tuple(blobs),
                history=tuple(history),
            )
            run = self._new_run(plan, content, new)
            durable = self._fleet.log.mark(run, outside=True)
        except BaseException:
            for slot in slots:
                once.release(slot)
            if own is not None:
                await self._store.records.write(threads.remove_unused(own))
            raise
        if run.work.blobs:
            durable.add_done_callback(run.work.drop_blobs)
        if not slots:
            await durable
        else:
            # Tied to the commit: if the caller goes away, a retry with the same key must not create another run.
            durable.add_done_callback(partial(once.release_after, slots))
            await asyncio.shield(durable)
        if own is not None:
            await self._store.records.write(threads.remove_unused(own))  # it is used, so only its mark goes
        return run.id

    async def _own_thread(self, workspace: int, plan: RunPlan, metadata: str) -> int:
        """Makes the thread of a run that was given none. It is marked, and so removed if the run is never created."""
        new = threads.NewThread(
            workspace=workspace,
            salt=ids.new_salt(),
            name=plan.name,
            agent=plan.agent_id,
            spec=b"{}",
            metadata=metadata,
            keeps="all",
        )
        now = self._clock.now_us()

        def query() -> Query[int]:
            row = yield from threads.insert(new, now=now)
            yield from threads.mark_branch(row, now=now)
            return row.key

        return await self._store.records.write(query())

    async def _check_engine(self, plan: RunPlan, thread: int | None) -> None:
        """Raises `InvalidRequest` if the plan's engine attributes name another thread than the run's."""
        names: tuple[str, ...] = ()
        if thread is not None and (row := await self._store.records.read(threads.by_key(thread))) is not None:
            id = ids.session_id(row.key, row.salt)
            names = (id, row.name) if plan.thread_keeps_all else (id,)
        if problem := thread_problem(plan.engine, names):
            raise InvalidRequest(f"The search attribute {THREAD_ATTRIBUTE} is wrong: {problem}.")

    def _new_run(self, plan: RunPlan, content: _Content, new: NewRun) -> LiveRun:
        key, self._next_key = self._next_key, self._next_key + 1
        conversation = Conversation(
            [*plan.messages], size=content.input_bytes, result_limit_bytes=plan.model_result_limit_bytes
        )
        conversation.keeps_all = new.thread is not None and plan.thread_keeps_all
        work = WorkingSet(ids.run_id(key, new.salt), plan, conversation, ids.unique_id(key, new.salt), new.secrets)
        if new.blobs:
            work.blobs = {blob.id: blob.data for blob in new.blobs}
        log = RunLog(self._store.log.next_epoch())
        residency = PARKED if new.thread is None else BEHIND  # until its commit lets it start
        run = LiveRun(key, new.workspace, new.thread, log, work, residency=residency, new=new)
        self._fleet.residents.add(run)
        created = RunCreated(RULES, plan.limits, new.thread)
        stored = RunCreated(RULES, cast(Limits, self._encoded_limits(plan.limits)), new.thread)
        draft = Draft(created, content.body, encoded=bodies.encode(stored), parts=content.parts)
        self._fleet.driver.record(run, (draft,))
        self._fleet.dispatcher.begin(run)
        return run

    def _encoded_limits(self, limits: Limits) -> Raw:
        """The limits as they are stored. Most runs have the same."""
        latest = self._latest_limits
        if latest is None or latest[0] is not limits:
            latest = self._latest_limits = limits, Raw(bodies.encode(limits))
        return latest[1]

    def new_child(self, run: LiveRun, plan: RunPlan, parent: Parent) -> tuple[str, Write]:
        key, self._next_key = self._next_key, self._next_key + 1
        epoch, at = self._store.log.next_epoch(), self._clock.now_us()
        return child_write(run, self._with_digests(plan), parent, key=key, epoch=epoch, at=at)

    def _with_digests(self, plan: RunPlan) -> RunPlan:
        """The plan with the digests of what it depends on, unless it dies with its process: then it never meets other
        code.
        """
        if not self._store.outlives_process or (plan.code is None and not plan.tools):
            return plan
        if plan.digests is not None:  # from another run's plan
            plan = replace(plan, digests=None)
        digests = self._tools.digests(plan)
        return plan if digests is None else replace(plan, digests=digests)

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return await self._once.find(workspace, idempotency)

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        """Adds runs that ran elsewhere and have ended. No new run gets a key up to `last_key`."""
        self._require_accepting()
        self._next_key = max(self._next_key, last_key + 1)
        return await add_ended(self._store.log, write)


class _Content(NamedTuple):
    """What a new run brings."""

    body: bytes
    """Of its first entry."""
    parts: Split | None
    input_bytes: int
    """How many bytes of it a model reads."""


def _content(plan: RunPlan, sent: bytes | None, origin: Origin | None, *, large: bool = False) -> _Content:
    created = bodies.CreatedBody(Raw(encode_plan(plan)), UNSET if sent is None else Raw(sent), origin)
    body = bodies.encode(created)
    return _Content(body, split(body) if large else None, input_bytes(plan))
