"""Input of people for runs: answers, pauses and messages."""

from __future__ import annotations

from weftline.cases import awaits
from weftline.server.case import case
from weftline.server.router import Route
from weftline.server.routes.runs import PATH
from weftline.wire.limits import MAX_RESULT_BYTES

BODY_BYTES = 2 * MAX_RESULT_BYTES
ROUTES = (
    Route(
        "GET",
        f"{PATH}/{{runId}}/awaits",
        **case(awaits.of_run),
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List what a run and its subagents ask people",
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/awaits/{{awaitId}}",
        **case(awaits.answer, limit_bytes=BODY_BYTES, may_end_waits=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Answer what a run asks people",
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/pause",
        **case(awaits.pause, limit_bytes=BODY_BYTES, optional_body=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Pause a run",
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/resume",
        **case(awaits.resume, limit_bytes=BODY_BYTES, optional_body=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Resume a paused run",
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/messages",
        **case(awaits.message, limit_bytes=BODY_BYTES),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Send a message to a running run",
        errors=(409,),
    ),
    Route(
        "GET",
        "/api/v1/workspaces/{slug}/awaits",
        **case(awaits.inbox),
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List what people are asked",
    ),
)
