"""Creates runs: from a client's description, or of a stored agent with a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import UNSET, Struct
from msgspec.json import encode
from msgspec.structs import replace

from weftline.api.planning import SpecAndHeaders, effective, merged, plan_of, require_named
from weftline.api.principal import Principal
from weftline.errors import InvalidRequest
from weftline.messages import Blob
from weftline.runtime.engine import Engine
from weftline.spec.door import SentSpec, parse_run
from weftline.store.records.agents import AgentRow
from weftline.store.rows import IdempotencyKey
from weftline.wire.attachments import TakenAttachment
from weftline.wire.errors import as_sent
from weftline.wire.responses import Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.work.heavy import is_small, parsed
from weftline.workspace import agents
from weftline.workspace.context import Caller, Workspaces


class CreatingHost(Protocol):
    """The server, as creating runs needs it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def workspaces(self) -> Workspaces: ...


class Host(CreatingHost, Protocol):
    """The server, as sessions need it."""

    @property
    def read_sessions(self) -> set[int]:
        """Sessions whose messages are known to be readable."""
        ...


class Created(Struct, frozen=True):
    """A new run, and the warnings about its request."""

    run_id: str
    warnings: Warnings = UNSET


Warn: TypeAlias = Callable[[Sequence[UnknownField]], Warnings]
"""Returns the warnings about unknown fields; raises if they are refused."""


async def create_run(
    app: CreatingHost,
    principal: Principal,
    raw: bytes,
    *,
    idempotency: IdempotencyKey | None = None,
    warn: Warn = request_warnings,
    nobody_to_ask: bool = False,
) -> Created:
    """Creates the run that a request's body describes.

    With `nobody_to_ask`, it fails where it would wait for a person.
    """
    body = parse_run(raw) if is_small(raw) else await parsed(parse_run, raw)
    warnings = warn(body.unknown)
    run_id = await create_checked(
        app,
        principal,
        body,
        requested_by=principal.who,
        idempotency=idempotency,
        replaces=principal.may_change_agents,
        nobody_to_ask=nobody_to_ask,
    )
    return Created(run_id, warnings)


async def create_checked(
    app: CreatingHost,
    caller: Caller,
    body: SentSpec,
    *,
    requested_by: str,
    idempotency: IdempotencyKey | None = None,
    replaces: bool = False,
    nobody_to_ask: bool = False,
) -> str:
    """Creates a run from a valid body, and returns its id. `replaces` as in `effective`."""
    agent_id = body.agent_id
    if agent_id is not None:
        agent_id = await agents.id_of(app.workspaces, caller.workspace, agent_id)
    require_named(caller, agent_id)
    earlier = idempotency and await app.engine.created_before(caller.workspace, idempotency)
    if earlier:  # whatever has happened to its agent, models and tools since
        return earlier
    whole = SpecAndHeaders(body.spec, body.secrets)
    if agent_id is not None:
        whole = await effective(app.workspaces, caller, agent_id, whole, replaces=replaces)
    try:
        if is_small(whole.spec):
            plan = plan_of(app.workspaces, whole.spec, requested_by=requested_by)
        else:
            plan = await parsed(partial(plan_of, app.workspaces, requested_by=requested_by), whole.spec)
        if nobody_to_ask:
            plan = replace(plan, limits=replace(plan.limits, nobody_to_ask=True))
        return await app.engine.create(
            caller.workspace,
            plan,
            sent=whole.spec,
            metadata=encode(body.metadata).decode() if body.metadata else "{}",
            idempotency=idempotency,
            secrets=app.workspaces.vault.seal_headers(whole.headers, workspace=caller.workspace),
            blobs=body.blobs,
            run_id=body.run_id,
        )
    except InvalidRequest as error:
        raise as_sent(error, body.unknown) from None


async def start_agent(
    app: CreatingHost,
    agent: AgentRow,
    prompt: str,
    *,
    attachments: Sequence[TakenAttachment] = (),
    requested_by: str,
) -> str:
    """Creates a run of a stored agent, without a session; returns its id."""
    own = encode({"agentId": agent.id, **prompt_fields(prompt, attachments)})
    whole = merged(app.workspaces, agent, SpecAndHeaders(own, {}))
    plan = await parsed(partial(plan_of, app.workspaces, requested_by=requested_by), whole.spec)
    try:
        return await app.engine.create(
            agent.workspace,
            plan,
            sent=whole.spec,
            metadata="{}",
            secrets=app.workspaces.vault.seal_headers(whole.headers, workspace=agent.workspace),
            blobs=blobs_of(attachments),
        )
    except InvalidRequest as error:
        raise as_sent(error) from None


def prompt_fields(prompt: str, attachments: Sequence[TakenAttachment]) -> dict[str, Any]:
    """Returns the fields of a spec for a prompt."""
    return {"prompt": prompt, "attachments": [one.stored for one in attachments]} if attachments else {"prompt": prompt}


def blobs_of(attachments: Sequence[TakenAttachment]) -> tuple[Blob, ...]:
    """Returns each content once."""
    return tuple({one.blob.id: one.blob for one in attachments}.values())
