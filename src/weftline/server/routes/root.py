"""The root page, for anyone who finds the server's address: a person with a browser, or a program."""

from __future__ import annotations

from functools import cache
from html import escape

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import asdict, replace

from weftline._version import __version__
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import HtmlPage, Route
from weftline.server.routes import a2a, mcp, models, runs, sessions

_ABOUT = "Weftline is a self-hosted, durable runtime for LLM agents."


class About(Struct, rename="camel"):
    """A description of this server. Paths begin with the one that it is mounted at; `{slug}` is a workspace."""

    name: str = "weftline"
    version: str = __version__
    about: str = _ABOUT
    openapi: str = "/openapi.json"
    health: str = "/healthz"
    ready: str = "/readyz"
    models: str = models.PATH
    runs: str = runs.PATH
    sessions: str = sessions.PATH
    mcp: str = mcp.PATH
    a2a: str = a2a.DISCOVERY
    first_step: str = "weftline keys create --workspace SLUG"


async def root(app: App, request: Request, principal: Principal) -> Response:
    prefix = app.names.prefix(request)
    if _wants_page(request.header(b"accept") or ""):
        return Response(_page(prefix), headers=_PAGE_HEADERS)
    return Response(_json(prefix), headers=(_VARY,))


def _wants_page(accept: str) -> bool:
    """Returns True if `Accept` prefers HTML to JSON, as browsers do, unlike programs that accept anything."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept[:1000].split(",")]
    return "text/html" in kinds and "application/json" not in kinds[: kinds.index("text/html")]


_VARY = (b"vary", b"accept")
_PAGE_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    _VARY,
)


@cache
def _json(prefix: str) -> bytes:
    paths = {name: f"{prefix}{value}" for name, value in asdict(About()).items() if value.startswith("/")}
    return encode(replace(About(), **paths))


@cache
def _page(prefix: str) -> bytes:
    below = escape(prefix)
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Weftline</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>
</head>
<body>
<h1>Weftline {escape(__version__)}</h1>
<p>{_ABOUT} This address is its HTTP API.</p>
<p>To use it you need the API key of a workspace. On the machine that it runs on:</p>
<pre>weftline keys create --workspace SLUG</pre>
<p>Send it as <code>Authorization: Bearer …</code> to create a run:</p>
<pre>POST {below}{runs.PATH.format(slug="SLUG")}
{{"prompt": "Hello!"}}</pre>
<ul>
<li><a href="{below}/openapi.json">Every route, for programs (OpenAPI)</a></li>
<li><a href="{below}/readyz">Whether it accepts work</a></li>
</ul>
</body>
</html>
""".encode()


ROUTES = (
    Route(
        "GET",
        "/",
        root,
        access="public",
        limited=False,
        summary="What this server is, and where to go",
        returns=About | HtmlPage,
    ),
)
