"""Runs on behalf of callers that speak another protocol: started from a stored agent, and followed as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, NamedTuple

import apsw
from msgspec import Raw, to_builtins
from msgspec.json import decode, encode

from weftline.runtime.view import run_view
from weftline.server.app import App
from weftline.server.routes.agents import merged
from weftline.server.sse import KEEP_ALIVE
from weftline.store.sqlite import accounts, lists
from weftline.store.sqlite.agents import AgentRow
from weftline.store.sqlite.reads import RunRow
from weftline.wire.bodies import MessageBody
from weftline.wire.events import TERMINAL_EVENTS
from weftline.wire.plan import plan_from_spec
from weftline.wire.responses import RunView, usage_triple
from weftline.wire.sessions import effective_spec

CONTEXT_KEY = "a2a_context_id"


class Event(NamedTuple):
    """One event of a run; of type "" when nothing happened for a while."""

    type: str
    payload: dict[str, Any]

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_EVENTS


async def events(app: App, row: RunRow, run_id: str) -> AsyncGenerator[Event]:
    """The run's events from its first. Ends after the terminal one, or before it when the server is stopping."""
    subscription = app.engine.follow(row.key, run_id)
    try:
        while (data := subscription.take()) is not None:
            if not data:
                await subscription.wait()
                continue
            for frame in data.split(b"\n\n"):
                if frame + b"\n\n" == KEEP_ALIVE:
                    yield Event("", {})
                elif frame:
                    _, _, body = frame.partition(b"\ndata: ")
                    payload = decode(body, type=dict[str, Any])
                    yield Event(str(payload.pop("type")), payload)
    finally:
        subscription.close()


async def ended(app: App, row: RunRow, run_id: str) -> RunView | None:
    """The run once it has ended; None when the server stops first."""
    async for event in events(app, row, run_id):
        if event.is_terminal:
            after = app.engine.read.run(row.key)
            assert after is not None
            return run_view(app.engine.read, after)
    return None


def usage(run: RunView) -> dict[str, Any] | None:
    """Tokens, turns and model of a run that has ended; None when no model was reached."""
    if not run.model.provider:
        return None
    return {"mantyx": to_builtins(usage_triple(run.usage, run.turns, run.model, attempts=run.attempts))}


async def start(app: App, agent: AgentRow, prompt: str, *, metadata: dict[str, str] | None = None) -> str:
    """A run of the agent by itself; returns its id."""
    own = encode({"agentId": agent.id, "prompt": prompt, "metadata": metadata or {}})
    spec, headers = merged(app, agent, own, {})
    return await app.engine.create(
        agent.workspace,
        plan_from_spec(spec),
        sent=spec,
        metadata=encode(metadata or {}).decode(),
        secrets=app.engine.store.vault.seal_headers(headers, workspace=agent.workspace),
    )


async def send(app: App, thread: int, workspace: int, prompt: str) -> str:
    """The run of a message to a session; returns its id."""
    row = app.engine.read.thread(thread)
    assert row is not None
    spec = effective_spec(row.spec, MessageBody(encode({"prompt": prompt})))
    plan = plan_from_spec(spec)
    return await app.engine.create(
        workspace,
        plan,
        sent=spec,
        thread=thread,
        metadata=encode(plan.metadata).decode(),
        secrets=app.engine.read.thread_secrets(thread),
    )


async def session_of_context(app: App, agent: AgentRow, context: str) -> int:
    """The agent's session of an A2A context, a new one when there is none yet."""
    tags = {CONTEXT_KEY: context}
    own = encode({"agentId": agent.id, "metadata": Raw(encode(tags))})
    spec, headers = merged(app, agent, own, {})
    plan = plan_from_spec(spec)
    app.engine.check_models(plan, workspace=agent.workspace)
    app.engine.tools.check(plan, workspace=agent.workspace)
    create = partial(
        accounts.create_thread,
        workspace=agent.workspace,
        name=plan.name,
        agent=agent.id,
        spec=spec,
        metadata=encode(tags).decode(),
        now=app.engine.clock.now_us(),
        sealed=app.engine.store.vault.seal_headers(headers, workspace=agent.workspace),
    )

    def found_or_made(db: apsw.Connection) -> int:
        known = lists.thread_of_context(db, workspace=agent.workspace, agent=agent.id, context=context)
        return create(db)[0] if known is None else known

    known = lists.thread_of_context(app.engine.read.db, workspace=agent.workspace, agent=agent.id, context=context)
    return await app.engine.store.job(found_or_made) if known is None else known
