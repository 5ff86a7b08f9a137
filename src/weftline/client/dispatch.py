"""Answers the client-side calls of one run: each is executed once and its result is delivered once."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from weftline.client.arguments import ToolContext
from weftline.client.errors import ApiError, ClientError, Conflict, NotFound, ToolDeliveryError, ToolError
from weftline.client.events import OfferedCall
from weftline.client.http import Http, Retry
from weftline.client.tools import Toolset
from weftline.events.parts import WireHint
from weftline.text.characters import whole
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_RESULT_BYTES
from weftline.work.outcomes import as_errors
from weftline.work.threads import Threads

logger = logging.getLogger("weftline.client")

_BEATS = 3
"""How many heartbeats there are in one lease, so that two may get lost."""


class _Lease(Struct, rename="camel"):
    token: str
    lease_ms: int = 30_000


class NotOurs(Exception):
    """Another client has the call, or its result is no longer needed."""


@asynccontextmanager
async def leased(http: Http, *, run_id: str, call: str, lease_s: float) -> AsyncGenerator[str]:
    """Claims a call, and yields the lease's token.

    Once another client has taken the call over, the task inside is cancelled and `NotOurs` is raised; it is also raised
    if another client already has the call. The token is empty for a server that does not support leases.
    """
    path = f"/agent-runs/{run_id}/tool-leases"
    asked = {"toolUseId": call, "leaseMs": round(lease_s * 1000), "claimId": secrets.token_urlsafe(18)}
    try:
        lease = msgspec.json.decode(await http.call("POST", path, body=msgspec.json.encode(asked)), type=_Lease)
    except Conflict as error:
        raise NotOurs(error.code) from error
    except NotFound as error:
        if error.code == "unknown_tool_use":
            raise NotOurs(error.code) from error
        logger.warning("this server does not support leases: every client that is offered %s executes it", call)
        yield ""
        return
    task = asyncio.current_task()
    assert task is not None
    lost = False

    async def keep() -> None:
        nonlocal lost
        body = msgspec.json.encode({"toolUseId": call, "token": lease.token})
        while True:
            await asyncio.sleep(lease.lease_ms / 1000 / _BEATS)
            try:
                await http.call("POST", f"{path}/heartbeat", body=body)
            except (Conflict, NotFound):
                lost = True
                task.cancel()
                return
            except ClientError as error:  # the lease may outlast the problem
                logger.warning("run %s: a heartbeat for %s failed: %s", run_id, call, error)

    beating = asyncio.get_running_loop().create_task(keep())
    try:
        yield lease.token
    except asyncio.CancelledError:
        if lost and task.uncancel() == 0:
            raise NotOurs("lease_lost") from None
        with_release = asyncio.get_running_loop().create_task(_release(http, path, call, lease.token))
        await asyncio.wait([with_release], timeout=1.0)
        raise
    finally:
        beating.cancel()


async def _release(http: Http, path: str, call: str, token: str) -> None:
    """Releases a lease, so that the next client need not wait for it to expire."""
    body = msgspec.json.encode({"toolUseId": call, "token": token})
    try:
        await http.call("POST", f"{path}/release", body=body)
    except ApiError:
        pass  # the run has ended, or another client has the call
    except ClientError as error:
        logger.info("the call %s could not be released: %s", call, error)


_EVERY_5XX = frozenset({408, 425, 429, *range(500, 600)})
_ANSWERED = 1_000_000_000
_UNLIMITED_ATTEMPTS = 1_000_000
"""The number of attempts: only the end of the run ends the delivery."""


class Dispatcher:
    """Answers calls. `failed` is called with every answer that the server did not accept."""

    def __init__(
        self,
        *,
        http: Http,
        run_id: str,
        session_id: str | None,
        tools: Toolset,
        workers: Threads,
        failed: Callable[[ToolDeliveryError], None],
        format_error: Callable[[Exception], str] | None = None,
        lease_s: float | None = None,
    ) -> None:
        self._http = http
        self._run_id = run_id
        self._session_id = session_id
        self._tools = tools
        self._workers = workers
        self._failed = failed
        self._format_error = format_error
        self._lease_s = lease_s
        self._seen: dict[str, int] = {}
        """The latest offer of each call; a huge number for an answered one."""
        self._tasks: dict[asyncio.Task[None], str] = {}
        """The running tasks, each with its call."""
        self._contexts: set[ToolContext] = set()

    def skip(self, tool_use_id: str) -> None:
        """Marks a call as already answered."""
        self._seen[tool_use_id] = _ANSWERED

    def offer(self, call: OfferedCall) -> None:
        """Starts answering a call, unless this offer was seen before, or the call is in progress or answered."""
        if call.attempt <= self._seen.get(call.tool_use_id, 0):
            return
        self._seen[call.tool_use_id] = call.attempt
        if call.tool_use_id in self._tasks.values():
            return
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks[task] = call.tool_use_id
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Cancels all handlers, as the run needs no more answers."""
        for context in self._contexts:
            context.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def _answer(self, call: OfferedCall) -> None:
        if self._lease_s is None:
            await self._carry_out(call)
            return
        try:
            async with leased(self._http, run_id=self._run_id, call=call.tool_use_id, lease_s=self._lease_s) as token:
                await self._carry_out(call, token=token)
        except NotOurs as error:
            logger.info("run %s: %s is not this client's (%s)", self._run_id, call.tool_use_id, error)
        except Exception as error:
            self._undelivered(call, error)

    async def _carry_out(self, call: OfferedCall, *, token: str = "") -> None:
        try:
            with as_errors():
                answer: dict[str, Any] = {"result": await self._result(call)}
        except Exception as error:
            answer = {"error": clipped(self._error_text(error), MAX_ERROR_BYTES), **_failure(error)}
        await self._deliver(call, answer, token=token)

    async def _result(self, call: OfferedCall) -> str:
        handler = self._tools.handler(call)
        context = ToolContext(
            run_id=self._run_id,
            session_id=self._session_id,
            tool_use_id=call.tool_use_id,
            name=call.name,
            timeout_s=handler.timeout_s,
        )
        self._contexts.add(context)
        try:
            async with asyncio.timeout(handler.timeout_s):
                text = await handler(dict(call.args), context, self._workers)
        except TimeoutError:
            if context.seconds_left() == 0:
                raise ToolError(f"The tool {call.name} timed out after {handler.timeout_s:g} s.") from None
            raise
        finally:
            context.cancel()
            self._contexts.discard(context)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size > MAX_RESULT_BYTES:
            raise ToolError(f"The result of {call.name} has {size} bytes; the limit is {MAX_RESULT_BYTES}.")
        return text

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, ToolError):
            return str(error)
        logger.warning("a tool handler of run %s failed", self._run_id, exc_info=error)
        if self._format_error is not None:
            return self._format_error(error)
        return f"{type(error).__name__}: {error}"

    async def _deliver(self, call: OfferedCall, answer: dict[str, Any], *, token: str = "") -> None:
        claimed = {"leaseToken": token} if token else {}
        body = _encoded({"toolUseId": call.tool_use_id, **answer, **claimed})
        policy = self._http.retry
        try:
            await self._http.call(
                "POST",
                f"/agent-runs/{self._run_id}/tool-results",
                body=body,
                idempotency_key=secrets.token_urlsafe(18),
                retry=Retry(_UNLIMITED_ATTEMPTS, policy.first_s, policy.most_s, float("inf")),
                retried=_EVERY_5XX,
            )
        except (NotFound, Conflict):
            # Another client answered, or the run has ended; this answer is no longer needed.
            logger.info("run %s is no longer waiting for %s", self._run_id, call.tool_use_id)
        except Exception as error:
            self._undelivered(call, error)

    def _undelivered(self, call: OfferedCall, error: Exception) -> None:
        text = f"run {self._run_id} did not accept the answer to {call.name} ({call.tool_use_id}): {error}"
        logger.error("%s", text)
        self._failed(ToolDeliveryError(text, run_id=self._run_id, tool_use_id=call.tool_use_id, cause=error))


def _failure(error: Exception) -> dict[str, Any]:
    """Returns what a tool reports about its failure besides the text."""
    if not isinstance(error, ToolError) or error.kind is error.recovery is error.hint:
        return {}
    hint = None if error.hint is None else WireHint(**asdict(error.hint))
    return {"failure": {"kind": error.kind, "recovery": error.recovery, "hint": hint}}


def clipped(text: str, max_bytes: int) -> str:
    """Returns `text` in at most `max_bytes` of UTF-8, cut between characters."""
    data = whole(text).encode()
    return data[:max_bytes].decode("utf-8", "ignore") if len(data) > max_bytes else data.decode()


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        texts = {name: whole(value) for name, value in body.items() if isinstance(value, str)}
        return msgspec.json.encode(texts)
