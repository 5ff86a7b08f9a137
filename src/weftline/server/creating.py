"""Creating runs: the use case and its response, which is the run's id or its events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from msgspec import UNSET, Struct, to_builtins
from msgspec.json import encode

from weftline.errors import Conflict, Forbidden, InvalidRequest
from weftline.messages import Blob
from weftline.plan import RunPlan
from weftline.server.accept import accepted_types
from weftline.server.agent_specs import RunSpec, effective
from weftline.server.app import App
from weftline.server.following import Host
from weftline.server.http import Headers, Request, Response, StreamedResponse
from weftline.server.parsing import is_small, parsed
from weftline.server.planning import plan_of
from weftline.server.principal import Principal
from weftline.server.profiles import profile_view
from weftline.server.sse import resume_point, send_events
from weftline.store.base import IdempotencyKey
from weftline.wire.bodies import RunBody
from weftline.wire.details import parse_profile
from weftline.wire.requests import parse_run
from weftline.wire.responses import Warnings, created_run, request_warnings, run_url
from weftline.wire.unknown_fields import UnknownField, with_typos
from weftline.workspace import agents
from weftline.workspace.context import Caller, Workspaces

READ_SCOPE = "runs:read"
_MAX_WARNINGS_CHARS = 4096


class Created(Struct, frozen=True):
    """A run that was created, and the warnings about its request."""

    run_id: str
    warnings: Warnings = UNSET


class Creating(Protocol):
    """What creating runs needs of an engine."""

    async def create(
        self,
        workspace: int,
        plan: RunPlan,
        *,
        sent: bytes | None = None,
        metadata: str = "{}",
        idempotency: IdempotencyKey | None = None,
        secrets: bytes | None = None,
        blobs: Sequence[Blob] = (),
    ) -> str: ...

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None: ...


class CreatingHost(Protocol):
    """The server, as far as runs are created."""

    @property
    def engine(self) -> Creating: ...
    @property
    def workspaces(self) -> Workspaces: ...


Warn: TypeAlias = Callable[[Sequence[UnknownField]], Warnings]
"""The warnings about unknown fields; raises where they are refused."""


async def create_run(
    app: Host,
    principal: Principal,
    raw: bytes,
    *,
    idempotency: IdempotencyKey | None = None,
    warn: Warn = request_warnings,
) -> Created:
    """Creates the run that a request's body describes."""
    body = parse_run(raw) if is_small(raw) else await parsed(parse_run, raw)
    warnings = warn(body.unknown)
    run_id = await create_checked(
        app,
        principal,
        body,
        requested_by=principal.who,
        idempotency=idempotency,
        replaces=principal.may_change_agents,
    )
    return Created(run_id, warnings)


async def create_checked(
    app: CreatingHost,
    caller: Caller,
    body: RunBody,
    *,
    requested_by: str,
    idempotency: IdempotencyKey | None = None,
    replaces: bool = False,
) -> str:
    """Creates the run of a body that is valid; returns its id. `replaces` as in `effective`."""
    agent_id = body.agent_id
    if agent_id is not None:
        agent_id = await agents.id_of(app.workspaces, caller.workspace, agent_id)
    agents.require_named(caller, agent_id)
    earlier = idempotency and await app.engine.created_before(caller.workspace, idempotency)
    if earlier:  # whatever has become of its agent, models and tools since
        return earlier
    whole = RunSpec(body.spec, body.secrets)
    if agent_id is not None:
        whole = await effective(app.workspaces, caller, agent_id, whole, replaces=replaces)
    planned = partial(plan_of, app.workspaces, requested_by=requested_by)
    try:
        return await app.engine.create(
            caller.workspace,
            planned(whole.spec) if is_small(whole.spec) else await parsed(planned, whole.spec),
            sent=whole.spec,
            metadata=encode(body.metadata).decode(),
            idempotency=idempotency,
            secrets=app.workspaces.vault.seal_headers(whole.headers, workspace=caller.workspace),
            blobs=body.blobs,
        )
    except InvalidRequest as error:
        raise with_typos(error, body.unknown) from None


async def answer_created(
    app: App, request: Request, principal: Principal, create: Callable[[], Awaitable[Created]]
) -> Response | StreamedResponse:
    """Responds with the id of the run that `create` makes, or with its events if the client asks for them.

    The stream is admitted before the run is created: a workspace with too many streams gets no run either.
    """
    want, prefix = accepted_types(request), app.names.prefix(request)
    types = parse_profile(request.query_value("profile"))
    may_read = principal.scopes is None or READ_SCOPE in principal.scopes
    if want.events and not may_read and not want.json:
        raise Forbidden(
            f"The access token needs {READ_SCOPE} to follow the run.", code="insufficient_scope", required=READ_SCOPE
        )
    place = app.engine.reserve_stream(principal.workspace) if want.events and may_read else None
    try:
        made = await create()
        run_id = made.run_id
        if place is None:
            body = created_run(run_id, principal.slug, made.warnings, root=prefix)
            return Response(body, status=202, headers=_headers(run_id, principal.slug, prefix))
        key = await app.engine.locate(run_id, workspace=principal.workspace)
        view = app.view
        if types is not None:
            view = await profile_view(app, key, run_id, types, workspace=principal.slug)
        follower = place.follow(key, run_id, after=resume_point(request))
    except BaseException as error:
        if place is not None:
            place.release()
        if isinstance(error, Conflict) and principal.agents:
            # The key may have been used for a run of an agent that this credential knows nothing of.
            error.details.pop("run_id", None)
        raise
    headers = (*_headers(run_id, principal.slug, prefix), *_warnings(made.warnings))
    return partial(send_events, request, app.engine, key, follower, app.backlog, headers=headers, view=view)


def _headers(run_id: str, slug: str, prefix: str) -> Headers:
    return ((b"location", (prefix + run_url(run_id, slug)).encode()), (b"x-run-id", run_id.encode()))


def _warnings(warnings: Warnings) -> Headers:
    """What a JSON response would have in its body. Header values are ASCII, and short."""
    if warnings is UNSET:
        return ()
    kept = to_builtins(warnings)
    while len(value := json.dumps(kept)) > _MAX_WARNINGS_CHARS:
        kept.pop()
    return ((b"x-warnings", value.encode()),)
