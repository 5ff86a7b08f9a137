"""Runs on behalf of callers that speak another protocol: started from a stored agent, and followed as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec import to_builtins
from msgspec.json import decode, encode

from weftline.kernel.entries import TEXT_DELTA, decode_fact
from weftline.runtime.engine import Engine, Follower
from weftline.runtime.hub import EntryBatch
from weftline.server.parsing import off_loop, parsed
from weftline.server.views import run_view
from weftline.store.base import RunRow
from weftline.store.records.agents import AgentRow
from weftline.store.records.threads import ThreadRow
from weftline.wire.bodies import MessageBody
from weftline.wire.events import TERMINAL_EVENTS, project
from weftline.wire.plan import plan_from_spec
from weftline.wire.responses import RunView, usage_triple
from weftline.wire.sessions import effective_spec
from weftline.workspace import threads
from weftline.workspace.agents import RunSpec, merged
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import CONTEXT_KEY, ThreadDraft


class Host(Protocol):
    """The server, as these need it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def workspaces(self) -> Workspaces: ...


class Event(NamedTuple):
    """One event of a run; of type "" if nothing happened for a while."""

    type: str
    payload: dict[str, Any]

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_EVENTS


async def events(app: Host, row: RunRow, run_id: str) -> AsyncGenerator[Event]:
    """The run's events from its first. Ends after the terminal one, or before it when the server is stopping."""
    async for event in events_of(app.engine.follow(row.key, run_id, workspace=row.workspace)):
        yield event


async def events_of(follower: Follower) -> AsyncGenerator[Event]:
    """The events that a follower brings; closes it at the end."""
    try:
        while (batches := await follower.next()) is not None:
            if not batches:
                yield Event("", {})
            for batch in batches:
                for event in _events(batch):
                    yield event
    finally:
        follower.close()


def _events(batch: EntryBatch) -> Iterator[Event]:
    """What a batch of entries means to somebody who follows the run.

    One at a time: a decoded event takes many times the memory of its bytes, and the reader may be slow.
    """
    heads = iter(batch.heads) if batch.heads is not None else None
    for item in batch.items:
        if not item.head:
            if item.kind == TEXT_DELTA:
                # Those of one commit share a row, and the reader may have some of them already.
                for body in item.body.split(b"\n")[max(batch.after + 1 - item.seq, 0) :]:
                    yield Event("assistant_delta", decode(body, type=dict[str, Any]))
            continue
        fact = next(heads) if heads is not None else decode_fact.decode(item.head)
        projected = project(fact, item.body, run_id=batch.run_id)
        if projected is not None:
            yield Event(projected[0], decode(projected[1], type=dict[str, Any]))


async def ended(app: Host, row: RunRow, run_id: str) -> RunView | None:
    """The run once it has ended; None when the server stops first."""
    async for event in events(app, row, run_id):
        if event.is_terminal:
            after = await app.engine.row(row.key)
            assert after is not None
            return await run_view(app.engine, after)
    return None


def usage(run: RunView) -> dict[str, Any] | None:
    """Tokens, turns and model of a run that has ended; None when no model was reached."""
    if not run.model.provider:
        return None
    used = to_builtins(usage_triple(run.usage, run.turns, run.model, attempts=run.attempts))
    return {"mantyx": used, "weftline": used}  # the protocol's name, and ours


async def start(app: Host, agent: AgentRow, prompt: str, *, metadata: dict[str, str] | None = None) -> str:
    """A stand-alone run of the agent; returns its id."""
    own = encode({"agentId": agent.id, "prompt": prompt, "metadata": metadata or {}})
    whole = merged(app.workspaces, agent, RunSpec(own, {}))
    return await app.engine.create(
        agent.workspace,
        plan_from_spec(whole.spec),
        sent=whole.spec,
        metadata=encode(metadata or {}).decode(),
        secrets=app.workspaces.vault.seal_headers(whole.headers, workspace=agent.workspace),
    )


async def send(
    app: Host,
    thread: ThreadRow,
    prompt: str,
    *,
    metadata: dict[str, str],
    idempotency: tuple[str, str, bytes] | None = None,
) -> str:
    """The run of a message to a session; returns its id."""
    own = encode({"prompt": prompt, "metadata": metadata})
    message = MessageBody(own, metadata)
    whole = await threads.spec(app.workspaces, thread)
    spec = await off_loop(partial(effective_spec, whole, message), size=len(whole) + len(own))
    plan = await parsed(plan_from_spec, spec)
    return await app.engine.create(
        thread.workspace,
        plan,
        sent=spec,
        thread=thread.key,
        metadata=encode(plan.metadata).decode(),
        idempotency=idempotency,
        secrets=await threads.sealed_headers(app.workspaces, thread),
    )


async def session_of_context(app: Host, agent: AgentRow, context: str) -> ThreadRow:
    """The agent's session of an A2A context, a new one if there is none yet."""
    metadata = {CONTEXT_KEY: context}
    own = encode({"agentId": agent.id, "metadata": metadata})
    whole = merged(app.workspaces, agent, RunSpec(own, {}))
    plan = await parsed(plan_from_spec, whole.spec)
    await app.engine.check(plan, workspace=agent.workspace)
    draft = ThreadDraft(name=plan.name, agent=agent.id, spec=whole.spec, headers=whole.headers, metadata=metadata)
    return await threads.of_context(app.workspaces, agent.workspace, draft)
