"""The ASGI application: finds the route, checks the credential, and turns every failure into the one error shape."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable

from weftline.errors import NotFound, WeftlineError
from weftline.runtime.embedded import Engine
from weftline.server.auth import NOBODY, Authenticator
from weftline.server.http import Answer, Receive, Request, Scope, Send, send_answer
from weftline.server.router import Route, Router, WrongMethod
from weftline.wire.responses import error_body

logger = logging.getLogger(__name__)


class App:
    """`engine` must have been started. The routes are a table; see `weftline.server.routes`."""

    def __init__(self, engine: Engine, routes: Iterable[Route]) -> None:
        self.engine = engine
        self.router = Router(routes)
        self.auth = Authenticator(engine.read)
        self._boot = secrets.token_hex(4)
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self._requests += 1
        request = Request(scope, receive, send, f"req_{self._boot}{self._requests:x}")
        try:
            answer = await self._answer(request)
        except WeftlineError as error:
            answer = refusal(request, error)
        except ConnectionResetError:
            return
        except Exception:
            logger.exception("%s %s failed (%s)", request.method, request.path, request.id)
            answer = refusal(request, WeftlineError("The server failed to answer this request."))
        if answer is not None:
            await send_answer(request, answer)

    async def _answer(self, request: Request) -> Answer | None:
        found = self.router.match(request.method, request.path)
        if found is None:
            raise NotFound("There is no such route.")
        if isinstance(found, WrongMethod):
            error = WeftlineError(f"{request.method} is not possible here.", code="method_not_allowed")
            answer = refusal(request, error)
            allow = ", ".join(found.allowed).encode()
            return Answer(answer.body, status=answer.status, headers=((b"allow", allow),))
        route, request.params = found.route, found.params
        principal = NOBODY if route.access == "public" else self.auth.check(request, route)
        return await route.handler(self, request, principal)


def refusal(request: Request, error: WeftlineError) -> Answer:
    """The answer to a request that failed."""
    headers: list[tuple[bytes, bytes]] = []
    invalid_token = error.details.pop("invalid_token", False)
    if error.status == 401:
        challenge = b'Bearer error="invalid_token"' if invalid_token else b"Bearer"
        headers.append((b"www-authenticate", challenge))
    retry_after = error.details.get("retry_after_s")
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(retry_after))).encode()))
    return Answer(error_body(error, request.id), status=error.status, headers=tuple(headers))
