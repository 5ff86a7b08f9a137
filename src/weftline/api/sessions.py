"""Sessions, which are threads of runs: created by clients and for A2A contexts, and sent messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import UNSET, Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from weftline.api.creating import Created, Host, Warn, blobs_of, prompt_fields
from weftline.api.planning import SpecAndHeaders, check_plan, effective, merged, plan_of, require_named
from weftline.api.principal import Principal
from weftline.api.views import call_views, session_unreadable
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.runtime import ids
from weftline.runtime.reads.calls import LoggedCall
from weftline.spec.door import SentSpec, parse_message, parse_session
from weftline.spec.merge import with_session
from weftline.store.records.agents import AgentRow
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey, RunFilter, RunRow
from weftline.wire.attachments import TakenAttachment
from weftline.wire.errors import as_sent, error_code, session_damaged
from weftline.wire.responses import Warnings, iso, request_warnings
from weftline.wire.run_responses import Call
from weftline.wire.session_responses import ListedSession, Origin
from weftline.work.heavy import off_loop, parsed
from weftline.workspace import agents, threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import CONTEXT_KEY, ThreadDraft

_MAX_REMEMBERED = 10_000
_PAGE = 200


class CreatedThread(Struct, frozen=True):
    """A new session, and the warnings about its request."""

    row: ThreadRow
    warnings: Warnings = UNSET


async def create_session(
    app: Host,
    principal: Principal,
    raw: bytes,
    *,
    idempotency: IdempotencyKey | None = None,
    warn: Warn = request_warnings,
) -> CreatedThread:
    """Creates the session that a request's body describes."""
    body = await parsed(parse_session, raw)
    warnings = warn(body.unknown)
    agent_id = body.agent_id
    if agent_id is not None:
        agent_id = await agents.id_of(app.workspaces, principal.workspace, agent_id)
    require_named(principal, agent_id)
    row = idempotency and await threads.created_before(app.workspaces, principal.workspace, idempotency)
    if not row:  # otherwise it is the same one, whatever has happened to its agent, models and tools since
        row = await _create(app, principal, agent_id, body, idempotency)
    return CreatedThread(row, warnings)


async def _create(
    app: Host, principal: Principal, agent_id: str | None, body: SentSpec, idempotency: IdempotencyKey | None
) -> ThreadRow:
    app.engine.require_accepting()
    own = SpecAndHeaders(body.spec, body.secrets)
    whole = await effective(app.workspaces, principal, agent_id, own, replaces=principal.may_change_agents)
    plan = await parsed(partial(plan_of, app.workspaces), whole.spec)
    await check_plan(app.engine, plan, workspace=principal.workspace, unknown=body.unknown)
    await _check_thread(app.workspaces, principal.workspace, agent_id)
    draft = ThreadDraft(name=plan.name, agent=agent_id, spec=whole.spec, headers=whole.headers, metadata=body.metadata)
    return await threads.create(app.workspaces, principal.workspace, draft, idempotency=idempotency)


async def session_of_context(app: Host, agent: AgentRow, context: str) -> ThreadRow:
    """Returns the agent's session of an A2A context, and creates it if necessary."""
    metadata = {CONTEXT_KEY: context}
    own = encode({"agentId": agent.id, "metadata": metadata})
    whole = merged(app.workspaces, agent, SpecAndHeaders(own, {}))
    plan = await parsed(partial(plan_of, app.workspaces), whole.spec)
    await check_plan(app.engine, plan, workspace=agent.workspace)
    await _check_thread(app.workspaces, agent.workspace, agent.id)
    draft = ThreadDraft(name=plan.name, agent=agent.id, spec=whole.spec, headers=whole.headers, metadata=metadata)
    return await threads.of_context(app.workspaces, agent.workspace, draft)


async def _check_thread(at: Workspaces, workspace: int, agent_id: str | None) -> None:
    """Refuses a thread of an agent that needs variables which nothing provides."""
    code = at.code.by_id(agent_id)
    if code is not None and code.threads is not None:
        await code.threads.check(at, workspace, user=None, env={})


async def send_message(
    app: Host,
    principal: Principal,
    thread: ThreadRow,
    raw: bytes,
    *,
    idempotency: IdempotencyKey | None = None,
    warn: Warn = request_warnings,
) -> Created:
    """Creates the run of the message that a request's body describes."""
    body = await parsed(parse_message, raw)
    warnings = warn(body.unknown)
    run_id = idempotency and await app.engine.created_before(principal.workspace, idempotency)
    if not run_id:
        run_id = await _send(app, thread, body, requested_by=principal.who, idempotency=idempotency)
    return Created(run_id, warnings)


async def send_prompt(
    app: Host,
    thread: ThreadRow,
    prompt: str,
    *,
    attachments: Sequence[TakenAttachment] = (),
    metadata: dict[str, str],
    requested_by: str,
    idempotency: IdempotencyKey | None = None,
) -> str:
    """Creates the run of a message with this prompt; returns its id."""
    own = encode({**prompt_fields(prompt, attachments), "metadata": metadata})
    body = SentSpec(own, metadata=metadata, blobs=blobs_of(attachments))
    return await _send(app, thread, body, requested_by=requested_by, idempotency=idempotency)


async def _send(
    app: Host,
    thread: ThreadRow,
    body: SentSpec,
    *,
    requested_by: str,
    idempotency: IdempotencyKey | None,
) -> str:
    if thread.ended_at is not None:
        raise Conflict("This session has ended.", code="thread_ended")
    if thread.damaged:
        raise session_damaged(ids.session_id(thread.key, thread.salt), f"its {thread.damaged}")
    await _check_history(app, thread)
    own = await threads.spec(app.workspaces, thread)
    if own == b"{}" and thread.agent is not None:  # made by a run that needed a thread
        own = encode({"agentId": thread.agent})
    spec = await off_loop(partial(with_session, own, body.spec), size=len(own) + len(body.spec))
    plan = await parsed(partial(plan_of, app.workspaces, requested_by=requested_by), spec)
    if thread.keeps == "all":
        plan = replace(plan, on_thread=True)
    # The secret headers come from the same place as the tools.
    secrets = (
        app.workspaces.vault.seal_headers(body.secrets, workspace=thread.workspace)
        if body.replaces_tools
        else await threads.sealed_headers(app.workspaces, thread)
    )
    try:
        return await app.engine.create(
            thread.workspace,
            plan,
            sent=spec,
            thread=thread.key,
            metadata=encode(plan.metadata).decode(),
            idempotency=idempotency,
            secrets=secrets,
            blobs=body.blobs,
            run_id=body.run_id,
        )
    except InvalidRequest as error:
        raise as_sent(error, body.unknown) from None


def listed_session(row: ThreadRow) -> ListedSession:
    """Returns a session as lists show it."""
    identity = ids.session_id(row.key, row.salt)
    created, used = iso(row.created_at), iso(row.last_used_at)
    return ListedSession(
        identity,
        identity,
        row.name,
        "active" if row.ended_at is None else "ended",
        row.agent,
        Raw(row.metadata.encode()),
        created,
        used,
        None if row.ended_at is None else iso(row.ended_at),
        created,
        used,
        error_code(row.damaged),
    )


async def origins(
    find: Callable[[RunFilter], Awaitable[list[RunRow]]],
    at: Workspaces,
    thread: ThreadRow,
    *,
    calls: Callable[[RunRow], Awaitable[list[LoggedCall]]] | None = None,
) -> list[Origin | None]:
    """Returns where each message of a session comes from, oldest first; with `calls`, with the calls of its run."""
    session = ids.session_id(thread.key, thread.salt)
    runs: dict[int, RunRow] = {}
    before: int | None = None
    while rows := await find(RunFilter(thread=thread.key, before=before, limit=_PAGE)):
        before = rows[-1].key
        runs.update((row.key, row) for row in rows)
    found: list[Origin | None] = []
    called: dict[int, list[Call]] = {}
    for position, key in enumerate(await threads.runs_of_messages(at, thread.key)):
        row = runs.get(key)
        if not key:  # somebody has put it there
            found.append(None)
            continue
        if row is None:  # it has been created since
            break
        if calls is not None and key not in called:
            called[key] = call_views(await calls(row))
        ended = row.ended_at or row.created_at
        of_run = called.get(key, UNSET)
        found.append(Origin(f"{session}.{position}", ids.run_id(key, row.salt), row.created_at, ended, of_run))
    return found


async def _check_history(app: Host, thread: ThreadRow) -> None:
    """Refuses a message if the session's history is unreadable. Checked once per session and process."""
    if thread.key in app.read_sessions:
        return
    stored = await app.engine.stored.logs.thread_messages(thread.key)

    def read() -> None:
        for message in stored:
            bodies.decode_message(message)

    try:
        await off_loop(read, size=sum(map(len, stored)))
    except UNREADABLE:
        damaged = session_damaged(ids.session_id(thread.key, thread.salt), "a message of it")
        raise await session_unreadable(app.engine, thread.key, damaged) from None
    if len(app.read_sessions) >= _MAX_REMEMBERED:
        app.read_sessions.clear()
    app.read_sessions.add(thread.key)
