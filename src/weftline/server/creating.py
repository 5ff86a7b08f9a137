"""The response to a request that creates a run: its id, or its events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from msgspec import UNSET, to_builtins

from weftline.api.creating import Created
from weftline.api.principal import Principal
from weftline.cases.base import hide_run
from weftline.errors import Conflict
from weftline.events.profiles import parse_profile
from weftline.server.app import App
from weftline.server.auth import require_scopes
from weftline.server.declared import QueryParameter
from weftline.server.http import Headers, Request, Response, StreamedResponse
from weftline.server.sse import LAST_SEQ, resume_point, send_events, stream_view
from weftline.wire.responses import Warnings
from weftline.wire.run_responses import created_run, run_url

EVENTS, JSON = "text/event-stream", "application/json"
_ANY = ("*/*", "application/*")


class AcceptedTypes(NamedTuple):
    events: bool
    """Whether `Accept` names event streams, and prefers them if it also names JSON."""
    json: bool
    """Whether JSON is acceptable."""


_JSON_ONLY = AcceptedTypes(events=False, json=True)


def accepted_types(request: Request) -> AcceptedTypes:
    """Parses `Accept`. A tie goes to JSON, the default. A wildcard alone does not request a stream."""
    if request.header(b"accept") is None:
        return _JSON_ONLY
    lines = request.header_lines(b"accept")
    if lines == ["*/*"]:
        return _JSON_ONLY
    quality: dict[str, float] = {}
    for line in lines:
        for part in line.split(","):
            kind, *parameters = part.split(";")
            quality[kind.strip().lower()] = _quality(parameters)
    events = quality.get(EVENTS, 0.0)
    any_json = max(quality.get(kind, 0.0) for kind in (JSON, *_ANY))
    return AcceptedTypes(events=events > quality.get(JSON, 0.0), json=any_json > 0)


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 1.0
    return 1.0


PROFILE = QueryParameter(
    "profile", str, "Which events: `default`, `all`, `metrics`, or event types separated by commas."
)
FOLLOWED = (PROFILE, LAST_SEQ)
"""The query of routes that respond with `respond_created`; their header is `LAST_EVENT_ID`."""
READ_SCOPE = "runs:read"
_MAX_WARNINGS_CHARS = 4096


async def respond_created(
    app: App, request: Request, principal: Principal, create: Callable[[], Awaitable[Created]]
) -> Response | StreamedResponse:
    """Responds with the id of the run that `create` makes, or with its events if the client asks for them.

    The stream is admitted before the run is created: a workspace with too many streams gets no run either.
    """
    want, prefix = accepted_types(request), app.names.prefix(request)
    types = parse_profile(request.query_value("profile"))
    may_read = principal.scopes is None or READ_SCOPE in principal.scopes
    if want.events and not want.json:
        require_scopes(principal, READ_SCOPE, to="follow the run")
    place = app.engine.reserve_stream(principal.workspace) if want.events and may_read else None
    try:
        made = await create()
        run_id = made.run_id
        url = run_url(run_id, principal.slug, root=prefix)
        own = ((b"location", url.encode()), (b"x-run-id", run_id.encode()))
        if place is None:
            return Response(created_run(run_id, url, made.warnings), status=202, headers=own)
        key = await app.engine.locate(run_id, workspace=principal.workspace)
        view = await stream_view(app, key, run_id, types, workspace=principal.slug)
        follower = place.follow(key, run_id, after=resume_point(request))
    except BaseException as error:
        if place is not None:
            place.release()
        if isinstance(error, Conflict) and principal.agents:
            await hide_run(app, principal, error)
        raise
    headers = (*own, *_warnings(made.warnings))
    return partial(send_events, request, app.engine, key, follower, app.backlog, headers=headers, view=view)


def _warnings(warnings: Warnings) -> Headers:
    """Returns the warnings as headers, which a JSON response has in its body. Values are ASCII, and short."""
    if warnings is UNSET:
        return ()
    kept = to_builtins(warnings)
    while len(value := json.dumps(kept)) > _MAX_WARNINGS_CHARS:
        kept.pop()
    return ((b"x-warnings", value.encode()),)
