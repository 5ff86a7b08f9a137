"""Makes the handler of a route from a use case, whose signature says what the route reads and returns.

    async def change(on: Host, by: Principal, schedule_id: str, sent: Sent[ScheduleChangesModel]) -> Schedule

has the path's `{scheduleId}`, a body of this model, and a `Schedule` as its response. With `warnings` in the response,
it names unknown fields; with `Repeatable` instead of `Sent`, it takes an `Idempotency-Key`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import signature
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

from msgspec.json import encode

from weftline.api.principal import Principal
from weftline.cases.base import Body as SentBody
from weftline.cases.base import Repeatable
from weftline.server.app import App
from weftline.server.bodies import model_body
from weftline.server.declared import AnyBody, Body, Undeclared
from weftline.server.http import Request, Response, idempotency
from weftline.server.router import Handler
from weftline.wire.limits import MAX_BODY_BYTES
from weftline.wire.responses import Ok


class OfCase(TypedDict):
    """The fields of a route that follow from its case."""

    handler: Handler
    body: AnyBody | None
    warns: bool
    idempotent: bool
    returns: Any
    status: int


def case(use: Callable[..., Awaitable[Any]], *, status: int = 200, limit_bytes: int = MAX_BODY_BYTES) -> OfCase:
    """Returns the fields of the route of a use case."""
    types = get_type_hints(use)
    sent, returned = types.get("sent"), types["return"]
    returns = Ok if returned is type(None) else returned
    model = None if sent is None or get_args(sent) == (type(None),) else get_args(sent)[0]
    body = None if model is None else model_body(model, limit_bytes=limit_bytes)
    kind = None if sent is None else get_origin(sent)
    ids = [_camel(name) for name in list(signature(use).parameters)[2:] if name != "sent"]

    @wraps(use)
    async def handler(app: App, request: Request, principal: Principal) -> Response:
        given: list[Any] = [request.params[id] for id in ids]
        if kind is not None:
            warn = partial(app.unknown_fields.warnings, request)
            own = {"once": partial(idempotency, request)} if kind is Repeatable else {}
            given.append(kind(partial(_read, request, body), warn, request.root, **own))
        made = await use(app, principal, *given)
        return Response(encode(Ok() if made is None else made), status=status)

    return OfCase(
        handler=handler,
        body=body,
        warns=model is not None and "warnings" in returns.__struct_fields__,
        idempotent=kind is Repeatable,
        returns=returns,
        status=status,
    )


async def _read(request: Request, body: Body[Any] | None) -> SentBody[Any]:
    if body is None:
        raise Undeclared("a body")
    raw = await request.body()
    fields, unknown = await request.parse(raw, body)
    return SentBody(fields, raw, unknown)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
