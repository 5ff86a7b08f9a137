"""Creating runs: the use case, and its answer, which is the run's id or the run's events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec.json import encode

from weftline.errors import Forbidden
from weftline.server.accept import wanted
from weftline.server.app import App
from weftline.server.following import Host
from weftline.server.http import Headers, Request, Response, StreamedResponse
from weftline.server.parsing import parsed
from weftline.server.principal import Principal
from weftline.server.sse import resume_point, send_events
from weftline.server.unknown_fields import warnings_header
from weftline.wire.bodies import RunBody
from weftline.wire.plan import plan_from_spec
from weftline.wire.responses import created_run, run_url
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace import agents
from weftline.workspace.agents import RunSpec

READ_SCOPE = "runs:read"


async def create_run(
    app: Host, principal: Principal, body: RunBody, *, idempotency: tuple[str, str, bytes] | None = None
) -> str:
    """Creates the run that a request's body describes; returns its id."""
    whole = await agents.effective(app.workspaces, principal, body.agent_id, RunSpec(body.spec, body.secrets))
    return await app.engine.create(
        principal.workspace,
        await parsed(plan_from_spec, whole.spec),
        sent=whole.spec,
        metadata=encode(body.metadata).decode(),
        idempotency=idempotency,
        secrets=app.workspaces.vault.seal_headers(whole.headers, workspace=principal.workspace),
        blobs=body.blobs,
    )


async def answer_created(
    app: App,
    request: Request,
    principal: Principal,
    create: Callable[[], Awaitable[str]],
    *,
    unknown: Sequence[UnknownField],
) -> Response | StreamedResponse:
    """Answers with the id of the run that `create` returns, or with its events if the client asks for those.

    `unknown` are fields of the request that the answer warns of, in its body or in a header.
    A stream has its place before there is a run: a workspace that has too many of them gets no run either.
    """
    warnings = app.unknown_fields.warnings(request, unknown)
    want = wanted(request)
    may_read = principal.scopes is None or READ_SCOPE in principal.scopes
    if want.events and not may_read and not want.json:
        raise Forbidden(
            f"The access token needs {READ_SCOPE} to follow the run.", code="insufficient_scope", required=READ_SCOPE
        )
    if not want.events or not may_read:
        run_id = await create()
        body = created_run(run_id, principal.slug, warnings)
        return Response(body, status=202, headers=_headers(run_id, principal.slug))
    place = app.engine.reserve_stream(principal.workspace)
    try:
        run_id = await create()
        key = await app.engine.locate(run_id, workspace=principal.workspace)
        follower = place.follow(key, run_id, after=resume_point(request))
    except BaseException:
        place.release()
        raise
    headers = (*_headers(run_id, principal.slug), *warnings_header(warnings))
    return partial(send_events, request, app.engine, key, follower, app.backlog, headers=headers)


def _headers(run_id: str, slug: str) -> Headers:
    return ((b"location", run_url(run_id, slug).encode()), (b"x-run-id", run_id.encode()))
