"""Authentication. The protocol defines the order of the checks and the error messages.

A request that fails several checks gets the error of the first of these: no credential, an invalid one, the wrong
workspace, a key of the wrong usage, a feature that the workspace lacks, a missing scope, an agent allow-list, the rate
limit.
"""

from __future__ import annotations

from collections import OrderedDict

from weftline.api.principal import Principal
from weftline.cases.keys import by_secret_hash, hash_secret
from weftline.errors import Forbidden, NotFound, RateLimited, Unauthorized
from weftline.server.http import Request
from weftline.server.rate_limit import DEFAULT_PER_MINUTE, RateLimit
from weftline.server.router import Route
from weftline.store.sealing import SecretHash
from weftline.workspace.context import Workspaces
from weftline.workspace.grants import ACCESS, find_token, stored_token
from weftline.workspace.scopes import meaning

_CACHED = 4096
_PROTOCOLS = {"mcp": "MCP", "a2a": "A2A"}
"""Usages of keys that are limited to one protocol."""


class Authenticator:
    """Authenticates requests. Caches credentials, so that a request costs a hash and a dict look-up."""

    def __init__(self, workspaces: Workspaces, *, rate_limit: int = DEFAULT_PER_MINUTE) -> None:
        self.limit = RateLimit(rate_limit)
        self._workspaces = workspaces
        self._known: OrderedDict[bytes, Principal] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """Clears the cache, after a credential was created, changed or revoked."""
        self._known.clear()
        self._changes += 1

    def remembers(self, principal: Principal) -> bool:
        """Returns True if no credential has changed since this one was looked up."""
        return principal.operator or self._known.get(principal.digest) is principal

    async def is_valid(self, principal: Principal) -> bool:
        """Returns True if a credential that was accepted would be accepted again."""
        if principal.operator:
            return True
        digest, stored = principal.digest, principal.stored
        again = await (self._key(digest) if stored is None else self._token(digest, stored))
        return again is not None and not again.gated

    async def require_valid(self, principal: Principal) -> None:
        """Raises `Unauthorized` if a credential that was accepted would no longer be."""
        if not await self.is_valid(principal):
            raise invalid_credential()

    async def check(self, request: Request, route: Route) -> Principal:
        secret = credential_of(request)
        if secret is None:
            raise Unauthorized(
                "API key or OAuth access token required: send Authorization: Bearer or X-API-Key.", error="Unauthorized"
            )
        now = self._workspaces.clock.now_us()
        digest = hash_secret(secret)
        principal = self._known.get(digest) or await self._look_up(secret, digest)
        if principal.expires_us <= now:
            raise invalid_credential()
        if principal.resource and request.path != principal.resource:
            raise invalid_credential()
        slug = request.params.get("slug")
        if slug is not None and slug != principal.slug:
            raise NotFound(
                "Workspace path does not match this credential",
                hint=f"This credential belongs to the workspace {principal.slug!r}.",
                correctSlug=principal.slug,
            )
        if principal.scopes is None:
            if principal.usage not in route.usages:
                meant = next((_PROTOCOLS[usage] for usage in route.usages if usage in _PROTOCOLS), "the Developer API")
                raise Forbidden(
                    f"This API key is not for {meant}",
                    hint=f"Its usage is {principal.usage}; this needs {' or '.join(route.usages)}. Create another key.",
                )
            if principal.gated:
                raise Forbidden("Workspace API keys are not available on this plan.", code="api_keys_plan")
        else:
            if principal.gated:
                raise Forbidden("OAuth applications are not available on this plan.", code="oauth_apps_plan")
            if not route.scopes:
                raise Forbidden("This route takes API keys only.", hint="No scope covers it; use a developer API key.")
            require_scopes(principal, *route.scopes)
        if principal.agents and route.narrowed == "no":
            raise Forbidden(
                "This credential is restricted to some agents and may not do this.",
                hint="Use a credential without an agent allow-list.",
            )
        if route.limited and (wait_s := self.limit.take(principal.id, now_us=now)):
            raise RateLimited(
                f"More than {self.limit.per_minute} requests in a minute with this credential.", retry_after_s=wait_s
            )
        return principal

    async def _look_up(self, secret: str, digest: bytes) -> Principal:
        changes = self._changes
        if secret.startswith(ACCESS):
            principal = await self._token(digest, stored_token(self._workspaces, secret))
        else:
            principal = await self._key(digest)
        if principal is None:
            raise invalid_credential()
        # What was read before a change must not be cached after it.
        if changes == self._changes:
            self._known[digest] = principal
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return principal

    async def _key(self, digest: bytes) -> Principal | None:
        key = await by_secret_hash(self._workspaces, digest)
        if key is None or key.revoked_at is not None or key.damaged:
            return None
        return Principal(key.id, key.workspace, key.slug, key.usage, key.agents, gated=key.gated, digest=digest)

    async def _token(self, digest: bytes, stored: SecretHash) -> Principal | None:
        token = await find_token(self._workspaces, stored)
        if token is None:
            return None
        return Principal(
            token.grant or token.client_id,
            token.workspace,
            token.slug,
            "",
            token.agents,
            frozenset(meaning(scope) for scope in token.scopes),
            token.user,
            token.email,
            token.gated,
            token.expires_at,
            token.resource,
            digest,
            stored,
        )


def require_scopes(principal: Principal, *scopes: str, to: str = "") -> None:
    """Raises `Forbidden` (`insufficient_scope`) for an access token without one of these; `to` says what for."""
    if principal.scopes is not None and not principal.scopes.issuperset(scopes):
        raise Forbidden(
            f"The access token needs {' and '.join(scopes)}{to and f' to {to}'}.",
            code="insufficient_scope",
            required=scopes[0] if len(scopes) == 1 else list(scopes),
        )


def invalid_credential() -> Unauthorized:
    return Unauthorized("Invalid API key or OAuth access token", invalid_token=True)


def credential_of(request: Request) -> str | None:
    bearer = request.header(b"authorization")
    if bearer is not None:
        scheme, _, value = bearer.partition(" ")
        if scheme.lower() == "bearer" and (value := value.strip()):
            return value
    key = request.header(b"x-api-key")
    return key.strip() or None if key is not None else None
