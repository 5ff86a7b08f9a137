"""Makes the handler of a route from a use case, whose signature says what the route reads and returns.

    async def change(on: Host, by: Principal, schedule_id: str, sent: Sent[ScheduleChangesModel]) -> Schedule

has the path's `{scheduleId}`, a body of this model, and a `Schedule` as its response. With `warnings` in the response,
it names unknown fields; with `Repeatable` instead of `Sent`, it takes an `Idempotency-Key`. A body is a pydantic model
or a struct. A `Page` is one of a list, with a cursor and a limit, and keyword arguments are parameters of the query:

    async def index(on: Host, by: Principal, page: Page, *, revoked: Annotated[bool, "Revoked keys too."] = False)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial, wraps
from inspect import signature
from typing import Annotated, Any, Literal, TypedDict, cast, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from msgspec.json import encode
from pydantic import BaseModel

from weftline.api.principal import Principal
from weftline.cases.base import Encoded, Page, Repeatable, SentBody
from weftline.server.app import App
from weftline.server.bodies import model_body, struct_body
from weftline.server.declared import AnyBody, Body, QueryParameter, Undeclared
from weftline.server.http import Headers, Request, Response, idempotency, idempotency_key
from weftline.server.paging import CURSOR, LIMIT, STORED_LIMIT, number_of, one_of, page_limit, parameter, stored_page
from weftline.server.router import Handler
from weftline.wire.limits import MAX_BODY_BYTES
from weftline.wire.responses import Ok

_OF_LISTS = {"limit": LIMIT, "cursor": CURSOR}


class OfCase(TypedDict):
    """The fields of a route that follow from its case."""

    handler: Handler
    body: AnyBody | None
    query: tuple[QueryParameter, ...]
    warns: bool
    idempotent: bool
    returns: Any
    status: int


def case(
    use: Callable[..., Awaitable[Any]],
    *,
    status: int = 200,
    limit_bytes: int = MAX_BODY_BYTES,
    headers: Headers = (),
    optional_body: bool = False,
    may_end_waits: bool = False,
) -> OfCase:
    """Returns the fields of the route of a use case.

    An absent body is {} if it is optional. With `may_end_waits`, a long wait ends if the client goes away.
    """
    types = get_type_hints(use, include_extras=True)
    sent, returned = types.get("sent"), types["return"]
    returns = Ok if returned is type(None) else get_args(returned)[0] if get_origin(returned) is Encoded else returned
    model = None if sent is None or get_args(sent) == (type(None),) else get_args(sent)[0]
    body = None if model is None else _body(model, limit_bytes=limit_bytes, optional=optional_body)
    kind = None if sent is None else get_origin(sent)
    arguments = list(signature(use).parameters.values())[2:]
    ids = [
        _camel(one.name) for one in arguments if one.name not in ("page", "sent") and one.kind is not one.KEYWORD_ONLY
    ]
    asked = {
        one.name: _OF_LISTS.get(one.name) or parameter(_camel(one.name), types[one.name])
        for one in arguments
        if one.kind is one.KEYWORD_ONLY
    }

    @wraps(use)
    async def handler(app: App, request: Request, principal: Principal) -> Response:
        # The path of a file is decoded where it is taken apart.
        given: list[Any] = [request.params[id] if id == "path" else unquote(request.params[id]) for id in ids]
        if "page" in types:
            after, limit = stored_page(app, request, principal)
            given.append(Page(after, limit, partial(app.cursors.seal, workspace=principal.workspace)))
        if kind is not None:
            warn = partial(app.unknown_fields.warnings, request)
            own: dict[str, Any] = {}
            if kind is Repeatable:
                own = {"once": partial(idempotency, request), "key": lambda: idempotency_key(request) or ""}
            given.append(kind(partial(_read, request, body), warn, request.root, **own))
        query = {name: _value(request, parameter) for name, parameter in asked.items()}
        with request.may_end_waits() if may_end_waits else nullcontext():
            made = await use(app, principal, *given, **query)
        content = made.body if isinstance(made, Encoded) else encode(Ok() if made is None else made)
        return Response(content, status=status, headers=headers)

    return OfCase(
        handler=handler,
        body=body,
        query=(*((STORED_LIMIT, CURSOR) if "page" in types else ()), *asked.values()),
        warns=model is not None and "warnings" in returns.__struct_fields__,
        idempotent=kind is Repeatable,
        returns=returns,
        status=status,
    )


def _body(model: type[Any], *, limit_bytes: int, optional: bool) -> Body[Any]:
    if issubclass(model, BaseModel):
        return model_body(model, limit_bytes=limit_bytes, optional=optional)
    return struct_body(model, limit_bytes=limit_bytes)


def _value(request: Request, parameter: QueryParameter) -> str | bool | int | None:
    if parameter is LIMIT:
        return page_limit(request)
    if get_origin(parameter.type) is Annotated and get_args(parameter.type)[0] is int:
        return number_of(request, parameter, least=0)
    if get_origin(parameter.type) is not Literal:
        return request.query_value(parameter.name)
    value = one_of(request, parameter)
    return value == "true" if parameter.type == Literal["true", "false"] else value


async def _read(request: Request, body: Body[Any] | None) -> SentBody[Any]:
    if body is None:
        raise Undeclared("a body")
    raw = await request.body()
    parsed = await request.parse(raw, body)
    # A struct has no unknown fields.
    return SentBody(*cast("tuple[Any, Any]", parsed), raw) if isinstance(parsed, tuple) else SentBody(parsed, (), raw)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
