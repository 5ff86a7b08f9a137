"""The models that a provider's own API lists, page by page.

    async for model in every_model(provider, search="claude"):
        print(model.vendor_id, model.context_window_tokens)

Hints about a model come from the listing itself; None means that it does not say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from weftline.net.address import with_query
from weftline.net.errors import TimeLimits
from weftline.net.transport import Transport
from weftline.providers.base import ModelInfo, ProviderError
from weftline.providers.calls import Call, read_json
from weftline.providers.http_errors import classify

LISTING_LIMITS = TimeLimits(total_s=30.0)
_UNREADABLE = "The model API's list of models could not be read."


class ModelPage(Struct, frozen=True):
    """A page of models. `cursor` requests the next page; None after the last."""

    models: tuple[ModelInfo, ...]
    cursor: str | None = None


class Lists(Protocol):
    """A provider whose models can be listed, if its API supports that."""

    async def list_models(self, *, search: str = "", cursor: str | None = None) -> ModelPage:
        """Returns one page, the first without a `cursor`. `search` keeps models whose id or label contains it."""
        ...


async def every_model(provider: Lists, *, search: str = "") -> AsyncIterator[ModelInfo]:
    """Yields all models, page by page."""
    cursor: str | None = None
    while True:
        page = await provider.list_models(search=search, cursor=cursor)
        for model in page.models:
            yield model
        if page.cursor is None or page.cursor == cursor:
            return
        cursor = page.cursor


async def fetch(
    transport: Transport, url: str, query: Mapping[str, str], *, headers: Mapping[str, str], secrets: Sequence[str]
) -> dict[str, Any]:
    """Returns the JSON object at `url`. Raises `ProviderError`."""
    address = with_query(url, query)
    async with Call(transport.get(address, headers=headers, limits=LISTING_LIMITS), address) as response:
        body = await read_json(response)
        if not 200 <= response.status < 300:
            raise classify(response.status, body, response.headers, secrets=secrets, url=address)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise ProviderError("server", _UNREADABLE) from None


def rows(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if not isinstance(found, list):
        raise ProviderError("server", _UNREADABLE)
    return [cast("dict[str, Any]", row) for row in cast("list[Any]", found) if isinstance(row, dict)]


def page_of(models: Sequence[ModelInfo], *, search: str, cursor: str | None) -> ModelPage:
    wanted = search.casefold()
    kept = (one for one in models if wanted in one.vendor_id.casefold() or wanted in one.label.casefold())
    return ModelPage(tuple(one for one in kept if one.vendor_id), cursor)


def text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def count(row: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def words(row: Mapping[str, Any], name: str) -> frozenset[str] | None:
    """Returns a list of words; None if the row has no such list."""
    value = row.get(name)
    if not isinstance(value, list):
        return None
    return frozenset(word for word in cast("list[Any]", value) if isinstance(word, str))


def has(known: frozenset[str] | None, word: str) -> bool | None:
    return None if known is None else word in known


def nested(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
