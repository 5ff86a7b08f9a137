"""Calls that clients execute: their claims, heartbeats and results.

A client may claim an offered call: until its lease expires, only a client with its token can submit a result. The claim
is a fact, so it survives a restart and holds in whichever process receives the result; the log has a digest of the
token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from secrets import token_hex

from msgspec import UNSET
from msgspec.structs import replace

from weftline.errors import Conflict, InvalidRequest, Issue, NotFound, WeftlineError, run_has_ended
from weftline.kernel.accept import open_question
from weftline.kernel.bodies import encode
from weftline.kernel.calls import external_id
from weftline.kernel.control import MAX_LEASE_US, CallClaimed, Lease
from weftline.kernel.questions import answerable, claimable, unclaim
from weftline.kernel.state import Question
from weftline.messages import Text, joined_text
from weftline.plan import A2ALocalRef, LocalRef, McpLocalRef, RunPlan
from weftline.runtime.engine import Leased
from weftline.runtime.fleet.timers import Timers
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.tool_calls.provided import (
    Problems,
    Provided,
    closed_by_client,
    open_calls,
    refusal,
    require_whole,
    results_of,
    was_answered,
    was_provided,
)
from weftline.runtime.writing import offer_body
from weftline.store.base import LogStore
from weftline.tools.base import ToolOutput


class ClientCalls:
    """`append` appends facts to a run, continues it, and returns when they are durable; `settled` returns when
    everything that a rejection is based on is durable.
    """

    def __init__(
        self,
        store: LogStore,
        log: Log,
        load: Callable[[int], Awaitable[LiveRun]],
        timers: Timers,
        append: Callable[[LiveRun, tuple[Draft, ...]], Awaitable[None]],
        settled: Callable[[LiveRun], Awaitable[None]],
        *,
        open_tools: Callable[[LiveRun], Awaitable[None]],
    ) -> None:
        self._store = store
        self._log = log
        self._load = load
        self._timers = timers
        self._append = append
        self._settled = settled
        self._open_tools = open_tools

    async def answer(
        self, key: int, call_id: str, output: ToolOutput, *, message_id: str, idempotency_key: str, token: str
    ) -> bool:
        """Accepts a client's result for a call that waits for it. Returns False if the run was cancelled in the
        meantime.
        """
        self._log.require_writable()
        run = await self._load(key)
        question = None if run.state.ended else open_question(run.state, call_id)
        if question is not None and not _is_of_client(run.work.plan, run.state.batch.calls[question.index].name):
            output = await self._fitting(run, question, output)
            run = await self._load(key)
        state, lease = run.state, _digest(token)
        question = None if state.ended or state.control.cancel else open_question(state, call_id)
        if question is None or not answerable(question, lease):
            await self._settled(run)  # a rejection, too, must be based on what a crash cannot undo
            if call_id in state.questions.ignored and not token:
                return False
            if idempotency_key and await was_answered(
                self._store, key, call_id, output, idempotency_key=idempotency_key
            ):
                return True
            if question is not None:
                raise self._lost() if token else self._held(run, question)
            raise self._gone(run, token)
        closed = closed_by_client(
            run, question, output, message_id=message_id, idempotency_key=idempotency_key, lease=lease
        )
        await self._append(run, (closed,))
        return True

    async def _fitting(self, run: LiveRun, question: Question, output: ToolOutput) -> ToolOutput:
        """The result of a call, checked against what its tool declares to return. Raises `InvalidRequest` if it does
        not fit.
        """
        call, text = run.state.batch.calls[question.index], joined_text(output.parts)
        await self._open_tools(run)  # the run may have advanced by then, or ended
        result = UNSET if output.is_error else text
        one = Provided(call_id=call.id, result=result, error=text if output.is_error else None, failure=output.failure)
        (made,) = await results_of((one,), {call.id: call.name}, run.work.toolbox)
        if made.output is None:
            raise refusal([Issue(field, problem) for field, problem in made.problems])
        files = [part for part in output.parts if not isinstance(part, Text)]
        return replace(made.output, parts=(*made.output.parts, *files)) if files else made.output

    async def provide(
        self,
        key: int,
        await_id: str,
        results: Sequence[Provided],
        *,
        problems: Problems,
        message_id: str,
        idempotency_key: str,
    ) -> bool:
        """Accepts the results of all calls of a turn that wait for somebody outside, under the id of that wait."""
        self._log.require_writable()
        run = await self._load(key)
        if not _is_over(run) and (idempotency_key or await_id == external_id(run.state.turn - 1)):
            await self._open_tools(run)
            run = await self._load(key)
        names = {id: run.state.batch.calls[question.index].name for id, question in open_calls(run.state).items()}
        made = await results_of(results, names, run.work.toolbox, problems=problems)
        run = await self._load(key)
        waiting = {} if _is_over(run) or await_id != external_id(run.state.turn - 1) else open_calls(run.state)
        leases = {one.call_id: _digest(one.token) for one in results}
        try:
            if not waiting:
                raise self._not_waiting(run)
            outputs = require_whole(run.state, results, made, leases=leases)
        except WeftlineError:
            await self._settled(run)  # a rejection, too, must be based on what a crash cannot undo
            ids = [one.call_id for one in results]
            if ids and all(id in run.state.questions.ignored for id in ids):
                return False
            if (
                idempotency_key
                and not problems
                and await was_provided(self._store, key, results, run.work.toolbox, idempotency_key=idempotency_key)
            ):
                return True
            raise
        closed = [
            closed_by_client(
                run, waiting[id], output, message_id=message_id, idempotency_key=idempotency_key, lease=leases[id]
            )
            for id, output in outputs.items()
        ]
        await self._append(run, tuple(closed))
        return True

    async def claim(self, key: int, call_id: str, *, lease_us: int, claim_id: str, by: str) -> Leased:
        """Claims a call for a client. The same `claim_id` of the same client gets the same token again."""
        if not 0 < lease_us <= MAX_LEASE_US:
            raise InvalidRequest(f"A lease must be longer than 0 and at most {MAX_LEASE_US / 1e6:g} seconds.")
        run, question = await self._offered(key, call_id)
        token = self._token(run, question, claim_id or token_hex(16), by)
        if not claimable(question, _digest(token)):
            await self._settled(run)
            raise self._held(run, question)
        return await self._take(run, question, token, lease_us=lease_us, by=by)

    async def heartbeat(self, key: int, call_id: str, token: str) -> Leased:
        """Extends a lease by its duration."""
        run, question = await self._offered(key, call_id, token=token)
        lease = self._own(question, token)
        return await self._take(run, question, token, lease_us=lease.lease_us, by=lease.by, renewed=True)

    async def release(self, key: int, call_id: str, token: str) -> None:
        """Releases a call, which is offered to all clients again at once."""
        run, _ = await self._offered(key, call_id, token=token)
        await self._open_tools(run)  # the tools contribute to the offer
        run, question = await self._offered(key, call_id, token=token)
        if self._own(question, token).lost:
            await self._settled(run)
            return  # it has been offered again already
        head = unclaim(run.state, question, "released")
        await self._append(run, (Draft(head, encode(offer_body(run.work, head))),))

    async def _take(
        self, run: LiveRun, question: Question, token: str, *, lease_us: int, by: str, renewed: bool = False
    ) -> Leased:
        call = run.state.batch.calls[question.index]
        turn = run.state.turn - 1
        head = CallClaimed(turn, question.index, call.id, call.name, _digest(token), lease_us, by, renewed)
        attempt = max(call.attempt, 1)
        await self._append(run, (Draft(head),))
        taken = run.state.questions.open.get(call.id)
        lease = None if taken is None else taken.lease
        if lease is None or lease.token != head.token:  # it was cancelled or answered while this was being written
            raise self._gone(run, token)
        return Leased(token, self._timers.lease_ends(lease), lease_us, attempt)

    async def _offered(self, key: int, call_id: str, *, token: str = "") -> tuple[LiveRun, Question]:
        self._log.require_writable()
        run = await self._load(key)
        question = None if run.state.ended or run.state.control.cancel else open_question(run.state, call_id)
        if question is None:
            await self._settled(run)
            raise self._gone(run, token)
        return run, question

    def _token(self, run: LiveRun, question: Question, claim_id: str, by: str) -> str:
        """The token of a claim: it cannot be guessed, and is derived again instead of being stored."""
        call = run.state.batch.calls[question.index]
        named = f"{self._store.id}/{run.id}/{call.id}/{by}/{claim_id}"
        return f"lease_{blake2b(named.encode(errors='replace'), digest_size=16).hexdigest()}"

    def _own(self, question: Question, token: str) -> Lease:
        lease = question.lease
        if lease is None or lease.token != _digest(token):
            raise self._lost()
        return lease

    def _held(self, run: LiveRun, question: Question) -> Conflict:
        lease = question.lease
        assert lease is not None
        ends_at = self._timers.lease_ends(lease)
        message = "Another client is executing this call."
        return Conflict(message, code="lease_held", lease_ends_at=ends_at)

    def _lost(self) -> Conflict:
        return Conflict("This lease has expired or was released.", code="lease_lost")

    def _not_waiting(self, run: LiveRun) -> Conflict | NotFound:
        return run_has_ended() if _is_over(run) else NotFound("The run has no such await.", code="unknown_await")

    def _gone(self, run: LiveRun, token: str) -> Conflict | NotFound:
        if run.state.ended or run.state.control.cancel:
            return run_has_ended()
        if token:
            return self._lost()
        return NotFound("No open call of this run has this id.", code="unknown_call")


def _is_of_client(plan: RunPlan, name: str) -> bool:
    """Returns True if the client defined the tool itself, so that nothing but its name is known."""
    for ref in plan.tools:
        if isinstance(ref, LocalRef | A2ALocalRef) and ref.name == name:
            return True
        if isinstance(ref, McpLocalRef) and any(entry.name == name for entry in ref.tools):
            return True
    return False


def _is_over(run: LiveRun) -> bool:
    return run.state.ended or bool(run.state.control.cancel)


def _digest(token: str) -> str:
    return blake2b(token.encode(errors="replace"), digest_size=12).hexdigest() if token else ""
