"""The embedded engine: everything in one process on one SQLite store. The default.

    async with Engine("store", models=catalog) as engine:
        run = await engine.create(workspace, spec)

Creates, answers, cancels and other requests are facts appended on the loop, checked against the folded state, and
acknowledged when they are durable.
"""

from __future__ import annotations

import asyncio
from typing import Self

from msgspec.structs import replace

from weftline.agent.plan import McpLocalRef, McpRef, RunPlan, StoredRef
from weftline.errors import Conflict, NotFound
from weftline.kernel import bodies
from weftline.kernel.accept import accepts, open_call
from weftline.kernel.entries import (
    RULES,
    CallClosed,
    CancelRequested,
    Fact,
    Limits,
    MessageQueued,
    RunCreated,
    RunPaused,
    RunResumed,
)
from weftline.messages import User
from weftline.runtime import ids
from weftline.runtime.content import closed_body
from weftline.runtime.fleet import CLIENT_GRACE_US, DRAIN_S, Fleet
from weftline.runtime.hub import Subscription
from weftline.runtime.live import LiveRun
from weftline.runtime.receipts import CancelReceipt, receipt
from weftline.store.base import NewRun
from weftline.store.sqlite.reads import RunRow
from weftline.tools.base import ToolOutput
from weftline.wire.limits import DEFAULT_TOOL_BUDGETS
from weftline.wire.plan import plan_from_spec

__all__ = ["CLIENT_GRACE_US", "DRAIN_S", "Engine"]


class Engine(Fleet):
    """What can be asked of runs: create, answer, cancel, pause, resume, steer, follow, find."""

    async def start(self) -> Self:
        """Opens the store when a path was given, and carries on what an earlier process left."""
        self._creating: dict[tuple[int, str, str], asyncio.Future[None]] = {}
        await super().start()
        self._next_key: int = self.read.last_run_key() + 1
        if self.store.unclean:
            await self._finish_ending_sessions()
        return self

    async def _finish_ending_sessions(self) -> None:
        """A session whose end was durable before a crash takes its runs with it, also those not cancelled by then."""
        for thread in self.read.ended_with_runs():
            for key in reversed(self.read.unfinished_of_thread(thread)):
                await self.cancel(key, reason="session_ended")

    async def create(
        self,
        workspace: int,
        spec: bytes,
        *,
        plan: RunPlan | None = None,
        thread: int | None = None,
        metadata: str = "{}",
        idempotency: tuple[str, str, bytes] | None = None,
        secrets: bytes | None = None,
    ) -> str:
        """Accepts a run durably and returns its id. `idempotency` is route, key and digest of the request's body.

        `secrets` are the headers of the tools that the server dials, sealed by the store's vault.
        """
        self.require_accepting()
        plan = plan or plan_from_spec(spec)
        await self.check_models(plan, workspace=workspace)
        await self.tools.check(plan, workspace=workspace)
        slot: tuple[int, str, str] | None = None
        if idempotency is not None:
            slot = (workspace, idempotency[0], idempotency[1])
            earlier = await self._created_before(slot, idempotency[2])
            if earlier is not None:
                return earlier
        run = self._create(workspace, spec, plan, thread, metadata, idempotency, secrets)
        durable = self.log.mark(run, requester=True)
        if slot is not None:
            # Hangs on the commit: a caller that goes away must not let a retry with the same key create another run.
            self._creating[slot] = durable
            durable.add_done_callback(lambda done: self._created(slot, done))
            await asyncio.shield(durable)
        else:
            await durable
        return run.id

    async def check_models(self, plan: RunPlan, *, workspace: int) -> None:
        """Raises `WeftlineError` (`invalid_model`) when the plan names a model that the workspace does not have."""
        catalog = await self.models.load(workspace)
        for model in (plan.model, *plan.fallbacks):
            catalog.resolve(model)

    def _create(
        self,
        workspace: int,
        spec: bytes,
        plan: RunPlan,
        thread: int | None,
        metadata: str,
        idempotency: tuple[str, str, bytes] | None,
        secrets: bytes | None,
    ) -> LiveRun:
        now = self.clock.now_us()
        key, self._next_key = self._next_key, self._next_key + 1
        run = LiveRun(key, ids.new_salt(), workspace=workspace, thread=thread, created_at=now)
        run.plan = plan
        run.new = NewRun(
            run.salt,
            workspace,
            plan.name,
            metadata,
            now,
            RULES,
            thread,
            agent=plan.agent_id,
            idempotency=idempotency,
            secrets=secrets,
        )
        self._resident[key] = run
        self.log.append(run, [(RunCreated(RULES, _own_limits(plan), thread), spec)])
        if thread is None and secrets is None:
            self._submit(run)  # one with secrets starts at its commit: its tools read them from its row
        return run

    def _created(self, slot: tuple[int, str, str], done: asyncio.Future[None]) -> None:
        if self._creating.get(slot) is done:
            del self._creating[slot]

    async def _created_before(self, slot: tuple[int, str, str], body: bytes) -> str | None:
        # One that is done stays listed until its callback runs, and waiting for it would not let the loop go on.
        while (first := self._creating.get(slot)) is not None and not first.done():
            await asyncio.shield(first)
        row = self.read.idempotent(*slot)
        if row is None:
            return None
        digest, key = row
        if digest != body:
            raise Conflict(
                "This Idempotency-Key was used for another request.", code="idempotency_conflict", run_id=self._id(key)
            )
        return self._id(key)

    async def answer(self, key: int, tool_use_id: str, output: ToolOutput) -> bool:
        """A client's result for a call that waits for it. False when the run was cancelled meanwhile: it is ignored."""
        self.log.require_well()
        run = self.load(key)
        state = run.state
        index = None if state.ended else open_call(state, tool_use_id)
        if index is None:
            await self.log.durable(run, requester=True)  # a refusal too rests on what a crash cannot take back
            self._release(run)
            if tool_use_id in state.pending_at_cancel:
                return False
            if state.ended:
                raise Conflict("The run has ended.", code="run_terminal")
            raise NotFound("No call of this run waits for a result under this id.", code="unknown_tool_use")
        call = state.calls[index]
        if not run.prepared:
            self.driver.prepare(run)
        head = CallClosed(
            state.turn - 1,
            index,
            call.id,
            call.name,
            "failed" if output.is_error else "returned",
            is_error=output.is_error,
            client=call.client,
        )
        await self._request(run, head, closed_body(run, index, output.parts))
        return True

    async def cancel(self, key: int, *, reason: str = "user", requested_by: str = "") -> CancelReceipt:
        """Ends the run at once. Repeating it, or cancelling a run that has ended, changes nothing."""
        run = self.load(key)
        head = CancelRequested(reason, requested_by)
        if accepts(run.state, head):
            self.log.require_well()
            await self._request(run, head, b"")
        else:
            await self.log.durable(run, requester=True)
        return receipt(run.state.status, self.read.of_kinds(key, ("call.opened", "call.closed")))

    async def pause(self, key: int, *, reason: str = "", requested_by: str = "") -> None:
        """Starts nothing more after what is under way, until `resume`."""
        run = await self._open(key)
        head = RunPaused(reason, requested_by)
        if run.state.paused:
            await self.log.durable(run, requester=True)
            return
        if not accepts(run.state, head):
            raise Conflict("This run does not take interruptions.")
        await self._request(run, head, b"")

    async def resume(self, key: int, *, notes: str = "", requested_by: str = "") -> None:
        run = await self._open(key)
        head = RunResumed(notes, requested_by)
        if not accepts(run.state, head):
            await self.log.durable(run, requester=True)
            raise Conflict("The run is not paused.", code="not_paused")
        await self._request(run, head, b"")

    async def steer(self, key: int, text: str) -> str:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped."""
        return await self._queue(key, text, "steer")

    async def follow_up(self, key: int, text: str) -> str:
        """Hands a message to the run when it would otherwise end."""
        return await self._queue(key, text, "follow_up")

    async def _queue(self, key: int, text: str, mode: str) -> str:
        run = await self._open(key)
        identity = f"msg_{run.next_seq}"
        head = MessageQueued(identity, "steer" if mode == "steer" else "follow_up")
        if not accepts(run.state, head):
            raise Conflict("The run takes no more messages.")
        await self._request(run, head, bodies.encode(User.of(text)))
        return identity

    async def _request(self, run: LiveRun, head: Fact, body: bytes) -> None:
        """Appends what somebody outside asked for, carries the run on, and returns when it is durable."""
        self.driver.append(run, head, body)
        self.advance(run)
        await self.log.durable(run, requester=True)

    # Reading

    def follow(self, key: int, run_id: str, *, after: int = 0) -> Subscription:
        return self.hub.follow(key, run_id, after=after)

    def locate(self, run_id: str, *, workspace: int) -> int:
        """The key of a run of this workspace, or `NotFound`: the same for an unknown id and for one of another."""
        parsed = ids.parse(run_id, prefix="run_")
        if parsed is not None:
            key, salt = parsed
            run = self._resident.get(key)
            owner = (run.salt, run.workspace) if run is not None else self.read.owner(key)
            if owner == (salt, workspace):
                return key
        raise NotFound("There is no such run.")

    def find(self, run_id: str, *, workspace: int) -> RunRow:
        """The run's row, or `NotFound`: the same for an unknown id and for one of another workspace."""
        parsed = ids.parse(run_id, prefix="run_")
        row = self.read.run(parsed[0]) if parsed else None
        if row is None or parsed is None or row.salt != parsed[1] or row.workspace != workspace:
            raise NotFound("There is no such run.")
        return row

    async def _open(self, key: int) -> LiveRun:
        self.require_accepting()
        run = self.load(key)
        if run.state.ended or run.state.cancel:
            await self.log.durable(run, requester=True)
            raise Conflict("The run has ended.", code="run_terminal")
        return run

    def _id(self, key: int) -> str:
        row = self.read.run(key)
        return ids.run_id(key, row.salt) if row else ""


def _own_limits(plan: RunPlan) -> Limits:
    """The run's limits without the default budgets of tools that it does not have: they would be in every row of it."""
    limits = plan.limits
    if not limits.tool_budgets:
        return limits
    names: set[str] = set()
    for ref in plan.tools:
        if isinstance(ref, McpRef | StoredRef):
            return limits  # what these bring is not known yet
        if isinstance(ref, McpLocalRef):
            names.update(entry.name for entry in ref.tools)
        else:
            names.add(ref.name)
    own = {
        name: most
        for name, most in limits.tool_budgets.items()
        if name in names or DEFAULT_TOOL_BUDGETS.get(name) != most
    }
    return limits if len(own) == len(limits.tool_budgets) else replace(limits, tool_budgets=own)
