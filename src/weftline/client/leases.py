"""A client's exclusive lease on a call: claimed, kept by heartbeats, and given up when another client takes it over."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from weftline.client.errors import ApiError, ClientError, Conflict, NotFound
from weftline.client.http import Http

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
