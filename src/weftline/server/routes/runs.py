"""Runs: create, read, follow, answer, cancel."""

from __future__ import annotations

from hashlib import blake2b

from msgspec.json import decode, encode

from weftline.errors import InvalidRequest
from weftline.kernel import bodies
from weftline.kernel.entries import ModelRef, RunEnded, decode_fact
from weftline.runtime import ids
from weftline.runtime.receipts import CallName
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.server.sse import resume_point, send_events
from weftline.store.sqlite.reads import RunRow
from weftline.tools.base import ToolOutput
from weftline.wire.events import ERROR_CLASSES
from weftline.wire.requests import parse_run, parse_tool_result
from weftline.wire.responses import RunView, Status, created_run, snapshot

_BASE = "/api/v1/workspaces/{slug}/agent-runs"
_KEY_LIMIT = 255
_RESULT_BODY_BYTES = 32 * 1024 * 1024
"""More than any valid result needs, so that one that is too large can still be told to the model."""
_OK = b'{"ok":true}'


async def create(app: App, request: Request, principal: Principal) -> Answer:
    raw = await request.body()
    body = parse_run(raw)
    run_id = await app.engine.create(
        principal.workspace,
        body.spec,
        metadata=encode(body.metadata).decode(),
        idempotency=idempotency(request, "agent-runs", raw),
    )
    return Answer(created_run(run_id, principal.slug), status=202)


async def read(app: App, request: Request, principal: Principal) -> Answer:
    row = app.engine.find(request.params["runId"], workspace=principal.workspace)
    return Answer(snapshot(view(app, row)))


async def stream(app: App, request: Request, principal: Principal) -> None:
    run_id = request.params["runId"]
    row = app.engine.find(run_id, workspace=principal.workspace)
    await send_events(request, app.engine.follow(row.key, run_id, after=resume_point(request)))


async def tool_results(app: App, request: Request, principal: Principal) -> Answer:
    row = app.engine.find(request.params["runId"], workspace=principal.workspace)
    raw = await request.body(limit=_RESULT_BODY_BYTES)
    body = parse_tool_result(raw, user_agent=request.header(b"user-agent") or "")
    if body.oversize:
        # The client may give up after this, so the model is told too and the run does not wait for the timeout.
        too_large = "The client's result was too large to be taken."
        await app.engine.answer(row.key, body.tool_use_id, ToolOutput.of(too_large, is_error=True))
        raise InvalidRequest("result or error: larger than the limit; the call was closed with an error.")
    failed = body.error is not None
    output = ToolOutput.of(body.error or body.result or "", is_error=failed)
    accepted = await app.engine.answer(row.key, body.tool_use_id, output)
    return Answer(_OK if accepted else b'{"ok":true,"ignored":true}')


async def cancel(app: App, request: Request, principal: Principal) -> Answer:
    row = app.engine.find(request.params["runId"], workspace=principal.workspace)
    receipt = await app.engine.cancel(row.key, requested_by=principal.id)
    return Answer(
        encode(
            {
                "ok": True,
                "status": receipt.status,
                "stopped": _calls(receipt.stopped),
                "finished": _calls(receipt.finished),
                "inDoubt": _calls(receipt.in_doubt),
            }
        )
    )


def _calls(calls: tuple[CallName, ...]) -> list[dict[str, str]]:
    return [{"toolUseId": call.id, "name": call.name} for call in calls]


def view(app: App, row: RunRow) -> RunView:
    """A run as its row and the two ends of its log tell it."""
    first = app.engine.read.entry(row.key, 1)
    spec = first[4] if first is not None else b"{}"
    run = RunView(
        id=ids.run_id(row.key, row.salt),
        status=_status(row.status),
        created_us=row.created_at,
        spec=spec,
        session_id=session_of(app, row.thread),
        name=row.name,
        metadata=decode(row.metadata, type=dict[str, str]),
        started_us=row.started_at,
        finished_us=row.ended_at,
    )
    if row.ended_at is None:
        return run
    last = app.engine.read.entry(row.key, row.next_seq - 1)
    head = decode_fact.decode(last[3]) if last is not None else None
    if last is None or not isinstance(head, RunEnded):
        return run
    return _ended(run, head, last[4])


def _ended(run: RunView, head: RunEnded, body: bytes) -> RunView:
    content = bodies.decode_ended(body)
    failed = head.status == "failed"
    error_class = head.code if head.code in ERROR_CLASSES else "unknown" if head.code == "worker_error" else None
    return RunView(
        id=run.id,
        status=run.status,
        created_us=run.created_us,
        spec=run.spec,
        session_id=run.session_id,
        name=run.name,
        metadata=run.metadata,
        started_us=run.started_us,
        finished_us=run.finished_us,
        final_text=content.partial_text if failed else content.text,
        error=content.error if failed else None,
        error_class=error_class,
        finish_reason=head.finish if head.code == "truncation" else None,
        reason=head.reason or None if head.status != "cancelled" else None,
        usage=head.usage,
        turns=head.turns,
        model=head.model or ModelRef(),
    )


def session_of(app: App, thread: int | None) -> str | None:
    if thread is None:
        return None
    row = app.engine.read.thread(thread)
    return ids.session_id(row.key, row.salt) if row is not None else None


def _status(status: str) -> Status:
    assert status in ("queued", "running", "paused", "succeeded", "failed", "cancelled")
    return status


def idempotency(request: Request, route: str, body: bytes) -> tuple[str, str, bytes] | None:
    """Route, key and digest of a request that carries an `Idempotency-Key`."""
    key = request.header(b"idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_LIMIT or not key.isprintable():
        raise InvalidRequest(f"Idempotency-Key: must have 1 to {_KEY_LIMIT} printable characters.")
    return route, key, blake2b(body, digest_size=16).digest()


ROUTES = (
    Route("POST", _BASE, create, scopes=("runs:write",), summary="Create a run"),
    Route("GET", f"{_BASE}/{{runId}}", read, scopes=("runs:read",), summary="Read a run"),
    Route(
        "GET",
        f"{_BASE}/{{runId}}/stream",
        stream,
        scopes=("runs:read",),
        limited=False,
        summary="Follow a run's events",
    ),
    Route(
        "POST",
        f"{_BASE}/{{runId}}/tool-results",
        tool_results,
        scopes=("runs:write",),
        limited=False,
        summary="Answer a client-side tool call",
    ),
    Route("POST", f"{_BASE}/{{runId}}/cancel", cancel, scopes=("runs:write",), limited=False, summary="Cancel a run"),
)
