"""Pages of lists: the parameters that a list has in its query, and how each is read.

A cursor of stored records is sealed for its workspace; the lists of runs and sessions have plain ones.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta

from weftline.api.principal import Principal
from weftline.cases.base import unusable
from weftline.server.app import App
from weftline.server.declared import QueryParameter
from weftline.server.http import Request
from weftline.store.records.pages import RowPage

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
MAX_NUMBER = 999_999_999
"""The largest number that a query may have: nine digits."""
LIMIT = QueryParameter(
    "limit",
    Annotated[int, Meta(ge=1, le=MAX_LIMIT, extra_json_schema={"default": DEFAULT_LIMIT})],
    "The maximum number of items on a page.",
)
STORED_LIMIT = QueryParameter(
    "limit",
    Annotated[int, Meta(ge=1, le=MAX_LIMIT, extra_json_schema={"default": MAX_LIMIT})],
    "The maximum number of items on a page. There are fewer when they are large.",
)
CURSOR = QueryParameter("cursor", str, "`nextCursor` of the page before.")


def parameter(name: str, type: Any) -> QueryParameter:
    """Returns the parameter of this type, `Annotated` with its description; it may be optional."""
    described = next((one for one in get_args(type) if get_origin(one) is Annotated), type)
    *plain, about = get_args(described)
    if plain == [bool]:
        plain = [Literal["true", "false"]]
    return QueryParameter(name, plain[0] if len(plain) == 1 else Annotated[*plain], about)


def one_of(request: Request, parameter: QueryParameter) -> str | None:
    """Returns a parameter whose type is a `Literal`."""
    value, words = request.query_value(parameter.name), get_args(parameter.type)
    if value is not None and value not in words:
        raise unusable(parameter.name, f"must be one of {', '.join(words)}")
    return value


def number_of(request: Request, parameter: QueryParameter, *, least: int = 1) -> int | None:
    """Returns a parameter that is a number of things."""
    text = request.query_value(parameter.name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise unusable(parameter.name, f"must be a whole number from {least} to {MAX_NUMBER}")
    return int(text)


def page_limit(request: Request, *, default: int = DEFAULT_LIMIT) -> int:
    """Returns how many items a page may have."""
    text = request.query_value("limit")
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= MAX_LIMIT:
        raise unusable("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def stored_page(app: App, request: Request, principal: Principal) -> tuple[int, int]:
    """Returns the key after which a page of stored records begins, and its limit."""
    cursor = request.query_value("cursor")
    after = 0 if cursor is None else app.cursors.open(cursor, workspace=principal.workspace)
    return after, page_limit(request, default=MAX_LIMIT)


def next_cursor(app: App, page: RowPage[Any], principal: Principal) -> str | None:
    return None if page.more_after is None else app.cursors.seal(page.more_after, workspace=principal.workspace)
