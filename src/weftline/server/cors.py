"""CORS: the headers that a browser needs before a script on another origin may use this server.

Off unless `server.cors_origins` names origins. The pages for signing in and giving consent are never open to scripts of
other origins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any, cast, get_args

from msgspec import Struct

from weftline.errors import Forbidden, WeftlineError
from weftline.net.address import InvalidAddress, parse
from weftline.server.http import Headers, Request, Response, Send
from weftline.server.router import HtmlPage, Match, Redirect, Route, Router, WrongMethod

SETTINGS = ("cors_origins", "cors_credentials")
ANY = "*"

REQUEST_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer", "X-API-Key")
"""Always allowed. Others are allowed on request, as the list of origins decides who is trusted."""
EXPOSED_HEADERS = (
    "Location",
    "X-Run-Id",
    "X-Warnings",
    "X-Request-Id",
    "Retry-After",
    "WWW-Authenticate",
    "Mcp-Session-Id",
)
_EXPOSED = ", ".join(EXPOSED_HEADERS).encode()
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_MAX_AGE_S = b"600"
_MAX_REQUESTED_HEADERS = 50
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_OTHER_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._-]+(?::[0-9]{1,5})?")
"""The origin of a browser extension, or of an app with its own browser."""


class Cors(Struct, frozen=True):
    origins: frozenset[str]
    """In the form that browsers send; `*` allows every origin."""
    credentials: bool = False
    """Whether requests may carry cookies. API keys and tokens are headers and need no permission."""

    def allows(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins

    def opened(self, request: Request, router: Router, *, origin: str | None) -> Send:
        """Wraps `request.send` to add CORS headers to every response, including errors."""
        send = request.send
        if origin is not None and self.allows(origin) and is_page(router, request):
            origin = None
        headers = self.headers(origin)
        if not headers:
            return send

        async def opened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        return opened

    def headers(self, origin: str | None) -> Headers:
        """Returns the headers for pages of this origin; if it is unknown (None), those that every origin gets."""
        same_for_all = ANY in self.origins
        vary = () if same_for_all else ((b"vary", b"Origin"),)
        if origin is None or not self.allows(origin):
            return vary
        return (*vary, *self._grant(origin), (b"access-control-expose-headers", _EXPOSED))

    def early_headers(self, origin: str | None) -> Headers:
        """Returns the headers of a response that is sent before the request, and perhaps its origin, was read."""
        return self.headers(origin or "") if ANY in self.origins else self.headers(origin)

    def preflight(self, request: Request, router: Router, *, origin: str | None) -> Response | None:
        """Returns the response to a preflight; None if the request is not one."""
        if request.method != "OPTIONS" or origin is None or request.header(b"access-control-request-method") is None:
            return None
        if is_page(router, request):
            return None
        if not self.allows(origin):
            raise Forbidden(
                f"Pages on {origin[:200]!r} may not use this server.", hint="Name the origin in server.cors_origins."
            )
        found = router.match("OPTIONS", request.path)
        # For an unknown path, the request itself gets the error; refusing the preflight would hide it from the page.
        methods = ", ".join(found.allowed) if isinstance(found, WrongMethod) else _METHODS
        return Response(
            b"",
            status=204,
            headers=(
                (b"access-control-allow-methods", methods.encode()),
                (b"access-control-allow-headers", ", ".join(_allowed_headers(request)).encode()),
                (b"access-control-max-age", _MAX_AGE_S),
                (b"vary", b"Access-Control-Request-Headers"),
            ),
        )

    def _grant(self, origin: str) -> list[tuple[bytes, bytes]]:
        if ANY in self.origins:
            return [(b"access-control-allow-origin", b"*")]
        granted = [(b"access-control-allow-origin", origin.encode("latin-1"))]
        return [*granted, (b"access-control-allow-credentials", b"true")] if self.credentials else granted


def is_page(router: Router, request: Request) -> bool:
    """Returns True if the path is a page for people, the target of a form on one, or a route for signed-in users."""
    found = router.match("OPTIONS", request.path)
    if not isinstance(found, WrongMethod):
        return False
    matches = [router.match(method, request.path) for method in found.allowed]
    return any(isinstance(one, Match) and _is_page_route(one.route) for one in matches)


def _is_page_route(route: Route) -> bool:
    return route.by_cookie or any(kind in (HtmlPage, Redirect) for kind in (route.returns, *get_args(route.returns)))


def _allowed_headers(request: Request) -> list[str]:
    asked = [name.strip() for name in (request.header(b"access-control-request-headers") or "").split(",")]
    known = {name.lower() for name in REQUEST_HEADERS}
    more = [name for name in asked[:_MAX_REQUESTED_HEADERS] if _TOKEN.fullmatch(name) and name.lower() not in known]
    return [*REQUEST_HEADERS, *dict.fromkeys(more)]


def cors_from(server: Mapping[str, Any], *, origin: str = "") -> Cors | None:
    """Reads the CORS settings in the `[server]` table of a configuration; None if no origin is allowed.

        [server]
        cors_origins = ["https://app.example.com", "http://localhost:5173"]   # or ["*"]
        cors_credentials = false

    Raises a `WeftlineError` (`bad_config`) that names the offending setting.
    """
    listed = server.get("cors_origins", [])
    credentials = server.get("cors_credentials", False)
    if not isinstance(listed, list):
        raise _bad(origin, "cors_origins", 'must be a list of origins, such as ["https://app.example.com"]')
    if not isinstance(credentials, bool):
        raise _bad(origin, "cors_credentials", "must be true or false")
    origins = frozenset(_origin(one, origin) for one in cast("list[object]", listed))
    if credentials and ANY in origins:
        raise _bad(origin, "cors_credentials", 'cannot be true while cors_origins has "*"; name the origins')
    if credentials and not origins:
        raise _bad(origin, "cors_credentials", "has no effect without cors_origins")
    return Cors(origins, credentials) if origins else None


def _origin(value: object, origin: str) -> str:
    if value == ANY:
        return ANY
    if not isinstance(value, str):
        raise _bad(origin, "cors_origins", f"{value!r} is not an origin")
    if value == "null":
        raise _bad(origin, "cors_origins", "'null' is what any sandboxed page sends; name an origin")
    if "*" in value:
        raise _bad(origin, "cors_origins", f'{value!r}: patterns are not supported; name each origin, or use "*" alone')
    scheme = value.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        if _OTHER_SCHEME.fullmatch(value.lower()):
            return value.lower()
        raise _bad(origin, "cors_origins", f"{value!r} is not an origin; write it as https://app.example.com")
    try:
        address = parse(value)
    except InvalidAddress:
        raise _bad(origin, "cors_origins", f"{value!r} is not an origin; write it as https://app.example.com") from None
    bare = address.bare_url.removesuffix(address.rest)
    if address.rest or address.credentials:
        raise _bad(origin, "cors_origins", f"an origin has no path; write {bare} instead")
    return bare


def _bad(origin: str, name: str, problem: str) -> WeftlineError:
    key = f"server.{name}"
    return WeftlineError(f"{origin}: {key}: {problem}", code="bad_config", file=origin, key=key)
