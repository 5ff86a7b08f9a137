"""Who asks: credentials, in the order and with the words that the protocol fixes.

A request that fails several checks is answered by the first of: no credential, an invalid one, the wrong workspace,
a key of the wrong usage, a missing scope, the rate limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.json import decode

from weftline.errors import Forbidden, NotFound, Unauthorized
from weftline.server.http import Request
from weftline.store.sqlite.accounts import hash_secret
from weftline.store.sqlite.reads import Reader

if TYPE_CHECKING:
    from weftline.server.router import Route

_CACHED = 4096


class Principal(Struct, frozen=True):
    """An authenticated caller, bound to one workspace. `agents` is its allow-list; empty means all."""

    id: str
    workspace: int
    slug: str
    usage: str = "developer_api"
    agents: tuple[str, ...] = ()
    scopes: frozenset[str] | None = None
    """None for API keys, which have no scopes."""


NOBODY = Principal("", 0, "")


class Authenticator:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: OrderedDict[bytes, Principal] = OrderedDict()

    def forget(self) -> None:
        """Drops what is remembered, after a credential was created, changed or revoked."""
        self._known.clear()

    def check(self, request: Request, route: Route) -> Principal:
        secret = _credential(request)
        if secret is None:
            raise Unauthorized(
                "API key or OAuth access token required: send Authorization: Bearer or X-API-Key.", error="Unauthorized"
            )
        principal = self._principal(secret)
        slug = request.params.get("slug")
        if slug is not None and slug != principal.slug:
            raise NotFound(
                "Workspace path does not match this credential",
                hint=f"This credential belongs to the workspace {principal.slug!r}.",
                correctSlug=principal.slug,
            )
        if principal.scopes is None and principal.usage not in route.usages:
            raise Forbidden(
                "This API key is not for the Developer API", hint=f"Its usage is {principal.usage}; create another key."
            )
        return principal

    def _principal(self, secret: str) -> Principal:
        hashed = hash_secret(secret)
        known = self._known.get(hashed)
        if known is not None:
            return known
        row = self._reader.api_key(hashed)
        if row is None or row.revoked_at is not None:
            raise Unauthorized("Invalid API key or OAuth access token", invalid_token=True)
        agents = tuple(decode(row.agents, type=list[str]))
        principal = Principal(row.id, row.workspace, row.slug, row.usage, agents)
        self._known[hashed] = principal
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return principal


def _credential(request: Request) -> str | None:
    bearer = request.header(b"authorization")
    if bearer is not None:
        scheme, _, value = bearer.partition(" ")
        if scheme.lower() == "bearer" and value.strip():
            return value.strip()
    key = request.header(b"x-api-key")
    return key.strip() if key and key.strip() else None
