"""Makes the handler of a route from a use case, whose signature says what the route reads and returns.

    async def change(on: Host, by: Principal, schedule_id: str, sent: Sent[ScheduleChangesModel]) -> Schedule

has the path's `{scheduleId}`, a body of this model, and a `Schedule` as its response. With `warnings` in the response,
it names unknown fields; with `Repeatable` instead of `Sent`, it takes an `Idempotency-Key`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from inspect import signature
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

from msgspec.json import encode

from weftline.api.parsing import off_loop
from weftline.api.principal import Principal
from weftline.cases.base import Body as SentBody
from weftline.cases.base import Repeatable
from weftline.errors import InvalidRequest
from weftline.server.app import App
from weftline.server.bodies import model_body
from weftline.server.declared import IDEMPOTENCY_KEY_CHARS, IDEMPOTENCY_KEY_PATTERN, AnyBody, Body, Undeclared
from weftline.server.http import Request, Response
from weftline.server.router import Handler
from weftline.store.rows import IdempotencyKey
from weftline.wire.limits import MAX_BODY_BYTES
from weftline.wire.responses import Ok

_KEY = re.compile(IDEMPOTENCY_KEY_PATTERN)


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


async def idempotency(request: Request, route: str, body: bytes) -> IdempotencyKey | None:
    """Returns the idempotency key; None for a request without an `Idempotency-Key`."""
    key = idempotency_key(request)
    if key is None:
        return None
    hashing = partial(blake2b, body, digest_size=16)
    return IdempotencyKey(route, key, (await off_loop(hashing, size=len(body))).digest())


def idempotency_key(request: Request) -> str | None:
    key = request.header(b"idempotency-key")
    if key is not None and (len(key) > IDEMPOTENCY_KEY_CHARS or not _KEY.match(key)):
        raise InvalidRequest(f"Idempotency-Key: must have 1 to {IDEMPOTENCY_KEY_CHARS} printable characters.")
    return key
